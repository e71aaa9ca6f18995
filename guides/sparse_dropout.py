"""Sparse variational dropout: rates per weight, free to go to infinity, where the weight is as good as gone.

    w_ij ~ N(m_ij, alpha_ij m_ij^2),    ln alpha_ij = clamp(ln v_ij - ln m_ij^2, -8, 8)

The additive parameterisation: v is learned, not alpha, which keeps the gradient's variance low where alpha is large.
Molchanov, Ashukha & Vetrov (2017), Variational Dropout Sparsifies Deep Neural Networks, section 4; the clamp is that of
their released code. KL to the log-uniform prior: up to the prior's constant, to 1e-10 per weight.
"""

from __future__ import annotations

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop.distributions import CutNormal, MultiplicativeNormal
from pyrodrop.guides.guide import Guide, HasWeights
from pyrodrop.guides.pruned import Pruned
from pyrodrop.modules import ParameterTree


class SparseDropout(Guide):
    """A variance for every weight; weights of large alpha can be cut off.

    Args:
        model: the model whose weights to infer.
        log_variance: ln v that training starts from.
        cut: drop the mean of weights of ln alpha from here on while training, see `distributions.CutNormal`; None does not.
        log_alpha_range: what ln alpha is clamped to; the class's own if None.

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

    log_alpha_range = (-8.0, 8.0)

    def __init__(
        self,
        model: HasWeights,
        log_variance: float = -10.0,
        *,
        cut: float | None = None,
        log_alpha_range: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(model)
        self.cut = cut
        if log_alpha_range is not None:
            low, high = log_alpha_range
            if not low < high:
                raise ValueError(f"log_alpha_range is a lower and a larger upper bound; got {log_alpha_range}")
            self.log_alpha_range = (low, high)
        initial = model.weight_sites()
        self.loc = ParameterTree(initial)
        self.log_variance = ParameterTree({n: torch.full_like(w, log_variance) for n, w in initial.items()})

    def log_alpha(self, name: str) -> Tensor:
        """ln alpha of every weight of a site."""
        loc = self.loc[name]
        square = loc**2 + torch.finfo(loc.dtype).tiny
        return (self.log_variance[name] - square.log()).clamp(*self.log_alpha_range)

    def posterior(self, name: str) -> TorchDistribution:
        if self.cut is not None:
            return CutNormal(self.loc[name], self.log_alpha(name), self.cut)
        return MultiplicativeNormal(self.loc[name], self.log_alpha(name))

    def describe(self) -> str:
        return type(self).__name__ + ("" if self.cut is None else f"(cut={self.cut:g})")

    def rates(self) -> dict[str, Tensor]:
        """alpha of every weight."""
        return {name: self.log_alpha(name).detach().exp() for name in self.sites}

    def keep_mask(self, threshold: float = 3.0) -> dict[str, Tensor]:
        """Which weights to keep: those with ln alpha below the threshold (3: a binary drop rate of .95).

        Raises:
            ValueError: a threshold outside the range that ln alpha is clamped to, which would keep all or none.
        """
        low, high = self.log_alpha_range
        if not low < threshold < high:
            raise ValueError(f"threshold is a bound on log alpha, which lies in [{low:g}, {high:g}]; got {threshold}")
        return {name: self.log_alpha(name).detach() < threshold for name in self.sites}

    def pruned(self, threshold: float = 3.0) -> Pruned:
        """This posterior with the weights that `keep_mask` drops at 0."""
        return Pruned(self, self.keep_mask(threshold))

    def sparsity(self, threshold: float = 3.0) -> dict[str, float]:
        """Share of weights that `keep_mask` drops, by site."""
        return {name: 1 - float(mask.double().mean()) for name, mask in self.keep_mask(threshold).items()}
