# probly==0.3.0
# KL term of the loss, minus ELBO per example, for 1,000 examples | default
import torch
from probly.losses import ELBOLoss
from probly.representation.layers import BayesLinear
from torch.distributions import Normal, kl_divergence

torch.manual_seed(0)
layer, examples = BayesLinear(30, 2, bias=False, posterior_std=0.05, prior_mean=0.0, prior_std=1.0), 1000
torch.nn.init.constant_(layer.weight_mu, 0.1)
logits, classes = torch.zeros(examples, 2), torch.zeros(examples, dtype=torch.long)
loss = ELBOLoss()(logits, classes, layer.kl_divergence) - ELBOLoss()(logits, classes, torch.tensor(0.0))
posterior = Normal(layer.weight_mu, torch.nn.functional.softplus(layer.weight_rho))
print(f"its KL divergence: {layer.kl_divergence.item():.1f}")
print(f"computed: {loss.item():.5f}")
print(f"should be: {kl_divergence(posterior, Normal(0.0, 1.0)).sum().item() / examples:.5f}")
