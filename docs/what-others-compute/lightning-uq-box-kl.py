# lightning-uq-box==0.2.0
# KL term of the loss, minus ELBO, with the default beta | default
import torch
from lightning_uq_box.uq_methods import BNN_VI_ELBO_Regression
from torch import nn
from torch.distributions import Normal, kl_divergence

method = BNN_VI_ELBO_Regression(nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 1)), nn.MSELoss(), burnin_epochs=0)
exact = 0.0
for layer in method.model:
    for mean, rho in ((layer.mu_weight, layer.rho_weight), (layer.mu_bias, layer.rho_bias)):
        nn.init.constant_(mean, 0.1)
        nn.init.constant_(rho, -3.0)
        exact += kl_divergence(Normal(mean, nn.functional.softplus(rho)), Normal(0.0, 1.0)).sum().item()
method.num_training_points = 0  # leaves the KL term only
print(f"computed: {method.compute_elbo_loss(torch.ones(2, 30), torch.ones(2, 1))[0].item():.1f}")
print(f"should be: {exact:.1f}")
