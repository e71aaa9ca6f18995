"""`pyrodrop.sample`: the posterior of a network or of any Pyro program, by Hamiltonian or microcanonical Monte Carlo."""

from __future__ import annotations

import copy
import functools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from pyrodrop import threads
from pyrodrop.checks import Count, HasDraws, Progress, Real, Seed, checked, shown
from pyrodrop.checks import EngineName as Name
from pyrodrop.data import Dataset
from pyrodrop.devices import available, resolve, seeded
from pyrodrop.models import NetworkModel
from pyrodrop.prediction.agreement import check_shapes
from pyrodrop.sampling.chains import State, run
from pyrodrop.sampling.density import CompiledDensity, Density, density_of
from pyrodrop.sampling.hmc import HMC
from pyrodrop.sampling.mclmc import MCLMC
from pyrodrop.sampling.mixing import MOST_ROUNDING
from pyrodrop.sampling.programs import SampledProgram, check_program, program_density, still
from pyrodrop.sampling.sampled import Sampled
from pyrodrop.sampling.tuning import FEW
from pyrodrop.threads import outside
from pyrodrop.training.problem import describe

_log = logging.getLogger("pyrodrop")
_COMPARED = 16  # chains whose energy is also computed in float64


@threads.exclusive()
@outside("sample")
@torch.inference_mode(False)
@torch.enable_grad()
@checked
def sample(
    model: Any,
    data: Any,
    *,
    kernel: Literal["hmc", "mclmc"] = "hmc",
    start: Any = None,
    chains: Annotated[int, Count("the number of chains")] = 64,
    draws: Annotated[int, Count("the number of draws that are kept of each chain", least=4)] = 250,
    tune: Annotated[int, Count("the number of transitions of tuning", least=100)] | None = None,
    thin: Annotated[int, Count("the number of transitions for each draw that is kept")] = 1,
    target_acceptance: Annotated[
        float, Real("the mean acceptance probability that tuning aims at", above=0, below=1)
    ] = 0.8,
    max_steps: Annotated[int, Count("the largest number of leapfrog steps of a trajectory")] = 1000,
    energy_variance: Annotated[
        float, Real("the mean square of energy's change in a step of mclmc, per dimension", above=0)
    ] = 5e-4,
    likelihood_power: float = 1.0,
    dtype: torch.dtype | None = None,
    engine: Name = "auto",
    device: str | torch.device = "auto",
    seed: Seed = 0,
    progress: Progress = None,
) -> Any:
    """Draw from the posterior of a network's weights, or of any Pyro program, with all chains as one compiled step.

    All chains share step size, trajectory length and scales of the coordinates, which are learned from all of them together.
    Many short chains cost less than few long ones, since one step moves them together. There are two kernels:

    - ``hmc``, Hamiltonian Monte Carlo with ChEES (Hoffman, Radul & Sountsov 2021,
      https://proceedings.mlr.press/v130/hoffman21a.html; see `pyrodrop.sampling.tuning`). It has Monte Carlo error only.
    - ``mclmc``, microcanonical Langevin Monte Carlo (Robnik & Seljak 2023, https://arxiv.org/abs/2303.18221; see
      `pyrodrop.sampling.mclmc`). It never rejects, so it has a bias, which is smaller for a smaller `energy_variance`. It
      moves where steps of ``hmc`` would have to be tiny: in networks of several layers, from trained weights as `start`
      (Sommer et al. 2025, https://arxiv.org/abs/2502.06335). A transition is 20 steps of two gradients.

    Of a Pyro program all continuous sites that are not observed are sampled, in Pyro's unconstrained coordinates; discrete
    sites are summed out. The mass matrix is then learned from draws and gradients, with a part of low rank. A program is
    refused if its density is no function of the values of its sites, or if a site has no density. Its modules are in
    evaluation mode, and its parameters keep their values.

    Of a network the weights and biases that have a prior are sampled, and the latent hyperparameters of those priors.
    Everything else keeps the value that it has in `model`, as in `potential`. The network runs in evaluation mode.

    At the end R-hat and effective sample sizes of *functions* and of the log likelihood are computed
    (`Sampled.diagnostics`), or of sites and the log density of a program, and the logger `pyrodrop` warns if there are
    `Diagnostics.problems`, such as chains that have not mixed. Chains seldom agree on the weights of a network, which can be
    permuted.

    Args:
        model: a model of `pyrodrop.models` or a Pyro program, a function or a module; it does not change.
        data: of a network a `Dataset` or a pair (x, y), in their own units; the model takes over the standardisation of a
            `Dataset`. Of a program its arguments: a mapping by name, or a tuple.
        kernel: ``hmc`` or ``mclmc``.
        start: trained runs from whose weights the chains start in turn: a `Fit`, the `Replicates` of `fit_replicates`, a
            `Sampled`, for its last draws, or a sequence of these. None for draws from the prior; chains of a program start
            where all coordinates are uniform on [-2, 2].
        chains: number of chains; from 16 on, tuning works well. With fewer than 4, ``hmc`` learns the length of trajectories
            from means that include recent transitions, which is less reliable: give a larger `tune`. R-hat of one chain
            compares its halves, which cannot show what other starts would have found.
        draws: number of draws to keep of each chain after tuning, at least 4.
        tune: transitions of tuning; None for 250 of ``hmc`` and 500 of ``mclmc``.
        thin: transitions for each draw that is kept.
        target_acceptance: of ``hmc``, target for the harmonic mean over chains of the acceptance probability.
        max_steps: of ``hmc``, the largest number of leapfrog steps of a trajectory.
        energy_variance: of ``mclmc``, target for the mean square of the change of energy in a step, per latent number. At
            the default, variances come out about 1 % too small. Larger values allow longer steps: Sommer et al. end with .1,
            at which variances of a linear regression are 26 % too small.
        likelihood_power: power of the likelihood; 1 for the posterior.
        dtype: ``torch.float32`` or ``torch.float64``, of data, and of the numbers that a program makes. None for that of the
            model; but ``hmc`` then takes float64 if the measured rounding error of float32 energies is above 0.05 nats.
        engine: ``compiled`` by TorchInductor, a ``traced`` graph, ``pyro``, whose handlers run in every call, or ``auto``
            for the first of them that works. If a network cannot be mapped over weights, chains are computed one by one.
        device: where to compute; ``auto`` is the GPU if there is one, and for a program the device of its data.
        seed: of starts, momenta and acceptance.
        progress: whether to show a progress bar; if None, where the output is a terminal.

    Returns:
        A `Sampled`, or a `SampledProgram`, which predict as a `Fit` does.

    Raises:
        TypeError: `model` cannot be called, `data` are not its arguments, `start` is no run, or a number is of the wrong
            kind.
        ValueError: a number is out of its range; `start` has other weights than the model; a prior has no density or is
            improper; the data do not fit the model; the network or program draws random numbers; a site of a program has a
            support that depends on other sites, is masked, in a subsample, or discrete with infinitely many values; calls
            of the program change something, or have other sites; or the draws do not fit into memory.
        RuntimeError: the call is inside a block that would change what it computes: see `pyrodrop.threads`.

    Example:
        >>> import torch, pyrodrop
        >>> _ = torch.manual_seed(0)
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> model = pyrodrop.models.MLP(
        ...     [1, 4, 1],
        ...     prior=pyrodrop.priors.Gaussian(),
        ...     bias_prior=pyrodrop.priors.Gaussian(),
        ...     likelihood=pyrodrop.likelihoods.Gaussian(precision=10.0),
        ... )
        >>> sampled = pyrodrop.sample(model, (x, x**2), chains=8, draws=20, tune=100, engine="traced", max_steps=20)
        >>> sampled.samples["layers.0.weight"].shape
        torch.Size([8, 20, 4, 1])
        >>> sampled.predict(x, num_samples=50).f.shape
        torch.Size([50, 20, 1])
    """
    begun = time.perf_counter()
    chosen: dict[str, Any] = {"target_acceptance": target_acceptance, "max_steps": max_steps}
    run_ = _Run(
        kernel, chains, draws, tune or (250 if kernel == "hmc" else 500), thin, engine, seed, progress,
        chosen if kernel == "hmc" else {"energy_variance": energy_variance}, dtype is None,
    )  # fmt: skip
    sampled: Any
    if isinstance(model, NetworkModel):
        place = resolve(device)
        model = copy.deepcopy(model).to(place)
        drawing = None if start is None else drawing_of(start)
        dataset = Dataset.of(data)

        def density_in(dtype: torch.dtype | None) -> Density:
            return density_of(model, dataset, dtype, likelihood_power)

        density, samples, stats, settings = run_.drawn(density_in, dtype, drawing)
        settings |= {"likelihood_power": float(likelihood_power), "device": place.type}
        settings |= {"num_data": len(dataset), "data_fingerprint": dataset.fingerprint}
        settings |= {} if dataset.columns is None else {"columns": dataset.columns.words()}
        sampled = Sampled(density.model, samples, stats, dataset, settings, place)
    else:
        check_program(model, start=start, likelihood_power=likelihood_power, dtype=dtype)
        with still(model):
            made = functools.partial(program_density, model, data, device)
            program, samples, stats, settings = run_.drawn(made, dtype, None)
            sampled = SampledProgram.of(program, samples, stats, settings)
    diagnostics = sampled.diagnostics()
    sampled.settings |= {"diagnostics": diagnostics.to_dict(), "seconds": time.perf_counter() - begun}
    if diagnostics.mixed and diagnostics.few:
        _log.info("%s", diagnostics.few)
    if not diagnostics.mixed:
        _log.warning("the draws of %s should not be used yet: %s", settings["model"], "; ".join(diagnostics.problems))
    return sampled


