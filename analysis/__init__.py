"""Comparison, baselines, plots and experiments, with heavier dependencies than the core.

Public functions and classes can be imported from this package, whichever file defines them:
``from pyrodrop.analysis import loo``. Each is loaded on first access. `gp` and `plots` are modules of this package.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if __name__ != "pyrodrop.analysis":
    raise ImportError("import pyrodrop.analysis, not analysis")

if TYPE_CHECKING:
    from pyrodrop.analysis.arviz.bridge import to_arviz
    from pyrodrop.analysis.calibration.result import SBC
    from pyrodrop.analysis.calibration.sbc import sbc, sbc_of_draws
    from pyrodrop.analysis.comparison.comparison import Comparison, compare
    from pyrodrop.analysis.comparison.held_out import KFold, kfold, log_density
    from pyrodrop.analysis.comparison.khat import k_hat
    from pyrodrop.analysis.comparison.loo import Loo, UnreliableLoo, loo
    from pyrodrop.analysis.comparison.reloo import reloo

__all__ = [
    "SBC",
    "Comparison",
    "KFold",
    "Loo",
    "UnreliableLoo",
    "compare",
    "k_hat",
    "kfold",
    "log_density",
    "loo",
    "reloo",
    "sbc",
    "sbc_of_draws",
    "to_arviz",
]

_FILES = {
    "calibration.result": ("SBC",),
    "calibration.sbc": ("sbc", "sbc_of_draws"),
    "comparison.comparison": ("Comparison", "compare"),
    "comparison.held_out": ("KFold", "kfold", "log_density"),
    "comparison.khat": ("k_hat",),
    "comparison.loo": ("Loo", "UnreliableLoo", "loo"),
    "comparison.reloo": ("reloo",),
    "arviz.bridge": ("to_arviz",),
}
_PLACES = {name: file for file, names in _FILES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
