# blitz-bayesian-pytorch==0.2.8
# KL of a layer, the prior's default standard deviation of 0.1 | default prior, weights of 1
import torch
from blitz.losses import kl_divergence_from_nn
from blitz.modules import BayesianLinear
from torch.distributions import Normal, kl_divergence

torch.manual_seed(0)
layer, results = BayesianLinear(20, 20, bias=False), []
for start in ((), (1.0, -3.0)):  # as it is made, then all weights at 1
    for parameter, value in zip((layer.weight_mu, layer.weight_rho), start, strict=False):
        torch.nn.init.constant_(parameter, value)
    values = torch.tensor([(layer(torch.ones(1, 20)), kl_divergence_from_nn(layer).item())[1] for _ in range(400)])
    posterior = Normal(layer.weight_mu, torch.nn.functional.softplus(layer.weight_rho))
    exact = kl_divergence(posterior, Normal(0.0, 0.1)).sum().item()
    results.append((f"{values.mean():.0f} ± {values.std() / 20:.0f}", f"{exact:.0f}"))
print(f"at its initial values: {results[0][0]}, and should be {results[0][1]}")
print(f"computed: {results[1][0]}")
print(f"should be: {results[1][1]}")