class _Run(NamedTuple):
    """What a call of `sample` asks for; `widens` is whether it may continue in float64."""

    kernel: Literal["hmc", "mclmc"]
    chains: int
    draws: int
    tune: int
    thin: int
    engine: Name
    seed: int
    progress: bool | None
    options: dict[str, Any]
    widens: bool

    def drawn(
        self, density_in: Callable[[torch.dtype | None], Density], dtype: torch.dtype | None, drawing: Any
    ) -> tuple[Any, dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
        """The density, draws by site, statistics of the transitions, and settings.

        Args:
            density_in: makes the density in a dtype.
            drawing: of `drawing_of`; None to start from `Density.draw`.
        """
        density, chains, tune = density_in(dtype), self.chains, self.tune
        numbers = chains * self.draws * sum(density.sizes)
        _check_memory(numbers, torch.float64 if dtype is None else density.dtype)  # None may become float64
        if self.kernel == "mclmc" and numbers == chains * self.draws:
            raise ValueError(
                "kernel='mclmc' moves on a sphere and needs a model with at least 2 latent numbers; it has 1"
            )
        kind: Any = MCLMC
        step, options = MCLMC.step, self.options
        if self.kernel == "hmc":
            rank = min(density.rank, sum(density.sizes))
            kind, step, options = HMC, HMC.step_of(rank), {**self.options, "rank": rank}
        compiled = CompiledDensity(density, chains, self.engine, step)
        compiling = compiled.seconds
        generator = torch.Generator(density.device).manual_seed(self.seed)
        bar = tqdm(
            total=tune + self.draws * self.thin, unit="transition", desc=f"{chains} chain{'s' * (chains > 1)}", leave=False,
            disable=None if self.progress is None else not self.progress,
        )  # fmt: skip
        with bar:
            q = compiled.from_prior(generator) if drawing is None else from_runs(compiled, drawing, generator)
            moving, rounding = kind(compiled, q, generator, tune, **options), 0.0

            def settle() -> None:
                """Measure the rounding of energies in float32, and go on in float64 if it is large."""
                nonlocal compiling, rounding
                if density.dtype != torch.float32 or self.kernel != "hmc":
                    return
                try:
                    precise = density_in(torch.float64)
                except (ValueError, TypeError) as error:  # a program with tensors of its own
                    _log.info("the density cannot be computed in float64: %s", error)
                    rounding = _rounding_of_lines(compiled, moving.state, generator)
                    return
                rounding = _rounding(compiled, precise, moving.state)
                if self.widens and not rounding <= MOST_ROUNDING:
                    _log.info("sampling in float64, as float32 rounds energies by %.2g nats", rounding)
                    moving.move_to(CompiledDensity(precise, chains, self.engine, step))
                    compiling += moving.density.seconds
                    rounding = 0.0

            q, stats, seconds = run(moving, self.draws, self.thin, bar, settle)
        compiled = moving.density
        density = compiled.density
        learned = {name: value for name, value in moving.tuned._asdict().items() if isinstance(value, float)}
        if self.kernel == "mclmc":
            learned["energy_variance_reached"] = float(stats["energy_error"].square().nanmean()) / compiled.size
        settings = {
            **{"kernel": self.kernel, "chains": chains, "tune": tune, "thin": self.thin, **self.options},
            **{"seed": self.seed, "draws": self.draws},
            "dtype": str(density.dtype).removeprefix("torch."),
            "engine": compiled.engine,
            "stacked": compiled.stacked,
            **learned,
            "drawing_cpu_seconds": seconds.pop("drawing_cpu"),
            "seconds_of": {"compiling": compiling, **seconds},
            "energy_rounding": rounding,
            "model": describe(density.model),
        }
        return density, density.constrained(q), stats, settings


def _check_memory(numbers: int, dtype: torch.dtype) -> None:
    """Raise a ValueError if this many numbers, and a copy of them, do not fit into half of the free memory."""
    need, free = 2 * numbers * dtype.itemsize, available(torch.device("cpu"))
    if need > 0.5 * free:
        raise ValueError(
            f"the draws take {need / 2**30:.1f} GiB, and half of the free memory is {0.5 * free / 2**30:.1f} GiB: keep "
            "fewer draws or chains, and take thin=... transitions for each draw"
        )


def _rounding(compiled: CompiledDensity, precise: Density, state: State) -> float:
    """Standard deviation of the error of the energy in float32, over chains, or points near them if there are few."""
    near = [state.q * (1 + 1e-3 * number) for number in range(1, math.ceil(FEW / len(state.q)))]
    q = torch.cat([state.q, *near])[:_COMPARED].double()
    energy = torch.cat([state.energy, *(compiled.energies(points)[0] for points in near)])[:_COMPARED].double()
    with torch.no_grad():
        exact = [precise.energy(precise.by_site(point)) for point in q]
    return float((energy - torch.stack(exact)).std())


def _rounding_of_lines(compiled: CompiledDensity, state: State, generator: torch.Generator) -> float:
    """The same from short lines: the change of energy minus that by the gradients at the ends, in the median over chains."""
    q, errors = state.q, []
    for _ in range(math.ceil(_COMPARED / len(q))):
        change = 1e-3 * state.normal(generator) * (1 + q.abs())
        energy, gradient = compiled.energies(end := q + change)
        slope = (0.5 * (gradient.double() + state.gradient.double()) * (end.double() - q.double())).sum(1)
        errors.append((energy.double() - state.energy.double() - slope).abs() / math.sqrt(2))
    return 1.48 * float(torch.cat(errors).median())


def drawing_of(start: Any) -> list[Callable[[int], Mapping[str, Tensor]]]:
    """Functions that draw the latent sites of runs, ``[count, ...]`` by name.

    Args:
        start: a run or a sequence of runs, each with a guide that draws, or a `Sampled`.

    Raises:
        TypeError: `start` is something else.
    """
    drawing: list[Callable[[int], Mapping[str, Tensor]]] = []
    for one in list(start) if isinstance(start, Sequence) and not isinstance(start, str) else [start]:
        guide = getattr(one, "guide", None)
        if isinstance(one, Sampled):
            drawing.append(one.last)
        elif isinstance(guide, HasDraws):
            drawing.append(guide.draw)
        else:
            start, drawing = one, []
            break
    if not drawing:
        raise TypeError(
            "start must be a Fit, the Replicates of fit_replicates, a Sampled, or a sequence of these, which chains take in "
            f"turn; got {shown(start)}"
        )
    return drawing


def from_runs(compiled: CompiledDensity, drawing: Sequence[Any], generator: torch.Generator) -> Tensor:
    """Weights of runs, which the chains take in turn, ``[C, D]``; hyperparameters that a run lacks are drawn.

    Args:
        drawing: of `drawing_of`.

    Raises:
        ValueError: names or shapes of weights differ from those of the model, or the energy at a start is not finite.
    """
    density, count = compiled.density, compiled.chains
    seeds = torch.randint(2**31, (count,), generator=generator, device=generator.device).tolist()
    weights, drawn = density.model.weight_sites(), []
    shapes = {name: value.shape for name, value in weights.items() if name in density.sites}
    with seeded(seeds[0], generator.device):
        for number, draw in enumerate(drawing[:count]):
            values = draw(-(-count // len(drawing)))
            check_shapes({n: v.shape[1:] for n, v in values.items() if n in shapes}, shapes, f"run {number}", "start")
            drawn.append({name: value for name, value in values.items() if name in density.sites})
    points, like = [], torch.zeros((), dtype=density.dtype, device=density.device)
    for chain, seed in enumerate(seeds):
        values = {n: v[chain // len(drawing)].to(like) for n, v in drawn[chain % len(drawing)].items()}
        values = {name: density.sites[name].to_support.inv(value) for name, value in values.items()}
        points.append(density.flat({**(density.draw(seed) if len(values) < len(density.sites) else {}), **values}))
    q = torch.stack(points)
    if (wrong := compiled.not_finite(q)).any():
        raise ValueError(
            f"start: the log joint density at the weights of run {int(wrong.nonzero()[0]) % len(drawing)} is not finite, or "
            "its gradient is not"
        )
    return q
