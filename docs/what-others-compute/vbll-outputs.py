# vbll==0.4.9
# Expected log likelihood per row of the loss of Regression, of 3 outputs | default
import torch
from torch.distributions import Normal
from vbll import Regression

torch.manual_seed(0)
for outputs in (1, 3):
    layer = Regression(8, outputs, regularization_weight=0.0)  # without the KL divergence
    x, y = torch.randn(50, 8), torch.randn(50, outputs)
    torch.nn.init.zeros_(layer.noise_logdiag)
    draws = layer.W().sample((20_000,))
    expected = Normal(x @ draws.mT, layer.noise().scale).log_prob(y).sum(-1).mean().item()
    computed = -layer(x).train_loss_fn(y).item()
    if outputs == 1:
        print(f"of 1 output: {computed:.1f}, and should be {expected:.1f}")
print(f"computed: {computed:.1f}")
print(f"should be: {expected:.1f}")
