"""Our number beside every published one, from stored results and from the package itself.

Nothing is trained here. A figure without a number of ours here, or about data that are not on this machine, keeps its stored
outcome.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyrodrop import zoo
from pyrodrop.analysis.lab import RESULTS
from pyrodrop.analysis.lab.experiments import concrete
from pyrodrop.analysis.lab.experiments.published_figures import Figure, Outcome
from pyrodrop.analysis.lab.experiments.sparse.units import DENSE, units_left
from pyrodrop.analysis.lab.experiments.uci.table import cells, paired, z_score
from pyrodrop.analysis.reports.json_files import read_record
from pyrodrop.analysis.reports.score_table import mean_and_error
from pyrodrop.analysis.zoo.published import by_split
from pyrodrop.analysis.zoo.references import FOLDER
from pyrodrop.data import Split
from pyrodrop.divergences import log_uniform_kl
from pyrodrop.zoo.sources import SOURCES

SETS = {
    "bostonHousing": "boston",
    "concrete": "concrete",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval-propulsion-plant": "naval",
    "power-plant": "power",
    "protein-tertiary-structure": "protein",
    "wine-quality-red": "wine",
    "yacht": "yacht",
}
METRICS = {
    "test RMSE": "rmse",
    "test LL": "log_density",
    "test RMSE (MC)": "rmse",
    "test RMSE (one stochastic pass, NOT weight averaging)": "rmse_of_one_pass",
    "chosen tau": "precision",
}
METHODS = {
    "No dropout": "none",
    "Regular binary dropout": "binary",
    "Gaussian dropout A": "gaussian-a",
    "Variational dropout A": "variational-a",
    "Variational dropout A2": "variational-a2",
    "Gaussian dropout B": "gaussian-b",
    "Variational dropout B": "variational-b",
}
ESTIMATORS = {
    "local reparameterization": "local",
    "weight sample per data point": "per_example",
    "weight sample per minibatch": "shared",
    "no dropout noise": "no noise",
}
_HYPERPARAMETERS = (0.0271, 1.0, 0.01)  # length scale, variances of f and of the noise
_RESAMPLES = 2000
WITHIN = 2.0  # standard errors
_DIGITS = 10_000  # test digits of MNIST
_BINOMIAL = f"the binomial error of {_DIGITS:,} digits"


def outcome(figure: Figure) -> Outcome | None:
    """The outcome of comparing a figure; None if there is no number of ours.

    Raises:
        FileNotFoundError: the figure is about data that are not on this machine.
    """
    rule = None if figure.foreign or figure.value is None else RULES.get(figure.paper)
    return rule and rule(figure)


def measured(ours: float, z: float | None, why: str, file: str) -> Outcome:
    """The outcome for a figure with a known error; `why` is the reason if it is outside, or if z is None."""
    if z is None:
        return Outcome("compared", ours, None, why, file)
    inside = abs(z) <= WITHIN
    return Outcome("within" if inside else "outside", ours, z, "" if inside else why, file)


def apart(ours: float, error: float | None, published: float, their_error: float | None) -> float | None:
    """z of two independent numbers; None if neither has an error."""
    scale = math.hypot(error or 0.0, their_error or 0.0)
    return (ours - published) / scale if scale else None


def same(ours: Any, published: Any, *, rtol: float = 1e-5, atol: float = 0.0) -> Outcome:
    """The outcome for numbers, lists or settings that must be equal up to a relative `rtol` or an absolute `atol`."""
    equal = _same(ours, published, rtol, atol)
    return Outcome("equal" if equal else "unequal", ours, None, "" if equal else "not the same")


def _same(ours: Any, published: Any, rtol: float, atol: float) -> bool:
    if isinstance(published, dict):
        return set(ours) == set(published) and all(_same(ours[key], published[key], rtol, atol) for key in published)
    if isinstance(published, Sequence) and not isinstance(published, str):
        return len(ours) == len(published) and all(
            _same(*pair, rtol, atol) for pair in zip(ours, published, strict=True)
        )
    return math.isclose(ours, published, rel_tol=rtol, abs_tol=atol)


def place(name: str) -> Path:
    """The file of a stored result: of an experiment, or of an entry of the zoo."""
    of_lab = RESULTS / name
    return of_lab if of_lab.is_file() else FOLDER / name


@cache
def _stored(name: str) -> Mapping[str, Any] | None:
    """The content of a stored result; None if there is no such file."""
    path = place(name)
    return read_record(path).content if path.is_file() else None


def _result(entry: str) -> Mapping[str, Any] | None:
    """The full run of an entry, None if there is none."""
    content = _stored(f"{entry}.json")
    return content["result"] if content and isinstance(content["result"], Mapping) else None


def _co2() -> Split:
    """The released points of figure 2, which must be in PYRODROP_DATA: they are not downloaded here."""
    if not os.environ.get("PYRODROP_DATA"):
        raise FileNotFoundError("PYRODROP_DATA is not set")
    return SOURCES["gal2016/co2"].load()[0]


def _gal2016(figure: Figure) -> Outcome | None:
    if figure.where == "Table 1":
        return _uci(figure, "gal2016")
    if figure.where == "sec 5.3":
        return _section(figure)
    if figure.where == "Fig 2 data":
        return _co2_data(figure)
    if figure.where == "Fig 4":
        search = (_stored("rotated-digit.json") or {})["search"]
        why = (
            f"{search['same']} of {len(figure.value)} the same for one of the first {search['ones']} ones, turned up to "
            f"{search['turn']} degrees; {search['whole']} ones can agree in all; the paper states neither, they are searched"
        )
        return Outcome("compared", search["classes"], None, why, "rotated-digit.json")
    return None


def _released(figure: Figure) -> Outcome | None:
    protocols = {"original": "gal2016", "100 x": "gal2016-100x", "500 x": "gal2016-500x"}
    return _uci(figure, next((p for begin, p in protocols.items() if figure.where.startswith(begin)), "gal2018"))


def _uci(figure: Figure, protocol: str) -> Outcome | None:
    """Paired by split with the numbers that the authors released; the paper prints their rounded means."""
    name, metric = SETS.get(figure.data), METRICS[figure.metric]
    cell = cells(protocol).get((name or "", "bernoulli"))
    if name is None or cell is None or (metric != "precision" and metric not in cell):
        return None
    ours = [cell["points"][n].precision for n in cell["chosen"]] if metric == "precision" else cell[metric]
    theirs, mean = by_split(protocol)[name][metric], mean_and_error(ours)[0]
    if list(ours) == list(theirs):
        return Outcome("within", mean, 0.0, "", "uci.csv")
    return measured(mean, z_score(paired(ours, theirs)), "one run of each; nothing was found that differs", "uci.csv")


def _section(figure: Figure) -> Outcome | None:
    """Medians over splits, with the standard error of their difference from resampled splits, in pairs."""
    if figure.method == "p=0":
        mean = mean_and_error(cells("gal2016")["boston", "none"][METRICS[figure.metric]])[0]
        unknown = "whether theirs is a mean or a median, and its precision, is not said"
        return _without_error(mean, figure, "uci.csv", unknown)
    metric, file = METRICS[figure.metric.removeprefix("median ")], "uci.csv"
    cell = cells("gal2016")[SETS[figure.data], "bernoulli"]
    ours = torch.tensor(cell[metric]).double()
    theirs = torch.tensor(by_split("gal2016")[SETS[figure.data]][metric]).double()
    rows = torch.randint(len(ours), (_RESAMPLES, len(ours)), generator=torch.Generator().manual_seed(0))
    error = float((_median(ours[rows]) - _median(theirs[rows])).std())
    z = float(_median(ours) - _median(theirs)) / error
    if figure.error is None:
        return Outcome(
            "compared", float(_median(ours)), z, "printed without quartiles; z by resampling the splits", file
        )
    return measured(float(_median(ours)), z, "one run of each", file)


def _median(values: Tensor) -> Tensor:
    return values.quantile(0.5, dim=-1)


def _co2_data(figure: Figure) -> Outcome:
    split = _co2()
    x, y = split.train.x.double(), split.train.y.double()
    ours: dict[str, Any] = {
        "n_train": len(x),
        "x_min_max": [float(x.min()), float(x.max())],
        "dx": float(x.flatten().diff().median()),
        "x_std (ddof0)": float(x.std(correction=0)),
        "y_min_max": [float(y.min()), float(y.max())],
        "n_test_grid": len(split.test.x),
        "test_x_range": [float(split.test.x.min()), float(split.test.x.max())],
    }
    return same(ours[figure.metric], figure.value, rtol=1e-4)


def _kingma2015(figure: Figure) -> Outcome | None:
    if (
        figure.where == "Table 1"
        and figure.method in ESTIMATORS
        and "epoch" in figure.metric
        and "variance" in figure.metric
    ):
        file, row = "kingma-table1-paper.json", ESTIMATORS[figure.method]
        layer, epochs, _ = figure.metric.removeprefix("avg empirical gradient variance, ").split()
        table = _stored(file)
        return table and _without_error(table["measured"][row][f"{layer}, {epochs} epochs"], figure, file)  # type: ignore[return-value]
    if figure.where.startswith("Fig 1a"):
        return _fig1a(figure)
    if figure.where == "App. C":
        alpha = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
        c1, c2, c3 = figure.value
        euler = 0.5772156649015329
        cubic = 0.5 * (euler + math.log(2) - alpha.log()) - alpha * (c1 + alpha * (c2 + alpha * c3))
        return same(log_uniform_kl(alpha.log()).tolist(), cubic.tolist(), rtol=0.0, atol=4.1e-2)  # its error
    if figure.where == "A2":
        scale = zoo.entry("kingma-fig1a/variational-a2").guide.keywords["kl_scale"]  # type: ignore[attr-defined]
        return same(scale, figure.value, rtol=1e-12)
    return None


def _fig1a(figure: Figure) -> Outcome | None:
    """Five seeds of ours, or one, whose error is the standard deviation between seeds of all cells; the mean of theirs."""
    cell, file = f"{METHODS[figure.method]}-{figure.metric.split(', ')[1].split()[0]}", "kingma-fig1a-paper.json"
    cells = (_stored(file) or {}).get("errors", {})
    if cell not in cells:
        return None
    ours, error = cells[cell]["error_percent"], cells[cell]["se"]
    seeds = "one seed" if error is None else "five seeds"
    why = f"{seeds}, 200 epochs with a learning rate that falls; the paper stops early, on digits that it does not name"
    if error is None:
        error = float(torch.tensor([row["se"] or math.nan for row in cells.values()]).square().nanmean().mul(5).sqrt())
    return measured(ours, apart(ours, error, figure.value, figure.error), why, file)


def _molchanov2017(figure: Figure) -> Outcome | None:
    if figure.where == "KL approx":
        alpha = torch.tensor([-3.0, 0.0, 3.0], dtype=torch.float64)
        k1, k2, k3 = figure.value
        fit = k1 * torch.sigmoid(k2 + k3 * alpha) - 0.5 * (1 + (-alpha).exp()).log() - k1
        return same((-log_uniform_kl(alpha)).tolist(), fit.tolist(), rtol=0.0, atol=9.4e-3)  # its error
    if figure.where != "Table 1" or figure.method == "Original":
        return None
    net = "lenet-300-100" if "300-100" in figure.data else "lenet-5"
    file = f"sparse-{net}-molchanov2017.json"
    again = _result(f"sparse/{net}-molchanov2017")  # another training with these settings
    result = (_stored(file) or {})["result"]
    if figure.metric == "test error %":
        note = f"z by {_BINOMIAL}" + (f"; {again['scores']['error_percent']:.2f} in another run" if again else "")
        return _error(100 * result["error"], figure.value, file, note)
    if figure.metric == "compression":
        note = f"{again['scores']['compression']:.1f} in another run" if again else ""
        return _without_error(result["compression"], figure, file, note)
    return _without_error([100 * share for share in result["sparsity"].values()], figure, file)


def _deepbayes2019(figure: Figure) -> Outcome:
    name = "sparse/lenet-300-100-deepbayes2019"
    result, file = _result(name), f"{name}.json"
    assert result is not None
    if figure.metric == "test acc %":
        return _error(100 - result["scores"]["error_percent"], figure.value, file)
    if figure.metric.startswith("sparsity"):
        masks = zoo.load(name).guide.keep_mask(3.0).values()  # type: ignore[union-attr]
        return _without_error([1 - float(mask.float().mean()) for mask in masks], figure, file)
    return _without_error(result["scores"]["compression"], figure, file)


def _mittov(figure: Figure) -> Outcome | None:
    result = _result("ard/lenet-300-100-deepbayes2019")
    return result and _without_error(result["scores"]["compression"], figure, "ard/lenet-300-100-deepbayes2019.json")  # type: ignore[return-value]


def _gal2017(figure: Figure) -> Outcome | None:
    metric, _, size = figure.metric.rpartition(" N=")
    rows = concrete.stored(int(size)) if size.isdecimal() else []
    return _without_error(concrete.figure(rows, metric), figure, "concrete.csv") if rows else None


def _neklyudov2017(figure: Figure) -> Outcome | None:
    """Test error, numbers of kept units, and the factor by which operations are fewer."""
    if figure.method != "StructuredBP":
        return None
    fully_connected = figure.data == "MNIST LeNet-fc"
    file = f"log-normal-{'lenet-300-100' if fully_connected else 'lenet-5'}-neklyudov2017.json"
    content = _stored(file)
    if content is None:
        return None
    units, small = "-".join(map(str, units_left(content))), content["compressed"]["compressed"]
    ours = [100 * content["result"]["error"], units, content["compressed"]["ratios"]["flops"]]
    epochs = f"{content['settings']['epochs']} epochs"
    note = f"of {DENSE['lenet-5']}; {epochs}, theirs 200 from a trained network"
    if fully_connected:
        theirs = sum(before * after for before, after in pairwise(map(int, figure.value[1].split("-"))))
        note = f"{small['weights']:,} weights left of 784-300-100-10, theirs {theirs:,} of 784-500-300-10; {epochs}"
    return Outcome("compared", ours, None, note, file)


def _quadrature(figure: Figure) -> Outcome:
    if figure.metric.startswith("alpha="):
        alpha = torch.tensor(float(figure.metric.removeprefix("alpha=")), dtype=torch.float64)
        ours = -float(log_uniform_kl(alpha.log()))
        return measured(ours, apart(ours, None, figure.value, figure.error), "more than its last digit away", "")
    return _process(figure)


def _process(figure: Figure) -> Outcome:
    """The Gaussian process of figure 2 at the printed hyperparameters: evidence, and mean and sd of y away from the data."""
    from gpytorch.kernels import RBFKernel, ScaleKernel

    from pyrodrop.analysis.gp import GaussianProcess
    from pyrodrop.analysis.gp.starts import Start

    length, variance, noise = _HYPERPARAMETERS
    kernel = ScaleKernel(RBFKernel())
    kernel.base_kernel.lengthscale, kernel.outputscale = length, variance
    train = _co2().train
    process = GaussianProcess(train, Start(kernel, noise), learn=False, progress=False)
    if figure.metric.startswith("mean"):
        away = process.predict(torch.linspace(2.0, 3.72, 50)[:, None], 10)
        return same(
            [float(away.mean.abs().max()), float(away.sd.min())], figure.value, rtol=0.0, atol=5e-4
        )  # printed to .001
    ours = [length, variance, noise, -process.log_evidence]
    return Outcome("compared", ours, None, "at the printed length scale, of which half a digit is .13 of -logML")


def _error(ours: float, published: float, file: str, note: str = "") -> Outcome:
    """The outcome for a percentage of the test digits of MNIST, with z by the binomial error of both."""
    share = published / 100
    error = 100 * math.sqrt(2 * share * (1 - share) / _DIGITS)
    return Outcome("compared", ours, (ours - published) / error, note or f"z by {_BINOMIAL}", file)


def _without_error(ours: Any, figure: Figure, file: str, note: str = "") -> Outcome:
    """The outcome for a figure without a standard error: ours, and the ratio to the published one as the reason."""
    pairs = list(zip(*(value if isinstance(value, list) else [value] for value in (ours, figure.value)), strict=True))
    ratios = ", ".join(f"{a / b:.2f}" for a, b in pairs)
    return Outcome("compared", ours, None, f"{ratios} times the published{'; ' + note if note else ''}", file)


RULES: Mapping[str, Callable[[Figure], Outcome | None]] = {
    "gal2016": _gal2016,
    "released": _released,
    "kingma2015": _kingma2015,
    "molchanov2017": _molchanov2017,
    "deepbayes2019": _deepbayes2019,
    "mittov": _mittov,
    "gal2017": _gal2017,
    "neklyudov2017": _neklyudov2017,
    "quadrature": _quadrature,
}
