"""Sparse variational dropout: a learned noise variance alpha per weight. Weights with a large alpha can be pruned.

    w_ij ~ N(m_ij, alpha_ij m_ij^2),    ln alpha_ij = clamp(ln v_ij - ln m_ij^2, -8, 8)

The parameter is v and not alpha. This additive parameterisation keeps the variance of the gradient low for large alpha. The
clamp is the one in the released code. The KL divergence from the log-uniform prior is known up to the constant of that
improper prior, with an error below 1e-10 nats per weight in float64.

`ARDDropout` is this posterior for the proper prior ``priors.ARD("weight")``, variational dropout by automatic relevance
determination. Under that prior its KL divergence is exactly sum_ij ln(1 + 1/alpha_ij) / 2.

`SparseDropout.pruned` is the posterior after pruning,

    w_ij ~ q(w_ij)  if kept,   w_ij = 0 otherwise

for prediction only: it has atoms at 0, so it has no KL divergence from a prior and no ELBO, and it cannot be trained.
"""

from __future__ import annotations

import copy
from typing import Self

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.checks import HasWeights, real
from pyrodrop.distributions import CutNormal, MultiplicativeNormal
from pyrodrop.distributions.multiplicative_normal import PrunedNormal
from pyrodrop.guides.guide import Guide
from pyrodrop.modules import ParameterTree


class SparseDropout(Guide):
    """Gaussians with a learned variance per weight; weights with a large alpha can be pruned.

    References:
        Molchanov, Ashukha & Vetrov (2017), https://arxiv.org/abs/1701.05369, section 4.

    Args:
        model: the model whose weights are inferred.
        log_variance: initial value of ln v.
        cut: during training, set the mean of weights with ln alpha at or above this value to 0, see
            `distributions.CutNormal`. None never does.
        log_alpha_range: bounds that ln alpha is clamped to; the default of the class if None.

    Raises:
        ValueError: the lower bound of `log_alpha_range` is not below the upper bound, a value is NaN or infinite, or
            `log_variance` is outside [-80, 80], beyond which float32 cannot represent the variance.
        TypeError: the model does not list its weights (see `Guide`), or an argument is of another type.

    Example:
        >>> import torch
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> _ = torch.manual_seed(0)
        >>> model = models.MLP([4, 8, 1], prior=priors.ARD("weight"), likelihood=likelihoods.Gaussian())
        >>> guide = guides.SparseDropout(model)
        >>> with torch.no_grad():
        ...     guide.log_variance["layers.0.weight"][:, :2] = 5.0  # the noise of two inputs, as if trained
        >>> guide.sparsity()
        {'layers.0.weight': 0.5, 'layers.1.weight': 0.0}
    """

    log_alpha_range: tuple[float, float] = (-8.0, 8.0)
    kept: dict[str, Tensor] | None = None  # masks of the weights that pruning kept, by site name

    def __init__(
        self,
        model: HasWeights,
        log_variance: float = -10.0,
        *,
        cut: float | None = None,
        log_alpha_range: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(model)
        self.cut: float | None = (
            None if cut is None else real(cut, "cut", "the bound of ln alpha from which on means are set to 0")
        )
        if log_alpha_range is not None:
            low, high = (
                real(bound, "log_alpha_range", "the bounds of ln alpha, each of which") for bound in log_alpha_range
            )
            if not low < high:
                raise ValueError(f"log_alpha_range must be (low, high) with low < high; got {log_alpha_range}")
            self.log_alpha_range = low, high
        start = real(log_variance, "log_variance", "the initial ln v", least=-80, most=80)
        initial = model.weight_sites()
        self.loc: ParameterTree = ParameterTree(initial)
        self.log_variance: ParameterTree = ParameterTree({n: torch.full_like(w, start) for n, w in initial.items()})

    def log_alpha(self, name: str) -> Tensor:
        """ln alpha of every element of the weight `name`, of the shape of the weight."""
        loc = self.loc[name]
        square = loc**2 + torch.finfo(loc.dtype).tiny
        return (self.log_variance[name] - square.log()).clamp(*self.log_alpha_range)

    def posterior(self, name: str) -> TorchDistribution:
        if self.kept is not None:
            return PrunedNormal(self.loc[name], self.log_alpha(name), self.kept[name])
        if self.cut is not None:
            return CutNormal(self.loc[name], self.log_alpha(name), self.cut)
        return MultiplicativeNormal(self.loc[name], self.log_alpha(name))

    def describe(self) -> str:
        what = type(self).__name__ + ("" if self.cut is None else f"(cut={self.cut:g})")
        if self.kept is None:
            return what
        kept = torch.cat([mask.flatten() for mask in self.kept.values()])
        return f"Pruned({what}, {int(kept.sum())} of {len(kept)} weights)"

    def learned_rates(self) -> dict[str, Tensor]:
        """alpha of every element of every weight, by weight name."""
        return {name: self.log_alpha(name).exp() for name in self.sites}

    def keep_mask(self, threshold: float = 3.0) -> dict[str, Tensor]:
        """Boolean masks of the weights to keep, those with ln alpha below `threshold`, by site name.

        Args:
            threshold: bound of ln alpha. 3 corresponds to a binary drop rate of .95.

        Raises:
            ValueError: `threshold` is outside the range that ln alpha is clamped to, so all or no weights would be kept.
            TypeError: `threshold` is no number.
        """
        threshold = real(threshold, "threshold", "the bound of ln alpha from which on weights are pruned")
        low, high = self.log_alpha_range
        if not low < threshold < high:
            raise ValueError(f"threshold is a bound on log alpha, which lies in [{low:g}, {high:g}]; got {threshold}")
        return {name: self.log_alpha(name).detach() < threshold for name in self.sites}

    def pruned(self, threshold: float = 3.0) -> Self:
        """A copy of this posterior in which the weights that `keep_mask` does not keep are 0."""
        guide = copy.deepcopy(self)
        guide.kept = self.keep_mask(threshold)
        with torch.no_grad():
            for name, mask in guide.kept.items():
                guide.loc[name].masked_fill_(~mask, 0.0)
        return guide

    def sparsity(self, threshold: float = 3.0) -> dict[str, float]:
        """Fraction of weights that `keep_mask` does not keep, by site name."""
        return {name: 1 - float(mask.double().mean()) for name, mask in self.keep_mask(threshold).items()}


class ARDDropout(SparseDropout):
    """Gaussians with a learned variance per weight and ln alpha clamped to [-10, 10], as in the released code.

    The arguments are those of `SparseDropout`.

    References:
        Kharitonov, Molchanov & Vetrov (2018), https://arxiv.org/abs/1811.00596, eq. 8.
    """

    log_alpha_range: tuple[float, float] = (-10.0, 10.0)
