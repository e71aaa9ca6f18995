"""Deep heteroscedastic networks by microcanonical chains from trained starts, beside the published runs of bde.

    python -m pyrodrop.analysis.lab.benchmarks.deep_networks [--names '[airfoil, bike]'] [--rounds SEEDS] [FILE]

The tables and the split of bde (https://github.com/scikit-learn-contrib/bde): ``train_test_split(test_size=0.2,
random_state=0)`` of columns that are standardised by the training rows. Its network, four hidden layers of 16 ReLU units,
its prior, N(0, 1) for every weight and bias, and its noise, whose standard deviation is ln(1 + exp r) + 1e-6. Every chain
starts from a separate maximum a posteriori. Scores are of the standardised y: RMSE, and the negative log density of the
mixture and, as in bde, of the Gaussian with the mixture's mean and variance. bde used ten chains of 60,000 steps on ten
cores.

Time is that of the whole run including compilation, on one thread. Real data are read from PYRODROP_DATA.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, priors, schedules
from pyrodrop.analysis.lab.benchmarks.tables.whole import table
from pyrodrop.analysis.lab.benchmarks.timing import Bench, Cells, command
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.scaling import Standardize

HOW: Mapping[str, Mapping[str, int]] = {
    "airfoil": {"chains": 8, "training": 5000, "tune": 600, "draws": 100, "thin": 10},
    "bike": {"chains": 12, "training": 20_000, "tune": 500, "draws": 100, "thin": 20},
}
ENERGY_VARIANCE = 0.1  # the value that bde ends with


class Noise(likelihoods.HeteroscedasticGaussian):
    """Gaussian noise whose standard deviation is the softplus of the second output."""

    def forward(self, output: Tensor, targets: Standardize) -> dist.TorchDistribution:
        r = output.chunk(2, -1)[1]
        sd = targets.scale * (torch.logaddexp(r, r.new_zeros(())) + 1e-6)
        return dist.Normal(self.location(output, targets), sd).to_event(1)


def split(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x and y of the training rows, and of the test rows."""
    from sklearn.model_selection import train_test_split

    x, y = table(name)
    x_train, x_test, y_train, y_test = train_test_split(x, y[:, None], test_size=0.2, random_state=0)
    parts = []
    for train, test in ((x_train, x_test), (y_train, y_test)):
        mean, sd = train.mean(0), train.std(0)
        parts += [torch.tensor((columns - mean) / sd).float() for columns in (train, test)]
    return parts[0], parts[2], parts[1], parts[3]


def scores(prediction: Prediction, y: Tensor) -> dict[str, float]:
    """RMSE, and negative log densities of the mixture (`nll`) and of the Gaussian with its moments."""
    mean, sd = prediction.mean, prediction.sd
    moments = ((y - mean) / sd) ** 2 / 2 + sd.log() + math.log(2 * math.pi) / 2
    return {
        "rmse": float(((mean - y) ** 2).mean().sqrt()),
        "nll_of_moments": float(moments.mean()),
        "nll": float(-prediction.log_density(y).mean()),
    }


def run(name: str, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train the starts, sample from them, and score both."""
    begun, used, how = time.perf_counter(), time.process_time(), HOW[name]
    x, y, x_test, y_test = split(name)
    torch.manual_seed(seed)
    prior = priors.Gaussian(1.0)
    model = pyrodrop.models.MLP(
        [x.shape[1], 16, 16, 16, 16, 2], "relu", prior=prior, bias_prior=prior, likelihood=Noise()
    )
    starts = pyrodrop.fit_replicates(
        model, guides.Point(model), (x, y), count=how["chains"], steps=how["training"], lr=5e-3,
        lr_schedule=schedules.cosine(how["training"]), batch_size=256, starts="new", seed=seed, progress=False,
    )  # fmt: skip
    trained = time.perf_counter() - begun
    sampled = pyrodrop.sample(
        model, (x, y), kernel="mclmc", start=starts, chains=how["chains"], tune=how["tune"], draws=how["draws"],
        thin=how["thin"], energy_variance=ENERGY_VARIANCE, device="cpu", seed=seed, progress=False,
    )  # fmt: skip
    diagnostics = sampled.diagnostics()
    numbers: dict[str, Any] = {"seconds": time.perf_counter() - begun, "core_seconds": time.process_time() - used}
    numbers |= {"r_hat_f": diagnostics.r_hat_f, "r_hat_within": diagnostics.r_hat_within}
    numbers |= {key: sampled.settings[key] for key in ("step_size", "length", "energy_variance_reached")}
    draws = min(1000, how["chains"] * how["draws"])
    return (
        scores(starts.predict(x_test, 10 * how["chains"]), y_test) | {"seconds": trained},
        scores(sampled.predict(x_test, draws), y_test) | dict(how) | numbers,
    )


def measured(name: str, rounds: int, _: str) -> Cells:
    """The scores of every seed."""
    runs = [run(name, seed) for seed in range(rounds)]
    return {"trained": [starts for starts, _ in runs], "chains": [scores for _, scores in runs]}


BENCH = Bench("deep-networks", {name: name for name in HOW}, measure=measured, rounds=1)

if __name__ == "__main__":
    command(BENCH.run)
