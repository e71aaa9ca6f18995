"""Dropout at a fixed rate under the alpha-divergence of Li & Gal (2017), on Boston housing.

Networks 13-50-1 as in `rates`, with a learned precision; a step of the alpha-divergence takes the mixture of ten draws.
"""

from __future__ import annotations

from typing import Any

import pyrodrop
from pyrodrop.analysis.experiments.critiques.panel import Size
from pyrodrop.analysis.experiments.remedies import rates

TITLE = "Boston housing, dropout at rate .05 by objective"
FAULT = "ELBO"
OBJECTIVES: dict[str, Any] = {
    FAULT: None,
    "alpha .5, 10 draws": pyrodrop.AlphaDivergence(0.5, 10),
    "alpha 1, 10 draws": pyrodrop.AlphaDivergence(1.0, 10),
}


def measure(size: Size, seed: int) -> dict[str, dict[str, float]]:
    """Spread of f over the noise, scores of the test rows, and core-seconds of training."""
    fixed = rates.GUIDES["fixed rate .05"]
    rows = {name: rates.measured(fixed, size, seed, objective) for name, objective in OBJECTIVES.items()}
    return {name: {key: value for key, value in row.items() if "rate" not in key} for name, row in rows.items()}
