# torchbnn==1.2
# KL of a layer | default
import torch
from torch.distributions import Normal, kl_divergence
from torchbnn import BayesLinear, BKLLoss

layer = BayesLinear(prior_mu=0.0, prior_sigma=1.0, in_features=30, out_features=20)
for mean, log_scale in ((layer.weight_mu, layer.weight_log_sigma), (layer.bias_mu, layer.bias_log_sigma)):
    torch.nn.init.constant_(mean, 0.1)
    torch.nn.init.constant_(log_scale, -3.0)
weight = kl_divergence(Normal(layer.weight_mu, layer.weight_log_sigma.exp()), Normal(0.0, 1.0)).sum()
bias = kl_divergence(Normal(layer.bias_mu, layer.bias_log_sigma.exp()), Normal(0.0, 1.0)).sum()
print(f"with reduction='sum': {BKLLoss(reduction='sum')(layer).item():.3f}")
print(f"computed: {BKLLoss()(layer).item():.3f}")
print(f"should be: {weight + bias:.3f}")
