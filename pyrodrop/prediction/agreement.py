"""Check that the sites of a guide and the observations fit the model, before the first step of a training.

    sites of the guide    = latent sites of the model, of the same shapes
    shape of y            = batch and event shape of its distribution

Without the check, shapes that differ may broadcast, and no error is raised: [N] against [N, 1] gives N^2 terms. Models and
guides of this package list their sites. Any other model or guide is called once to find them.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from pyro import poutine
from pyro.distributions import ExpandedDistribution, GaussianMRF, IndependentHMM, MaskedDistribution
from pyro.distributions.hmm import HiddenMarkovModel
from pyro.infer.autoguide import AutoGuide
from pyro.nn import PyroModule
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.distributions import Independent

from pyrodrop.checks import HasRows, HasWeights, first_line
from pyrodrop.guides.ensemble import members_of
from pyrodrop.guides.guide import Guide, check_shapes

DISCRETE = (
    ". A discrete site is summed out by objective=TraceEnum_ELBO() and a model pyro.infer.config_enumerate(model), of which "
    "an autoguide hides it, AutoNormal(poutine.block(model, hide=[...]))"
)


def knows_sites(model: Any, guide: Any) -> bool:
    """Whether `check_guide` can compare model and guide without calling them."""
    return isinstance(model, HasWeights) and all(isinstance(member, Guide) for member in members_of(guide))


def check_guide(model: Any, guide: Any, name: str = "guide") -> None:
    """Check that a guide was made for this model or one with the same weights. Does nothing unless both know their sites.

    Raises:
        TypeError: the model is a guide, or the guide a model.
        ValueError: sites or shapes differ (the message names the first), or the guide computes with another model object.
    """
    if isinstance(model, Guide | AutoGuide) or isinstance(guide, HasWeights):
        raise TypeError(
            f"{name} must be a guide of the model, in the order (model, guide), such as guides.MeanField(model); got a "
            f"{type(model).__name__} as model and a {type(guide).__name__} as {name}"
        )
    if isinstance(guide, HasRows) and guide.model is not model:
        raise ValueError(
            f"{name} computes with its model, which must be the model of this call: make it with this model, or copy both "
            "together, copy.deepcopy((model, guide)); got one of another object"
        )
    if not knows_sites(model, guide):
        return
    want = {name: tuple(value.shape) for name, value in model.weight_sites().items()}
    want |= {name: tuple(value.shape) for sites in model.hyper_sites().values() for name, value in sites.items()}
    for member in members_of(guide):
        check_shapes(member.shapes, want, f"a {type(guide).__name__}", name)


def check_call(model: Any, guide: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Call any Pyro guide and model once. Compare their sites, and the observations with their distributions.

    A distribution may lack the leading axes of its observations, such as one for all rows together; nothing else broadcasts.

    Args:
        args, kwargs: arguments of model and guide: x, y, and the size of the data set.

    Returns:
        The traces of guide and model.

    Raises:
        TypeError: one of them cannot be called with these arguments, or is not callable.
        ValueError: one of them fails; sites or shapes differ; y has another shape than its distribution.
    """
    with poutine.trace() as capture:
        called("guide", guide, args, kwargs)
    failed: Exception | None = None
    with poutine.trace() as of_model, poutine.replay(trace=capture.trace):
        try:
            called("model", model, args, kwargs)
        except (TypeError, ValueError) as error:  # whose cause may be a site that is compared below
            failed = error
    sites: dict[str, Any] = {str(name): node for name, node in of_model.trace.nodes.items() if _is_site(node)}
    drawn: dict[str, Any] = {
        str(name): n for name, n in capture.trace.nodes.items() if _is_site(n) and not n["is_observed"]
    }
    latent = [name for name, node in sites.items() if not node["is_observed"]]
    for name, node in sites.items():
        if node["is_observed"]:
            _check_observed(name, node["value"], node["fn"], args)
            continue
        shape = tuple(node["fn"].batch_shape + node["fn"].event_shape)
        if name not in drawn:
            raise ValueError(
                f"the guide must sample every latent site of the model; it has no site {name!r}, only {list(drawn)}"
                f"{DISCRETE if getattr(node['fn'], 'has_enumerate_support', False) else ''}"
            )
        got = tuple(drawn[name]["value"].shape)
        if any(a != b for a, b in zip_longest(reversed(got), reversed(shape), fillvalue=1)):
            raise ValueError(
                f"the guide must have the shapes of the model's sites, {list(shape)} for {name!r}; got {list(got)}"
            )
    if failed is not None:
        raise failed
    extra = [name for name, node in drawn.items() if name not in sites and not node["infer"].get("is_auxiliary")]
    if extra:
        raise ValueError(
            f"the guide must sample the latent sites of the model and no others, {', '.join(latent)}; got also "
            f"{extra[0]!r}, whose density would count as a divergence. If the guide computes the model's sites from it, "
            'mark it: pyro.sample(..., infer={"is_auxiliary": True})'
        )
    return capture.trace, of_model.trace


