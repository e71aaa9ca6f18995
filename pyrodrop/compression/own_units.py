"""Steps that convert between the original units of x and y and the standardised units of a network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyrodrop.compression.steps import Rescaled, Standardised, Step
from pyrodrop.networks.examine import close


def units_of_x(model: Any, like: Tensor) -> list[Step]:
    """The step that standardises x, with the dtype and device of `like`; no step if nothing changes."""
    loc, scale = model.inputs.loc.to(like), model.inputs.scale.to(like)
    same = not bool(loc.any()) and bool((scale == 1).all())
    return [] if same else [Standardised(loc, scale)]


def units_of_y(model: Any, output: Tensor) -> list[Step]:
    """The step that converts outputs of the network to f; no step if nothing changes.

    It is determined by calling ``likelihood.location`` on random outputs of the shape of `output`, so it works for every
    likelihood whose f is a linear rescaling.

    Raises:
        TypeError: f of the likelihood is not a linear rescaling of the outputs.
    """
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(output.shape, generator=generator).to(output)
    f = model.likelihood.location(output, model.targets).detach()
    if f.shape == output.shape and torch.equal(f, output):
        return []
    loc, scale = model.targets.loc.to(output), model.targets.scale.to(output)
    columns, width = f.shape[-1], output.shape[-1]
    if columns > width or not close(f, output[..., :columns] * scale + loc):
        raise TypeError(
            "compression needs a likelihood whose f is a linear rescaling of the network's outputs; got "
            f"{type(model.likelihood).__name__}"
        )
    return [Rescaled(loc, scale, columns)]
