"""ArviZ, by one name on every Python: its functions of `xarray.DataTree`s, as ArviZ 1 has them.

ArviZ 0.23 (Python 3.11) keeps them in `arviz.preview`, which is there but empty unless arviz-base, arviz-stats and
arviz-plots are installed beside it; ArviZ 1 (Python 3.12 and newer) is them.
"""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType


def _found() -> ModuleType:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing a major refactor")  # to what is used here
        try:
            module = importlib.import_module("arviz.preview")
        except ImportError:
            module = importlib.import_module("arviz")
    missing = [name for name in ("loo_approximate_posterior", "plot_ppc_pit", "from_dict") if not hasattr(module, name)]
    if missing:
        raise ImportError(
            "this ArviZ works without data trees: pyrodrop needs arviz[preview] >= 0.23 on Python 3.11, and arviz >= 1.2 "
            f"from 3.12 on; {module.__name__} has no {', '.join(missing)}"
        )
    return module


az = _found()
