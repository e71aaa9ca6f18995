"""Log-normal dropout, or structured Bayesian pruning: learned noise per input unit, by which units can be removed."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from pyrodrop.checks import HasWeights, real
from pyrodrop.distributions import ConstantLeftOut, CorrelatedNormal, InputUnits, LogUniform, WeightDistribution
from pyrodrop.divergences import Convention, pair, refuse
from pyrodrop.guides.guide import Guide, check_units
from pyrodrop.modules import ParameterTree

LOW, HIGH = -20.0, 0.0  # bounds of ln s: the noise only shrinks weights
_LOG_SCALES = (-10.0, 5.0)  # below, the variance of s is lost in the rounding of its moments; above, q(ln s) is uniform


class LogNormalDropout(Guide):
    """A truncated log-normal scale with two learned parameters per input unit; units that are mostly noise can be removed.

        W = M diag(s),   ln s_k ~ N(mu_k, sigma_k^2) truncated to [a, b]           M [out, in], s [in]
        prior: ln s_k uniform on [a, b];   M is a point estimate, without a prior

        KL = sum_k  ln(b - a) - ln(sqrt(2 pi e) sigma_k Z_k) - (A_k phi(A_k) - B_k phi(B_k)) / (2 Z_k)
        A_k = (a - mu_k) / sigma_k,   B_k = (b - mu_k) / sigma_k,   Z_k = Phi(B_k) - Phi(A_k)

        E[s_k^n] = exp(n mu_k + n^2 sigma_k^2 / 2) [Phi(B_k - n sigma_k) - Phi(A_k - n sigma_k)] / Z_k
        alpha_k  = Var[s_k] / E[s_k]^2,   signal-to-noise ratio alpha_k^(-1/2)

    [a, b] is [-20, 0]. The KL divergence is 0 where q(s_k) equals the prior, whose signal-to-noise ratio is 0.33. Pruning
    removes units whose ratio is 1 or less (ln alpha_k >= 0) and multiplies all other units by E[s_k].

    In the paper the noise multiplies the outputs of a layer, before its bias; here it multiplies its inputs, including x,
    as in all guides of this package. mu_k is limited to [a, b] and ln sigma_k to [-10, 5]; their released code limits both
    to [-20, 5]. A parameter that a step takes beyond its bound counts as the bound. The gradient that leads it back passes,
    so that it does not stay there, as in projected gradient descent.

    The prior of the model must be `priors.LogUniform`. The prior of a scale s is proper.

    References:
        Neklyudov, Molchanov, Ashukha & Vetrov (2017), https://arxiv.org/abs/1705.07283, section 3.

    Args:
        model: the model whose weights are inferred.
        log_scale: initial value of ln sigma, in [-10, 5]; mu starts at 0.

    Attributes:
        threshold: value of ln alpha at or above which `keep_mask` removes a unit; 0 is a signal-to-noise ratio of 1.

    Raises:
        ValueError: a value is out of range, or the input units of a tensor with several axes are unknown.
        TypeError: the model does not list its weights (see `Guide`), or an argument is of another type.

    Example:
        >>> import torch
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> model = models.MLP([4, 8, 1], prior=priors.LogUniform(), likelihood=likelihoods.Gaussian())
        >>> guide = guides.LogNormalDropout(model)
        >>> with torch.no_grad():
        ...     guide.noise_log_scale["layers.0.weight"][:2] = 4.0  # the noise of two inputs, as if trained
        >>> guide.keep_mask()["layers.0.weight"][0]
        tensor([False, False,  True,  True])
    """

    threshold: ClassVar[float] = 0.0

    def __init__(self, model: HasWeights, log_scale: float = -5.0) -> None:
        super().__init__(model)
        check_units(self.sites, model, "log-normal dropout", "no prior for it: prior={NAME: None, '*': ...}")
        start = real(log_scale, "log_scale", "the initial ln sigma", least=_LOG_SCALES[0], most=_LOG_SCALES[1])
        initial = model.weight_sites()
        self.loc: ParameterTree = ParameterTree(initial)
        noise = {name: w.new_zeros(self.units[name].count(w.shape)) for name, w in initial.items()}
        self.noise_loc: ParameterTree = ParameterTree(noise)
        self.noise_log_scale: ParameterTree = ParameterTree(
            {name: torch.full_like(s, start) for name, s in noise.items()}
        )

    def posterior(self, name: str) -> CorrelatedLogNormal:
        noise = self.noise_loc[name], self.noise_log_scale[name]
        return CorrelatedLogNormal(self.loc[name], *noise, units=self.units[name])

    def log_alpha(self, name: str) -> Tensor:
        """ln alpha of every input unit of the weight `name`, ``[in]``; of every element of a vector."""
        return self.posterior(name).log_alpha

    def rates(self) -> dict[str, Tensor]:
        """alpha of every input unit, ``[in]``, by weight name: 1 over the squared signal-to-noise ratio."""
        return {name: self.log_alpha(name).detach().exp() for name in self.sites}

    def keep_mask(self, threshold: float | None = None) -> dict[str, Tensor]:
        """Boolean masks of the weights of units with ln alpha below `threshold`, of the weights' shapes, by site name.

        Args:
            threshold: bound of ln alpha; that of the guide if None. For a signal-to-noise ratio r, pass -2 ln r.

        Raises:
            TypeError: `threshold` is no number.
        """
        bound = self.threshold if threshold is None else threshold
        bound = real(bound, "threshold", "the bound of ln alpha from which on units are removed")
        posteriors = {name: self.posterior(name) for name in self.sites}
        return {name: q.over_units(q.log_alpha < bound).expand(q.loc.shape) for name, q in posteriors.items()}

    def describe(self) -> str:
        return f"LogNormalDropout(low={LOW:g}, high={HIGH:g})"


class CorrelatedLogNormal(CorrelatedNormal):
    """Weights whose columns are multiplied by one truncated log-normal scale per input unit.

    Args:
        loc: M, of the shape of the weight.
        noise_loc, noise_log_scale: mu and ln sigma, tensors that broadcast to ``batch_shape + noise_shape``, limited to
            [-20, 0] and [-10, 5].
        units: which axis of the weight indexes input units; ``[out, in, ...]`` by default.

    Raises:
        ValueError: `loc` has no dimensions, or its shape has no such units.
    """

    def __init__(
        self,
        loc: Tensor,
        noise_loc: Tensor,
        noise_log_scale: Tensor,
        *,
        units: InputUnits = InputUnits(),  # noqa: B008
    ) -> None:
        self.noise_loc: Tensor = _Projection.apply(noise_loc, LOW, HIGH)  # type: ignore[no-untyped-call]
        self.noise_log_scale: Tensor = _Projection.apply(noise_log_scale, *_LOG_SCALES)  # type: ignore[no-untyped-call]
        WeightDistribution.__init__(self, loc, per="input", units=units)

    @property
    def mean(self) -> Tensor:
        return self.over_units(self._log_moment(1).exp().to(self.loc)) * self.loc

    @property
    def log_alpha(self) -> Tensor:  # type: ignore[override]
        """ln alpha, of the shape of the noise parameters."""
        alpha = torch.expm1(self._log_moment(2) - 2 * self._log_moment(1))
        return alpha.clamp_min(torch.finfo(alpha.dtype).tiny).log().to(self.loc)

    @property
    def constant_left_out(self) -> ConstantLeftOut:
        """The constant is left out once per input unit."""
        return ConstantLeftOut((self.batch_shape + self.noise_shape).numel(), "units", ("log-normal", LOW, HIGH))

    def log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError(_NO_DENSITY)

    def divergence(self) -> Tensor:
        """The KL divergence of the scales from their prior, in nats: the equation above, ``batch_shape``."""
        _, sigma, lower, upper = self._parameters(self.loc.dtype)
        mass = torch.special.ndtr(upper) - torch.special.ndtr(lower)
        ends = (lower * _density(lower) - upper * _density(upper)) / (2 * mass)
        constant = math.log(HIGH - LOW) - math.log(2 * math.pi * math.e) / 2
        return self.total((constant - sigma.log() - mass.log() - ends).expand(self.batch_shape + self.noise_shape))

    def _parameters(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """mu, sigma, A and B."""
        mu, sigma = self.noise_loc.to(dtype), self.noise_log_scale.to(dtype).exp()
        return mu, sigma, (LOW - mu) / sigma, (HIGH - mu) / sigma

    def _scales(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Samples of s by the inverse distribution function of ln s, which is accurate because mu is within [-20, 0]."""
        wide = torch.promote_types(dtype, torch.float32)
        mu, sigma, lower, upper = self._parameters(wide)
        below, above = torch.special.ndtr(lower), torch.special.ndtr(upper)
        uniform = torch.rand(shape, dtype=wide, device=self.loc.device)
        edge = torch.finfo(wide).eps / 2  # 0 and 1 are at infinity
        normal = torch.special.ndtri((below + (above - below) * uniform).clamp(edge, 1 - edge))
        return (mu + sigma * normal).clamp(LOW, HIGH).exp().to(dtype)

    def _log_moment(self, power: int) -> Tensor:
        """ln E[s^power] in float64, since exponents of opposite signs reach 4e4."""
        mu, sigma, lower, upper = self._parameters(torch.float64)
        shifted = _log_mass(lower - power * sigma, upper - power * sigma)
        return power * mu + power**2 * sigma**2 / 2 + shifted - _log_mass(lower, upper)


