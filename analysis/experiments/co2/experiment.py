"""Mauna Loa CO2: extrapolation of several models (Gal & Ghahramani 2016, figure 2).

Trains MC dropout with ReLU and TanH and a mean field, averages the weights of the ReLU net (standard dropout at test
time), fits three Gaussian processes, one of them with the ReLU net's own prior, and judges all of them on the months after
the training data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pyrodrop import arguments, zoo
from pyrodrop.analysis.experiments.averaged import averaged
from pyrodrop.analysis.experiments.parallel import on_this_machine, train_each
from pyrodrop.analysis.gp import GaussianProcess, bias_spread, from_model, squared_exponential, trend_and_season
from pyrodrop.analysis.reports.console import print_models, versions, write_draws
from pyrodrop.analysis.reports.folder import run_folder, say_reused
from pyrodrop.analysis.reports.style import write_figure
from pyrodrop.analysis.reports.terminal import facts as print_facts
from pyrodrop.analysis.zoo.resumed import fit_resumed
from pyrodrop.data import Split, gal2016, mauna_loa
from pyrodrop.devices import resolve
from pyrodrop.files import write_json
from pyrodrop.guides import Point
from pyrodrop.metrics import regression_scores
from pyrodrop.models import NetworkModel
from pyrodrop.prediction.prediction import Prediction, Predicts
from pyrodrop.training.fitted import Fit

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
}
NETWORKS = ("mc-dropout-relu", "mc-dropout-tanh-0.1", "mc-dropout-tanh-0.2", "mean-field")
PRESETS = {"default": "co2", "paper": "co2-paper"}


@dataclass(frozen=True)
class Result:
    """One model with its training time and its predictions."""

    run: Predicts
    seconds: float
    held_out: Prediction
    ends: Prediction  # at the last month of training and far out
    curve: Prediction


def run(
    *,
    preset: Literal["default", "paper"] = "default",
    data: Literal["mauna-loa", "gal2016"] = "mauna-loa",
    device: str = "auto",
    seed: int = 0,
    steps: int | None = None,
    jobs: int | None = None,
    out: Path = Path("runs/co2"),
    quiet: bool = False,
) -> dict[str, Any]:
    """Train, compare, print a table and plot the figure.

    Args:
        preset: default is for two cores and minutes; paper has the released settings, for a GPU and hours.
        data: the monthly record in ppm, or the standardised series of the paper's own experiment.
        device: auto, cpu, cuda, cuda:1 ...
        seed: seed of initial weights, minibatches, noise and prediction.
        steps: gradient steps per network; those of the preset if not given.
        jobs: number of processes, one thread each; as many as there are cores if left out.
        out: folder for results.json, draws.nc and figure.png. A run that was broken off goes on from the checkpoints there.
        quiet: show no progress.

    Returns:
        What is written to results.json.

    Raises:
        ValueError: a setting is not allowed, or the folder has a run with other settings.
    """
    seed, where = arguments.seed(seed), resolve(device)
    steps = None if steps is None else arguments.count(steps, "steps", "the number of gradient steps")
    about: dict[str, Any] = {"preset": preset, "data": data, "device": where.type, "seed": seed}
    longer = preset == "paper"  # goes on from its checkpoints to more steps
    with run_folder(out, "co2", about if longer else {**about, "steps": steps}) as folder:
        series = _series(data)
        settings = about | {"draws": DRAWS, "far": FAR, "threads": torch.get_num_threads()}

        say_reused([name for name in NETWORKS if _checkpoint(folder, name).exists()], folder)
        runs: dict[str, tuple[Predicts, float]] = {}
        options: dict[str, Any] = {
            "preset": preset,
            "data": data,
            "folder": folder,
            "device": where,
            "seed": seed,
            "steps": steps,
        }
        for name, fit in train_each(_train, NETWORKS, quiet, jobs=jobs, **options).items():
            runs[name] = fit, fit.settings["seconds"]
            settings.setdefault("networks", {})[name] = fit.settings
        runs["weight-averaging"] = averaged(runs["mc-dropout-relu"][0]), runs["mc-dropout-relu"][1]
        for name, starts in _kernels(series, runs["mc-dropout-relu"][0]).items():
            process = GaussianProcess(series.train, starts)
            runs[name] = process, process.seconds
            settings.setdefault("gaussian_processes", {})[name] = {
                "log_evidence": process.log_evidence,
                "prior_sd": process.prior_sd,
                "noise_sd": process.noise_sd,
                **process.hyperparameters,
            }

        points = curve_points(series)
        results = {name: _result(*runs[name], series, points, seed) for name in PANELS}
        rows = {name: _row(result, series) for name, result in results.items()}
        facts = figure_facts(results, rows, series)
        content = {"models": rows, "facts": facts, "settings": settings, "versions": versions()}

        from pyrodrop.analysis.experiments.co2.figure import draw  # matplotlib is slow to import

        curves = {PANELS[name]: result.curve for name, result in results.items()}
        write_figure(folder / "figure.png", draw(series, points, float(_far(series)), curves))
        write_draws(
            folder / "draws.nc", series, {name: (r.held_out, r.curve) for name, r in results.items()}, points, settings
        )
        write_json(folder / "results.json", content)
        print_models(rows, series.y_unit, settings)
        print_facts(facts)
        print(f"\nfigure: {folder / 'figure.png'}\ndraws: {folder / 'draws.nc'}\nresults: {folder / 'results.json'}")
        return content


def _train(
    name: str,
    *,
    preset: str,
    data: str,
    folder: Path,
    device: torch.device,
    seed: int,
    steps: int | None,
    progress: bool | None,
) -> Fit:
    options: dict[str, Any] = {"device": device, "seed": seed, "progress": progress}
    if steps is not None:
        options["steps"] = steps
    series = _series(data)
    with on_this_machine(folder) as own:
        return fit_resumed(zoo.entry(f"{PRESETS[preset]}/{name}"), series.train, _checkpoint(own, name), **options)


def _series(data: str) -> Split:
    return mauna_loa() if data == "mauna-loa" else gal2016("co2")


def _checkpoint(folder: Path, name: str) -> Path:
    return folder / "checkpoints" / f"{name}.safetensors"


def _kernels(series: Split, relu: Predicts) -> dict[str, Any]:
    """The Gaussian processes; the third has the prior and noise of the ReLU network, and its trained biases' spread."""
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
        held_out=run.predict(series.test.x, DRAWS, seed=seed),
        ends=run.predict(ends, DRAWS, seed=seed),
        curve=run.predict(points, CURVE_DRAWS, seed=seed),
    )


