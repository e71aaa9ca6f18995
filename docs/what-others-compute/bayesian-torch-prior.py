# bayesian-torch==0.5.0
# KL per weight with prior_variance=4 | neither: the default is 1
import torch
from bayesian_torch.layers import LinearReparameterization
from torch.distributions import Normal, kl_divergence

layer = LinearReparameterization(30, 20, prior_mean=0, prior_variance=4.0, bias=False)
torch.nn.init.constant_(layer.mu_weight, 0.1)
torch.nn.init.constant_(layer.rho_weight, -3.0)
posterior = Normal(layer.mu_weight, torch.nn.functional.softplus(layer.rho_weight))
print(f"with a prior of standard deviation 4: {kl_divergence(posterior, Normal(0.0, 4.0)).mean():.4f}")
print(f"computed: {layer.kl_loss().item():.4f}")
print(f"should be: {kl_divergence(posterior, Normal(0.0, 4.0**0.5)).mean():.4f}")
