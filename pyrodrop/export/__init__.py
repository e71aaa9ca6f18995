"""Posteriors as files of ONNX and of torch.export, which run without this package."""

from pyrodrop.export.export import LEVELS, export
from pyrodrop.export.graph import Functions
from pyrodrop.export.summaries import Output

__all__ = ["LEVELS", "Functions", "Output", "export"]
