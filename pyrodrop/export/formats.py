"""Convert exported programs to the bytes of PyTorch and ONNX files, and run such files.

A ``.pt2`` file is written by `torch.export.save` and needs only PyTorch. An ``.onnx`` file can be read by any ONNX runtime.
"""

from __future__ import annotations

import importlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

KEY = "pyrodrop"  # key of the metadata
_MOST = 2**31 - 2**20  # bytes of an ONNX file, which is one protobuf message

Runs = Callable[[Sequence[Tensor]], dict[str, Tensor]]


class FileTooLarge(ValueError):
    """A file is larger than its format allows."""


class Pt2:
    """The archive of `torch.export.save`."""

    def check(self) -> None:
        """Raise an ImportError if a required package is not installed; this format requires none."""

    def content(self, program: Any, about: str, names: Sequence[str], outputs: Sequence[str]) -> bytes:
        """The file of an exported program, with these names of inputs and outputs and `about` as metadata."""
        program = program.run_decompositions({})  # which resolves torch.vmap
        if any("pyrodrop" in str(node.target) for node in program.graph.nodes):
            raise ValueError("the network uses a weight that differs by draw in a way that is not mapped")
        file = io.BytesIO()
        torch.export.save(program, file, extra_files={f"{KEY}.json": about})
        return file.getvalue()

    def opened(self, content: bytes, names: Sequence[str], outputs: Sequence[str]) -> Runs:
        """Load the file in its runtime: returns a function from the tensors of x to the outputs by name."""
        module = torch.export.load(io.BytesIO(content)).module()
        return lambda tensors: module(*tensors)


class Onnx:
    """A model of ONNX, run by onnxruntime; the methods are those of `Pt2`."""

    def check(self) -> None:
        for package in ("onnx", "onnxscript", "onnxruntime"):
            try:
                importlib.import_module(package)
            except ImportError as error:
                raise ImportError(
                    f"an .onnx file needs the package {package}: pip install 'pyrodrop[onnx]', or export a .pt2 file"
                ) from error

    def content(self, program: Any, about: str, names: Sequence[str], outputs: Sequence[str]) -> bytes:
        size = sum(value.numel() * value.element_size() for value in constants_of(program).values())
        if size > _MOST:
            raise FileTooLarge(
                f"an .onnx file holds at most {_MOST / 2**30:.1f} GiB; got weights of {size / 2**30:.1f} GiB: use fewer "
                "draws, or a .pt2 file"
            )
        made: Any = torch.onnx.export(program, dynamo=True, verbose=False)
        _named(made.model.graph, names, outputs)
        made.model.metadata_props[KEY] = about
        return made.model_proto.SerializeToString()  # type: ignore[no-any-return]

    def opened(self, content: bytes, names: Sequence[str], outputs: Sequence[str]) -> Runs:
        runtime = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 4  # only fatal messages, as errors are raised
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

        def run(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
            values = session.run(list(outputs), {n: t.numpy() for n, t in zip(names, tensors, strict=True)})
            return {name: torch.from_numpy(value) for name, value in zip(outputs, values, strict=True)}

        return run


Format = Onnx | Pt2
FORMATS: Mapping[str, Format] = {".onnx": Onnx(), ".pt2": Pt2()}


def constants_of(program: Any) -> dict[str, Tensor]:
    """All tensors that an exported program stores, by name."""
    return {n: value for n, value in {**program.state_dict, **program.constants}.items() if isinstance(value, Tensor)}


def _named(graph: Any, names: Sequence[str], outputs: Sequence[str]) -> None:
    """Name inputs and outputs of an ONNX graph, rename other values that have these names, and name unknown axes batch."""
    ends = dict(zip([*graph.inputs, *graph.outputs], [*names, *outputs], strict=True))
    values = [*graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    for value in values:
        if value not in ends and value.name in ends.values():
            value.name = f"{value.name}_inside"
    for value, name in ends.items():
        value.name = name
        value.shape = type(value.shape)(length if isinstance(length, int) else "batch" for length in value.shape)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and logs of exporters within the block."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
