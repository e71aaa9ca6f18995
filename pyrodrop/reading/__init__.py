"""Interpret networks that were trained with dropout as posteriors."""

from pyrodrop.reading.read import read
from pyrodrop.reading.reading import Reading

__all__ = ["Reading", "read"]
