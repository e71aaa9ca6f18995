"""The density of a Pyro program and its data, of which a network is one.

    program(*args, **kwargs)  ->  sites z_j with distributions f_j
    U(u) = -ln p(y | z) - sum_j (ln f_j(z_j | z_<j) + ln |det dT_j / du_j|),   z_j = T_j(u_j)

T_j = biject_to(support of f_j), so that all u are real; q is all u as one vector. Sites with finitely many values are
summed out by Pyro's `TraceEinsumEvaluator`.

What has no such density is refused, by the name of its site: improper priors, supports that depend on other sites, sites
that are masked, subsamples of plates. So is a program whose density is no function of its sites: one that changes something
that it reads, draws random numbers beside its sites, or has other sites at other values.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import config_enumerate
from pyro.infer.autoguide import AutoGuide
from pyro.infer.autoguide.initialization import InitMessenger, init_to_uniform
from pyro.infer.mcmc.util import TraceEinsumEvaluator
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import biject_to

from pyrodrop import distributions
from pyrodrop.changes import Look, evaluating, put_back
from pyrodrop.checks import mapped, over_tensors, shown
from pyrodrop.data import Data, Dataset, Keywords
from pyrodrop.devices import has_drawn, made_on, outside_torch, resolve, seeded
from pyrodrop.guides.guide import Guide
from pyrodrop.models import NetworkModel, TrainedNetwork
from pyrodrop.prediction.agreement import called, innermost
from pyrodrop.steps import Arguments, Call
from pyrodrop.training.rows import recordable

_IMPROPER = "is improper: its density does not integrate to a finite number. For sampling, use a proper prior"
_PERIODIC = f"is periodic on the real line, where it {_IMPROPER}, such as Uniform(-pi, pi)"
_REFUSED: dict[Any, str] = {
    distributions.LogUniform: f"is log-uniform, which {_IMPROPER}",
    dist.ImproperUniform: _IMPROPER,
    (dist.VonMises, dist.SineSkewed, dist.SineBivariateVonMises): _PERIODIC,
    dist.Delta: "is a point, which has no density: use pyro.deterministic",
}


class Site(NamedTuple):
    """A latent site: the shape of the unconstrained value, and the transformation T_j of it to the support."""

    shape: torch.Size
    to_support: Any


class Density:
    """The density of a program's continuous sites that are not observed, given its arguments.

    Args:
        model: the program, whose modules are in evaluation mode.
        arguments: of its call.

    Attributes:
        sites: those that are sampled, by name.
        sizes: their numbers of unconstrained values.
        discrete: the names of the sites that are summed out.
        held: the names of the parameters that a call reads, which keep their values.
        maps: whether it is worth trying to map the energy over chains.
        changes: what a call changes of the model, as text; empty if it changes nothing.

    Raises:
        ValueError: the program has no density that a sampler can use; the message names the site and the reason.
    """

    rank: int = 16  # eigenvalues of the mass matrix, besides the diagonal
    maps: bool = True
    changes: str = ""

    def __init__(self, model: Any, arguments: Arguments) -> None:
        self.model, self.arguments = model, arguments
        self.device: torch.device = arguments.device
        self.discrete: list[str] = []
        self.nesting = 0
        nodes = self._started(0)
        frames = [frame for node in nodes.values() for frame in node["cond_indep_stack"] if frame.vectorized]
        self.nesting = max([-frame.dim for frame in frames], default=0)
        self.held: list[str] = [name for name, node in nodes.items() if node["type"] == "param"]
        for name, node in nodes.items():
            if site_is_subsample(node) and (node["fn"].subsample_size or node["fn"].size) < node["fn"].size:
                raise ValueError(f"the plate {name!r} takes other rows in every call, and sampling needs all")
        latent = {name: node for name, node in nodes.items() if _is_latent(node)}
        for name, node in latent.items():
            _check(name, node)
        self.discrete = [name for name, node in latent.items() if node["fn"].has_enumerate_support]
        for seed in (3, 2, 1):
            again = self._started(seed)
            if differ := latent.keys() ^ {name for name, node in again.items() if _is_latent(node)}:
                raise _differ(differ)
        self.sites: dict[str, Site] = {
            name: _site(name, node, again[name]) for name, node in latent.items() if name not in self.discrete
        }
        if not self.sites:
            raise ValueError("the program must have a continuous site that is not observed; it has none")
        self.sizes: list[int] = [site.shape.numel() for site in self.sites.values()]
        self.dtypes: dict[str, torch.dtype] = {name: latent[name]["value"].dtype for name in self.sites}
        self.dtype: torch.dtype = next(iter(self.dtypes.values()))

    def flat(self, values: Mapping[str, Tensor]) -> Tensor:
        """Unconstrained values as one vector ``[D]``, all sites one after the other."""
        return torch.cat([values[name].reshape(-1) for name in self.sites])

    def by_site(self, q: Tensor) -> dict[str, Tensor]:
        """The unconstrained value of every site, ``[..., *shape]``, in vectors ``[..., D]``."""
        return {
            name: value.reshape((*q.shape[:-1], *site.shape))
            for (name, site), value in zip(self.sites.items(), q.split(self.sizes, -1), strict=True)
        }

    def constrained(self, q: Tensor) -> dict[str, Tensor]:
        """The value of every site on its support, otherwise as `by_site`."""
        return {name: self.sites[name].to_support(value) for name, value in self.by_site(q).items()}

    def energy(self, values: Mapping[str, Tensor]) -> Tensor:
        """U at unconstrained values, a differentiable scalar."""
        constrained = {name: site.to_support(values[name]) for name, site in self.sites.items()}
        with poutine.block(), unchecked(), made_on(self.device):
            program = poutine.condition(self._enumerated(), data=constrained)
            trace = poutine.trace(program).get_trace(*self.arguments.args, **self.arguments.kwargs)
        latent = {name for name, node in trace.nodes.items() if _is_latent(node)}
        if differ := (latent ^ set(self.discrete)) | (self.sites.keys() - trace.nodes.keys()):
            raise _differ(differ)
        with unchecked():
            summed: Any = TraceEinsumEvaluator(trace, True, self.nesting).log_prob if latent else Trace.log_prob_sum
            log_joint = summed(trace)
        for name, site in self.sites.items():
            log_joint = log_joint + site.to_support.log_abs_det_jacobian(values[name], constrained[name]).sum()
        return -log_joint  # type: ignore[no-any-return]

    def draw(self, seed: int) -> dict[str, Tensor]:
        """Unconstrained values, uniform on [-2, 2]."""
        generator = torch.Generator(self.device).manual_seed(seed)
        made: dict[str, Any] = {"dtype": self.dtype, "device": self.device, "generator": generator}
        return {name: 4 * torch.rand(site.shape, **made) - 2 for name, site in self.sites.items()}

    def check_function(self) -> None:
        """Raise a ValueError if sites have several dtypes, or a call changes what the next one may read, or draws random
        numbers beside its sites."""
        if len(set(self.dtypes.values())) > 1:
            raise ValueError(
                f"all sites must have one dtype; got {self.dtypes}: convert the tensors that the program holds"
            )
        with seeded(0, self.device), torch.no_grad(), put_back(self.model) as look:
            values, outside, before = self.draw(0), outside_torch(), torch.get_rng_state()
            called("program", lambda *_, **__: self.energy(values), self.arguments.args, self.arguments.kwargs)
            drawn = not torch.equal(before, torch.get_rng_state())
            drawn |= has_drawn(outside, lambda: self.energy(values))
        _refuse_changes(look, drawn)

    def _enumerated(self) -> Any:
        """The program with its discrete sites enumerated."""
        if not self.discrete:
            return self.model
        return poutine.enum(config_enumerate(self.model), first_available_dim=-1 - self.nesting)

    def _started(self, seed: int) -> dict[str, Any]:
        """The sites and parameters of a call at random values, by name; discrete sites are drawn unless they are known."""
        program = InitMessenger(_start)(self._enumerated())
        drawing, tracing = seeded(seed, self.device), poutine.trace()
        with drawing, torch.no_grad(), poutine.block(), made_on(self.device), unchecked(), tracing:
            called("program", program, self.arguments.args, self.arguments.kwargs)
        nodes = tracing.trace.nodes.items()
        return {str(name): node for name, node in nodes if node["type"] in ("sample", "param")}


class NetworkDensity(Density):
    """The density of a network's weights and the hyperparameters of their priors; see `network_density`.

    Args:
        model: in evaluation mode.
        x, y: all of the data.
    """

    rank = 0

    def __init__(self, model: NetworkModel, x: Any, y: Tensor) -> None:
        super().__init__(model, Call((x, y), {}))
        self.dtype = self.dtypes[next(iter(model.weight_sites()))]  # hyperpriors may be in float32
        self.maps, self.changes = model.batches_weights, model.changes_itself
        if self.discrete:
            raise ValueError(f"the prior of {self.discrete[0]!r} is discrete, and weights must be continuous")

    def draw(self, seed: int) -> dict[str, Tensor]:
        """Unconstrained values: hyperparameters uniform on [-2, 2], and weights from their prior given these."""
        weights, values = self.model.weight_sites(), super().draw(seed)
        hyper = {name: self.sites[name].to_support(value) for name, value in values.items() if name not in weights}
        with seeded(seed, self.device), torch.no_grad(), poutine.block(), unchecked():
            nodes = poutine.trace(poutine.condition(self.model, data=hyper)).get_trace(*self.arguments.args).nodes
            drawn = {name: self.sites[name].to_support.inv(nodes[name]["value"]).to(self.dtype) for name in weights}
        return {**values, **drawn}


def network_density(model: NetworkModel, data: Data, dtype: torch.dtype | None = None) -> NetworkDensity:
    """The density of a copy of the model in evaluation mode, and of the data on its device.

    Raises:
        ValueError: the network draws masks that no weight carries, `dtype` is not allowed, the data do not fit the model, or
            a site has a prior under which a sampler cannot move.
    """
    if isinstance(model, TrainedNetwork) and model.dropouts.noise:
        raise ValueError(
            "the network was read with dropout that no weight carries: its masks are noise of the function, which the joint "
            "density of the weights does not contain. Build the model from the network without this dropout: "
            "models.from_module(net.eval(), ...)"
        )
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32, torch.float64 or None; got {dtype!r}")
    dataset = Dataset.of(data)
    model = copy.deepcopy(model).to(dtype)
    model.standardize(dataset)
    model.check(dataset)
    model.eval()
    first = next(iter(model.weight_sites().values()))

    def wide(values: Tensor) -> Tensor:  # so that x is not rounded before it is standardised
        values = recordable(values, first.device)
        return values.to(torch.promote_types(values.dtype, first.dtype)) if values.is_floating_point() else values

    y = recordable(dataset.y, first.device)
    y = y.to(first.dtype) if y.is_floating_point() else y
    return NetworkDensity(model, mapped(wide, dataset.x), y)


def program_density(model: Any, data: Any, device: str | torch.device) -> Density:
    """The density of a program and its data.

    Raises:
        TypeError: it is no program, or `data` are no arguments.
        ValueError: it has no density that a sampler can use.
    """
    if isinstance(model, Guide | AutoGuide) or not callable(model):
        raise TypeError(
            "model must be a model of pyrodrop.models or a Pyro program, which can be called and is no guide; got "
            f"{shown(model)}"
        )
    density = Density(model, arguments_of(data, device))
    density.check_function()
    return density


def arguments_of(data: Any, device: str | torch.device = "auto") -> Call:
    """The arguments of a program: of a mapping by name, of a tuple by position.

    Args:
        device: ``auto`` is that of the data.

    Raises:
        TypeError: `data` is neither.
    """
    if not isinstance(data, Mapping | Keywords | tuple | list):
        raise TypeError(
            "data of a program must be a mapping of its keyword arguments, or a tuple of its arguments; got "
            f"{shown(data)}"
        )
    named = isinstance(data, Mapping | Keywords)
    given: Any = data
    values = Keywords.of(given if named else {str(n): value for n, value in enumerate(given)}).values
    place = Call((), values).device if device == "auto" else resolve(device)
    values = over_tensors(lambda tensor: recordable(tensor, place), values)
    return Call((), values) if named else Call(tuple(values.values()), {})


@contextmanager
def still(model: Any) -> Iterator[None]:
    """Within the block, a program's modules are in evaluation mode; afterwards all is as it was.

    Raises:
        ValueError: at the end, if calls have changed something that the next one may read.
    """
    with evaluating(model), put_back(model, all_writes=False) as look:
        yield
    _refuse_changes(look)


@contextmanager
def unchecked() -> Iterator[None]:
    """Let energies be infinite or NaN within the block, which samplers reject: neither Pyro nor autograd raises an error."""
    with pyro.validation_enabled(False), torch.autograd.set_detect_anomaly(False):
        yield


def _start(node: Any) -> Tensor:
    """The value of a site to find the others with; a ValueError for a prior under which a sampler cannot move."""
    fn, element = node["fn"], innermost(node["fn"])
    element = innermost(getattr(element, "base_dist", element))  # of a transformed distribution
    for kind, reason in _REFUSED.items():
        if isinstance(element, kind):
            raise ValueError(f"the prior of {node['name']!r} {reason}")
    if fn.support.is_discrete:
        return fn.sample()  # type: ignore[no-any-return]
    try:
        biject_to(fn.support)
        return init_to_uniform(node)  # type: ignore[no-any-return]
    except NotImplementedError as error:
        raise ValueError(f"the support of {node['name']!r} has no transformation to real numbers: {error}") from error


def _is_latent(node: Any) -> bool:
    return node["type"] == "sample" and not node["is_observed"] and not site_is_subsample(node)


def _check(name: str, node: Any) -> None:
    """Raise a ValueError for a latent site without a density."""
    fn = node["fn"]
    masks = [node["mask"]]
    while isinstance(fn, torch.distributions.Independent | dist.ExpandedDistribution | dist.MaskedDistribution):
        masks.append(getattr(fn, "_mask", None))
        fn = fn.base_dist
    if not all(mask is None or bool(torch.as_tensor(mask).all()) for mask in masks):
        raise ValueError(
            f"the site {name!r} is masked, and has no density where it is: mask observations alone, or leave out its values "
            "that are not used"
        )
    if fn.support.is_discrete and not fn.has_enumerate_support:
        raise ValueError(
            f"the site {name!r} has a {type(fn).__name__} distribution, which is discrete with too many values to sum them "
            "out: observe it, or give it a continuous distribution"
        )


def _site(name: str, node: Any, again: Any) -> Site:
    """A latent site; a ValueError if its support differs between two calls at other values of the sites."""
    to_support, other = biject_to(node["fn"].support), biject_to(again["fn"].support)
    shape = torch.Size(to_support.inverse_shape(node["value"].shape))
    probe = torch.linspace(-1, 1, shape.numel()).to(node["value"]).reshape(shape)
    if not torch.equal(to_support(probe), other(probe)):
        raise ValueError(
            f"the support of {name!r} depends on other latent sites, so that one transformation cannot serve all of their "
            "values: give it a prior of fixed support"
        )
    return Site(shape, to_support)


def _differ(names: Collection[str]) -> ValueError:
    return ValueError(
        f"the program must have the same sites at all values of them; {min(names)!r} is not a site of all"
    )


def _refuse_changes(look: Look, drawn: bool = False) -> None:
    reason = "a call draws random numbers that are no sites" if drawn else look.changes
    if reason or look.moved or look.replaced:
        raise ValueError(
            "the density of the program must be a function of its sites alone; "
            f"{reason or 'a call changes a buffer or parameter'}: pass it as an argument, or make it a site"
        )
