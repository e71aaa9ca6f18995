"""Minus the log joint density of a model and its data: of one chain by Pyro, of many in one compiled call.

    w_j = T_j(u_j)                                           u_j real, T_j onto the support of site j
    U(u) = -beta ln p(y | x, w) - sum_j (ln p(w_j | w_<j) + ln |det dT_j / du_j|)

    q [B, D]  ->  U [B],  dU/dq [B, D]                       q all u of a chain as one vector

beta, the power of the likelihood, is 1 for the posterior. The energy of one chain is recorded, mapped over a block of B
chains by `torch.vmap`, and compiled together with what a kernel computes from one gradient to the next. If a network cannot
be mapped, its chains are computed one by one. The numbers are compared with those that Pyro computes for the model before
they are used. No other file of this folder uses `pyrodrop.compiled`.

Neal (2011), MCMC using Hamiltonian dynamics, https://arxiv.org/abs/1206.1901.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import logging
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer.mcmc.util import initialize_model
from pyro.ops.integrator import potential_grad
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor, fx
from torch.distributions import Independent, biject_to

from pyrodrop import distributions
from pyrodrop.arrays import near
from pyrodrop.checks import EngineName as Name
from pyrodrop.checks import Inputs, Real, checked, mapped, shown
from pyrodrop.compiled import Program, Replayed, Untraceable, calling, first_that_works, pure
from pyrodrop.data import Data, Dataset
from pyrodrop.devices import denormals_flushed, seeded
from pyrodrop.likelihoods.censored import check_complete
from pyrodrop.models import NetworkModel, TrainedNetwork

_log = logging.getLogger("pyrodrop")
_A: Any = torch.ops.aten

TRIES = 100  # to find values of finite energy
NOT_FINITE = (
    f"fewer than 2 of {TRIES} draws from the prior have a finite log joint density and gradient: check the scales of the "
    "prior, the likelihood and the data, or pass start=..., trained runs"
)
_NOT_PYROS = (
    "the log joint density is not the one that Pyro computes for this model: it may differ from call to call, as in a "
    "likelihood that draws random numbers"
)
_NEARER = 0.9  # draw number n to compare is scaled by this to the power n
_BLOCK_BYTES = {"cpu": 8 * 2**20, "cuda": 2**30}  # of a block's activations: fits the CPU's cache, or occupies a GPU
_MOST_OPERATIONS = 1500  # of an energy and its gradient, to compile them unasked
_REPLAY = {"cuda"}  # kinds of devices that replay the kernels of a step
_RADIUS = 2.0  # of the unconstrained initial values of hyperparameters, as in Pyro's init_to_uniform


class Site(NamedTuple):
    """A latent site: the shape of the unconstrained value, and the transformation T_j of it to the support."""

    shape: torch.Size
    to_support: Any


@contextmanager
def unchecked() -> Iterator[None]:
    """Let energies be infinite or NaN within the block, which samplers reject: neither Pyro nor autograd raises an error."""
    with pyro.validation_enabled(False), torch.autograd.set_detect_anomaly(False):
        yield


class _Power(Messenger):
    """Raises the likelihood to a power: applied inside `poutine.condition`, it meets only y as an observed site."""

    def __init__(self, power: float) -> None:
        super().__init__()
        self.power = power

    def _pyro_sample(self, msg: Any) -> None:
        if msg["is_observed"]:
            msg["scale"] = msg["scale"] * self.power


class Density:
    """The density of a model's latent sites and of data.

    Args:
        model: in evaluation mode.
        x, y: all of the data.
        likelihood_power: beta.

    Raises:
        ValueError: a site has no density, or a support that depends on other sites.
    """

    rank: int = 0  # eigenvalues of the mass matrix, besides the diagonal

    def __init__(self, model: NetworkModel, x: Inputs, y: Tensor, likelihood_power: float = 1.0) -> None:
        self.model: NetworkModel = model
        self.x: Inputs = x
        self.y: Tensor = y
        self.likelihood_power: float = likelihood_power
        first = next(iter(model.weight_sites().values()))
        self.dtype: torch.dtype = first.dtype
        self.device: torch.device = first.device
        self.sites: dict[str, Site] = self._latent()
        self.sizes: list[int] = [site.shape.numel() for site in self.sites.values()]

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

    def joint(self, *args: Any) -> Any:
        """Call the model with the likelihood to its power, as a program for Pyro."""
        with _Power(self.likelihood_power):
            return self.model(*args)

    @property
    def maps(self) -> bool:
        """Whether it is worth trying to map the energy over chains."""
        return self.model.batches_weights

    @property
    def changes(self) -> str:
        """What a call changes of the model, as text; empty if it changes nothing."""
        return self.model.changes_itself

    def pyros(self, values: dict[str, Tensor]) -> Callable[..., Tensor]:
        """The potential that Pyro's own kernels would use."""
        return initialize_model(self.joint, (self.x, self.y), initial_params=values)[1]  # type: ignore[no-any-return]

    def log_joint(self, constrained: dict[str, Tensor]) -> Any:
        """ln p of values on their supports and of the data, without discrete sites."""
        return poutine.trace(poutine.condition(self.joint, data=constrained)).get_trace(self.x, self.y).log_prob_sum()

    def energy(self, values: Mapping[str, Tensor]) -> Tensor:
        """U at unconstrained values, a differentiable scalar."""
        constrained = {name: site.to_support(values[name]) for name, site in self.sites.items()}
        with poutine.block(), unchecked():
            log_joint = self.log_joint(constrained)
        for name, site in self.sites.items():
            log_joint = log_joint + site.to_support.log_abs_det_jacobian(values[name], constrained[name]).sum()
        return -log_joint  # type: ignore[no-any-return]

    def draw(self, seed: int) -> dict[str, Tensor]:
        """Unconstrained values: hyperparameters uniform on [-2, 2], and weights from their prior given these."""
        weights = self.model.weight_sites()
        with seeded(seed, self.device), torch.no_grad(), poutine.block(), unchecked():
            hyper = {
                name: (2 * torch.rand(site.shape, dtype=self.dtype, device=self.device) - 1) * _RADIUS
                for name, site in self.sites.items()
                if name not in weights
            }
            nodes = self._traced({name: self.sites[name].to_support(value) for name, value in hyper.items()})
            return {
                name: hyper[name] if name in hyper else site.to_support.inv(nodes[name]["value"]).to(self.dtype)
                for name, site in self.sites.items()
            }

    def _latent(self) -> dict[str, Site]:
        """The latent sites by name."""
        weights = {name: value.detach() for name, value in self.model.weight_sites().items()}
        hyper = {n: value.detach() for sites in self.model.hyper_sites().values() for n, value in sites.items()}
        with seeded(0, self.device), torch.no_grad(), poutine.block(), unchecked():
            nodes = self._traced(weights | hyper)
            again = self._traced(weights | {name: 1.7 * value for name, value in hyper.items()})
            latent = {
                name: node
                for name, node in nodes.items()
                if node["type"] == "sample"
                and not site_is_subsample(node)
                and (name in weights or name in hyper or not node["is_observed"])
            }
            return {name: site_of(name, node, again[name]) for name, node in latent.items()}

    def _traced(self, values: Mapping[str, Tensor]) -> Mapping[str, Any]:
        """The sites of a call with these values."""
        conditioned = poutine.condition(self.model, data=dict(values))
        return poutine.trace(conditioned).get_trace(self.x, self.y).nodes  # type: ignore[no-any-return]


