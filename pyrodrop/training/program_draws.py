"""Draws of all sites of a Pyro program: latent ones from the guide, observed ones from the model given these.

    z_s ~ guide(...)        y_s ~ model(...) given z_s        s = 1 ... S

as `pyro.infer.Predictive` draws them, one by one. Here one draw is recorded as a graph of its noise, which `torch.vmap` maps
over the noise of many draws. Programs that cannot be recorded are called for every draw, such as those with counts or labels
whose probabilities depend on the latent sites.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import Delta, Unit
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.messenger import Messenger
from pyro.poutine.uncondition_messenger import UnconditionMessenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyrodrop.arrays import near
from pyrodrop.checks import count, shown
from pyrodrop.checks import seed as checked_seed
from pyrodrop.devices import available, made_on, seeded
from pyrodrop.prediction.agreement import called, innermost
from pyrodrop.private_apis import pyro_handlers
from pyrodrop.steps import Arguments
from pyrodrop.threads import exclusive

_log = logging.getLogger("pyrodrop")

_BYTES = 256 * 2**20  # of the results of all operations at a time
_WORTH_A_TRACE = 30  # draws
_CHECKED = 2  # draws that are made both ways

Sites = dict[str, Tensor]


@exclusive()
def draw_sites(
    model: Any,
    guide: Any,
    arguments: Arguments,
    num_samples: int,
    seed: int,
    sites: Sequence[str] | None = None,
    values: Mapping[str, Tensor] | None = None,
) -> Sites:
    """Draws of the sites of a program, ``[S, ...]`` each.

    Args:
        arguments: of model and guide; observations among them are drawn anew.
        num_samples: S.
        sites: names of those to return; None for all. Where the guide has them all, the model is not called.
        values: of the latent sites in place of the guide's draws, ``[S, ...]`` by name.

    Raises:
        TypeError: the program cannot be called with these arguments; `sites` is not a sequence of names.
        ValueError: an unknown site; a site that cannot be drawn; a site in a plate that takes subsamples, since every draw
            would be of other rows; the draws do not fit into memory.
    """
    num_samples, seed = count(num_samples, "num_samples", "the number of draws"), checked_seed(seed)
    if sites is not None and (isinstance(sites, str) or not all(isinstance(name, str) for name in sites)):
        raise TypeError(f"sites must be a sequence of names of sites, or None for all; got {shown(sites)}")
    known = {} if values is None else dict(values)

    def nodes_at(*inputs: Tensor) -> Any:
        its_guide = guide_at(dict(zip(known, inputs, strict=True))) if known else guide
        of_guide = traced("guide", its_guide, arguments)
        if sites and all(name in of_guide for name in sites):
            return of_guide.nodes
        return drawn_anew(model, of_guide, arguments).nodes

    with torch.no_grad(), poutine.block(), made_on(arguments.device):
        with seeded(seed, arguments.device):
            nodes = nodes_at(*(value[0] for value in known.values()))
        drawn = {
            str(name): site
            for name, site in nodes.items()
            if site["type"] == "sample" and not site_is_subsample(site) and not isinstance(site["fn"], Unit)
        }
        unknown = [name for name in sites or () if name not in drawn]
        if unknown:
            raise ValueError(f"sites must be among those of the model, {', '.join(drawn)}; got {unknown[0]!r}")
        names = list(drawn if sites is None else sites)
        for name in names:
            check_whole(drawn[name])

        def draw(*inputs: Tensor) -> list[Tensor]:
            nodes = nodes_at(*inputs)
            return [nodes[name]["value"] for name in names]

        return dict(zip(names, many(draw, num_samples, seed, arguments.device, *known.values()), strict=True))


def guide_at(values: Mapping[str, Tensor]) -> Callable[..., None]:
    """A guide that has these values of sites, by name."""

    def guide(*_: Any, **__: Any) -> None:
        for name, value in values.items():
            pyro.sample(name, Delta(value, event_dim=value.dim()))

    return guide


def many(
    draw: Callable[..., list[Tensor]], num_samples: int, seed: int, device: torch.device, *inputs: Tensor
) -> list[Tensor]:
    """The results of S calls, ``[S, ...]`` each, made at once if the call can be recorded and mapped.

    Args:
        draw: returns tensors; its calls may differ in their random numbers and inputs alone.
        num_samples: S.
        inputs: of all calls, ``[S, ...]``; none if the calls have no inputs.

    Raises:
        ValueError: they do not fit into memory.
    """

    def single(count: int) -> list[Tensor]:
        with seeded(seed, device):
            values = [draw(*(value[number] for value in inputs)) for number in range(count)]
        return [torch.stack(draws) for draws in zip(*values, strict=True)]

    with torch.no_grad(), pyro.validation_enabled(False):
        need, free = 2 * num_samples * sum(value.nbytes for value in single(1)), available(device)
        if need > free:
            raise ValueError(
                f"{num_samples:,} draws take {need / 2**31:,.1f} GiB, and {free / 2**30:,.1f} GiB are free: take a smaller "
                "num_samples, or fewer sites"
            )
        mapped = _mapped(draw, single, seed, device, inputs) if num_samples >= _WORTH_A_TRACE else None
        return single(num_samples) if mapped is None else mapped(num_samples)


class Undrawable(ValueError):
    """A site has a distribution without samples."""


def traced(what: str, function: Any, arguments: Arguments) -> Any:
    """The trace of a call of model or guide."""
    with poutine.trace() as capture:
        called(what, function, arguments.args, arguments.kwargs)
    return capture.trace


def drawn_anew(model: Any, of_guide: Any, arguments: Arguments) -> Any:
    """The trace of the model, with observed sites drawn given the latent ones; values of `poutine.condition` stay.

    Args:
        of_guide: a trace of the guide.

    Raises:
        Undrawable: a site cannot be drawn, or the only observations are values of `poutine.condition`.
    """
    with _Drawing(), Conditioned() as stay:
        trace = traced("model", poutine.replay(_Anew()(model), trace=of_guide), arguments)
    new = [node for name, node in trace.nodes.items() if node["type"] == "sample" and name not in of_guide]
    if stay.sites and all(node["is_observed"] or site_is_subsample(node) or _is_computed(node) for node in new):
        raise Undrawable(
            f"poutine.condition gives the values of {', '.join(sorted(stay.sites))}, which stay, and no site has obs=, to "
            "be drawn anew: pass the observations as obs= in the program"
        )
    return trace


def _is_computed(node: Any) -> bool:
    return bool(node["infer"].get("_deterministic")) or isinstance(node["fn"], Unit)


def _is_conditioned(msg: Any) -> bool:
    frames = [frame for frame in pyro_handlers() if isinstance(frame, ConditionMessenger)]
    return msg["is_observed"] and not _is_computed(msg) and any(msg["name"] in frame.data for frame in frames)


class Conditioned(Messenger):
    """Notes the names of the sites whose values are from `poutine.condition`."""

    def __init__(self) -> None:
        super().__init__()
        self.sites = set[str]()

    def _pyro_sample(self, msg: Any) -> None:
        if _is_conditioned(msg):
            self.sites.add(msg["name"])


class _Anew(UnconditionMessenger):
    """Forgets observations, but not values of `poutine.condition` or `pyro.deterministic`, which Pyro treats as observed."""

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["infer"].get("_deterministic") and not _is_conditioned(msg):
            super()._pyro_sample(msg)


class _Drawing(Messenger):
    """Draws the sites that have no value; an `Undrawable` for one that has no samples."""

    def _pyro_sample(self, msg: Any) -> None:
        if msg["done"] or msg["value"] is not None:
            return
        try:
            msg["value"] = msg["fn"](*msg["args"], **msg["kwargs"])
        except (NotImplementedError, AssertionError) as error:
            raise Undrawable(
                f"the site {msg['name']!r} cannot be drawn from its {type(innermost(msg['fn'])).__name__} distribution "
                f"({type(error).__name__}): predict(sites=...) draws those of the guide"
            ) from error


def check_whole(site: Any) -> None:
    """Raise a ValueError for a site in a plate that takes subsamples."""
    for frame in site["cond_indep_stack"]:
        if frame.full_size is not None and frame.size < frame.full_size:
            raise ValueError(
                f"the site {site['name']!r} is in the plate {frame.name!r} with {frame.size} of {frame.full_size} rows, "
                "others in every draw: pass arguments with which the program takes all (predict can leave it out: sites=...)"
            )


def _mapped(
    draw: Callable[..., list[Tensor]],
    single: Callable[[int], list[Tensor]],
    seed: int,
    device: torch.device,
    inputs: Sequence[Tensor],
) -> Callable[[int], list[Tensor]] | None:
    """As `single`, all draws at once; None if `draw` cannot be recorded or mapped."""
    from pyrodrop.compiled import Untraceable, pure

    start = torch.zeros((), device=device)

    def several(count: int) -> list[Tensor]:
        with seeded(seed, device):
            each = (value[:count] for value in inputs)
            return list(program.many(count, *each, start.expand(count), most_bytes=_BYTES))

    try:
        first = [value[0] for value in inputs]
        program = pure(lambda *its: [value.clone() for value in draw(*its[:-1])], [*first, start])
        if program.draws_itself:
            operation = str(program.draws_itself[0]).split(".")[1].strip("_")
            raise Untraceable(f"the distribution of what it draws by {operation} depends on other draws")
        pairs = zip(single(_CHECKED), several(_CHECKED), strict=True)
        same = all(near(want, got, 1e-3 if want.dtype == torch.float32 else 1e-7) for want, got in pairs)
    except (Untraceable, RuntimeError, ValueError, NotImplementedError, TypeError) as error:
        _log.info("the program is called for every draw: %s", error)
        return None
    return several if same else None
