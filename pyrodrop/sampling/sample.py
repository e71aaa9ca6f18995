"""`pyrodrop.sample`: the exact posterior by Hamiltonian Monte Carlo with many chains."""

from __future__ import annotations

import copy
import logging
import math
import time
from typing import Annotated, Any

import torch
from torch import Tensor
from tqdm import tqdm

from pyrodrop import threads
from pyrodrop.constraints import Count, Progress, Real, Seed, checked
from pyrodrop.data import Data, Dataset
from pyrodrop.devices import available, resolve
from pyrodrop.engines import Name
from pyrodrop.models import NetworkModel
from pyrodrop.sampling.hmc import Chains, Drawn, Limits
from pyrodrop.sampling.leapfrog import Leapfrog
from pyrodrop.sampling.mixing import MOST_ROUNDING
from pyrodrop.sampling.posterior import NOT_FINITE, TRIES, density_of
from pyrodrop.sampling.sampled import Sampled
from pyrodrop.sampling.tuning import FEW

_log = logging.getLogger("pyrodrop")
_COMPARED = 16  # chains whose energy is computed in float64 too


@threads.training()
@torch.inference_mode(False)
@torch.enable_grad()
@checked
def sample(
    model: NetworkModel,
    data: Data,
    *,
    chains: Annotated[int, Count("the number of chains")] = 64,
    draws: Annotated[int, Count("the number of draws that are kept of each chain", least=4)] = 250,
    tune: Annotated[int, Count("the number of transitions of tuning", least=100)] = 500,
    thin: Annotated[int, Count("the number of transitions for each draw that is kept")] = 1,
    target_acceptance: Annotated[
        float, Real("the mean acceptance probability that tuning aims at", above=0, below=1)
    ] = 0.651,
    max_steps: Annotated[int, Count("the largest number of leapfrog steps of a trajectory")] = 1000,
    likelihood_power: float = 1.0,
    dtype: torch.dtype | None = None,
    engine: Name = "auto",
    device: str | torch.device = "auto",
    seed: Seed = 0,
    progress: Progress = None,
) -> Sampled:
    """Draw from the exact posterior of a network's weights by Hamiltonian Monte Carlo, with all chains as one compiled step.

    All chains share step size, trajectory length and mass matrix, which are learned from all of them together (ChEES-HMC:
    Hoffman, Radul & Sountsov 2021, https://proceedings.mlr.press/v130/hoffman21a.html; see `pyrodrop.sampling.tuning`). Many
    short chains cost less than few long ones, since one step moves them together.

    What is sampled are the weights and biases that have a prior, and the latent hyperparameters of those priors. Everything
    else keeps the value that it has in `model`, as in `potential`. The network runs in evaluation mode.

    At the end R-hat and effective sample sizes of *functions* and of the log likelihood are computed
    (`Sampled.diagnostics`), and the logger `pyrodrop` warns if the chains have not mixed. Chains seldom agree on the weights
    of a network, which can be permuted.

    Args:
        model: a model of `pyrodrop.models`; it does not change.
        data: a `Dataset` or a pair (x, y), in their own units. The model takes over the standardisation of a `Dataset`.
        chains: number of chains; from 16 on, tuning works well. With fewer than 4 the trajectory length is learned with the
            mean of past transitions in place of that over chains, and is less often a good one: give a larger `tune`. R-hat
            of one chain compares its halves, which cannot show what other starts would have found.
        draws: that are kept of each chain after tuning.
        tune: transitions of tuning.
        thin: transitions for each draw that is kept.
        target_acceptance: harmonic mean over chains of the acceptance probability.
        max_steps: leapfrog steps of a trajectory at most.
        likelihood_power: power of the likelihood; 1 for the posterior.
        dtype: ``torch.float32`` or ``torch.float64``. None for that of the model, and float64 if rounding then changes
            energies by more than 0.05 nats, which is measured.
        engine: ``compiled`` by TorchInductor, a ``traced`` graph, ``pyro``, whose handlers run in every call, or ``auto``
            for the first of them that works. A network that cannot be mapped over weights takes its chains in turn.
        device: where to compute; ``auto`` is the GPU if there is one.
        seed: of starts, momenta and acceptance.
        progress: whether to show a progress bar; if None, where the output is a terminal.

    Returns:
        A `Sampled`, which predicts as a `Fit` does.

    Raises:
        TypeError: `model` is not one of `pyrodrop.models`, or a number is of the wrong kind.
        ValueError: a number is out of its range; a prior has no density or is improper; the data do not fit the model; the
            network draws random numbers; or the draws do not fit into memory.

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
    begun, place = time.perf_counter(), resolve(device)
    dataset = Dataset.of(data)
    if isinstance(model, NetworkModel):
        model = copy.deepcopy(model).to(place)
    density = density_of(model, dataset, dtype, likelihood_power)
    numbers = chains * draws * sum(site.shape.numel() for site in density.sites.values())
    _check_memory(numbers, torch.float64 if dtype is None else density.dtype)  # None may become float64
    leapfrog = Leapfrog(density, chains, engine)
    generator = torch.Generator(place).manual_seed(seed)
    bar = tqdm(
        total=tune + draws * thin, unit="transition", desc=f"{chains} chain{'s' * (chains > 1)}", leave=False,
        disable=None if progress is None else not progress,
    )  # fmt: skip

    def tick(words: str) -> None:
        bar.set_postfix_str(words, refresh=False)
        bar.update()

    limits = Limits(tune, draws, thin, target_acceptance, max_steps)
    with bar:
        moving = Chains(leapfrog, _starts(leapfrog, generator), limits, generator, tick)
        moving.descend()
        rounding = 0.0
        if density.dtype == torch.float32:
            precise = density_of(model, dataset, torch.float64, likelihood_power)
            rounding = _rounding(leapfrog, precise, moving.state.q, moving.state.energy)
            if dtype is None and not rounding <= MOST_ROUNDING:
                _log.info("sampling in float64, as float32 rounds energies by %.2g nats", rounding)
                density, rounding = precise, 0.0
                leapfrog = Leapfrog(precise, chains, engine)
                moving.move_to(leapfrog, moving.state.q.double())
        moving.learn()
        drawn = moving.run()
    settings = {
        "chains": chains,
        "draws": draws,
        "tune": tune,
        "thin": thin,
        "target_acceptance": target_acceptance,
        "max_steps": max_steps,
        "likelihood_power": float(likelihood_power),
        "dtype": str(density.dtype).removeprefix("torch."),
        "engine": leapfrog.engine,
        "stacked": leapfrog.stacked,
        "device": place.type,
        "seed": seed,
        "step_size": drawn.step_size,
        "trajectory": drawn.trajectory,
        "drawing_cpu_seconds": drawn.cpu_seconds,
        "energy_rounding": rounding,
        "model": density.model.describe(),
        "num_data": len(dataset),
        "data_fingerprint": dataset.fingerprint,
        **({} if dataset.columns is None else {"columns": dataset.columns.words()}),
    }
    sampled = Sampled(density.model, leapfrog.values(drawn.q), _stats(drawn), dataset, settings, place)
    found = sampled.diagnostics()
    sampled.settings |= {"diagnostics": found.to_dict(), "seconds": time.perf_counter() - begun}
    if found.mixed and found.few:
        _log.info("%s", found.few)
    if not found.mixed:
        _log.warning("the draws of %s should not be used yet: %s", density.model.describe(), "; ".join(found.problems))
    return sampled


def _check_memory(numbers: int, dtype: torch.dtype) -> None:
    """Raise a ValueError if so many numbers, and a copy of them, do not fit into half of the free memory."""
    need, free = 2 * numbers * dtype.itemsize, available(torch.device("cpu"))
    if need > 0.5 * free:
        raise ValueError(
            f"the draws take {need / 2**30:.1f} GiB, and half of the free memory is {0.5 * free / 2**30:.1f} GiB: keep "
            "fewer draws or chains, and take thin=... transitions for each draw"
        )


def _starts(leapfrog: Leapfrog, generator: torch.Generator) -> Tensor:
    """Draws from the prior with a finite energy and gradient, ``[C, D]``.

    Raises:
        ValueError: there are too few of them.
    """
    seeds = torch.randint(2**31, (TRIES, leapfrog.chains), generator=generator, device=generator.device).tolist()
    q = torch.stack([leapfrog.flat(leapfrog.density.draw(seed)) for seed in seeds[0]])
    for row in seeds[1:]:
        state = leapfrog.at(q)
        wrong = ~(state.energy.isfinite() & state.gradient.isfinite().all(1))
        if not wrong.any():
            return q
        for chain in wrong.nonzero().flatten().tolist():
            q[chain] = leapfrog.flat(leapfrog.density.draw(row[chain]))
    raise ValueError(NOT_FINITE)


def _rounding(leapfrog: Leapfrog, precise: Any, q: Tensor, energy: Tensor) -> float:
    """Standard deviation over chains, and points near those of few chains, of the error of the energy in float32."""
    near = [q * (1 + 1e-3 * number) for number in range(1, math.ceil(FEW / len(q)))]
    q, energy = torch.cat([q, *near]), torch.cat([energy, *(leapfrog.at(points).energy for points in near)])
    errors = []
    for one, own in zip(q[:_COMPARED].double(), energy, strict=False):
        parts = one.split(leapfrog.sizes)
        values = {n: v.reshape(s.shape) for (n, s), v in zip(precise.sites.items(), parts, strict=True)}
        with torch.no_grad():
            errors.append(own.double() - precise.energy(values, precise.x, precise.y))
    return float(torch.stack(errors).std())


def _stats(drawn: Drawn) -> dict[str, Tensor]:
    names = ("lp", "energy", "acceptance_rate", "diverging", "n_steps")
    return {name: getattr(drawn, name) for name in names}
