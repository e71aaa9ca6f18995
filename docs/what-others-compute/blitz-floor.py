# blitz-bayesian-pytorch==0.2.8
# KL of a layer, the prior's default standard deviation of 0.1
import torch
from blitz.losses import kl_divergence_from_nn
from blitz.modules import BayesianLinear
from torch.distributions import Normal, kl_divergence

torch.manual_seed(0)
layer = BayesianLinear(20, 20, bias=False)
torch.nn.init.ones_(layer.weight_mu)
torch.nn.init.constant_(layer.weight_rho, -3.0)
values = torch.tensor([(layer(torch.ones(1, 20)), kl_divergence_from_nn(layer).item())[1] for _ in range(400)])
posterior = Normal(layer.weight_mu, torch.nn.functional.softplus(layer.weight_rho))
print(f"computed: {values.mean():.0f} ± {values.std() / 20:.0f}")
print(f"should be: {kl_divergence(posterior, Normal(0.0, 0.1)).sum():.0f}")
