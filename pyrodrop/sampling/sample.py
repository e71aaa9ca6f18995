"""`pyrodrop.sample`: the posterior of a network or of any Pyro program, by Hamiltonian Monte Carlo."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated, Any

import torch
from torch import Tensor
from tqdm import tqdm

from pyrodrop import threads
from pyrodrop.changes import Kept
from pyrodrop.checks import Count, HasDraws, Progress, Real, Seed, checked, shown
from pyrodrop.data import Dataset
from pyrodrop.devices import available, resolve, seeded
from pyrodrop.guides.guide import check_shapes
from pyrodrop.models import NetworkModel
from pyrodrop.sampling.compiled_density import CompiledDensity, Name
from pyrodrop.sampling.density import Density, network_density, program_density, still
from pyrodrop.sampling.hmc import HMC
from pyrodrop.sampling.mclmc import MCLMC
from pyrodrop.sampling.sampled import Sampled
from pyrodrop.threads import outside
from pyrodrop.training.problem import describe

_log = logging.getLogger("pyrodrop")


@threads.exclusive()
@outside("sample")
@torch.inference_mode(False)
@torch.enable_grad()
@checked
def sample(
    model: Any,
    data: Any,
    *,
    start: Any = None,
    chains: Annotated[int, Count("the number of chains", least=4)] | None = None,
    draws: Annotated[int, Count("the number of draws that are kept of each chain", least=4)] = 250,
    tune: Annotated[int, Count("the number of transitions of tuning", least=100)] = 250,
    max_steps: Annotated[int, Count("the largest number of leapfrog steps of a trajectory")] = 1000,
    energy_variance: Annotated[
        float, Real("the mean square of energy's change in a microcanonical step, per dimension", least=0)
    ]
    | None = None,
    dtype: torch.dtype | None = None,
    engine: Name = "auto",
    device: str | torch.device = "auto",
    seed: Seed = 0,
    progress: Progress = None,
) -> Sampled:
    """Draw from the posterior of a network's weights, or of any Pyro program, with all chains as one compiled step.

    All chains share step size, trajectory length and scales of the coordinates, which are learned from all of them together:
    Hamiltonian Monte Carlo with ChEES (Hoffman, Radul & Sountsov 2021,
    https://proceedings.mlr.press/v130/hoffman21a.html; see `pyrodrop.sampling.tuning`). It has Monte Carlo error only. Many
    short chains cost less than few long ones, since one step moves them together.

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
        start: trained runs from whose weights the chains start in turn: a `Fit`, the `Replicates` of `fit_replicates`, a
            `Sampled`, for its last draws, or a sequence of these. None for draws from the prior; chains of a program start
            where all coordinates are uniform on [-2, 2].
        chains: number of chains, at least 4, since each learns from the others; from 16 on, tuning works well. None for 64,
            or for one from every run of `start` if they are microcanonical.
        draws: number of draws to keep of each chain after tuning, at least 4.
        tune: transitions of tuning.
        max_steps: the largest number of leapfrog steps of a trajectory.
        energy_variance: 0 for Hamiltonian Monte Carlo; a number for microcanonical Langevin chains, which never reject,
            so that they have a bias (see `pyrodrop.sampling.mclmc`): variances are too small, about 1 % at 5e-4 and 26 % at
            0.1. It is the target for the mean square of the change of energy in a step, per latent number, of which there
            must be at least 2. None for that of a `Sampled` in `start`; without one for 0.1 if a network of two or more
            hidden layers has a `start`, where the steps of Hamiltonian chains are tiny (Sommer et al. 2025,
            https://arxiv.org/abs/2502.06335, end with .1), and for 0 otherwise.
        dtype: of a network and its data, ``torch.float32`` or ``torch.float64``; None for that of the model. The
            diagnostics report a rounding error of float32 energies above 0.05 nats.
        engine: ``compiled`` by TorchInductor, a ``traced`` graph, or ``auto`` for the first of them that works. If a
            network cannot be mapped over weights, chains are computed one by one.
        device: where to compute; ``auto`` is the GPU if there is one, and for a program the device of its data.
        seed: of starts, momenta and acceptance.
        progress: whether to show a progress bar; if None, where the output is a terminal.

    Returns:
        A `Sampled`, which predicts as a `Fit` does.

    Raises:
        TypeError: `model` cannot be called, `data` are not its arguments, `start` is no run, or a number is of the wrong
            kind.
        ValueError: a number is out of its range; `start` has other weights than the model; a prior has no density or is
            improper; the data do not fit the model; the network or program draws random numbers, or cannot be
            recorded; a site of a program has a support that depends on other sites, is masked, in a subsample, or discrete
            with infinitely many values; calls of the program change something, or have other sites; or the draws do not fit
            into memory.
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
    with ExitStack() as stack:
        density: Density
        if isinstance(model, NetworkModel):
            place, dataset = resolve(device), Dataset.of(data)
            density = network_density(copy.deepcopy(model).to(place), dataset, dtype)
        else:
            if start is not None or dtype is not None:
                raise TypeError("start and dtype are for models of pyrodrop.models, not for other programs")
            stack.enter_context(still(model))
            density = program_density(model, data, device)
        runs = [] if start is None else runs_of(start)
        if energy_variance is None:
            several = runs and sum(len(site.shape) > 1 for site in density.sites.values()) > 2
            before = [run.settings.get("energy_variance") or 0.0 for run in runs if isinstance(run, Sampled)]
            energy_variance = max(before, default=0.1 if several else 0.0)
            if energy_variance and not before:
                _log.info("several layers from trained starts: microcanonical chains; energy_variance=0 for others")
        chains = chains or (max(4, len(runs)) if runs and energy_variance else 64)
        need, free = 2 * chains * draws * sum(density.sizes) * density.dtype.itemsize, available(torch.device("cpu"))
        if need > 0.5 * free:
            raise ValueError(
                f"the draws take {need / 2**30:.1f} GiB, more than half of what is free: keep fewer draws or chains"
            )
        if energy_variance and sum(density.sizes) < 2:
            raise ValueError("energy_variance is of chains on a sphere, in at least 2 latent numbers; there is 1")
        compiled = CompiledDensity(density, chains, engine)
        generator = torch.Generator(density.device).manual_seed(seed)
        hidden = None if progress is None else not progress
        with tqdm(total=tune + draws, unit="transition", leave=False, disable=hidden) as bar:
            q = from_runs(compiled, runs, generator) if runs else compiled.from_prior(generator)
            kind: Any = MCLMC if energy_variance else HMC
            how = {"energy_variance": energy_variance} if energy_variance else {"max_steps": max_steps}
            hmc: HMC = kind(compiled, q, generator, tune, **how)
            q, stats = hmc.run(draws, bar)
        rounding = float(stats["lp"].abs().median()) * torch.finfo(density.dtype).eps / 2
        settings: dict[str, Any] = {
            **{"kernel": "mclmc" if energy_variance else "hmc", "energy_variance": energy_variance, "tune": tune},
            **{"chains": chains, "draws": draws, "engine": compiled.engine, "stacked": compiled.stacked},
            **{"max_steps": max_steps, "step_size": hmc.step_size, "trajectory": hmc.trajectory, "seed": seed},
            "dtype": str(density.dtype).removeprefix("torch."),
            "energy_rounding": 0.0 if energy_variance else rounding,
            "model": describe(density.model),
        }
        samples = density.constrained(q)
    if isinstance(model, NetworkModel):
        settings |= {"device": place.type, "num_data": len(dataset), "data_fingerprint": dataset.fingerprint}
        settings |= {} if dataset.columns is None else {"columns": dataset.columns.words()}
        sampled = Sampled(density.model, samples, stats, dataset, settings, place)
    else:
        if density.held:
            _log.warning(
                "parameters are not sampled, and keep the values that they have: %s. To sample one, make it a site",
                ", ".join(density.held),
            )
        sampled = Sampled(model, samples, stats, density.arguments, settings, density.device, Kept(model))
    diagnostics = sampled.diagnostics()
    settings |= {"diagnostics": diagnostics.to_dict(), "seconds": time.perf_counter() - begun}
    if not diagnostics.mixed:
        _log.warning("the draws of %s should not be used yet: %s", settings["model"], "; ".join(diagnostics.problems))
    return sampled


def runs_of(start: Any) -> list[Any]:
    """The runs to start from, each with a method `draw` or a guide that has one; a TypeError for anything else."""
    runs = list(start) if isinstance(start, Sequence) and not isinstance(start, str) else [start]
    drawing = [getattr(run, "guide", run) for run in runs]
    if not drawing or not all(isinstance(each, HasDraws) for each in drawing):
        raise TypeError(
            "start must be a Fit, the Replicates of fit_replicates, a Sampled, or a sequence of these, which chains take in "
            f"turn; got {shown(start)}"
        )
    return drawing


def from_runs(compiled: CompiledDensity, runs: Sequence[HasDraws], generator: torch.Generator) -> Tensor:
    """Weights of runs, which the chains take in turn, ``[C, D]``; hyperparameters that a run lacks are drawn.

    Raises:
        ValueError: names or shapes of weights differ from those of the model, or the energy at a start is not finite.
    """
    density, count = compiled.density, compiled.chains
    seeds = torch.randint(2**31, (count,), generator=generator, device=generator.device).tolist()
    shapes = {name: value.shape for name, value in density.model.weight_sites().items()}
    with seeded(seeds[0], generator.device):
        drawn = [run.draw(-(-count // len(runs))) for run in runs[:count]]
    for number, values in enumerate(drawn):
        check_shapes({n: v.shape[1:] for n, v in values.items() if n in shapes}, shapes, f"run {number}", "start")
    points, like = [], torch.zeros((), dtype=density.dtype, device=density.device)
    for chain, seed in enumerate(seeds):
        run = {name: value[chain // len(runs)].detach().to(like) for name, value in drawn[chain % len(runs)].items()}
        values = {name: site.to_support.inv(run[name]) for name, site in density.sites.items() if name in run}
        points.append(density.flat({**density.draw(seed), **values}))
    q = torch.stack(points)
    if (wrong := compiled.not_finite(q)).any():
        raise ValueError(
            f"start: the log joint density at the weights of run {int(wrong.nonzero()[0]) % len(runs)} is not finite, or "
            "its gradient is not"
        )
    return q
