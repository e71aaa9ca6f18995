"""Print the scores of models of a series, and store their draws."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import xarray as xr
from torch import Tensor

from pyrodrop.analysis.reports.score_table import score_table
from pyrodrop.analysis.reports.terminal import paragraph, print_table
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


def print_models(rows: Mapping[str, Mapping[str, Any]], unit: str, settings: Mapping[str, Any]) -> None:
    """Print the results of a regression experiment, one row per model."""
    conventions: dict[str, list[str]] = {}
    for name, row in rows.items():
        conventions.setdefault(row["elbo_convention"] or "", []).append(name)
    elbos = "; ".join(f"{convention}: {', '.join(names)}" for convention, names in conventions.items() if convention)
    title = f"{settings['data']}, preset {settings['preset']}, seed {settings['seed']}, {settings['device']}"
    caption = (
        f"log density, RMSE, CRPS and coverage: held-out observations, means per point, in {unit}. sd: of the function, "
        "without the observation noise, at the last training point and far out. cycle: share of the yearly cycle, and what "
        f"the last units of the network can carry. ELBOs compare only within one convention. {elbos}"
    )
    table = {name: {column: row.get(column) for column in HEADERS} for name, row in rows.items()}
    print_table(score_table(table, title=title, corner="model", headers=HEADERS, forms=FORMS))
    paragraph(caption)
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
    about |= {key: str(settings[key]) for key in ("preset", "seed", "device")}
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
