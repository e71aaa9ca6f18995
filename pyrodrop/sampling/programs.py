"""The density of any Pyro program, and draws from its posterior.

    program(*args, **kwargs)  ->  sites z_j with distributions f_j
    U(u) = -sum_j ln f_j(z_j | z_<j) - sum_j ln |det dT_j / du_j|,   z_j = T_j(u_j),   T_j = biject_to(support of f_j)

Sites with finitely many values are summed out by Pyro's `TraceEinsumEvaluator`. What has no such density is refused, by the
name of its site: supports that depend on other sites, sites that are masked or have points in place of a density, subsamples
of plates. So is a program whose density is no function of its sites: one that changes something that it reads, draws random
numbers beside its sites, or has other sites at other values.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import config_enumerate
from pyro.infer.autoguide import AutoGuide
from pyro.infer.autoguide.initialization import InitMessenger, init_to_uniform
from pyro.infer.mcmc.util import TraceEinsumEvaluator, initialize_model
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyrodrop import threads
from pyrodrop.changes import Kept, Look, evaluating, put_back
from pyrodrop.checks import count as whole_number
from pyrodrop.checks import over_tensors, shown
from pyrodrop.data import Dataset, Keywords
from pyrodrop.devices import drawn_outside_torch, made_on, outside_torch, resolve, seeded
from pyrodrop.guides.guide import Guide
from pyrodrop.parts import Card
from pyrodrop.prediction.agreement import called, innermost
from pyrodrop.prediction.posterior import Posterior
from pyrodrop.prediction.stored import Stored
from pyrodrop.sampling.density import IMPROPER, Density, Site, site_of, unchecked
from pyrodrop.sampling.mixing import Diagnostics, ProgramDiagnostics, diagnose
from pyrodrop.steps import Arguments, Call
from pyrodrop.training.problem import describe
from pyrodrop.training.program_draws import draw_sites
from pyrodrop.training.rows import none_by_default, recordable


def arguments_of(data: Any, device: str | torch.device = "auto", dtype: torch.dtype | None = None) -> Call:
    """The arguments of a program: of a mapping by name, of a tuple by position.

    Args:
        device: ``auto`` is that of the data.

    Raises:
        TypeError: `data` is neither.
    """
    if isinstance(data, Dataset):
        data = data.x, data.y
    if not isinstance(data, Mapping | Keywords | tuple | list):
        raise TypeError(
            "data of a program must be a mapping of its keyword arguments, or a tuple of its arguments; got "
            f"{shown(data)}"
        )
    named = isinstance(data, Mapping | Keywords)
    given: Any = data
    values = Keywords.of(given if named else {str(n): value for n, value in enumerate(given)}).values
    call = Call((), values)
    place = call.device if device == "auto" else torch.device(device)

    def placed(tensor: Tensor) -> Tensor:
        return recordable(tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor, place)

    values = over_tensors(placed, values)
    return Call((), values) if named else Call(tuple(values.values()), {})


def check_program(model: Any, start: Any, likelihood_power: float, dtype: torch.dtype | None) -> None:
    """Raise a TypeError or ValueError for what is no program, or for arguments of `sample` that only networks have."""
    if isinstance(model, Guide | AutoGuide):
        raise TypeError(
            f"the posterior needs a model of pyrodrop.models or a Pyro program, not a guide; got {shown(model)}"
        )
    if not callable(model):
        raise TypeError(
            f"model must be a model of pyrodrop.models or a Pyro program, which can be called; got {shown(model)}"
        )
    for name, value, usual in (("start", start, None), ("likelihood_power", likelihood_power, 1.0)):
        if value is not usual and value != usual:
            raise TypeError(
                f"{name} is for models of pyrodrop.models, not for other programs: leave it out; got {shown(value)}"
            )
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32, torch.float64 or None; got {dtype!r}")


def program_density(model: Any, data: Any, device: str | torch.device, dtype: torch.dtype | None) -> ProgramDensity:
    """The density of a program and its data."""
    return ProgramDensity(model, arguments_of(data, device if device == "auto" else resolve(device), dtype), dtype)


class ProgramDensity(Density):
    """The density of a program's continuous sites, given its arguments.

    Args:
        model: the program, whose modules are in evaluation mode.
        arguments: of its call.
        dtype: to which floating-point arguments were converted, and of the numbers that the program makes; None for its own.

    Attributes:
        discrete: the names of the sites that are summed out.
        held: the names of the parameters that a call reads, which keep their values.

    Raises:
        ValueError: the program has no density that a sampler can use; the message names the site and the reason.
    """

    rank = 16

    def __init__(self, model: Any, arguments: Arguments, dtype: torch.dtype | None = None) -> None:
        self.model, self.arguments, self.made_in = model, arguments, dtype
        self.device: torch.device = arguments.device
        self.discrete: list[str] = []
        self.likelihood_power = 1.0
        self.nesting = 0
        with seeded(0, self.device), torch.no_grad(), poutine.block(), self._making():
            with put_back(model), unchecked():
                called("program", InitMessenger(_start)(model), arguments.args, arguments.kwargs)
            plain = self._started()
        frames = [frame for node in plain.values() for frame in node["cond_indep_stack"] if frame.vectorized]
        self.nesting = max([-frame.dim for frame in frames], default=0)
        self.held: list[str] = [name for name, node in plain.items() if node["type"] == "param"]
        for node in plain.values():
            _check(node)
        latent = {name: node for name, node in plain.items() if _is_latent(node)}
        self.discrete = [name for name, node in latent.items() if node["fn"].has_enumerate_support]
        if not latent.keys() - set(self.discrete):
            raise ValueError("the program must have a continuous site that is not observed; it has none")
        with seeded(1, self.device), torch.no_grad(), poutine.block(), self._making():
            again = self._started()
            if missing := latent.keys() - again.keys():
                raise _differ(missing)
            wrong = [name for name in self.discrete if "_enumerate_dim" not in again[name]["infer"]]
            if wrong:
                raise ValueError(
                    f"the site {wrong[0]!r} is discrete and must be summed out in parallel: leave out its "
                    "infer={'enumerate': ...}"
                )
            self.sites: dict[str, Site] = {
                name: site_of(name, node, again[name]) for name, node in latent.items() if name not in self.discrete
            }
        dtypes = {name: latent[name]["value"].dtype for name in self.sites}
        self.dtype: torch.dtype = next(iter(dtypes.values()))
        other = [name for name, of in dtypes.items() if of != (dtype or self.dtype)]
        if other:
            raise ValueError(
                f"all sites must have one dtype, {dtype or self.dtype}; {other[0]!r} has {dtypes[other[0]]}: convert the "
                "tensors that the program makes or holds"
            )
        self.sizes: list[int] = [site.shape.numel() for site in self.sites.values()]
        self._check_function()

    @property
    def maps(self) -> bool:
        return True

    @property
    def changes(self) -> str:
        return ""

    def pyros(self, values: dict[str, Tensor]) -> Callable[..., Tensor]:
        args, kwargs = self.arguments.args, self.arguments.kwargs
        with self._making():
            made = initialize_model(self.model, args, kwargs, max_plate_nesting=self.nesting, initial_params=values)

        def potential(values: Any) -> Tensor:
            with self._making():
                return made[1](values)  # type: ignore[no-any-return]

        return potential

    def log_joint(self, constrained: dict[str, Tensor]) -> Any:
        with self._making():
            trace = self._trace(poutine.condition(self._enumerated(), data=constrained))
        latent = [name for name, node in trace.nodes.items() if _is_latent(node)]
        if sorted(latent) != sorted(self.discrete) or not self.sites.keys() <= trace.nodes.keys():
            differ = {*latent, *(self.sites.keys() - trace.nodes.keys())} ^ set(self.discrete)
            raise _differ(differ)
        if not self.discrete:
            return trace.log_prob_sum()
        return TraceEinsumEvaluator(trace, True, self.nesting).log_prob(trace)

    def draw(self, seed: int) -> dict[str, Tensor]:
        """Unconstrained values, uniform on [-2, 2]."""
        generator = torch.Generator(self.device).manual_seed(seed)
        made: dict[str, Any] = {"dtype": self.dtype, "device": self.device, "generator": generator}
        return {name: 4 * torch.rand(site.shape, **made) - 2 for name, site in self.sites.items()}

    def _enumerated(self) -> Any:
        """The program with its discrete sites enumerated."""
        if not self.discrete:
            return self.model
        return poutine.enum(config_enumerate(self.model), first_available_dim=-1 - self.nesting)

    def _trace(self, program: Any) -> Any:
        return poutine.trace(program).get_trace(*self.arguments.args, **self.arguments.kwargs)

    def _started(self) -> dict[str, Any]:
        """The sites and parameters of a call at random values, by name; discrete sites are drawn unless they are known."""
        with unchecked():
            trace = self._trace(InitMessenger(_start)(self._enumerated()))
        return {str(name): node for name, node in trace.nodes.items() if node["type"] in ("sample", "param")}

    def _making(self) -> AbstractContextManager[None]:
        return _making(self.device, self.made_in)

    def _check_function(self) -> None:
        """Raise a ValueError if a call changes what the next one may read, or draws random numbers outside of torch."""
        with seeded(0, self.device), torch.no_grad(), put_back(self.model) as look:
            values, outside, before = self.draw(0), outside_torch(), torch.get_rng_state()
            try:
                self.energy(values)
            except (RuntimeError, NotImplementedError, IndexError, KeyError) as error:
                reason = (str(error).strip().splitlines() or [""])[0]
                raise ValueError(
                    f"the density of the program cannot be computed: {type(error).__name__}: {reason}"
                ) from error
            drawn = not torch.equal(before, torch.get_rng_state())
            drawn |= drawn_outside_torch(outside, lambda: self.energy(values))
        _refuse_changes(look, drawn)


@contextmanager
def _making(device: torch.device, dtype: torch.dtype | None) -> Iterator[None]:
    """Within the block, numbers that a program makes are on this device and of this dtype; None for the default."""
    before = torch.get_default_dtype()
    with made_on(device):
        torch.set_default_dtype(dtype or before)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def _start(node: Any) -> Tensor:
    """The value of a site to find the others with."""
    if isinstance(innermost(node["fn"]), dist.ImproperUniform):
        raise ValueError(f"the prior of {node['name']!r} {IMPROPER}")
    if (
        not hasattr(node["fn"], "support")
        or node["fn"].support.is_discrete
        or isinstance(innermost(node["fn"]), dist.Delta)
    ):
        return node["fn"].sample()  # type: ignore[no-any-return]
    value: Tensor = init_to_uniform(node)
    return value


def _is_latent(node: Any) -> bool:
    return node["type"] == "sample" and not node["is_observed"] and not site_is_subsample(node)


def _check(node: Any) -> None:
    """Raise a ValueError for a site without a density, or a plate that takes subsamples."""
    if node["type"] != "sample":
        return
    name, fn = node["name"], node["fn"]
    if site_is_subsample(node):
        if fn.subsample_size is not None and fn.subsample_size < fn.size:
            raise ValueError(
                f"the plate {name!r} takes {fn.subsample_size} of {fn.size} rows, others in every call: sampling needs all"
            )
        return
    if node["is_observed"]:
        return
    if isinstance(innermost(fn), dist.Delta):
        raise ValueError(f"the site {name!r} has a Delta distribution, which is no density: use pyro.deterministic")
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


_log = logging.getLogger("pyrodrop")


@dataclass(repr=False)
class SampledProgram(Posterior):
    """Draws of the sites of a Pyro program, of all chains; see `pyrodrop.sample`, which makes it.

    Attributes:
        model: the program.
        samples: every continuous site that is not observed, on its support, ``[chains, draws, ...]`` by name, on the CPU.
        stats: of the transitions that led to each draw, as of `Sampled`.
        data: the arguments of the program.
        settings: of the run, in plain numbers and words.
        device: of the arguments.
        kept: the program's parameters and buffers at the time.
        made_in: the dtype of numbers that the program makes, if it was given.
    """

    model: Any
    samples: dict[str, Tensor]
    stats: dict[str, Tensor]
    data: Arguments
    settings: dict[str, Any]
    device: torch.device
    kept: Kept
    made_in: torch.dtype | None = None
    kind = "sampled program"

    @classmethod
    def of(
        cls, density: ProgramDensity, samples: dict[str, Tensor], stats: dict[str, Tensor], settings: dict[str, Any]
    ) -> SampledProgram:
        """Draws of a density."""
        model, arguments = density.model, density.arguments
        if density.held:
            _log.warning(
                "parameters are not sampled, and keep the values that they have: %s. To sample one, make it a site",
                ", ".join(density.held),
            )
        return cls(model, samples, stats, arguments, settings, arguments.device, Kept(model), density.made_in)

    @property
    def chains(self) -> int:
        """The number of chains."""
        return len(self.stats["lp"])

    @property
    def draws(self) -> int:
        """The number of draws of each chain."""
        return self.stats["lp"].shape[1]

    @property
    def fingerprint(self) -> str | None:
        """None, as for a loader."""
        return None

    @contextmanager
    def as_trained(self) -> Iterator[None]:
        """Have the program compute with its values when it was sampled, in evaluation mode, within the block."""
        with (
            threads.exclusive(),
            self.kept.put_in(self.model),
            evaluating(self.model),
            _making(self.device, self.made_in),
        ):
            yield

    def sites(self, num_samples: int | None = None) -> dict[str, Tensor]:
        """Draws of the sampled sites in one sequence, ``[S, ...]`` by name: all, or S that are evenly spaced.

        Raises:
            TypeError, ValueError: `num_samples` is no whole number of at least 1.
        """
        count = self.chains * self.draws
        size = count if num_samples is None else whole_number(num_samples, "num_samples", "the number of draws")
        rows = torch.arange(size) * count // size
        return {name: values.flatten(0, 1)[rows] for name, values in self.samples.items()}

    def diagnostics(self) -> Diagnostics:
        """R-hat and effective sample sizes of the sampled sites and of the log density, divergences and E-BFMI.

        Raises:
            ValueError: a site has the same value in all draws.
        """
        flat = torch.cat([values.reshape(self.chains, self.draws, -1) for values in self.samples.values()], 2)
        diverging, rounding = int(self.stats["diverging"].sum()), float(self.settings["energy_rounding"])
        return diagnose(flat, self.stats["lp"], diverging, rounding, self.stats.get("energy"), ProgramDiagnostics)

    def arguments(self, data: Any = None) -> Arguments:
        """The arguments of the run, or others in the same form; those that default to None may be left out of a mapping.

        Raises:
            TypeError, ValueError: `data` are no arguments, or have other names.
        """
        if data is None:
            return self.data
        if self.data.kwargs:
            data = Keywords.named(data, list(self.data.kwargs), none_by_default(self.model))
        return arguments_of(data, self.device)

    def _draws_of_sites(self, x: Any, count: int, seed: int, sites: Sequence[str] | None) -> dict[str, Tensor]:
        count = whole_number(count, "num_samples", "the number of draws")
        values = {name: value.to(self.device) for name, value in self.sites(count).items()}
        return draw_sites(self.model, None, self.arguments(x), count, seed, sites, values)

    def stored(self) -> Stored:
        """Refused: the draws of a program are tensors, and are saved as such."""
        raise TypeError(
            "draws of a Pyro program have no file of this package: torch.save(sampled.samples, path), or "
            "pyrodrop.to_arviz(sampled).to_netcdf(path)"
        )

    def card(self) -> Card:
        settings = self.settings
        rate = f"{int(self.stats['diverging'].sum())} divergent"
        diagnostics = ProgramDiagnostics.of_dict(settings["diagnostics"])
        return Card(
            "SampledProgram",
            {
                "draws": f"{self.chains} chain{'s' * (self.chains > 1)} of {self.draws}",
                "model": describe(self.model),
                "sampling": ", ".join(
                    f"{name} {settings[name]}" for name in ("tune", "thin", "dtype", "engine", "seed")
                ),
                "transitions": rate,
                "diagnostics": "; ".join(diagnostics.problems) or str(diagnostics),
            },
        )


@contextmanager
def still(model: Any) -> Iterator[None]:
    """Within the block, a program's modules are in evaluation mode; afterwards all is as it was.

    Raises:
        ValueError: at the end, if calls have changed something that the next one may read.
    """
    with evaluating(model), put_back(model, all_writes=False) as look:
        yield
    _refuse_changes(look)


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
