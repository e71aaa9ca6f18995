# pytorch-ard==0.2.4
# Variance of the outputs of a convolution whose weights have the variance exp(-10) | default, weights of 1
import math

import torch
from torch import nn
from torch_ard import Conv2dARD

torch.manual_seed(0)
layer = Conv2dARD(10, 1, 1, ard_init=-10)  # log_sigma2 is -10, as by default
nn.init.ones_(layer.weight)
x = torch.ones(100_000, 10, 1, 1)
weights = layer.weight.flatten() + math.exp(-5) * torch.randn(100_000, 10)
print(f"its log alpha: {layer.log_alpha.max().item():.1f}; log(sigma2 / mean^2) is -10.0")
print(f"computed: {layer(x).var().item():.2e}")
print(f"should be: {(x[:, :, 0, 0] * weights).sum(1).var().item():.2e}")
