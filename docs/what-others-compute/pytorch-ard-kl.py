# pytorch-ard==0.2.4
# KL of 10 weights, and its slope in log_sigma2 (mean 1, variance exp(-10), log-uniform prior) | default, weights of 1
import torch
from scipy.integrate import quad
from scipy.special import dawsn
from torch import nn
from torch_ard import Conv2dARD

layer = Conv2dARD(10, 1, 1, ard_init=-10)  # log_sigma2 is -10, as by default
nn.init.ones_(layer.weight)
kl = layer.get_reg()
(slope,) = torch.autograd.grad(kl, layer.log_sigma2)
root = (torch.tensor(10.0, dtype=torch.float64).exp() / 2).sqrt().item()  # sqrt(1 / (2 alpha))
print(f"computed: {kl.item():.2f}, slope {slope.sum().item():.2f}")
print(f"should be: {10 * 2 * quad(dawsn, 0, root, limit=200)[0]:.2f}, slope {-10 * root * dawsn(root):.2f}")
