"""The exact KL divergence from the log-uniform prior and the published approximations: cost and error.

``python -m pyrodrop.analysis.benchmarks.kl``: a million float32 elements, one thread, eager and compiled, as ratios to
Molchanov's formula; then each form's largest error, measured against 40-digit arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from pyrodrop.analysis.benchmarks.timing import interleaved, machine
from pyrodrop.analysis.divergences.log_uniform_fit import kl as reference
from pyrodrop.divergences import FORMS

ELEMENTS, ROUNDS = 1_000_000, 60


def step(form: Callable[[Tensor], Tensor], t: Tensor) -> Tensor:
    """Forward and backward; the gradient."""
    t.grad = None
    form(t).sum().backward()
    assert t.grad is not None
    return t.grad


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    print(machine())
    t = (5 * torch.randn(ELEMENTS)).requires_grad_()
    for kind in ("eager", "compiled"):
        forms = {name: torch.compile(f, fullgraph=True) if kind == "compiled" else f for name, f in FORMS.items()}
        for name, form in forms.items():
            if not bool(step(form, t).abs().sum() > 0):
                raise SystemExit(f"{name} has no gradient: not a variant to time")
        medians = interleaved({name: functools.partial(step, form, t) for name, form in forms.items()}, ROUNDS)
        ratios = "  ".join(f"{name} {seconds / medians['molchanov']:.2f}" for name, seconds in medians.items())
        print(f"{kind:9} forward + backward, {ELEMENTS:,} float32, ratio to molchanov: {ratios}")
    grid = torch.linspace(-20, 20, 401).double()
    exact = torch.tensor([float(reference(x)) for x in grid.tolist()], dtype=torch.float64)
    for name, form in FORMS.items():
        part = grid <= 0 if name == "kingma" else grid < 21
        for dtype in (torch.float64, torch.float32):
            error = float((form(grid.to(dtype)).double() - exact)[part].abs().max())
            print(f"{name:10} largest error in {str(dtype).removeprefix('torch.')}: {error:.1e}")


if __name__ == "__main__":
    main()
