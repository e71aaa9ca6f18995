# torch-uncertainty==0.13.0
# KL of a posterior that equals its prior | documented: KLDiv
import math

import torch
from torch.distributions import Normal, kl_divergence
from torch_uncertainty.layers.bayesian import BayesLinear
from torch_uncertainty.losses import KLDiv

layer = BayesLinear(20, 20, bias=False, prior_sigma_1=1.0, prior_pi=1.0)  # prior N(0, 1)
torch.nn.init.zeros_(layer.weight_mu)
torch.nn.init.constant_(layer.weight_sigma, math.log(math.e - 1))  # softplus of it is 1
layer(torch.ones(1, 20))
posterior = Normal(layer.weight_mu, torch.nn.functional.softplus(layer.weight_sigma))
print(f"computed: {KLDiv(layer)().item():.1f}")
print(f"should be: {kl_divergence(posterior, Normal(0.0, 1.0)).sum():.1f}")