def _row(result: Result, series: Split) -> dict[str, Any]:
    scores: Mapping[str, float] = regression_scores(result.held_out, series.test.y) if series.truth else {}
    row: dict[str, Any] = {"elbo": None, "elbo_se": None, "elbo_convention": None}
    if isinstance(result.run, Fit) and not isinstance(result.run.guide, Point):
        elbo = result.run.elbo(ELBO_DRAWS)
        row = {"elbo": elbo.value, "elbo_se": elbo.se, "elbo_convention": str(elbo.convention)}
    names = ("log_density", "rmse", "crps", "coverage_50", "coverage_95")
    row |= {name: _finite(scores.get(name)) for name in names}
    row |= {f"sd_{where}": float(sd) for where, sd in zip(("last_train", "far"), result.ends.spread[:, 0], strict=True)}
    noise = (result.ends.variance - result.ends.spread**2).clamp_min(0).sqrt()
    return row | {"noise_sd": float(noise[0, 0]), "seconds": result.seconds}


def figure_facts(
    results: Mapping[str, Result], rows: Mapping[str, Mapping[str, Any]], series: Split
) -> dict[str, bool]:
    """The statements of figure 2 of the paper, each with whether it holds for these results."""
    centre = 0.0 if series.train.targets is None else float(series.train.targets.loc)
    process = results["gp-se"].run
    assert isinstance(process, GaussianProcess)
    off = abs(float(results["gp-se"].ends.mean[1, 0]) - centre)
    tanh = [f"mc-dropout-tanh-{rate}" for rate in ("0.1", "0.2")]
    far = sorted(rows[name]["sd_far"] for name in tanh)
    averaged = rows["weight-averaging"]
    return {
        "(a) weight averaging has no spread": averaged["sd_last_train"] == averaged["sd_far"] == 0,
        "(b) GP-SE returns to the prior mean, within 2 % of the prior's sd": off < 0.02 * process.prior_sd,
        "(b) GP-SE returns to the prior's sd, within 2 %": math.isclose(
            rows["gp-se"]["sd_far"], process.prior_sd, rel_tol=0.02
        ),
        "(c) ReLU: the sd grows from the data to half way out to far out": _grows(results["mc-dropout-relu"], series),
        **{
            f"(d) {name.removeprefix('mc-dropout-')}: the sd after the data stays under twice its largest within": _bounded(
                results[name], series
            )
            for name in tanh
        },
        "(d) TanH: the sd far out is alike at .1 and .2, within a factor of 2": far[1] < 2 * far[0],
    }


def _spread_inside_and_after(result: Result, series: Split) -> tuple[Tensor, Tensor]:
    """The spread along the curve within the training data, and between their end and the far point."""
    x, far, end = curve_points(series)[:, 0], float(_far(series)), float(series.train.x.max())
    spread = result.curve.spread[:, 0]
    return spread[x <= end], spread[(x > end) & (x <= far)]


def _grows(result: Result, series: Split) -> bool:
    inside, after = _spread_inside_and_after(result, series)
    return bool(inside.mean() < after[len(after) // 2] < after[-1])


def _bounded(result: Result, series: Split) -> bool:
    inside, after = _spread_inside_and_after(result, series)
    return bool(after.max() < 2 * inside.max())


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
