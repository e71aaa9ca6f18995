"""A weight that has not been sampled yet. It knows its distribution and how a minibatch shares its noise.

`LazyWeight` is a `torch.Tensor` without storage. A linear map of it (`F.linear`, `F.conv2d`, ``x @ W.T`` ...) is passed to
the strategy, which samples what the map needs: noise per example, the same for all rows of an example. In three cases that
is impossible, and one sample of the weight is drawn, stored and used for the whole minibatch:

    the operation is not a linear map (an embedding, a recurrent layer)
    no axis of the map's input counts examples, as after merging examples and rows
    the noise is per input unit, and the map contracts another axis of the weight

The distribution of each example is then still that of a weight sample; only the variance of the gradient is larger. A
weight with noise per example has one use: a second one would see another weight, and raises an error.

`LazyDistribution` wraps the distribution of a site in guide and model. In the guide it samples lazy weights. In the model,
its `log_prob` of such a weight is minus the KL divergence of the weight's distribution from the prior, so that every ELBO of
Pyro counts that KL divergence once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from pyro.distributions import TorchDistribution
from pyro.infer.reparam.reparam import Reparam
from torch import Tensor
from torch.distributions import Distribution, register_kl

from pyrodrop.checks import instance, over_tensors
from pyrodrop.distributions.weight import Size, is_constant
from pyrodrop.divergences import divergence
from pyrodrop.private_apis import without_overrides, without_values
from pyrodrop.reparam.maps import LinearMap, recognise


class LazyReparam(Reparam):
    """Base of the strategies: wraps a site's distribution, in guide and model alike.

    Attributes:
        one_weight: whether all uses of a lazy weight see the same sample.
    """

    one_weight = False

    def push(self, q: Distribution, at: LinearMap) -> Tensor:
        """f(x, w) for w ~ q with the noise of this strategy, without bias."""
        raise TypeError(f"{type(self).__name__} is a strategy without push(q, at)")

    def pushes(self, q: Any, at: LinearMap) -> bool:
        """Whether this strategy has noise for this map; if not, the weight itself is sampled."""
        return True

    def whole(self, q: Any) -> Tensor:
        """One sample of the weight itself, for operations that are not linear maps."""
        return q.rsample()  # type: ignore[no-any-return]

    def bias(self, q: Distribution, at: LinearMap) -> Tensor:
        """A bias with distribution q, one sample per example."""
        return at.over_outputs(self.whole(q.expand(at.batch)))

    def apply(self, msg: Any) -> Any:
        if msg["is_observed"] or msg["value"] is not None:  # the site has a value: there is no noise to share
            return msg
        return {"fn": LazyDistribution(msg["fn"], self, msg["name"]), "value": None, "is_observed": False}


class LazyWeight(torch.Tensor):
    """A weight that is sampled when it is used.

    Args:
        distribution: the distribution of the weight, which has the strategy.
        transposed: whether this tensor represents the transpose of the weight.
        drawn: a list with the sample that has been drawn, if any; a weight and its transpose share it.

    The module's docstring describes how it is sampled, and which uses raise a ValueError.

    Raises:
        TypeError: `distribution` is no `LazyDistribution`.
    """

    distribution: LazyDistribution
    transposed: bool
    drawn: list[Tensor]

    @staticmethod
    def __new__(
        cls, distribution: LazyDistribution, transposed: bool = False, drawn: list[Tensor] | None = None
    ) -> LazyWeight:
        instance(
            distribution,
            LazyDistribution,
            "distribution",
            "the LazyDistribution of a site, which poutine.reparam makes",
        )
        shape, like = distribution.batch_shape + distribution.event_shape, distribution.like
        if transposed:
            shape = shape[:-2] + (shape[-1], shape[-2])
        self = without_values(cls, shape, like)
        self.distribution, self.transposed = distribution, transposed
        self.drawn = [] if drawn is None else drawn
        return self  # type: ignore[no-any-return]

    def realise(self) -> Tensor:
        """One sample of the weight, the same at every call."""
        if not self.drawn:
            self.distribution.check_unused()
            with self.distribution.learning():
                self.drawn.append(self.distribution.strategy.whole(self.distribution.base))
        return self.drawn[0].mT if self.transposed else self.drawn[0]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"LazyWeight({self.distribution.name!r}, shape={tuple(self.shape)})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        lazy = [a for a in (*args, *kwargs.values()) if isinstance(a, LazyWeight)]
        if func in _METADATA:
            return without_overrides(func, args, kwargs)
        if (
            func in _TRANSPOSITIONS
            and len(lazy) == 1
            and lazy[0].dim() == 2
            and {axis % 2 for axis in args[1:]} in (set(), {0, 1})
        ):
            return LazyWeight(lazy[0].distribution, not lazy[0].transposed, lazy[0].drawn)
        for weight in (weight for weight in lazy if not weight.drawn):
            at = recognise(func, args, kwargs, weight)  # of which a product of two weights has no rows
            placed = None if at is None or isinstance(at.x, LazyWeight) else weight.distribution.place(at)
            if placed is not None:
                return weight._map(placed)
        plain, named = over_tensors(lambda a: a.realise() if isinstance(a, LazyWeight) else a, (args, kwargs))
        return func(*plain, **named)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise RuntimeError(f"{func} reached a lazy weight before it was sampled; it has no values yet")

    def _map(self, at: LinearMap) -> Tensor:
        distribution = self.distribution
        with distribution.learning():
            y = (
                at.f(at.x, distribution.base.loc)
                if is_constant(distribution.base)
                else distribution.strategy.push(distribution.base, at)
            )
            if isinstance(at.bias, LazyWeight):
                bias, of_bias = at.bias, at.bias.distribution  # one sample per example, or the one drawn before
                if bias.drawn or is_constant(of_bias.base):
                    y = y + at.over_outputs(bias.realise())
                else:
                    of_bias.check_unused()
                    of_bias.pushed = True
                    y = y + of_bias.strategy.bias(of_bias.base, at)
            elif at.bias is not None:
                y = y + at.over_outputs(at.bias)
        return y if torch.is_grad_enabled() else y.detach()


class LazyDistribution(TorchDistribution):
    """The distribution of a lazy weight, or its prior.

    Attributes:
        examples: the axis of the input of the weight's linear map that counts examples; None if there is none, or several
            maps.
        learns: whether gradients were enabled when the weight was created.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012
    has_rsample = True

    def __init__(self, base: Any, strategy: LazyReparam, name: str) -> None:
        self.base: Any = base
        self.strategy: LazyReparam = strategy
        self.name: str = name
        self.examples: int | None = 0
        self.pushed: bool = False  # whether noise was pushed through a map
        self.learns: bool = torch.is_grad_enabled()
        self._divergences: dict[LazyDistribution, Tensor] = {}
        super().__init__(base.batch_shape, base.event_shape, False)

    def place(self, at: LinearMap) -> LinearMap | None:
        """A map of the weight with its axis of examples, or None if the weight itself has to be sampled.

        Raises:
            ValueError: an earlier map has used noise that this one cannot share.
        """
        of_examples = None if self.examples is None else at.at_examples(self.examples)
        placed = at if self.strategy.one_weight else of_examples
        if is_constant(self.base):
            return placed if isinstance(at.bias, LazyWeight) else at
        if placed is None or not self.strategy.pushes(self.base, placed):
            return None
        self.check_unused()
        self.pushed = True
        return placed

    def learning(self) -> AbstractContextManager[object]:
        """A context for sampling, with gradients if the weight was created with them: if its first use is under
        `torch.no_grad`, later uses that need gradients share the sample."""
        return torch.set_grad_enabled(self.learns or torch.is_grad_enabled())

    def check_unused(self) -> None:
        """Raise a ValueError if a map has used noise that a further use cannot share."""
        if self.pushed and not self.strategy.one_weight:
            raise ValueError(
                f"weight {self.name!r} is used a second time, and its noise per example cannot be the same in both uses: "
                "train a tied or recurrent weight with estimator='shared'; if the second use "
                "is the prior's, wrap both model and guide, as reparam.reparameterize does"
            )

    @property
    def like(self) -> Tensor:
        """A tensor of the weight's dtype and device."""
        base = getattr(self.base, "base_dist", self.base)
        return base.loc if hasattr(base, "loc") else torch.empty(0)

    @property
    def support(self) -> Any:
        return self.base.support

    def expand(self, batch_shape: Size, _instance: None = None) -> LazyDistribution:
        if torch.Size(batch_shape) != self.batch_shape:
            raise ValueError(
                f"the noise of {self.name!r} is that of one particle: take num_particles without vectorize_particles=True"
            )
        return self

    def rsample(self, sample_shape: Size = ()) -> Tensor:
        if torch.Size(sample_shape):
            raise ValueError(f"sample_shape of a lazy weight must be empty; got {tuple(sample_shape)}")
        return LazyWeight(self)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of a value. For a lazy weight it is minus the KL divergence of the weight's distribution from this
        one, or 0 if they are the same object."""
        if not isinstance(value, LazyWeight):
            return self.base.log_prob(value)
        if value.distribution is not self:
            return -value.distribution.divergence(self)
        if not self._divergences:
            raise ValueError(
                f"site {self.name!r} is reparameterised in the guide and not in the model, so the prior would score another "
                "sample than the likelihood; wrap both, as reparam.reparameterize(model, guide, strategy) does"
            )
        return self.like.new_zeros(()).expand(self.batch_shape)

    def divergence(self, prior: LazyDistribution) -> Tensor:
        """KL divergence of the weight's distribution from a prior, computed once."""
        if prior not in self._divergences:
            self._divergences[prior] = divergence(self.base, prior.base, lambda: self.base.rsample())
        return self._divergences[prior]


@register_kl(LazyDistribution, LazyDistribution)
def _lazy(q: LazyDistribution, p: LazyDistribution) -> Tensor:
    return q.divergence(p)


_TENSOR: Any = torch.Tensor
_PROPERTIES = ["shape", "dtype", "device", "ndim", "requires_grad", "is_leaf", "layout"]
_PROPERTIES += ["is_cuda", "is_sparse", "is_quantized"]
_METHODS = [
    "dim",
    "size",
    "numel",
    "is_floating_point",
    "is_complex",
    "element_size",
    "ndimension",
    "__len__",
    "nelement",
]
_METADATA = {getattr(_TENSOR, n).__get__ for n in _PROPERTIES} | {getattr(_TENSOR, n) for n in _METHODS}
_TRANSPOSITIONS = {_TENSOR.T.__get__, _TENSOR.mT.__get__, torch.t, _TENSOR.t, torch.transpose, _TENSOR.transpose}
