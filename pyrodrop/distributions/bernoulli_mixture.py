"""The Bernoulli mixture: the distribution over a weight tensor that dropout induces; also with a relaxed mask at theta = 0,
so that the drop rate can be learned by gradient descent."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions.utils import lazy_property

from pyrodrop.checks import real, scale
from pyrodrop.distributions.coins import check_drop_rate, coins
from pyrodrop.distributions.units import InputUnits
from pyrodrop.distributions.weight import NoiseForm, Per, Size, WeightDistribution, check_broadcast


class BernoulliMixture(WeightDistribution):
    """Mixture of two Gaussians per input unit, one at the unit's column of `loc` and one at zero.

        W = M diag(z) + theta E,   z_k ~ Bernoulli(1 - drop_rate),   E_ij ~ N(0, 1)

        M  loc    [out, in, *kernel], or the layout given by `units`; [in] for a vector, where each element is its own unit
        z  mask   [in], one entry per input unit, so all weights of a unit are dropped together

    As a density, with column w_k of K = out * prod(kernel) entries and p = 1 - drop_rate,

        q(w_k) = p N(w_k; m_k, theta^2 I) + (1 - p) N(w_k; 0, theta^2 I)

    theta = 0 is MC dropout: the distribution then has no density but two atoms per unit, m_k with probability p and 0 with
    probability 1 - p.

    References:
        Gal & Ghahramani (2016), Dropout as a Bayesian Approximation: Appendix, https://arxiv.org/abs/1506.02157, section 3.

    Args:
        loc: the means M, of the shape of the weight.
        drop_rate: probability of dropping, in [0, 1): a number, or a tensor that broadcasts to
            ``batch_shape + noise_shape``.
        theta: standard deviation of both components, at least 0. At 0 the components are atoms.
        per: whether each mask entry drops an ``input`` unit or a single ``weight`` (DropConnect).
        units: which axis of the weight indexes input units; ``[out, in, ...]`` by default.

    A sample stores its mask in the attribute ``mask``, and `log_prob` reads it from there: the mask cannot be recovered from
    the sample for a unit whose column of `loc` is 0.

    Raises:
        ValueError: `drop_rate` is outside [0, 1) or does not broadcast, `theta` is negative or not finite, or `loc` has no
            dimensions.
        TypeError: an argument is of another type.
    """

    def __init__(
        self,
        loc: Tensor,
        drop_rate: float | Tensor,
        theta: float = 0.0,
        *,
        per: Per = "input",
        units: InputUnits = InputUnits(),  # noqa: B008
    ) -> None:
        self.theta: float = check_theta(theta)
        if self._validate_args:
            check_drop_rate(drop_rate)
        self.drop_rate, self._keep = drop_rate, 1 - drop_rate
        super().__init__(loc, per=per, units=units)
        check_broadcast(drop_rate, "drop_rate", self.batch_shape + self.noise_shape, "the mask")

    @lazy_property
    def keep_rate(self) -> Tensor:
        """p = 1 - drop_rate, shape ``batch_shape + noise_shape``, to the precision of `loc` also near 0."""
        return self._each(self._keep)

    @property
    def lost_rate(self) -> Tensor:
        """1 - p, of the same shape, to the precision of `loc` also near 0."""
        return self._each(self.drop_rate)

    def _each(self, rate: float | Tensor) -> Tensor:
        rate = torch.as_tensor(rate, dtype=self.loc.dtype, device=self.loc.device)
        return rate.expand(self.batch_shape + self.noise_shape)

    @property
    def mean(self) -> Tensor:
        """E[W] = p M, the scaled weights that standard dropout uses at test time."""
        return self.over_units(self.keep_rate) * self.loc

    @property
    def variance(self) -> Tensor:
        return self.over_units(self.keep_rate * self.lost_rate) * self.loc**2 + self.theta**2

    @property
    def noise_form(self) -> NoiseForm:
        theta = None if self.theta == 0 else lambda: torch.full_like(self.loc, self.theta**2)
        if never_drops(self.drop_rate):
            return NoiseForm(lambda: self.loc, variance=theta)
        if self.columns:
            return NoiseForm(lambda: self.loc, self._scales, theta)
        return NoiseForm(lambda: self.mean, variance=lambda: self.variance)

    def _scales(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        return coins(self.keep_rate.to(dtype), shape)

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        shape = torch.Size(sample_shape) + self.batch_shape
        if isinstance(self.drop_rate, Tensor) and self.drop_rate.requires_grad:
            raise ValueError(
                "drop_rate of a BernoulliMixture must not require a gradient, since samples of the mask are not "
                "differentiable with respect to it; got a tensor that requires a gradient. To learn the rate, use a "
                "relaxed mask: RelaxedBernoulliMixture"
            )
        if never_drops(self.drop_rate):
            mask = self.loc.new_ones(shape + self.noise_shape)
            value = self.loc.expand(shape + self.event_shape)
        else:
            mask = coins(self.keep_rate, shape + self.noise_shape)
            value = self.over_units(mask) * self.loc
        if self.theta > 0:
            value = value + self.theta * torch.randn_like(value)
        value.mask = mask  # type: ignore[attr-defined]
        return value

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of `value` if theta > 0, and its log probability if theta = 0.

        For theta = 0, the log probability is that of the mask if `value` has an attribute ``mask``. Otherwise each column of
        `value` is compared with the two atoms, and the result is minus infinity if a column equals neither.
        """
        keep, drop = self.keep_rate.log(), self.lost_rate.log()
        if self.theta > 0:
            scale = 2 * self.theta**2
            kept = keep - self.sum_units((value - self.loc) ** 2) / scale
            dropped = drop - self.sum_units(value**2) / scale
            norm = 0.5 * self.fan_out * math.log(2 * math.pi * self.theta**2)
            return self.total(torch.logaddexp(kept, dropped) - norm)
        mask = getattr(value, "mask", None)
        if mask is not None:
            return self.total(torch.where(mask > 0, keep, drop))
        never = keep.new_tensor(-math.inf)
        kept = torch.where(self.sum_units((value != self.loc).to(keep.dtype)) == 0, keep, never)
        dropped = torch.where(self.sum_units((value != 0).to(keep.dtype)) == 0, drop, never)
        return self.total(torch.logaddexp(kept, dropped))


