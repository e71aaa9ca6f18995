"""Independent Gaussians, some of which are replaced by 0.

    w_ij = m_ij (1 + sqrt(alpha_ij) e_ij)  if kept,   0 otherwise,   e_ij ~ N(0, 1)

Noise is sampled only for the weights that are kept.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from pyrodrop.arguments import tensor
from pyrodrop.distributions.multiplicative_normal import MultiplicativeNormal
from pyrodrop.distributions.weight import Size


class PrunedNormal(MultiplicativeNormal):
    """Independent Gaussians and zeros. The zeros are atoms, so there is no density and no KL divergence from any prior.

    Args:
        loc: the means, shape ``batch_shape + event_shape``.
        log_alpha: log of the variance divided by the squared mean, shape ``event_shape``.
        keep: boolean mask of the weights that are kept, shape ``event_shape``.

    Raises:
        ValueError: if arguments are validated: a value is NaN or infinite, or the shapes do not fit.
        TypeError: if arguments are validated: an argument is no tensor, or `keep` is not boolean.
    """

    def __init__(self, loc: Tensor, log_alpha: Tensor, keep: Tensor, *, validate_args: bool | None = None) -> None:
        if self.validates(validate_args):
            tensor(loc, "loc", "the location of a weight", floating=True)
            tensor(log_alpha, "log_alpha", "the log variance of the noise")
            if tensor(keep, "keep", "the boolean mask of the weights that are kept", bools=True).dtype != torch.bool:
                raise TypeError(
                    f"keep must be a mask of dtype torch.bool; got {keep.dtype} of shape {list(keep.shape)}"
                )
            for name, value, shape in (
                ("keep", keep, loc.shape[loc.dim() - keep.dim() :]),
                ("log_alpha", log_alpha, keep.shape),
            ):
                if value.shape != shape or not keep.dim():
                    raise ValueError(
                        f"{name} must have the shape of the weight, {list(shape)}; got shape {list(value.shape)}"
                    )
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
