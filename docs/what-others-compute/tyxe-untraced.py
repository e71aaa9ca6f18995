# tyxe==0.0.2
# Correlation of two equal rows' outputs under local_reparameterization, outside of a trace | neither
import pyro
import pyro.distributions as dist
import torch
import tyxe
from torch.nn import functional as F


def outputs():  # noqa: D103
    return F.linear(torch.ones(2, 3), pyro.sample("w", dist.Normal(torch.zeros(1, 3), 1.0).to_event(2)), None)[:, 0]


torch.manual_seed(0)
with tyxe.poutine.local_reparameterization():
    plain = torch.stack([outputs() for _ in range(2000)])
    traced = torch.stack([pyro.poutine.trace(outputs).get_trace().nodes["_RETURN"]["value"] for _ in range(2000)])
print(f"inside of a trace: {torch.corrcoef(traced.T)[0, 1]:.2f}")
print(f"computed: {torch.corrcoef(plain.T)[0, 1]:.2f}")
print("should be: 0.00")
