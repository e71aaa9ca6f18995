"""Dropout at a fixed rate under the alpha-divergence of Li & Gal (2017), on Boston housing.

Networks 13-50-1 as in `rates`, with a learned noise or with the noise that the ELBO learned. A step of the alpha-divergence
uses the mixture of ten draws.
"""

from __future__ import annotations

import pyrodrop
from pyrodrop.analysis.experiments.critiques.panel import Size
from pyrodrop.analysis.experiments.remedies import rates

TITLE = "Boston housing, dropout at rate .05 by objective"
FAULT = "ELBO"
OBJECTIVES = {f"alpha {alpha:g}, 10 draws": pyrodrop.AlphaDivergence(alpha, 10) for alpha in (0.5, 1.0)}


def measure(size: Size, seed: int) -> dict[str, dict[str, float]]:
    """Noise and mean spread of f, scores of the test rows, and core-seconds of training."""
    fixed = rates.GUIDES["fixed rate .05"]
    rows = {FAULT: rates.measured(fixed, size, seed)}
    for suffix, noise in (("", None), (", noise of the ELBO", rows[FAULT]["noise"])):
        rows |= {f"{name}{suffix}": rates.measured(fixed, size, seed, loss, noise) for name, loss in OBJECTIVES.items()}
    return {name: {key: value for key, value in row.items() if "rate" not in key} for name, row in rows.items()}
