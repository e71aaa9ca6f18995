"""Interpret networks that were trained with dropout as posteriors."""

from pyrodrop.reading.last_layer import last_layer
from pyrodrop.reading.read import read
from pyrodrop.reading.reading import Reading

__all__ = ["Reading", "last_layer", "read"]
