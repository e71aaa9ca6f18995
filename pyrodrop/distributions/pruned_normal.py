"""Gaussians of which some are gone.

    w_ij = m_ij (1 + sqrt(alpha_ij) e_ij)  where kept,   0 elsewhere

Noise is drawn for the weights that are kept alone: as many numbers as there are of them.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from pyrodrop.distributions.multiplicative_normal import MultiplicativeNormal
from pyrodrop.distributions.weight import Size


class PrunedNormal(MultiplicativeNormal):
    """Independent Gaussians and zeros. It has atoms: neither a density nor a divergence from any prior.

    Args:
        loc: the means, shape ``batch_shape + event_shape``.
        log_alpha: log of variance over squared mean, of one weight's shape.
        keep: which are kept, of one weight's shape.
    """

    def __init__(self, loc: Tensor, log_alpha: Tensor, keep: Tensor, *, validate_args: bool | None = None) -> None:
        self.keep = keep
        self._places = keep.flatten().nonzero()[:, 0]
        super().__init__(
            torch.where(keep, loc, 0.0), log_alpha, event_dim=keep.dim(), validate_args=validate_args
        )  # fmt: skip

    def at(self, loc: Tensor) -> Self:
        return type(self)(loc, self.log_alpha, self.keep, validate_args=False)

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)  # type: ignore[arg-type]
        loc = self.loc.flatten(-self.keep.dim())[..., self._places]
        deviation = torch.exp(self.log_alpha.flatten()[self._places] / 2)
        batch = shape[: len(shape) - self.keep.dim()]
        noise = torch.randn(*batch, len(self._places), dtype=loc.dtype, device=loc.device)
        value = loc.new_zeros(*batch, self.keep.numel())
        value[..., self._places] = loc * (1 + deviation * noise)
        return value.reshape(shape)