@checked
def density_of(
    model: NetworkModel,
    data: Data,
    dtype: torch.dtype | None = None,
    likelihood_power: Annotated[float, Real("the power of the likelihood", above=0)] = 1.0,
) -> Density:
    """The density of a copy of the model in evaluation mode, and of the data on its device.

    Raises:
        TypeError: `model` is not one of `pyrodrop.models`.
        ValueError: the network draws masks that no weight carries, `dtype` or `likelihood_power` is not allowed, the data do
            not fit the model, or a site has a prior under which a sampler cannot move.
    """
    if not isinstance(model, NetworkModel):
        raise TypeError(
            "the posterior needs a model of pyrodrop.models, such as MLP or from_module; got "
            f"{shown(model)}. For other Pyro models use pyro.infer.mcmc.util.initialize_model"
        )
    if isinstance(model, TrainedNetwork) and model.dropouts.noise:
        raise ValueError(
            "the network was read with dropout that no weight carries: its masks are noise of the function, which the joint "
            "density of the weights does not contain. Build the model from the network without this dropout: "
            "models.from_module(net.eval(), ...)"
        )
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32, torch.float64 or None; got {dtype!r}")
    dataset = Dataset.of(data)
    check_complete(model, dataset.y, "sampling the exact posterior")
    model = copy.deepcopy(model)
    if dtype is not None:
        model.to(dtype)
    model.standardize(dataset)
    model.check(dataset)
    model.eval()
    first = next(iter(model.weight_sites().values()))

    def wide(values: Tensor) -> Tensor:  # so that x is not rounded before it is standardised
        values = _ordinary(values)
        return values.to(torch.promote_types(values.dtype, first.dtype)) if values.is_floating_point() else values

    x: Inputs = mapped(lambda part: wide(part).to(first.device), dataset.x)
    y = _ordinary(dataset.y).to(first.device)
    return Density(model, x, y.to(first.dtype) if y.is_floating_point() else y, float(likelihood_power))


