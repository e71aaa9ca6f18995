"""The result of `pyrodrop.read`: the posterior of a network that was trained with dropout elsewhere."""

from __future__ import annotations

from typing import Any

from pyrodrop.models import TrainedNetwork
from pyrodrop.networks.dropouts import Dropout
from pyrodrop.priors import Gaussian
from pyrodrop.training.result import Fit

_COLUMNS = ("layer", "dropout found", "rate", "read as", "prior sd", "joint?")


class Reading(Fit):
    """A network that was trained with dropout, as a posterior.

    It is a `Fit` without training: it predicts, has an ELBO on data that are passed, and can be used in comparisons and
    `to_arviz`. Its ``model`` and ``guide`` can be trained further with `pyrodrop.fit`. Printing it shows its table.
    """

    def rows(self) -> list[tuple[str, str, float | None, str, float | None, str]]:
        """The rows of the table: every dropout call, in order, then every parameter that carries no mask."""
        model = self.model
        assert isinstance(model, TrainedNetwork)
        scales = {
            name: prior.scale if isinstance(prior, Gaussian) and isinstance(prior.scale, float) else None
            for name, prior in model.priors.items()
        }
        rows: list[tuple[str, str, float | None, str, float | None, str]] = []
        for call in model.dropouts.calls:
            layer = call.weight or "-"
            joint = "yes" if call.layout.joint else "no"
            scale = None if call.weight is None else scales[call.weight]
            rows.append((layer, _where(call), call.drop_rate, _read_as(call), scale, joint))
        carried = model.dropouts.carried
        rows += [
            (name, "none", None, "point estimate", scale, "yes")
            for name, scale in scales.items()
            if name not in carried
        ]
        return rows + [(name, "none", None, "point estimate without prior", None, "yes") for name in model.free]

    def __repr__(self) -> str:
        rows = self.rows()
        dropped = [row for row in rows if row[2] is not None]
        rest = [row for row in rows if row[2] is None]
        lines = _aligned([_COLUMNS, *(tuple(map(_text, row)) for row in dropped)])
        if rest:
            sds = sorted({row[4] for row in rest if row[4] is not None})
            spread = f", prior sd {_text(sds[0])}" + (f" ... {_text(sds[-1])}" if len(sds) > 1 else "") if sds else ""
            lines.append(f"{len(rest)} parameters without dropout: point estimates{spread}")
        return "\n".join(lines)


def _where(call: Dropout) -> str:
    return f"{call.name.removeprefix('dropout ')} ({call.kind}, {_size(call)})"


def _read_as(call: Dropout) -> str:
    if call.weight is None:
        return "noise of the function"
    assert call.units is not None
    units = "rows" if call.units.axis == 0 else "columns"
    blocks = f"blocks of {call.units.size} " if call.units.size > 1 else ""
    return f"{call.shape.numel()} {blocks}{units} of {call.weight}"


def _size(call: Dropout) -> str:
    """The shape of a mask, with N for the number of examples: ``[N, 16]``, or ``[N * 6, 16]`` with 6 rows per example."""
    sizes = [str(size) for size in call.shape]
    axis, order = call.layout.axis, call.layout.order
    if axis is not None and order is None:
        sizes[axis] = "all rows"
    elif axis is not None:
        rows = call.shape[axis]
        sizes[axis] = "N" if rows == 1 else f"N * {rows}" if order == "examples" else f"{rows} * N"
    return f"[{', '.join(sizes)}]"


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