@pair(
    CorrelatedLogNormal,
    LogUniform,
    Convention(
        "up_to_constant",
        f"of the scales, from ln s uniform on [{LOW:g}, {HIGH:g}]; the weights are point estimates without a prior",
    ),
)
def _from_log_uniform(q: CorrelatedLogNormal, p: LogUniform) -> Tensor:
    return q.divergence()


_NO_DENSITY = (
    "log-normal dropout has no density over weights, since those of an input unit lie on a ray. Its scales have a prior, "
    "its weights none: use priors.LogUniform, for which the KL divergence is that of the scales"
)
refuse(CorrelatedLogNormal, Distribution, lambda q, p: None if isinstance(p, LogUniform) else _NO_DENSITY)


class _Projection(torch.autograd.Function):
    """Clamps a parameter; beyond a bound, the gradient passes where a step against it leads back, and is 0 elsewhere.

    Apply it once per parameter: the gradient is the sum of all uses, and its sign decides.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, low: float, high: float) -> Tensor:
        return x.clamp(low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:
        x, ctx.low, ctx.high = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        passes = ((x <= ctx.high) | (grad > 0)) & ((x >= ctx.low) | (grad < 0))
        return torch.where(passes, grad, 0.0), None, None


def _density(x: Tensor) -> Tensor:
    return torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def _log_mass(lower: Tensor, upper: Tensor) -> Tensor:
    """ln(Phi(upper) - Phi(lower)) for lower <= 0, also where both are far below."""
    most = torch.special.log_ndtr(upper)
    return most + torch.log(-torch.expm1(torch.special.log_ndtr(lower) - most))
