"""Guides on twenty small problems, compared with the exact posterior and with a Gaussian process.

    python -m pyrodrop.analysis.lab.benchmarks.small_fits FILE [--names PROBLEM] [--seed N]

A network D-50-K with tanh and priors for weights and biases; x and real y are standardised. Six guides are trained by 3,000
steps of Adam on all rows, in these settings:

    default                  priors N(0, 1), noise learned from 1 / Var(y)
    from gp                  priors and noise of `priors.from_gp`, noise fixed

The exact posterior, by Hamiltonian Monte Carlo, has the priors of ``default`` or of ``from gp``, and the noise of the
latter, since the precision is not a latent variable here. ``one call`` is `recipes.curve` with its defaults, whose network
has 100 units; counts are real numbers to it. They are compared with a constant, N(mean, variance), Poisson or
frequencies, and with a Gaussian process: Matern-5/2, or of class labels. Counts and labels have only
``default``. Scores are log densities in nats per row, of the rows inside and away
(`small_problems`). FILE is written after every problem, with the curves of the figure beside it, ``NAME.npz``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis.gp import GaussianProcess, GaussianProcessClassifier
from pyrodrop.analysis.lab import tidy
from pyrodrop.analysis.lab.benchmarks.small_problems import PROBLEMS, Problem, problem
from pyrodrop.analysis.lab.benchmarks.timing import Bench, command

UNITS, STEPS, LR, DRAWS = 50, 3000, 1e-2, 1000
CURVE, SIDE, MARGIN = 80, 16, 0.15  # points of a curve and of a side of a map, and how far beyond the data
HMC: Mapping[str, Any] = {"chains": 16, "draws": 100, "tune": 250, "max_steps": 128, "device": "cpu"}
GUIDES: Mapping[str, Callable[[Any], Any]] = {
    "mean field": guides.MeanField,
    "variational B": lambda model: guides.VariationalDropout(model, "B"),
    "MC dropout": lambda model: guides.BernoulliDropout(model, 0.05, mask_input=False),
    "concrete": lambda model: guides.ConcreteDropout(model, mask_input=False),
    "point": guides.Point,
    "exact last layer": guides.ExactLastLayer,  # only for Gaussian noise
}
SETTINGS = ("default", "from gp")
METHODS = (*GUIDES, "exact")


def network(of: Problem, setting: str, noise_sd: float = 0.0) -> models.MLP:
    """The network of a setting; ``default`` has its noise fixed at `noise_sd` if this is not 0."""
    likelihood: Any = likelihoods.Gaussian(noise_sd**-2) if noise_sd else likelihoods.Gaussian()
    if of.classes or of.counts:
        likelihood = likelihoods.Categorical() if of.classes else likelihoods.Poisson()
    widths, gaussian = [of.train.x.shape[1], UNITS, max(1, of.classes)], priors.Gaussian()
    model = models.MLP(widths, "tanh", prior=gaussian, bias_prior=gaussian, likelihood=likelihood, seed=of.seed)
    return model if setting == "default" else priors.from_gp(model, of.train).model  # type: ignore[return-value]


def measured(of: Problem, setting: str, method: str, noise_sd: float) -> dict[str, Any]:
    """The scores of a cell, and the values that its figure shows."""
    began = time.process_time()
    if method == "exact":
        exact = network(of, setting, noise_sd if setting == "default" else 0.0)
        run: Any = pyrodrop.sample(exact, of.train, seed=of.seed, progress=False, **HMC)
    else:
        model = network(of, setting)
        run = pyrodrop.fit(model, GUIDES[method](model), of.train, steps=STEPS, lr=LR, seed=of.seed, progress=False)
    seconds = time.process_time() - began
    likelihood: Any = run.model.likelihood
    extra = {"noise_sd": float(likelihood.precision.detach()) ** -0.5} if hasattr(likelihood, "precision") else {}
    if method == "exact":
        extra |= {"r_hat_f": run.settings["diagnostics"]["r_hat_f"]}
    return scored(of, run) | extra | {"seconds": seconds}


def noise(of: Problem) -> float:
    """The standard deviation of the noise by `priors.from_gp`; 0 if the noise is not Gaussian."""
    if of.classes or of.counts:
        return 0.0
    fitted: Any = priors.from_gp(network(of, "default"), of.train)
    return float(fitted.noise_sd)


def process(of: Problem) -> dict[str, Any]:
    """The cell of the Gaussian process; empty for counts."""
    began = time.process_time()
    if of.counts:
        return {}
    kind, kernel = (GaussianProcessClassifier, "squared-exponential") if of.classes else (GaussianProcess, "matern-5/2")
    run: Any = kind(of.train, kernel, progress=False)
    extra = {} if of.classes else {"noise_sd": run.noise_sd}
    return scored(of, run) | extra | {"seconds": time.process_time() - began}


def one_call(of: Problem) -> dict[str, Any]:
    """The cell of `recipes.curve` as it is."""
    began = time.process_time()
    run = pyrodrop.recipes.curve(of.train, seed=of.seed).fit(seed=of.seed, progress=False)
    seconds = time.process_time() - began
    return scored(of, run, drawn=False) | {"seconds": seconds}


def scored(of: Problem, run: Any, *, drawn: bool = True) -> dict[str, Any]:
    """Log densities of both parts, and mean and standard deviation of y, or of the label, at the points of the figure."""
    scores = {
        part: float(run.predict(rows.x, DRAWS).log_density(rows.y).mean())
        for part, rows in (("inside", of.inside), ("away", of.away))
    }
    if not drawn:
        return scores
    predicted = run.predict(points(of), DRAWS)
    if of.classes:
        p = predicted.f.softmax(-1).mean(0)
        mean, sd = p[:, -1], -(p * p.log()).sum(-1)
    else:
        mean, sd = predicted.mean[:, 0], predicted.sd[:, 0]
    return scores | {"mean": mean.numpy(), "sd": sd.numpy()}


def cells(name: str, curves: Path, seed: int = 0) -> dict[str, dict[str, Any]]:
    """The scores of a problem by method; the values of the figure are put into a file, in float16."""
    of = problem(name, seed)
    gaussian, noise_sd = not (of.classes or of.counts), noise(of)
    made: dict[str, dict[str, Any]] = {"constant": constant(of) | {"rows": len(of.train), "noise_sd": noise_sd}}
    made |= {"GP": cell} if (cell := process(of)) else {}
    made["one call"] = one_call(of)
    for setting in SETTINGS if gaussian else ("default",):
        for method in METHODS:
            if gaussian or method != "exact last layer":
                made[f"{setting}: {method}"] = measured(of, setting, method, noise_sd)
    drawn = [(method, what) for method in shown(made).values() if method in made for what in ("mean", "sd")]
    tidy.put_curves(curves, {f"{name}/{method}/{what}": made[method][what] for method, what in drawn})
    return {
        method: {score: value for score, value in cell.items() if score not in ("mean", "sd")}
        for method, cell in made.items()
    }


def read(file: Path) -> dict[str, dict[str, tidy.Row]]:
    """The scores of a file by problem and method, ``SETTING: METHOD``."""
    problems: dict[str, dict[str, tidy.Row]] = {}
    for row in tidy.read(file):
        problems.setdefault(row["problem"], {})[row["method"]] = tidy.scores(row)
    return problems


def shown(cells: Mapping[str, Any]) -> dict[str, str]:
    """The cells of the figure by method: with the priors of `priors.from_gp`, or with N(0, 1) where there are none."""
    prior = "from gp" if "from gp: exact" in cells else "default"
    return {"GP": "GP"} | {method: f"{prior}: {method}" for method in ("exact", *GUIDES)}


def points(of: Problem) -> Tensor:
    """A line over all rows and beyond, or a map ``[SIDE * SIDE, 2]`` whose first input changes slowest."""
    x = torch.cat([of.train.x, of.inside.x, of.away.x])
    low, high = x.min(0).values, x.max(0).values
    margin = MARGIN * (high - low)
    count = CURVE if x.shape[1] == 1 else SIDE
    axes = [torch.linspace(float(a), float(b), count) for a, b in zip(low - margin, high + margin, strict=True)]
    return torch.cartesian_prod(*axes).reshape(-1, x.shape[1])


def constant(of: Problem) -> dict[str, float]:
    """The log densities under a distribution of y that does not depend on x."""
    y = of.train.y
    if of.classes:
        frequency = torch.bincount(y, minlength=of.classes).double() / len(y)
        law: Any = torch.distributions.Categorical(frequency)
    elif of.counts:
        law = torch.distributions.Poisson(y.mean())
    else:
        law = torch.distributions.Normal(y.mean(), y.std(correction=0))
    return {part: float(law.log_prob(rows.y).mean()) for part, rows in (("inside", of.inside), ("away", of.away))}


def main(out: Path, *, names: list[str] | None = None, seed: int = 0) -> None:
    """Measure the problems that the file does not have.

    Args:
        out: a table of results, ``NAME.csv``.
        names: of the problems; all if left out.
        seed: of rows, networks and training: a file for each.
    """

    def measure(name: str, *_: Any) -> dict[str, dict[str, Any]]:
        return cells(name, out.with_suffix(".npz"), seed)

    Bench("small", {name: name for name in PROBLEMS}, measure=measure).run(out, names=names)


if __name__ == "__main__":
    logging.getLogger("pyrodrop").setLevel(logging.ERROR)  # of this process alone
    command(main)