def never_drops(drop_rate: float | Tensor) -> bool:
    """Whether the rate is the Python number 0, so that no mask has to be sampled."""
    return not isinstance(drop_rate, Tensor) and drop_rate == 0


def check_theta(theta: float) -> float:
    """Return theta as a float; raise an error unless it is 0 or a number from 1e-18 to 1e18."""
    what = "the standard deviation of the mixture's components, 0 or"
    return 0.0 if real(theta, "theta", what, least=0) == 0 else scale(theta, "theta", what)


class RelaxedBernoulliMixture(BernoulliMixture):
    """The distribution over a weight tensor that concrete dropout induces.

        W = M diag(z),   z_k = 1 - sigmoid((logit(drop_rate) + logit(u_k)) / temperature),   u_k ~ U(0, 1)

    As temperature -> 0 the distribution of the mask becomes that of `BernoulliMixture`.

    References:
        Gal, Hron & Kendall (2017), Concrete Dropout, https://arxiv.org/abs/1705.07832, eq. 5.

    Args:
        loc: the means M, of the shape of the weight.
        logit: log odds of dropping, of a shape that broadcasts to ``batch_shape + noise_shape``. Samples are differentiable
            with respect to it.
        temperature: temperature of the relaxation, positive; 0.1 in the paper.
        per, units: see `BernoulliMixture`.

    Raises:
        ValueError: `temperature` is outside [1e-18, 1e18], or `logit` does not broadcast.
    """

    def __init__(
        self,
        loc: Tensor,
        logit: Tensor,
        temperature: float = 0.1,
        *,
        per: Per = "input",
        units: InputUnits = InputUnits(),  # noqa: B008
    ) -> None:
        self.logit, self.theta = logit, 0.0
        self.drop_rate, self._keep = torch.sigmoid(logit), torch.sigmoid(-logit)
        self.temperature: float = scale(temperature, "temperature", "the temperature of the relaxed mask")
        WeightDistribution.__init__(self, loc, per=per, units=units)
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
        return self.total(mask * self.keep_rate.log() + (1 - mask) * self.lost_rate.log())