def _is_site(node: Any) -> bool:
    """Whether a node is a site with a distribution and a value that is not computed."""
    sampled = node["type"] == "sample" and not site_is_subsample(node) and hasattr(node["fn"], "batch_shape")
    return sampled and not node["infer"].get("_deterministic")


def innermost(fn: Any) -> Any:
    """The distribution without the wrappers that change only its batch and event shape, or mask it."""
    while isinstance(fn, Independent | ExpandedDistribution | MaskedDistribution):
        fn = fn.base_dist
    return fn


def _check_observed(name: str, value: Any, fn: Any, args: tuple[Any, ...]) -> None:
    """A ValueError if observations would broadcast with their distribution."""
    got = tuple(value.shape) if isinstance(value, Tensor) else ()
    shape, inner = (*fn.batch_shape, *fn.event_shape), innermost(fn)
    markov = isinstance(inner, HiddenMarkovModel | IndependentHMM | GaussianMRF) and inner.event_shape[0] == 1
    time = -len(inner.event_shape)  # the axis whose length is open in a hidden Markov model without duration
    if markov and getattr(inner, "duration", None) is None and len(got) >= -time:
        shape = (*shape[:time], got[time], *shape[len(shape) + time + 1 :])
    lacks = len(shape) < len(got) and got[len(got) - len(shape) :] == shape
    if got == shape or (lacks and (not shape or shape[0] != got[0])):  # else its axis may be that of the rows
        return
    raise ValueError(
        f"y must have the shape of its distribution, and is never broadcast: the model's site {name!r} has batch and event "
        f"shape {list(shape)} together; got {list(got)}{_columns(args)}"
    )


def called(what: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call model or guide. Errors of its code become a ValueError or TypeError that names model or guide."""
    try:
        function(*args, **kwargs)
    except (RuntimeError, IndexError, KeyError, AttributeError, TypeError, AssertionError) as error:
        shapes = [list(value.shape) for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        names = ", ".join([*(["x", "y"] if args else []), *kwargs])
        network = isinstance(function, nn.Module) and not isinstance(function, PyroModule)
        raise (TypeError if isinstance(error, TypeError) else ValueError)(
            f"{what} must be a function that can be called as {what}({names}) on the data, of shapes {shapes}; got "
            f"{first_line(error)}"
            f"{': models.from_module(net, ...) or read(net, x, ...) makes a model of it' if network else _columns(args)}"
        ) from error
    except ValueError as error:
        if not str(error).startswith("Continuous inference cannot handle discrete"):
            raise
        raise ValueError(f"{str(error).partition('. ')[0]}{DISCRETE}") from error


def _columns(args: tuple[Any, ...]) -> str:
    """The end of a message, which says that an x of one dimension got a second one; empty for any other x."""
    x = args[0] if args else None
    if not isinstance(x, Tensor) or x.dim() != 2 or x.shape[1] != 1:
        return ""
    return f". x of shape [{len(x)}] is passed on as [{len(x)}, 1]: take x[:, 0] where the model needs a vector"