def _ordinary(values: Tensor) -> Tensor:
    """The tensor, or a copy that autograd can record if it was made under `torch.inference_mode`."""
    return values.clone() if values.is_inference() else values


def site_of(name: str, node: Any, again: Any) -> Site:
    """A latent site; a ValueError if a sampler cannot move it.

    Args:
        again: the site in a trace with other hyperparameters.
    """
    fn, value = node["fn"], node["value"]
    element = fn
    while isinstance(element, Independent):
        element = element.base_dist
    for kind, reason in _REFUSED.items():
        if isinstance(element, kind):
            raise ValueError(f"the prior of {name!r} {reason}")
    if fn.support.is_discrete:
        raise ValueError(
            f"a potential needs continuous latent sites; {name!r} has a {type(element).__name__} distribution, which is "
            "discrete"
        )
    try:
        fn.log_prob(value)
        to_support, other = biject_to(fn.support), biject_to(again["fn"].support)
    except NotImplementedError as error:
        raise ValueError(f"the posterior of {name!r} has no density that a sampler could use: {error}") from error
    shape = torch.Size(to_support.inverse_shape(value.shape))
    probe = torch.randn(shape, dtype=value.dtype, device=value.device)
    if not torch.equal(to_support(probe), other(probe)):
        raise ValueError(
            f"the support of {name!r} depends on other latent sites, so that one transformation cannot serve all of their "
            "values: give it a prior of fixed support"
        )
    return Site(shape, to_support)


_PROPER = "use a proper prior, such as priors.Gaussian, priors.ARD with a hyperprior, or priors.Horseshoe"
IMPROPER = f"is improper: its density does not integrate to a finite number. For sampling, {_PROPER}"
_REFUSED: dict[type, str] = {
    distributions.LogUniform: "is log-uniform, which is improper: its density does not integrate to a finite number, and "
    "the posterior has infinite mass around w = 0, so there is nothing to sample (Hron et al. 2018, arXiv:1807.01969). "
    f"For sampling, {_PROPER}",
    dist.ImproperUniform: IMPROPER,
    distributions.TruncatedLogUniform: "is truncated log-uniform: its density is 0 beyond its bounds and in a gap around "
    f"w = 0, which splits the posterior into parts that gradients do not connect. For sampling, {_PROPER}",
}


