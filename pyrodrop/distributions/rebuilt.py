"""Rebuild a distribution of the same class with other parameters.

rebuilt(lambda value: value[0], Normal(a, s))                            = Normal(a[0], s[0])
rebuilt(lambda *values: torch.cat(values), Normal(a, s), Normal(b, t))   = Normal(cat(a, b), cat(s, t))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
from torch import Tensor
from torch.distributions import Distribution, Independent, MixtureSameFamily

# Alternative parameters: a constructor takes one of a group. The others are computed from it and stored on first use.
_ALTERNATIVES = (("probs", "logits"), ("gate", "gate_logits"), ("covariance_matrix", "precision_matrix", "scale_tril"))


def rebuilt(change: Callable[..., Tensor], *distributions: Any) -> Any:
    """A distribution of the same type, with parameters computed from those of one or more distributions.

    Args:
        change: called once per parameter, with the parameter's tensor in each of the distributions; returns the new tensor.
        distributions: one or more of the same type. For an `Independent`, its base distribution is rebuilt, and for a
            `MixtureSameFamily`, the distributions of its weights and components.

    Raises:
        TypeError: distributions of different types, or of a type that its ``arg_constraints`` and stored plain values do not
            determine, such as a `TransformedDistribution`.
    """
    first: Any = distributions[0]
    kinds = {type(each) for each in distributions}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise TypeError(f"distributions must be of one type to become one; got {names}")
    if isinstance(first, Independent):
        base = rebuilt(change, *(each.base_dist for each in distributions))
        return type(first)(base, first.reinterpreted_batch_ndims)
    if type(first) in (MixtureSameFamily, dist.MixtureSameFamily):
        weights = rebuilt(change, *(each.mixture_distribution.expand(each.batch_shape) for each in distributions))
        return type(first)(weights, rebuilt(change, *(each.component_distribution for each in distributions)))
    parameters = _parameters(first)
    further = _further_arguments(first, parameters)
    changed = {name: change(*(getattr(each, name) for each in distributions)) for name in parameters}
    try:
        return type(first)(**changed, **further)
    except TypeError as error:
        raise _refusal(first, parameters) from error


def _parameters(distribution: Distribution) -> list[str]:
    """Names of the tensors that, passed to the constructor, give an equal distribution."""
    known, stored, batch = distribution.arg_constraints, vars(distribution), distribution.batch_shape
    names = [name for name in stored if name in known]  # in the order in which they were stored
    names += [name for name in inspect.signature(type(distribution)).parameters if name in known and name not in stored]
    for group in _ALTERNATIVES:
        alternatives = [name for name in names if name in group]
        if len(alternatives) > 1 and alternatives[0] not in stored:
            raise _refusal(distribution, names)  # it is unknown which of them the constructor got
        names = [name for name in names if name not in alternatives[1:]]
    values = [getattr(distribution, name, None) for name in names]
    if not names or not all(isinstance(v, Tensor) and v.shape[: len(batch)] == batch for v in values):
        raise _refusal(distribution, names)
    return names


def _further_arguments(distribution: Distribution, names: list[str]) -> dict[str, Any]:
    """The constructor's arguments that are not tensors, such as ``is_sparse`` of a Poisson distribution."""
    arguments = inspect.signature(type(distribution)).parameters.values()
    named = [a.name for a in arguments if a.kind not in (a.VAR_POSITIONAL, a.VAR_KEYWORD) and a.name != "validate_args"]
    further = {n: getattr(distribution, n, ...) for n in named if n not in distribution.arg_constraints}
    if not all(value is None or isinstance(value, bool | int | float | str) for value in further.values()):
        raise _refusal(distribution, names)
    return further


def _refusal(distribution: Distribution, names: list[str]) -> TypeError:
    return TypeError(
        f"{type(distribution).__name__} is not made of {', '.join(names) or 'parameters'} alone, so that there is no making "
        "one with other parameters: its constructor must take the parameters that its arg_constraints name"
    )
