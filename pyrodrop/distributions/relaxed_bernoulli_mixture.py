"""The Bernoulli mixture at theta = 0 with a relaxed mask, so that the drop rate can be learned by gradient descent."""

from __future__ import annotations

import torch
from torch import Tensor

from pyrodrop.arguments import scale, tensor
from pyrodrop.distributions.bernoulli_mixture import BernoulliMixture
from pyrodrop.distributions.noise_form import NoiseForm
from pyrodrop.distributions.units import InputUnits
from pyrodrop.distributions.weight import Per, Size, check_broadcast, check_weight


class RelaxedBernoulliMixture(BernoulliMixture):
    """The distribution over a weight tensor that concrete dropout induces.

        W = M diag(z),   z_k = 1 - sigmoid((logit(drop_rate) + logit(u_k)) / temperature),   u_k ~ U(0, 1)

    As temperature -> 0 the distribution of the mask becomes that of `BernoulliMixture`.

    References:
        Gal, Hron & Kendall (2017), Concrete Dropout, https://arxiv.org/abs/1705.07832, eq. 5.

    Args:
        loc: the means M, shape ``batch_shape + event_shape``.
        logit: log odds of dropping, of a shape that broadcasts to ``batch_shape + noise_shape``. Samples are differentiable
            with respect to it.
        temperature: temperature of the relaxation, positive; 0.1 in the paper.
        event_dim, per, units: see `BernoulliMixture`.

    Raises:
        ValueError: `temperature` is outside [1e-18, 1e18], or `logit` is not finite or does not broadcast.
        TypeError: an argument is of another type.
    """

    def __init__(
        self,
        loc: Tensor,
        logit: Tensor,
        temperature: float = 0.1,
        *,
        event_dim: int | None = None,
        per: Per = "input",
        units: InputUnits = InputUnits(),  # noqa: B008
        validate_args: bool | None = None,
    ) -> None:
        validates = self.validates(validate_args)
        if validates:
            check_weight(loc, event_dim, per, units)
            tensor(logit, "logit", "the log odds of dropping", floating=True)
        self.logit: Tensor = logit
        self.temperature: float = scale(temperature, "temperature", "the temperature of the relaxed mask")
        super().__init__(loc, torch.sigmoid(logit), event_dim=event_dim, per=per, units=units, validate_args=False)
        if validates:
            check_broadcast(logit, "logit", self.batch_shape + self.noise_shape, "the mask")

    @property
    def noise_form(self) -> NoiseForm:
        return NoiseForm(lambda: self.loc, lambda shape, dtype: self.relaxed_mask(shape).to(dtype))

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        mask = self.relaxed_mask(torch.Size(sample_shape) + self.batch_shape + self.noise_shape)
        value = self.over_units(mask) * self.loc
        value.mask = mask  # type: ignore[attr-defined]
        return value

    def relaxed_mask(self, shape: torch.Size) -> Tensor:
        """Sample masks of the given shape, ``[..., *noise_shape]``, differentiable with respect to `logit`."""
        tiny = torch.finfo(self.loc.dtype).eps
        noise = torch.rand(shape, dtype=self.loc.dtype, device=self.loc.device).clamp(tiny, 1 - tiny)
        return torch.sigmoid(-(self.logit + torch.logit(noise)) / self.temperature)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log probability of the mask, interpolated linearly between its values at 0 and 1.

        Its mean over samples is minus the entropy of a Bernoulli variable with this rate, up to order temperature squared:
        the mean of a relaxed mask differs from 1 - drop_rate by this order.

        Raises:
            NotImplementedError: `value` has no attribute ``mask``, so it is not a sample of `rsample`.
        """
        mask = getattr(value, "mask", None)
        if mask is None:
            raise NotImplementedError(
                "a relaxed mask cannot be recovered from a weight: log_prob needs a sample of rsample, with its mask"
            )
        return self.total(mask * self.keep_rate.log() + (1 - mask) * torch.log1p(-self.keep_rate))
