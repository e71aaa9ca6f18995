"""ArviZ under one name on every Python version: the functions of ArviZ 1, which work on `xarray.DataTree`.

In ArviZ 0.23 (Python 3.11) they are in `arviz.preview`, which is empty unless arviz-base, arviz-stats and arviz-plots are
installed too. In ArviZ 1 (Python 3.12 and newer) they are in `arviz` itself. https://python.arviz.org
"""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType


def _found() -> ModuleType:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing a major refactor")
        try:
            module = importlib.import_module("arviz.preview")
        except ImportError:
            module = importlib.import_module("arviz")
    missing = [name for name in ("loo_approximate_posterior", "plot_ppc_pit", "from_dict") if not hasattr(module, name)]
    if missing:
        raise ImportError(
            "pyrodrop needs an ArviZ with data trees: arviz[preview] >= 0.23 with arviz-stats and arviz-plots >= 0.8 on "
            f"Python 3.11, arviz >= 1.2 from Python 3.12 on; {module.__name__} has no {', '.join(missing)}"
        )
    return module


az: ModuleType = _found()
