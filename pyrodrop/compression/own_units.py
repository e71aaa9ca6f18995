"""Between the units of x and y and the standardised ones that a network works in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyrodrop.compression.steps import Rescaled, Standardised, Step


def units_of_x(model: Any, like: Tensor) -> list[Step]:
    """What turns x into the network's inputs, in numbers like `like`; nothing where they are the same."""
    loc, scale = model.inputs.loc.to(like), model.inputs.scale.to(like)
    same = not bool(loc.any()) and bool((scale == 1).all())
    return [] if same else [Standardised(loc, scale)]


def units_of_y(model: Any, output: Tensor) -> list[Step]:
    """What turns outputs like `output` into f: found by trying, so that any likelihood's rescaling is.

    Raises:
        TypeError: the likelihood's f is no rescaling of the network's outputs.
    """
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(output.shape, generator=generator).to(output)
    f = model.likelihood.location(output, model.targets).detach()
    if f.shape == output.shape and torch.equal(f, output):
        return []
    loc, scale = model.targets.loc.to(output), model.targets.scale.to(output)
    columns, width = f.shape[-1], output.shape[-1]
    if columns > width or not torch.allclose(f, output[..., :columns] * scale + loc):
        raise TypeError(
            f"the f of a {type(model.likelihood).__name__} is no rescaling of the network's outputs, as compression needs"
        )
    return [Rescaled(loc, scale, columns)]
