"""Whether the rows of x can be computed separately."""

from __future__ import annotations

from typing import Any

from pyrodrop.inputs import Inputs


def mixes_examples(model: Any, x: Inputs) -> bool:
    """Whether outputs at some rows of x depend on other rows, as in a graph network.

    False for a model without a method ``mixes_examples``.
    """
    return bool(model.mixes_examples(x)) if hasattr(model, "mixes_examples") else False
