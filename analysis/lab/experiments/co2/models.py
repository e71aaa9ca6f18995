"""Print the scores of models of a series, and store their draws."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import xarray as xr
from torch import Tensor

from pyrodrop.analysis.reports.score_table import cell, score_table
from pyrodrop.analysis.reports.terminal import pairs, paragraph, print_table
from pyrodrop.data import Split
from pyrodrop.files import whole
from pyrodrop.metrics import pit
from pyrodrop.prediction.prediction import Prediction

HEADERS = {
    "log_density": "log density", "rmse": "RMSE", "crps": "CRPS", "coverage_50": "in 50%", "coverage_95": "in 95%",
    "sd_last_train": "sd last", "sd_far": "sd far", "yearly_cycle": "cycle", "yearly_cycle_possible": "possible",
    "elbo": "ELBO", "elbo_se": "s.e.",
}  # fmt: skip
FORMS = dict.fromkeys(HEADERS, ".2f") | dict.fromkeys(
    ("coverage_50", "coverage_95", "yearly_cycle", "yearly_cycle_possible"), ".0%"
)
FORMS |= dict.fromkeys(("elbo", "elbo_se"), ".0f")
MEANINGS = {
    "weight-averaging": (
        "A network trained with dropout, and used as usual, with dropout off. One curve: it claims no uncertainty, sd "
        "{sd_far} far from all data, while it is off by {rmse} on later months."
    ),
    "gp-se": (
        "A Gaussian process that knows only that the curve is smooth. Away from data it returns to its prior: sd "
        "{sd_last_train} at the last month and {sd_far} far out."
    ),
    "gp-strong": (
        "A Gaussian process that knows of a trend and a season. With the right prior the error is {rmse}, and sd far "
        "out {sd_far}."
    ),
    "gp-nngp": (
        "The Gaussian process that the ReLU network is at infinite width. Exact inference with the network's own prior:"
        " sd {sd_last_train} at the last month and {sd_far} far out."
    ),
    "mc-dropout-relu": (
        "The network of the first row with dropout on when it predicts. Its draws differ, and more so away from the "
        "data: sd {sd_last_train} at the last month and {sd_far} far out."
    ),
    "mc-dropout-tanh-0.1": (
        "The same with TanH units, which saturate. Its uncertainty is bounded however far it predicts: sd "
        "{sd_last_train}, then {sd_far}."
    ),
    "mc-dropout-tanh-0.2": (
        "Twice the drop rate. The shape of the band is the network's, not the rate's: sd {sd_last_train}, then "
        "{sd_far}."
    ),
    "mean-field": (
        "Independent Gaussian weights in place of dropout. Another posterior of the same model: sd {sd_last_train}, "
        "then {sd_far}."
    ),
    "one-call": (
        "recipes.curve: priors and noise that fit the data, and an exact last layer. Of the later months {coverage_95} "
        "lie in its 95 % intervals, and its error is {rmse}."
    ),
}
"""What a row is, and what its numbers show, for someone who sees the table for the first time."""


def print_models(rows: Mapping[str, Mapping[str, Any]], unit: str, settings: Mapping[str, Any]) -> None:
    """Print the results of a regression experiment, one row per model."""
    conventions: dict[str, list[str]] = {}
    for name, row in rows.items():
        conventions.setdefault(row["elbo_convention"] or "", []).append(name)
    elbos = "; ".join(f"{convention}: {', '.join(names)}" for convention, names in conventions.items() if convention)
    title = f"{settings['data']}, seed {settings['seed']}, {settings['device']}"
    caption = (
        f"log density, RMSE, CRPS and coverage: held-out observations, means per point, in {unit}. sd: of the function, "
        "without the observation noise, at the last training point and far out. cycle: share of the yearly cycle, and what "
        f"the last units of the network can carry. ELBOs compare only within one convention. {elbos}"
    )
    table = {name: {column: row.get(column) for column in HEADERS} for name, row in rows.items()}
    print_table(score_table(table, title=title, corner="model", headers=HEADERS, forms=FORMS))
    paragraph(caption)
    print(f"\nWhat each row is, and what it shows (sd and error in {unit}):\n")
    shown = {name: {column: cell(row[column], FORMS[column]) for column in HEADERS} for name, row in table.items()}
    pairs({name: MEANINGS[name].format(**shown[name]) for name in rows})
    print()


def write_draws(
    path: Path,
    series: Split,
    predictions: Mapping[str, tuple[Prediction, Prediction]],
    curve_x: Tensor,
    settings: Mapping[str, Any],
) -> None:
    """Write all samples to one netCDF file: one group per model, with held-out points (`obs_id`) and the curve (`pred_id`).

    If held-out points have observations, their groups also have the log density and the PIT value of every observation.
    """
    about = {"library": "pyrodrop", "data": series.name, "source": series.source, "y_unit": series.y_unit}
    about |= {key: str(settings[key]) for key in ("seed", "device")}
    observed = xr.Dataset(
        {"y": (("obs_id",), _column(series.train.y))}, coords={"x": (("obs_id",), _column(series.train.x))}
    )
    groups = {"observed_data": observed}
    for name, (held_out, curve) in predictions.items():
        groups[f"{name}/predictions"] = _group(held_out, series.test.x, "obs_id", series)
        groups[f"{name}/curve"] = _group(curve, curve_x, "pred_id", series)
        if series.truth:
            judged = groups[f"{name}/predictions"]
            judged["observed"] = (("obs_id",), _column(series.test.y))
            judged["log_density"] = (("obs_id",), held_out.log_density(series.test.y).double().cpu().numpy())
            judged["pit"] = (("obs_id",), _column(pit(held_out, series.test.y)))
    tree = xr.DataTree.from_dict(groups)
    tree.attrs.update(about)
    encoding = {
        node.path: {str(v): {"zlib": True, "complevel": 3} for v in node.data_vars}
        for node in tree.subtree
        if node.data_vars
    }
    with whole(path) as file:
        tree.to_netcdf(file, engine="h5netcdf", encoding=encoding)


def _group(prediction: Prediction, x: Tensor, dim: str, series: Split) -> xr.Dataset:
    dims = ("chain", "draw", dim)
    data = {
        "f": (dims, prediction.f[None, ..., 0].float().numpy()),
        "y": (dims, prediction.y[None, ..., 0].float().numpy()),
    }
    group = xr.Dataset(data, coords={"x": ((dim,), _column(x))})
    group["x"].attrs["units"] = series.x_unit
    for name in data:
        group[name].attrs["units"] = series.y_unit
    return group


def _column(values: Tensor) -> Any:
    return torch.as_tensor(values)[:, 0].cpu().numpy()
