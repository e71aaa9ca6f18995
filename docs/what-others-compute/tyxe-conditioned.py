# tyxe==0.0.2
# Output of a network whose weights are conditioned to 10, at x = (1, 1, 1), under local_reparameterization | neither
import pyro.distributions as dist
import torch
import tyxe
from pyro.poutine import condition
from torch import nn

torch.manual_seed(0)
bnn = tyxe.bnn._BNN(nn.Linear(3, 1), tyxe.priors.IIDPrior(dist.Normal(0.0, 1.0)))
weights = {"net.weight": torch.full((1, 3), 10.0), "net.bias": torch.zeros(1)}
x = torch.ones(2000, 3)
print(f"without local_reparameterization: {condition(bnn, weights)(x).mean().item():.1f}")
with tyxe.poutine.local_reparameterization():
    y = condition(bnn, weights)(x)
print(f"computed: {y.mean().item():.1f}, standard deviation {y.std().item():.1f}")
print(f"should be: {nn.functional.linear(x, *weights.values()).mean():.1f}, standard deviation 0.0")
