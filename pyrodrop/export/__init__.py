"""Write posteriors to ONNX and torch.export files, which run without this package."""

from pyrodrop.export.export import LEVELS, export
from pyrodrop.export.graph import Functions
from pyrodrop.export.summaries import Output

__all__ = ["LEVELS", "Functions", "Output", "export"]
