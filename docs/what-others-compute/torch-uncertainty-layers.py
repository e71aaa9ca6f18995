# torch-uncertainty==0.13.0
# KL of a network of three layers | documented: KLDiv
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch_uncertainty.layers.bayesian import BayesLinear
from torch_uncertainty.losses import KLDiv

torch.manual_seed(0)
net = nn.Sequential(*(BayesLinear(20, 20, bias=False, prior_sigma_1=1.0, prior_pi=1.0) for _ in range(3)))
for layer in net:
    nn.init.ones_(layer.weight_mu)
    nn.init.constant_(layer.weight_sigma, -1.0)
values = torch.tensor([(net(torch.ones(1, 20)), KLDiv(net)().item())[1] for _ in range(400)])
exact = sum(kl_divergence(Normal(m.weight_mu, nn.functional.softplus(m.weight_sigma)), Normal(0, 1)).sum() for m in net)
print(f"mean log q - log p of one layer, by the package: {(net[0].log_variational_posterior - net[0].log_prior):.0f}")
print(f"computed: {values.mean():.1f} ± {values.std() / 20:.1f}")
print(f"should be: {exact:.1f}")
