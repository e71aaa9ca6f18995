"""Mauna Loa CO2: extrapolation of several models (Gal & Ghahramani 2016, figure 2).

Trains MC dropout with ReLU and TanH and a mean field, averages the weights of the ReLU net (standard dropout at test
time), fits three Gaussian processes, one of them with the prior of the ReLU net, and the network of `recipes.curve`, and
scores all of them on the months after the training data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm import tqdm

from pyrodrop import checks, recipes, zoo
from pyrodrop.analysis.comparison.predicts import Predicts
from pyrodrop.analysis.gp import GaussianProcess, bias_spread, from_model, squared_exponential, trend_and_season
from pyrodrop.analysis.lab.experiments.co2.figure import draw
from pyrodrop.analysis.lab.experiments.co2.learned import carried, cycle_share, rmse
from pyrodrop.analysis.lab.experiments.co2.models import print_models, write_draws
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.lab.experiments.parallel import on_this_machine, train_each
from pyrodrop.analysis.reports.folder import say_reused
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.zoo.averaged import averaged, last_units
from pyrodrop.analysis.zoo.train import fit_resumed
from pyrodrop.data import Split, gal2016, mauna_loa
from pyrodrop.guides import BernoulliDropout, Point
from pyrodrop.metrics import regression_scores
from pyrodrop.models import NetworkModel
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.training.checkpoint import Checkpoint
from pyrodrop.training.elbo import Elbo
from pyrodrop.training.fit import STEPS
from pyrodrop.training.reasons import collected, say
from pyrodrop.training.result import Fit

FAR = 3.7  # in standardised time, where the paper draws its dashed line
DRAWS, ELBO_DRAWS, CURVE_DRAWS, CURVE_POINTS = 1000, 100, 250, 500
PANELS = {
    "weight-averaging": "standard dropout, weight averaging (a)",
    "gp-se": "Gaussian process, squared exponential (b)",
    "gp-strong": "Gaussian process, trend + season",
    "gp-nngp": "Gaussian process, the ReLU net's prior at infinite width",
    "mc-dropout-relu": "MC dropout, ReLU, rate .1 (c)",
    "mc-dropout-tanh-0.1": "MC dropout, TanH, rate .1 (d)",
    "mc-dropout-tanh-0.2": "MC dropout, TanH, rate .2 (d)",
    "mean-field": "mean-field Gaussian, ReLU",
    "one-call": "recipes.curve: priors that fit, exact last layer",
}
NETWORKS = ("mc-dropout-relu", "mc-dropout-tanh-0.1", "mc-dropout-tanh-0.2", "mean-field")
SAVINGS, MOST_UNSAVED = 20, 10_000  # checkpoints of a network, and steps between two of them


@dataclass(frozen=True)
class Result:
    """One model with its training time and its predictions."""

    run: Predicts
    seconds: float
    elbo: Elbo | None
    months: Prediction  # at the training months
    held_out: Prediction
    ends: Prediction  # at the last month of training and far out
    curve: Prediction


@with_job_options("device", "jobs")
def run(
    job: JobOptions,
    *,
    data: Literal["mauna-loa", "gal2016"] = "mauna-loa",
    steps: int | None = None,
    out: Path = Path("runs/co2"),
) -> dict[str, Any]:
    """Train, compare, print a table and plot the figure.

    Args:
        data: the monthly record in ppm, or the standardised series of the paper's own experiment.
        steps: gradient steps per network; those of the zoo if not given.
        out: folder for results.json, draws.nc and figure.png. An interrupted run continues from the checkpoints there.

    Returns:
        What is written to results.json.

    Raises:
        ValueError: a setting is not allowed, or the folder has a run with other settings.
    """
    steps = None if steps is None else checks.count(steps, "steps", "the number of gradient steps")
    hidden = None if job.progress is None else not job.progress
    with (
        Experiment.begin("co2", out, job, {"data": data, "steps": steps}) as experiment,
        tqdm(total=len(PANELS), desc="models", unit="model", leave=False, disable=hidden) as bar,
    ):
        folder, series = experiment.folder, _series(data)
        settings = experiment.settings | {"draws": DRAWS, "far": FAR, "threads": torch.get_num_threads()}

        lengths = _lengths(series, steps)
        say_reused([name for name in NETWORKS if _checkpoint(folder, name).exists()], folder)
        options: dict[str, Any] = {
            "data": data,
            "folder": folder,
            "seed": job.seed,
            "lengths": lengths,
        }
        results: dict[str, Result] = train_each(_train, NETWORKS, job, bar=bar, **options)
        points, relu = curve_points(series), results["mc-dropout-relu"]
        settings["networks"] = {name: _fit(results[name]).settings for name in NETWORKS}
        results["weight-averaging"] = _result(averaged(relu.run), relu.seconds, series, points, job.seed)
        bar.update()
        for name, starts in _kernels(series, relu.run).items():
            process = GaussianProcess(series.train, starts, progress=job.progress)
            results[name] = _result(process, process.seconds, series, points, job.seed)
            bar.update()
            settings.setdefault("gaussian_processes", {})[name] = {
                "log_evidence": process.log_evidence,
                "prior_sd": process.prior_sd,
                "noise_sd": process.noise_sd,
                **process.hyperparameters,
            }

        with collected() as messages:
            curve = recipes.curve(series.train, seed=job.seed).fit(
                STEPS if steps is None else steps, seed=job.seed, device=job.device, progress=job.progress
            )
        for message in messages:
            say(f"one-call: {message}")
        results["one-call"] = _result(curve, curve.settings["seconds"], series, points, job.seed)
        bar.update()
        settings["networks"]["one-call"] = curve.settings

        results = {name: results[name] for name in PANELS}
        rows = {name: _row(result, series) for name, result in results.items()}

        curves = {f"{PANELS[name]}: {_shares(rows[name])}": result.curve for name, result in results.items()}
        write_draws(
            folder / "draws.nc", series, {name: (r.held_out, r.curve) for name, r in results.items()}, points, settings
        )
        print_models(rows, series.y_unit, settings)
        figure = draw(series, points, float(_far(series)), curves)
        written = experiment.write({"models": rows}, settings=settings, figures={"figure": figure})
        print(f"draws: {folder / 'draws.nc'}")
        return written


def _train(
    name: str,
    *,
    data: str,
    folder: Path,
    device: torch.device,
    seed: int,
    lengths: Mapping[str, int],
    progress: bool | None,
) -> Result:
    """Train a network, or continue its training, and predict with it."""
    series = _series(data)
    steps = lengths[name]
    with on_this_machine(folder) as shared:
        fit = fit_resumed(
            zoo.entry(f"co2/{name}"), series.train,
            Checkpoint(_checkpoint(shared, name), every=max(1, min(MOST_UNSAVED, steps // SAVINGS))),
            device=device, seed=seed, steps=steps, progress=progress,
        )  # fmt: skip
    return _result(fit, fit.settings["seconds"], series, curve_points(series), seed)


def _lengths(series: Split, steps: int | None) -> dict[str, int]:
    """The number of steps of every network: `steps`, or those of the zoo if None."""
    if steps is not None:
        return dict.fromkeys(NETWORKS, steps)
    return {name: zoo.entry(f"co2/{name}").settings(series.train)["steps"] for name in NETWORKS}


def _fit(result: Result) -> Fit:
    assert isinstance(result.run, Fit)
    return result.run


def _series(data: str) -> Split:
    return mauna_loa() if data == "mauna-loa" else gal2016("co2")


def _checkpoint(folder: Path, name: str) -> Path:
    return folder / "checkpoints" / f"{name}.safetensors"


def _kernels(series: Split, relu: Predicts) -> dict[str, Any]:
    """The kernels by name; the third has the prior and noise of the ReLU network, and the spread of its trained biases."""
    assert isinstance(relu, Fit)
    assert isinstance(relu.model, NetworkModel)
    scale = 1.0 if series.train.inputs is None else float(series.train.inputs.scale)
    assert series.period is not None
    return {
        "gp-se": squared_exponential,
        "gp-strong": trend_and_season(series.period / scale),
        "gp-nngp": from_model(relu.model, bias_scale=bias_spread(relu.model)),
    }


def curve_points(series: Split) -> Tensor:
    """Evenly spaced x ``[500, 1]`` from the first to the last known month, and at least to the far point."""
    last = max(float(series.test.x.max()), float(_far(series)))
    return torch.linspace(float(series.train.x.min()), last, CURVE_POINTS)[:, None]


def _far(series: Split) -> Tensor:
    x = torch.tensor([[FAR]])
    return x if series.train.inputs is None else series.train.inputs.inverse(x)


def _result(run: Predicts, seconds: float, series: Split, points: Tensor, seed: int) -> Result:
    ends = torch.cat([series.train.x[-1:], _far(series)])
    return Result(
        run=run,
        seconds=seconds,
        elbo=run.elbo(ELBO_DRAWS) if isinstance(run, Fit) and not isinstance(run.guide, Point) else None,
        months=run.predict(series.train.x, CURVE_DRAWS, seed=seed),
        held_out=run.predict(series.test.x, DRAWS, seed=seed),
        ends=run.predict(ends, CURVE_DRAWS, seed=seed),
        curve=run.predict(points, CURVE_DRAWS, seed=seed),
    )


def _row(result: Result, series: Split) -> dict[str, Any]:
    scores: Mapping[str, float] = regression_scores(result.held_out, series.test.y) if series.truth else {}
    names = ("log_density", "rmse", "crps", "coverage_50", "coverage_95")
    row: dict[str, Any] = {name: _finite(scores.get(name)) for name in names}
    row |= {f"sd_{where}": float(sd) for where, sd in zip(("last_train", "far"), result.ends.spread[:, 0], strict=True)}
    noise = (result.ends.variance - result.ends.spread**2).clamp_min(0).sqrt()
    row |= {
        "noise_sd": float(noise[0, 0]),
        "rmse_train": rmse(series, result.months.mean),
        "yearly_cycle": cycle_share(series, result.months.mean),
        "yearly_cycle_possible": _possible(result.run, series),
        "seconds": result.seconds,
    }
    elbo = result.elbo
    row |= {"elbo": elbo and elbo.value, "elbo_se": elbo and elbo.se}
    return row | {"elbo_convention": elbo and str(elbo.convention)}


def _possible(run: Predicts, series: Split) -> float | None:
    """The share of the yearly cycle that the last units of a dropout network can carry; None for other models."""
    if not isinstance(run, Fit) or not isinstance(run.guide, BernoulliDropout):
        return None
    features = last_units(averaged(run), series.train.x)
    return cycle_share(series, carried(features, series.train.y, list(run.guide.rates().values())[-1]))


def _shares(row: Mapping[str, Any]) -> str:
    """The share of the yearly cycle, and the possible one of a dropout network."""
    possible = row["yearly_cycle_possible"]
    return f"{row['yearly_cycle']:.0%} of the cycle" + ("" if possible is None else f", possible {possible:.0%}")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
