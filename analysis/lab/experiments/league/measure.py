"""Train our posteriors on the problems and store their rows.

Command: ``python -m pyrodrop.analysis.lab.experiments.league.measure FOLDER``. Every training is written to FOLDER as
PROBLEM/TAG.safetensors, and read if it exists: an interrupted run continues there. The fit from the first start is also
written as a file of the zoo, exact/PROBLEM.TAG.safetensors.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch

from pyrodrop import fit_replicates, guides, schedules
from pyrodrop.analysis.lab import tidy
from pyrodrop.analysis.lab.experiments.league.rows import Referee, Row, mean_row
from pyrodrop.analysis.lab.experiments.peers.experiment import STORED
from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.zoo.write import save_sampled
from pyrodrop.data import Dataset
from pyrodrop.models import NetworkModel
from pyrodrop.training.replicates import Replicates
from pyrodrop.zoo.exact import NAMED, PROBLEMS, TAGS

MEMBERS, STEPS, SEED = 5, 6000, 0
LOSSES = 100  # number of losses in a file of the zoo, evenly spaced
THETA = 0.05  # of the mixture
LEARNING_RATES = {"logit": 0.1, "raw_alpha": 0.03, "log_variance": 0.03, "": 0.01}  # by substring of a parameter's name

# All have the Gaussian prior of the sampled model. Type A of Gaussian dropout has no density in weight space and no KL
# divergence from that prior. The equal mixture of all fits is an ensemble: for point estimates a deep one (Lakshminarayanan
# et al. 2017), for dropout networks that of Balabanov, Mehlig & Linander (2023), https://arxiv.org/abs/2212.08123.
POSTERIORS: Mapping[str, Callable[[NetworkModel], guides.Guide]] = {
    "point": guides.Point,
    "MC dropout .05": functools.partial(guides.BernoulliDropout, drop_rate=0.05, mask_input=False),
    "MC dropout .5": functools.partial(guides.BernoulliDropout, drop_rate=0.5, mask_input=False),
    f"mixture .05, theta {THETA:g}": functools.partial(
        guides.BernoulliDropout, drop_rate=0.05, mask_input=False, theta=THETA
    ),
    "concrete dropout": functools.partial(guides.ConcreteDropout, mask_input=False),
    "variational dropout B": functools.partial(
        guides.VariationalDropout, kind="B", rates="weight", max_alpha=math.inf, drop_rate=0.01
    ),
    "mean field": guides.MeanField,
    "low rank 4": functools.partial(guides.LowRank, rank=4),
}


def learning_rate(name: str) -> float:
    """The learning rate of a parameter by its name; it is larger for logarithms of the noise, which must move far."""
    return next(rate for pattern, rate in LEARNING_RATES.items() if pattern in name)


def trained(name: str, model: NetworkModel, data: Dataset, steps: int) -> Replicates:
    """Fits of one posterior from different starts."""
    torch.manual_seed(SEED)
    return fit_replicates(
        model, POSTERIORS[name](model), data, count=MEMBERS, steps=steps, lr=learning_rate,
        lr_schedule=schedules.cosine(steps), estimator="local", engine="compiled", starts="new", device="cpu", seed=SEED,
        progress=False,
    )  # fmt: skip


def measured(name: str, folder: Path, steps: int = STEPS) -> dict[str, Row]:
    """The rows of a problem: means over fits from different starts, and rows of the equal mixture of these fits."""
    referee, model, rows = Referee(name, SEED), PROBLEMS[name].model(), {}
    (folder / "exact").mkdir(parents=True, exist_ok=True)
    for posterior, tag in zip(POSTERIORS, TAGS, strict=True):
        path = folder / name / f"{tag}.safetensors"
        if not path.is_file():
            made = trained(posterior, model, referee.train, steps)
            path.parent.mkdir(parents=True, exist_ok=True)
            made.save(path)
        fits = Replicates.load(path, device="cpu")
        predicted = [
            (fit.predict(referee.test.x, referee.draws), fit.predict(referee.away, referee.draws).f)
            for fit in (*fits, fits)
        ]
        *single, rows[f"ensemble {posterior}"] = (referee.row(posterior, *each) for each in predicted)
        rows[posterior] = mean_row(single)
        first = replace(fits[0], history=fits[0].history[:: max(1, steps // LOSSES)])
        scores = {column: value for column, value in single[0].items() if value is not None}
        result = {"scores": scores, "seed": SEED, "steps": steps, "date": f"{date.today()}", "versions": versions()}
        of = NAMED[f"exact/{name}.{tag}"]
        save_sampled(folder / f"{of.name}.safetensors", of, first, referee.test.x, result)
        print(f"{name}, {posterior}: {rows[posterior]['wasserstein']:.3f}", flush=True)
    return rows


if __name__ == "__main__":
    of_league = {"study": "league", "seed": SEED}
    tidy.put(STORED, [
        of_league | {"problem": name, "method": method} | row
        for name in PROBLEMS for method, row in measured(name, Path(sys.argv[1])).items()
    ])  # fmt: skip
