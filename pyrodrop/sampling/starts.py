"""Where chains start: draws from the prior, or weights of runs that were trained before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

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


def from_runs(compiled: CompiledDensity, start: Any, generator: torch.Generator) -> Tensor:
    """Weights of runs, which the chains take in turn, ``[C, D]``; hyperparameters that a run lacks are drawn.

    Args:
        start: a run or a sequence of runs, each with a guide that draws, or a `Sampled`.

    Raises:
        TypeError: `start` is something else.
        ValueError: names or shapes of weights differ from those of the model, or the energy at a start is not finite.
    """
    runs: Sequence[Any] = [start] if _drawing(start) is not None else _sequence(start)
    seeds = torch.randint(2**31, (compiled.chains,), generator=generator, device=generator.device).tolist()
    rounds = -(-compiled.chains // len(runs))
    drawn = []
    with seeded(seeds[0], generator.device):
        for number, run in enumerate(runs[: compiled.chains]):
            draw = _drawing(run)
            if draw is None:
                raise TypeError(f"start must be runs with weights; got {shown(run)} as number {number}")
            drawn.append(_checked(draw(rounds), compiled, number))
    sites, points = compiled.density.sites, []
    like = torch.zeros((), dtype=compiled.density.dtype, device=compiled.density.device)
    for chain, seed in enumerate(seeds):
        values = drawn[chain % len(runs)]
        own = {n: sites[n].to_support.inv(v[chain // len(runs)].to(like)) for n, v in values.items()}
        points.append(compiled.density.flat({**(compiled.density.draw(seed) if len(own) < len(sites) else {}), **own}))
    q = torch.stack(points)
    if (wrong := _not_finite(compiled, q)).any():
        chain = int(wrong.nonzero()[0])
        raise ValueError(
            f"start: the log joint density at the weights of run {chain % len(runs)} is not finite, or its gradient is not"
        )
    return q


def _sequence(start: Any) -> Sequence[Any]:
    if isinstance(start, str | Mapping) or not hasattr(start, "__iter__") or not (runs := list(start)):
        raise TypeError(
            "start must be a Fit, the Replicates of fit_replicates, a Sampled, or a sequence of these, which chains take in "
            f"turn; got {shown(start)}"
        )
    return runs


def _drawing(run: Any) -> Callable[[int], Mapping[str, Tensor]] | None:
    """A function that draws the latent sites of a run, ``[count, ...]`` by name; None if it is no run."""
    if isinstance(run, Sampled):
        return lambda count: {n: v[torch.arange(count) % len(v), -1] for n, v in run.samples.items()}
    guide = getattr(run, "guide", None)
    return guide.draw if isinstance(guide, HasDraws) else None


def _checked(values: Mapping[str, Tensor], compiled: CompiledDensity, number: int) -> dict[str, Tensor]:
    """The values of the sites that are sampled."""
    weights = compiled.density.model.weight_sites()
    for name in compiled.density.sites:
        if name in weights and (name not in values or values[name].shape[1:] != weights[name].shape):
            got = "none" if name not in values else f"shape {tuple(values[name].shape[1:])}"
            raise ValueError(
                f"start: run {number} must have weights of the model; {name!r} has shape {tuple(weights[name].shape)}, and "
                f"the run has {got}"
            )
    return {name: value for name, value in values.items() if name in compiled.density.sites}


def _not_finite(compiled: CompiledDensity, q: Tensor) -> Tensor:
    energy, gradient = compiled.energies(q)
    return ~(energy.isfinite() & gradient.isfinite().all(1))