Energies = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From q ``[B, D]`` to U ``[B]`` and dU/dq ``[B, D]``."""


class Step(NamedTuple):
    """What is compiled together with one evaluation of the energies.

    Attributes:
        function: takes `Energies`, the tensors of chains, the scalars and those of `shared`, and returns U ``[B]`` and dU/dq
            ``[B, D]`` at the new q, then other results. If all scalars are 0, q does not move.
        chain_tensors: the number of tensors ``[B, D]``, of which q is the first.
        scalars: the number of scalars.
        carried: the positions of the results that are the first tensors of chains in the next step.
        shared: the shapes of the tensors that chains share, as a function of D: the scales of the coordinates.
    """

    function: Callable[..., Sequence[Tensor]]
    chain_tensors: int
    scalars: int
    carried: tuple[int, ...]
    shared: Callable[[int], list[tuple[int, ...]]] = lambda size: [(size,)]


ENERGY = Step(lambda energies, q, _: energies(q), 1, 0, ())


class CompiledDensity:
    """A density for a fixed number of chains; a call makes one step of a block of them.

    Args:
        density: of the latent sites and the data.
        chains: C.
        engine: ``compiled``, ``traced``, ``pyro`` (handlers in every call, chains one after the other), or ``auto`` for the
            first of them that works.
        step: of a kernel.

    Attributes:
        engine: the engine that is used.
        stacked: whether one call moves several chains.
        block: B, the number of chains that a call moves.
        seconds: what recording, compiling and comparing took.

    Raises:
        ValueError: the energy differs from call to call, or from Pyro's.
    """

    def __init__(self, density: Density, chains: int, engine: Name, step: Step = ENERGY) -> None:
        begun = time.perf_counter()
        self.density: Density = density
        self.chains: int = chains
        self.step: Step = step
        self.size: int = sum(density.sizes)
        self.block: int = 1
        self._program: Callable[..., Sequence[Tensor]]
        level = logging.INFO if engine == "auto" else logging.WARNING
        pyros = _by_pyro(density)

        def failed(way: tuple[Name, bool], error: Untraceable) -> None:
            words = f"{way[0]!r}{', all chains at once' if way[1] else ''}"
            _log.log(level, "no potential energy by engine %s: %s", words, error)

        self._most: float = _MOST_OPERATIONS if engine == "auto" else math.inf
        ways = ((way, functools.partial(self._make, *way, pyros)) for way in self._ways(engine))
        try:
            (self.engine, self.stacked), _ = first_that_works(ways, failed)
        except Untraceable as error:
            raise ValueError(_NOT_PYROS) from error
        self.seconds: float = time.perf_counter() - begun

    def __call__(self, *tensors: Tensor, times: int = 1) -> Sequence[Tensor]:
        """The results of the last of `times` steps of a block, each of which begins where the step before it ended.

        The arguments are the inputs of `Step.function`, which must be contiguous. On a GPU, the next call overwrites the
        results that `Step.carried` names.
        """
        if isinstance(self._program, Replayed):
            return self._program(*tensors, times=times)
        results = self._program(*tensors)
        for _ in range(times - 1):
            carried = [results[position] for position in self.step.carried]
            results = self._program(*carried, *tensors[len(carried) :])
        return results

    def energies(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """U and dU/dq at q ``[n B, D]``, from steps that do not move."""
        with torch.no_grad():
            each = [[value.clone() for value in self(rows, *self._staying)[:2]] for rows in q.split(self.block)]
        energies, gradients = zip(*each, strict=True)
        return torch.cat(energies), torch.cat(gradients)

    def by_blocks(self, follow: Callable[[slice], Sequence[Tensor]]) -> list[Tensor]:
        """The results of `follow` for the chains of each block, ``[B, ...]``, concatenated to ``[C, ...]``."""
        with torch.no_grad(), denormals_flushed():
            slices = [slice(first, first + self.block) for first in range(0, self.chains, self.block)]
            blocks = [[tensor.clone() for tensor in follow(chains)] for chains in slices]
        return [torch.cat(tensors) for tensors in zip(*blocks, strict=True)]

    def from_prior(self, generator: torch.Generator) -> Tensor:
        """Draws of `Density.draw` with a finite energy and gradient, ``[C, D]``.

        Raises:
            ValueError: too few draws have them.
        """
        seeds = torch.randint(2**31, (TRIES, self.chains), generator=generator, device=generator.device).tolist()
        q = torch.stack([self.density.flat(self.density.draw(seed)) for seed in seeds[0]])
        for row in seeds[1:]:
            wrong = self.not_finite(q)
            if not wrong.any():
                return q
            for chain in wrong.nonzero().flatten().tolist():
                q[chain] = self.density.flat(self.density.draw(row[chain]))
        raise ValueError(NOT_FINITE)

    def not_finite(self, q: Tensor) -> Tensor:
        """Whether the energy or the gradient at q is not finite, ``[C]``."""
        energy, gradient = self.energies(q)
        return ~(energy.isfinite() & gradient.isfinite().all(1))

    def _ways(self, engine: Name) -> Iterator[tuple[Name, bool]]:
        """The engines to try, in this order, and whether to map the energy over chains."""
        names: list[Name] = [] if engine == "pyro" else ["traced"] if engine == "traced" else ["compiled", "traced"]
        if self.chains > 1 and self.density.maps:
            yield from ((name, True) for name in names)
        yield from ((name, False) for name in names)
        yield "pyro", False

    def _make(self, name: Name, mapped: bool, pyros: Sequence[tuple[Tensor, ...]]) -> None:
        """Make the program of a step, and compare it with Pyro at two points."""
        density, self.block = self.density, 1
        zero = torch.zeros((), dtype=density.dtype, device=density.device)
        energy: Any = functools.partial(_not_random, density) if name == "pyro" else self._energy
        if mapped:
            most = _BLOCK_BYTES.get(density.device.type, _BLOCK_BYTES["cpu"]) // max(1, energy.bytes)
            self.block = next(n for n in range(self.chains, 0, -1) if self.chains % n == 0 and n <= max(1, most))
        if name == "compiled" and energy.operations > self._most:
            raise Untraceable(
                f"compiling its {energy.operations} operations would take minutes: engine='compiled' does it"
            )
        function, chains = self.step.function, (self.block, self.size)
        shapes: list[tuple[int, ...]] = [chains] * self.step.chain_tensors + [()] * self.step.scalars
        shapes += self.step.shared(self.size)
        inputs = [zero.expand(shape).contiguous() for shape in shapes]
        self._staying = [tensor + (tensor.shape == chains) for tensor in inputs[1:]]

        def step(energy: Callable[..., Sequence[Tensor]], *tensors: Tensor) -> Sequence[Tensor]:
            def energies(q: Tensor) -> tuple[Tensor, Tensor]:
                values = density.by_site(q).values()
                if mapped:
                    energy_of_each, *gradients = energy(*values)
                else:
                    energy_of_each, *gradients = (result[None] for result in energy(*(value[0] for value in values)))
                return energy_of_each, torch.cat([gradient.reshape(len(q), -1) for gradient in gradients], 1)

            return function(energies, *tensors)

        if name == "pyro":
            self._program = functools.partial(step, energy)
        else:
            code = f"{function.__qualname__} {[site.shape for site in density.sites.values()]} {_source()}"
            self._program = calling(step, energy, inputs, mapped=mapped, compiled=name == "compiled", code=code)
            if density.device.type in _REPLAY:
                try:
                    self._program = Replayed(self._program, inputs, self.step.carried)
                except RuntimeError as error:
                    _log.info("the kernels of a step are launched one by one, which is slower: %s", error)
        try:
            ours = self.energies(torch.stack([q for q, *_ in pyros]).repeat(self.block, 1))
        except Exception as error:  # whatever an operation that cannot be mapped raises
            raise Untraceable(f"it cannot be run: {error}") from error
        tolerance = 1e-3 if density.dtype == torch.float32 else 1e-7
        for number, (_, want, gradient) in enumerate(pyros):
            energies, gradients = (each[number :: len(pyros)] for each in ours)
            least, sizes = 1e-3 * float(gradient.abs().max()), density.sizes  # relative to the largest
            sites = zip(gradient.split(sizes), gradients.split(sizes, 1), strict=True)
            alike = [near(wanted.expand_as(got), got, tolerance, least) for wanted, got in sites]
            if not near(want.expand_as(energies), energies, tolerance, 1.0) or not all(alike):
                raise Untraceable("its numbers differ from Pyro's")

    @functools.cached_property
    def _energy(self) -> Program:
        """The recorded energy and gradients of one chain, a function of the sites' values."""
        density = self.density
        if density.changes:
            raise Untraceable(f"{density.changes}, which a trace would freeze")
        values = density.by_site(torch.zeros(self.size, dtype=density.dtype, device=density.device)).values()
        program = pure(functools.partial(_energy_and_gradients, density), list(values), [density.model])
        if program.is_random:
            raise Untraceable("it draws random numbers")
        _make_failures_nan(program.graph)
        return program


