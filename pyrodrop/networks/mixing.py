"""Whether the rows of x may be computed apart."""

from __future__ import annotations

from typing import Any

from pyrodrop.inputs import Inputs


def mixes_examples(model: Any, x: Inputs) -> bool:
    """Whether outputs at some rows of x depend on the others, as in a graph; False for a model that does not know."""
    return bool(model.mixes_examples(x)) if hasattr(model, "mixes_examples") else False
