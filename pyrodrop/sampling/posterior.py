"""The density to sample from, made of a model and data, and the numbers that Pyro computes for it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated

import torch
from pyro import poutine
from pyro.infer.mcmc.util import initialize_model
from pyro.ops.integrator import potential_grad
from torch import Tensor

from pyrodrop.arguments import shown
from pyrodrop.arrays import near
from pyrodrop.constraints import Real, checked
from pyrodrop.data import Data, Dataset
from pyrodrop.devices import seeded
from pyrodrop.inputs import Inputs, mapped
from pyrodrop.likelihoods.missing import check_complete
from pyrodrop.models import NetworkModel, TrainedNetwork
from pyrodrop.sampling.density import Density, unchecked

TRIES = 100  # to find values of finite energy
NOT_PYROS = (
    "the log joint density is not the one that Pyro computes for this model: it may differ from call to call, as in a "
    "likelihood that draws random numbers"
)
_NEARER = 0.9  # a draw that is compared lies by this factor nearer to 0 than the one before
NOT_FINITE = (
    f"fewer than 2 of {TRIES} draws from the prior have a finite log joint density and gradient: check the scales of the "
    "prior, the likelihood and the data, or pass start=..., trained runs"
)

Point = tuple[dict[str, Tensor], list[Tensor]]


@checked
def density_of(
    model: NetworkModel,
    data: Data,
    dtype: torch.dtype | None = None,
    likelihood_power: Annotated[float, Real("the power of the likelihood", above=0)] = 1.0,
) -> Density:
    """The density of a copy of the model in evaluation mode, and of the data on its device.

    Raises:
        TypeError: `model` is not one of `pyrodrop.models`.
        ValueError: the network draws masks that no weight carries, `dtype` or `likelihood_power` is not allowed, the data do
            not fit the model, or a prior cannot be sampled from.
    """
    if not isinstance(model, NetworkModel):
        raise TypeError(
            "the posterior needs a model of pyrodrop.models, such as MLP or from_module; got "
            f"{shown(model)}. For other Pyro models use pyro.infer.mcmc.util.initialize_model"
        )
    if isinstance(model, TrainedNetwork) and model.dropouts.noise:
        raise ValueError(
            "the network was read with dropout that no weight carries: its masks are noise of the function, which the joint "
            "density of the weights does not contain. Build the model from the network without this dropout: "
            "models.from_module(net.eval(), ...)"
        )
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32, torch.float64 or None; got {dtype!r}")
    dataset = Dataset.of(data)
    check_complete(model, dataset.y, "sampling the exact posterior")
    model = copy.deepcopy(model)
    if dtype is not None:
        model.to(dtype)
    model.standardize(dataset)
    model.check(dataset)
    model.eval()
    first = next(iter(model.weight_sites().values()))

    def wide(values: Tensor) -> Tensor:  # x is not rounded before it is standardised
        values = _ordinary(values)
        return values.to(torch.promote_types(values.dtype, first.dtype)) if values.is_floating_point() else values

    x: Inputs = mapped(lambda part: wide(part).to(first.device), dataset.x)
    y = _ordinary(dataset.y).to(first.device)
    return Density(model, x, y.to(first.dtype) if y.is_floating_point() else y, float(likelihood_power))


def _ordinary(values: Tensor) -> Tensor:
    """The tensor, or a copy that autograd can record if it was made under `torch.inference_mode`."""
    return values.clone() if values.is_inference() else values


def by_pyro(density: Density) -> list[Point]:
    """Two points, and energy and gradient there by the potential that Pyro's kernels make of a model.

    The points are draws from the prior, nearer and nearer to 0: of a deep network the energy at most draws may be infinite.

    Raises:
        ValueError: fewer than two of the points have a finite energy and gradient.
    """
    pairs = []
    for seed in range(TRIES):
        point = {name: _NEARER**seed * value for name, value in density.draw(seed).items()}
        with seeded(seed, density.device), poutine.block(), unchecked():
            values = {name: value.clone() for name, value in point.items()}
            _, function, _, _ = initialize_model(density.joint, (density.x, density.y), initial_params=values)
            gradients, energy = potential_grad(function, values)
        results = [energy, *(gradients[name] for name in density.sites)]
        if all(bool(result.isfinite().all()) for result in results):
            pairs.append((point, results))
        if len(pairs) == 2:
            return pairs
    raise ValueError(NOT_FINITE)


def agree(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    """Whether energy and gradient agree up to rounding; small gradients are compared relative to the largest one."""
    tolerance = 1e-3 if theirs[0].dtype == torch.float32 else 1e-7
    largest = max(float(gradient.abs().max()) for gradient in theirs[1:] if gradient.numel())
    least = [1.0, *(1e-3 * largest for _ in theirs[1:])]
    return all(near(want, got, tolerance, low) for want, got, low in zip(theirs, ours, least, strict=True))