def _make_failures_nan(graph: fx.Graph) -> None:
    """Fill the factor of a matrix with NaN where it does not exist, in place of an error for all chains."""
    for check in graph.find_nodes(op="call_function", target=_A._linalg_check_errors.default):
        info = check.args[0]
        factor = next(node for node in info.args[0].users if node.target is operator.getitem and node.args[1] == 0)
        graph.erase_node(check)
        users = list(factor.users)
        with graph.inserting_after(max(factor, info)):
            failed = graph.call_function(_A.ne.Scalar, (info, 0))
        for place in (_A.unsqueeze.default, _A.unsqueeze.default):
            with graph.inserting_after(failed):
                failed = graph.call_function(place, (failed, -1))
        with graph.inserting_after(failed):
            filled = graph.call_function(_A.masked_fill.Scalar, (factor, failed, math.nan))
        filled.meta = dict(factor.meta)
        for user in users:
            user.replace_input_with(factor, filled)


@functools.cache
def _source() -> str:
    """A hash of this folder, with all that a step computes besides the density."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _energy_and_gradients(density: Density, *tensors: Tensor) -> list[Tensor]:
    """U and its gradients by Pyro's handlers, for the value of each site."""
    values = [value.detach().requires_grad_() for value in tensors]
    try:
        with torch.enable_grad(), unchecked():
            energy = density.energy(dict(zip(density.sites, values, strict=True)))
            gradients = torch.autograd.grad(energy, values, allow_unused=True, materialize_grads=True)
    except torch.linalg.LinAlgError:  # of a matrix that is singular up to rounding
        return [value * torch.nan for value in (values[0].detach().sum(), *values)]
    return [energy.detach(), *gradients]


