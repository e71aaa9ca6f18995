"""Write a posterior as one file, after a comparison with `predict`.

    program(x) = summaries of the mixture of f_t(x), t = 1 ... S           any number of rows of x

The program is run from the content of the file, with other numbers of rows than in the recording. Outputs may differ by 1e-5
of the scale of y, or of the largest value if that is larger, and by the rounding of a few operations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import pyrodrop
from pyrodrop import arguments
from pyrodrop.arguments import shown
from pyrodrop.arrays import is_frame
from pyrodrop.data.dataset import check_inputs
from pyrodrop.export.formats import FORMATS, FileTooLarge, Onnx, Pt2, constants_of, quiet
from pyrodrop.export.graph import WAYS, ClosedForm, Functions, Graph, standardised
from pyrodrop.export.summaries import Output, possible
from pyrodrop.files import check_writable, checksum, whole
from pyrodrop.inputs import Inputs, mapped, named_parts, num_rows, parts
from pyrodrop.names import one_of
from pyrodrop.networks.checks import check_width
from pyrodrop.prediction.quantiles import checked_levels
from pyrodrop.private_apis import transforms_as_before
from pyrodrop.threads import exclusive

LEVELS = (0.05, 0.5, 0.95)  # of quantiles
_RECORDED, _COMPARED = 4, (1, 7)  # numbers of rows
_TOLERANCE, _ROUNDING = 1e-5, 4  # relative to the scale of y, and in units of the value's rounding error


@exclusive()
def export(
    path: str | Path,
    mixture: Sequence[Functions],
    predict: Callable[[Inputs], Any],
    x: Any,
    *,
    outputs: Sequence[Output] | None,
    levels: Sequence[float] = LEVELS,
    closed_form: bool = False,
    about: Mapping[str, Any],
) -> Path:
    """Write the predictions of a mixture of functions as a program that does not need this package.

    Args:
        path: path of the file, which ends with ``.onnx`` or ``.pt2``.
        mixture: the functions, from one or several posteriors; every function has the same weight in the mixture.
        predict: function that returns the `Prediction` or `Moments` at x from the same draws.
        x: rows of x, a few of which are used for recording and comparison; None raises a ValueError.
        outputs: names of the summaries; None for ``("mean", "sd")``, or ``("probabilities",)`` for class labels.
        levels: probabilities of the quantiles.
        closed_form: whether mean and sd are computed in closed form.
        about: strings and numbers for the metadata.

    Returns:
        The path.

    Raises:
        ValueError: an argument is not allowed; the model is not on the CPU; or no program computes the summaries.
        TypeError: an argument is of the wrong kind.
        ImportError: a package is missing.
        OSError: the file cannot be written.
    """
    path = arguments.path(path, "path", "the file to write")
    if path.suffix not in FORMATS:
        raise ValueError(f"path must end with {' or '.join(FORMATS)}, the kind of file; got {str(path)!r}")
    form, model = FORMATS[path.suffix], mixture[0].model
    if not hasattr(model, "outputs"):
        raise TypeError("export is for networks of pyrodrop.models; this fit is of another Pyro program")
    device = next(iter(model.weight_sites().values())).device
    if device.type != "cpu":
        raise ValueError(
            f"export needs a run on the CPU, whose draws the file has; got one on {device}: load it with device='cpu'"
        )
    form.check()
    check_writable(path)
    quantiles = checked_levels(levels, "levels").reshape(-1).tolist()
    rows = _rows(model, x)
    graph: Any
    if closed_form:
        graph = ClosedForm(mixture[0], rows)
        graph.outputs = _chosen(outputs, ("mean", "sd"), "a closed form")
    else:
        graph = Graph(mixture, rows, quantiles)
        of_y = graph.mixture_at(rows)[1][0]
        graph.outputs = _chosen(outputs, possible(of_y), model.likelihood.describe())
    about = {
        **about,
        "inputs": {name: _described(tensor) for name, tensor in named_parts(rows).items()},
        "outputs": list(graph.outputs),
        **({"levels": quantiles} if "quantiles" in graph.outputs else {}),
        "classes": None if model.columns is None or model.columns.classes is None else list(model.columns.classes),
        "columns": None if model.columns is None else {"x": list(model.columns.names), **model.columns.words()},
        "model": model.describe(),
        "likelihood": model.likelihood.describe(),
        "units": "x and y are in the units of the training data",
        "pyrodrop": pyrodrop.__version__,
        "torch": torch.__version__,
    }
    expected = [_expected(predict, model, rows, count, graph.outputs, quantiles) for count in _COMPARED]
    ways = WAYS[-1:] if closed_form else WAYS
    for graph.way in ways:
        try:
            with quiet(), transforms_as_before():
                content = _content(form, graph, rows, about, expected, model.targets)
            break
        except ValueError:
            if graph.way == ways[-1]:
                raise
    with whole(path) as temporary:
        temporary.write_bytes(content)
    return path


def _content(
    form: Pt2 | Onnx,
    graph: Any,
    rows: Inputs,
    about: Mapping[str, Any],
    expected: Sequence[Mapping[str, Tensor]],
    targets: Any,
) -> bytes:
    """The content of the file; a ValueError unless it computes the expected values at the first rows."""
    names, outputs = list(named_parts(rows)), list(graph.outputs)
    program = _recorded(graph, rows)
    metadata = json.dumps({**about, "sha256": checksum(constants_of(program))})
    try:
        with sdpa_kernel(SDPBackend.MATH):  # other attention kernels would fix the number of rows
            content = form.content(program, metadata, names, outputs)
        runs = form.opened(content, names, outputs)
    except FileTooLarge:
        raise
    except Exception as error:  # any error of the converter or the runtime
        raise ValueError(
            f"the network must be one that the file's format has all operations of; got {_said(error)}"
        ) from error
    for count, want in zip(_COMPARED, expected, strict=True):
        try:
            got = runs([tensor[:count].clone() for tensor in parts(rows)])
        except Exception as error:  # any error of the runtime
            raise ValueError(
                f"the network must run from the file for any number of rows; at {count} it fails: {_said(error)}"
            ) from error
        for name in outputs:
            _check_same(name, got[name], want[name], targets, count)
    return content


def _rows(model: Any, x: Any) -> Any:
    """A few rows of x, evenly spaced, in the units of the program."""
    if x is None:
        raise ValueError("x must be a few rows of x, since this run does not hold its training data; got None")
    x = check_inputs(x) if model.columns is None or not is_frame(x) else model.columns.x(x, "x")
    check_width(x, model.in_features)
    places = torch.arange(max(_COMPARED)) * num_rows(x) // max(_COMPARED)
    few = mapped(lambda tensor: tensor.cpu()[places].contiguous(), x)
    scaled = None if model.columns is None else model.columns.scaled
    return few if scaled is None else (scaled.inverse(few[0]), *few[1:])


def _chosen(outputs: Any, has: Sequence[Output], whose: str) -> tuple[Output, ...]:
    """The names of the summaries; a ValueError if one is not in `has` or occurs twice."""
    if outputs is None:
        return tuple(name for name in has if name in ("mean", "sd")) or ("probabilities",)
    if isinstance(outputs, str) or not isinstance(outputs, Sequence) or not outputs:
        raise TypeError(f"outputs must be a list of names of outputs, such as ['mean', 'sd']; got {shown(outputs)}")
    chosen = tuple(one_of(name, Output, "outputs") for name in outputs)
    missing = [name for name in chosen if name not in has]
    if missing or len(set(chosen)) < len(chosen):
        raise ValueError(
            f"outputs must be some of {', '.join(has)}, each once: {whose} has no others in a file; got {list(chosen)}"
        )
    return chosen


def _recorded(graph: torch.nn.Module, rows: Inputs) -> Any:
    """The graph as an exported program for any number of rows; a ValueError if PyTorch cannot record it."""
    inputs = tuple(tensor[:_RECORDED].clone() for tensor in parts(rows))
    batch = torch.export.Dim("batch")
    try:
        with torch.no_grad():
            return torch.export.export(
                graph.eval(), inputs, dynamic_shapes=(tuple({0: batch} for _ in inputs),), strict=False
            )
    except Exception as error:  # torch.export raises many types
        if "specialized it to be a constant" in str(error):
            raise ValueError(
                "the network of a file must take any number of rows, and torch.export fixes it where a forward uses it as a "
                "number, as in len(x): write x.shape[0]"
            ) from error
        raise ValueError(
            "the network must be one that torch.export can record for any number of rows, without branches on values or on "
            f"the number of rows; got {_said(error)}"
        ) from error


def _expected(
    predict: Callable[[Inputs], Any],
    model: Any,
    rows: Inputs,
    count: int,
    outputs: Sequence[Output],
    levels: Sequence[float],
) -> dict[str, Tensor]:
    """The summaries of `predict` at the first rows, by name of the output."""
    prediction = predict(standardised(model, mapped(lambda tensor: tensor[:count], rows)))
    attributes = {"probabilities": "mean", "draws": "f"}
    return {
        name: prediction.quantile(levels) if name == "quantiles" else getattr(prediction, attributes.get(name, name))
        for name in outputs
    }


def _check_same(name: Output, got: Tensor, want: Tensor, targets: Any, rows: int) -> None:
    """Raise a ValueError unless an output of the program equals that of `predict`, up to the tolerance."""
    if got.shape != want.shape or got.dtype != want.dtype:
        raise ValueError(
            f"the file must have the {name} of predict, {want.dtype} {list(want.shape)} at {rows} rows; the program has "
            f"{got.dtype} {list(got.shape)}"
        )
    aligned = targets.scale.shape == want.shape[want.dim() - targets.scale.dim() :]
    scale = targets.scale if aligned else targets.scale.min()
    loc = targets.loc if aligned and name != "sd" else torch.zeros(())
    off = ((got - want).abs() / scale).masked_fill((got == want) | (got.isnan() & want.isnan()), 0.0)
    size = float(((want - loc).abs() / scale).nan_to_num(0.0, 0.0, 0.0).max())
    rounding = _ROUNDING * torch.finfo(want.dtype).eps * want.abs() / scale
    if not bool((off <= _TOLERANCE * max(1.0, size) + rounding).all()):
        raise ValueError(
            f"the file must have the {name} of predict to {_TOLERANCE:g} of the scale of y; the program differs by "
            f"{float(off.max()):.2g} of it at {rows} rows"
        )


def _said(error: Exception) -> str:
    """The root cause of an error: its type and the first three lines of its message, in one line."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[:3])
    return f"{type(error).__name__}: {said}"


def _described(tensor: Tensor) -> dict[str, Any]:
    return {"shape": ["batch", *tensor.shape[1:]], "dtype": str(tensor.dtype).removeprefix("torch.")}
