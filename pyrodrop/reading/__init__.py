"""Interpret networks that were trained with dropout as posteriors."""

from pyrodrop.reading.last_layer import last_layer
from pyrodrop.reading.read import Reading, read

__all__ = ["Reading", "last_layer", "read"]