def _not_random(density: Density, *tensors: Tensor) -> list[Tensor]:
    """As `_energy_and_gradients`, which must not draw random numbers."""
    before = torch.get_rng_state()
    results = _energy_and_gradients(density, *tensors)
    if not torch.equal(before, torch.get_rng_state()):
        raise Untraceable("it draws random numbers")
    return results


def _by_pyro(density: Density) -> list[tuple[Tensor, ...]]:
    """Two points q ``[D]``, each with U and dU/dq ``[D]`` by the potential that Pyro's own kernels would use for the model.

    The points are draws from the prior, each scaled closer to 0: for a deep network most draws may have infinite energy.

    Raises:
        ValueError: fewer than two of the points have a finite energy and gradient.
    """
    found: list[tuple[Tensor, ...]] = []
    for seed in range(TRIES):
        point = {name: _NEARER**seed * value for name, value in density.draw(seed).items()}
        with seeded(seed, density.device), poutine.block(), unchecked():
            values = {name: value.clone() for name, value in point.items()}
            gradients, energy = potential_grad(density.pyros(values), values)
        if bool(energy.isfinite()) and bool((gradient := density.flat(gradients)).isfinite().all()):
            found.append((density.flat(point), energy, gradient))
        if len(found) == 2:
            return found
    raise ValueError(NOT_FINITE)
