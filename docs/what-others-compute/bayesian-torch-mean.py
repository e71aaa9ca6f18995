# bayesian-torch==0.5.0
# KL of a layer | documented: README
import torch
from bayesian_torch.layers import LinearReparameterization
from bayesian_torch.models.dnn_to_bnn import get_kl_loss
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import softplus

layer = LinearReparameterization(30, 20, prior_mean=0, prior_variance=1)
for mean, rho in ((layer.mu_weight, layer.rho_weight), (layer.mu_bias, layer.rho_bias)):
    torch.nn.init.constant_(mean, 0.1)
    torch.nn.init.constant_(rho, -3.0)
weight = kl_divergence(Normal(layer.mu_weight, softplus(layer.rho_weight)), Normal(0.0, 1.0)).sum()
bias = kl_divergence(Normal(layer.mu_bias, softplus(layer.rho_bias)), Normal(0.0, 1.0)).sum()
print(f"computed: {get_kl_loss(layer).item():.3f}")
print(f"should be: {weight + bias:.3f}")
