"""Where chains start: draws from the prior, or weights of runs that were trained before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyrodrop.agreement import check_shapes
from pyrodrop.arguments import shown
from pyrodrop.devices import seeded
from pyrodrop.protocols import HasDraws
from pyrodrop.sampling.compiled_density import NOT_FINITE, TRIES, CompiledDensity
from pyrodrop.sampling.sampled import Sampled


def from_prior(compiled: CompiledDensity, generator: torch.Generator) -> Tensor:
    """Draws of `Density.draw` with a finite energy and gradient, ``[C, D]``.

    Raises:
        ValueError: too few draws have them.
    """
    seeds = torch.randint(2**31, (TRIES, compiled.chains), generator=generator, device=generator.device).tolist()
    q = torch.stack([compiled.density.flat(compiled.density.draw(seed)) for seed in seeds[0]])
    for row in seeds[1:]:
        wrong = _not_finite(compiled, q)
        if not wrong.any():
            return q
        for chain in wrong.nonzero().flatten().tolist():
            q[chain] = compiled.density.flat(compiled.density.draw(row[chain]))
    raise ValueError(NOT_FINITE)


def drawing_of(start: Any) -> list[Any]:
    """Functions that draw the latent sites of runs, ``[count, ...]`` by name.

    Args:
        start: a run or a sequence of runs, each with a guide that draws, or a `Sampled`.

    Raises:
        TypeError: `start` is something else.
    """
    runs = list(start) if isinstance(start, Sequence) and not isinstance(start, str) else [start]
    drawing = [_drawing(run) for run in runs]
    if not runs or None in drawing:
        raise TypeError(
            "start must be a Fit, the Replicates of fit_replicates, a Sampled, or a sequence of these, which chains take in "
            f"turn; got {shown(runs[drawing.index(None)] if runs else start)}"
        )
    return drawing


def from_runs(compiled: CompiledDensity, drawing: Sequence[Any], generator: torch.Generator) -> Tensor:
    """Weights of runs, which the chains take in turn, ``[C, D]``; hyperparameters that a run lacks are drawn.

    Args:
        drawing: of `drawing_of`.

    Raises:
        ValueError: names or shapes of weights differ from those of the model, or the energy at a start is not finite.
    """
    density, count = compiled.density, compiled.chains
    seeds = torch.randint(2**31, (count,), generator=generator, device=generator.device).tolist()
    weights, drawn = density.model.weight_sites(), []
    shapes = {name: value.shape for name, value in weights.items() if name in density.sites}
    with seeded(seeds[0], generator.device):
        for number, draw in enumerate(drawing[:count]):
            values = draw(-(-count // len(drawing)))
            check_shapes({n: v.shape[1:] for n, v in values.items() if n in shapes}, shapes, f"run {number}", "start")
            drawn.append({name: value for name, value in values.items() if name in density.sites})
    points, like = [], torch.zeros((), dtype=density.dtype, device=density.device)
    for chain, seed in enumerate(seeds):
        values = {n: v[chain // len(drawing)].to(like) for n, v in drawn[chain % len(drawing)].items()}
        values = {name: density.sites[name].to_support.inv(value) for name, value in values.items()}
        points.append(density.flat({**(density.draw(seed) if len(values) < len(density.sites) else {}), **values}))
    q = torch.stack(points)
    if (wrong := _not_finite(compiled, q)).any():
        raise ValueError(
            f"start: the log joint density at the weights of run {int(wrong.nonzero()[0]) % len(drawing)} is not finite, or "
            "its gradient is not"
        )
    return q


def _drawing(run: Any) -> Any:
    """A function that draws the latent sites of a run, ``[count, ...]`` by name; None if it is no run."""
    if isinstance(run, Sampled):
        return lambda count: {n: v[torch.arange(count) % len(v), -1] for n, v in run.samples.items()}
    guide = getattr(run, "guide", None)
    return guide.draw if isinstance(guide, HasDraws) else None


def _not_finite(compiled: CompiledDensity, q: Tensor) -> Tensor:
    energy, gradient = compiled.energies(q)
    return ~(energy.isfinite() & gradient.isfinite().all(1))
