"""The drop rate and the scale of the prior of MC dropout, tuned by Optuna on a UCI set.

    drop rate ~ log-uniform on [0.002, 0.5],   scale of w ~ N(0, scale^2) log-uniform on [0.05, 20]

A trial trains on the first 80 % of the training rows by `pyrodrop.Training`. After every tenth of its epochs it reports the
mean log density of the other training rows, and Optuna's median rule stops it if the median of the earlier trials was
higher. The first trial has the default settings. The best and the default settings are then trained on all training rows and
compared on the test rows, which no trial uses.

Trials are stored in study.db in the folder of the run: repeating the command makes the missing ones. Akiba et al. (2019),
Optuna: A Next-generation Hyperparameter Optimization Framework, https://arxiv.org/abs/1907.10902.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

import pyrodrop
from pyrodrop import arguments, guides, likelihoods, models, priors
from pyrodrop.analysis.experiments.experiment import Experiment
from pyrodrop.analysis.experiments.uci.cell import divided
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.terminal import text_table
from pyrodrop.data import Dataset, uci
from pyrodrop.failed import Failed
from pyrodrop.names import known
from pyrodrop.zoo.uci import SETTINGS

RANGES = {"drop_rate": (0.002, 0.5), "prior_scale": (0.05, 20.0)}
DEFAULT = {"drop_rate": 0.1, "prior_scale": 1.0}
_RUNGS = 10  # reports of a trial
_BEFORE_PRUNING = 5  # number of first trials that are never stopped
_WARM = 2  # number of first reports of a trial that cannot stop it
_BATCH, _LR, _DRAWS = 32, 5e-3, 200
_START = 10.0  # the learned precision starts at this over the variance of y


@with_job_options("device")
def run(
    job: JobOptions,
    *,
    data: str = "concrete",
    split: int = 0,
    trials: int = 40,
    epochs: int = 100,
    out: Path | None = None,
) -> dict[str, Any]:
    """Tune on one split of a data set, and print the test scores of the best trial and of the defaults.

    Args:
        data: a UCI set: boston, concrete, energy, kin8nm, naval, power, protein, wine, yacht.
        split: number of the split.
        trials: number of trials, those of the folder included.
        epochs: passes over the training rows of a trial that is not stopped.
        out: folder of study.db and results.json; runs/tuning-DATA if left out.

    Returns:
        What is written to results.json.

    Raises:
        Failed: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise Failed("tuning needs Optuna: pip install 'pyrodrop[scale]'") from None
    known(data, SETTINGS, "UCI set")
    table = uci(data)
    split = arguments.count(split, "split", "the number of the split", least=0, most=len(table) - 1)
    trials = arguments.count(trials, "trials", "the number of trials")
    epochs = arguments.count(epochs, "epochs", "the number of passes over the training rows", least=_RUNGS)
    about = {"data": data, "split": split, "epochs": epochs}
    with Experiment.begin("tuning", out or Path("runs") / f"tuning-{data}", job, about) as experiment:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            study_name="tuning", storage=f"sqlite:///{experiment.folder / 'study.db'}", load_if_exists=True,
            direction="maximize", pruner=optuna.pruners.MedianPruner(_BEFORE_PRUNING, _WARM),
        )  # fmt: skip
        study.sampler = optuna.samplers.TPESampler(seed=job.seed + len(study.trials))
        train, validation = divided(table, split)
        if not study.trials:
            study.enqueue_trial(DEFAULT)

        def objective(trial: optuna.Trial) -> float:
            chosen = {n: trial.suggest_float(n, low, high, log=True) for n, (low, high) in RANGES.items()}
            training, per_epoch = _training(train, epochs, job.seed, job.device, **chosen)
            value = -math.inf
            for rung in range(1, _RUNGS + 1):
                training.advance(epochs * per_epoch * rung // _RUNGS - training.steps_done)
                value = _log_density(training.fit, validation, job.seed)
                trial.report(value, rung)
                if trial.should_prune():
                    raise optuna.TrialPruned
            return value

        start = time.perf_counter()
        ended = [trial for trial in study.trials if trial.state.is_finished()]
        study.optimize(
            objective, n_trials=max(0, trials - len(ended)), catch=FloatingPointError, show_progress_bar=not job.quiet
        )
        spent = time.perf_counter() - start
        settings = {"default": DEFAULT, "best": study.best_params}
        scores = {
            name: _tested(table[split], epochs, job.seed, job.device, values) for name, values in settings.items()
        }
        states = [trial.state.name.lower() for trial in study.trials]
        content = {
            "validation": {"default": _validated(study), "best": study.best_value},
            "trials": {state: states.count(state) for state in sorted(set(states))},
            "chosen": study.best_params,
            "test": scores,
            "seconds": spent,
            "versions": {"optuna": optuna.__version__},
        }
        further = {"trials": trials, "batch_size": _BATCH, "lr": _LR, "draws": _DRAWS}
        return experiment.write(content, table_of(data, content, settings), settings=further)


def _training(
    data: Dataset, epochs: int, seed: int, device: torch.device, *, drop_rate: float, prior_scale: float
) -> tuple[pyrodrop.Training, int]:
    """A training before its first step, and the number of its steps in an epoch."""
    assert data.targets is not None
    steps = epochs * -(-len(data) // _BATCH)
    model = models.MLP(
        [data.x.shape[1], 50, 1],  # type: ignore[union-attr]
        prior=priors.Gaussian(prior_scale),
        bias_prior=None,
        likelihood=likelihoods.Gaussian(_START / float(data.targets.scale) ** 2, learned=True),
        seed=seed,
    )
    training = pyrodrop.Training(
        model, guides.BernoulliDropout(model, drop_rate), data, steps=steps, batch_size=_BATCH, lr=_LR,
        lr_schedule=pyrodrop.schedules.cosine(steps), estimator="local", engine="traced", device=device, seed=seed,
    )  # fmt: skip
    return training, steps // epochs


def _log_density(fit: pyrodrop.Fit, data: Dataset, seed: int) -> float:
    """The mean log density of rows, with y in its units."""
    return float(fit.predict(data.x, _DRAWS, seed=seed).log_density(data.y).double().mean())


def _tested(split: Any, epochs: int, seed: int, device: torch.device, chosen: dict[str, float]) -> float:
    training, per_epoch = _training(split.train, epochs, seed, device, **chosen)
    training.advance(epochs * per_epoch)
    return _log_density(training.fit, split.test, seed)


def _validated(study: Any) -> float | None:
    """The last report of the first trial, which has the default settings."""
    values = study.trials[0].intermediate_values
    return values[max(values)] if values else None


def table_of(data: str, content: dict[str, Any], settings: dict[str, dict[str, float]]) -> Table:
    """A table of the two settings with their scores."""
    counts = ", ".join(f"{count} {state}" for state, count in content["trials"].items())
    rows = [["", *RANGES, "validation", "test"]]
    for name, chosen in settings.items():
        value = content["validation"][name]
        scores = ["-" if value is None else f"{value:.3f}", f"{content['test'][name]:.3f}"]
        rows.append([name, *(f"{chosen[n]:.3g}" for n in RANGES), *scores])
    return text_table(f"{data}: mean log density, {counts}", rows)
