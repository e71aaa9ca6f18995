"""The experiments of ``pyrodrop run``, by name. They are in ``analysis/lab``, which only a clone of the repository has."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from pyrodrop.checks import known
from pyrodrop.failed import Failed

JOBS = {
    "co2": "Mauna Loa CO2: uncertainty of dropout networks and Gaussian processes (Gal & Ghahramani 2016, figure 2)",
    "kingma-table1": "variance of gradient estimators on MNIST (Kingma, Salimans & Welling 2015, table 1)",
    "kingma-fig1a": "test error by width of seven dropout methods on MNIST (Kingma et al. 2015, figure 1a)",
    "rotated-digit": "LeNet-5 on a rotated digit: softmax, entropy, calibration (Gal & Ghahramani 2016, figure 4)",
    "sparse": "sparse LeNets on MNIST: pruning, compression, test error (Molchanov, Ashukha & Vetrov 2017, table 1)",
    "concrete": "concrete dropout: error, uncertainty and learned rates on synthetic data (Gal, Hron & Kendall 2017)",
    "references": "exact posteriors of six small networks by sampling, and the distance of every guide from them",
    "peers": "other packages on the problems whose exact posterior is known: distances and core-seconds",
    "published": "published figures beside ours: which agree, and of each other one why not",
    "uci": "nine UCI regression sets, all splits: dropout and other posteriors (Gal & Ghahramani 2016, table 1)",
}


def job(name: str) -> Callable[..., Any]:
    """The function of a job; its keyword arguments are the job's options.

    Raises:
        ValueError: no job has this name; the message suggests the most similar one.
        Failed: there is no ``analysis/lab``.
    """
    module = of_lab(f"experiments.{known(name, JOBS, 'job').replace('-', '_')}", f"the experiment {name!r}")
    return module.run  # type: ignore[no-any-return]


def of_lab(module: str, what: str) -> ModuleType:
    """A module of ``analysis/lab``.

    Args:
        module: its name below ``pyrodrop.analysis.lab``.
        what: what it is for, as the beginning of a message.

    Raises:
        Failed: there is no ``analysis/lab``.
    """
    if find_spec("pyrodrop.analysis.lab") is None:
        raise Failed(
            f"{what} needs a clone of pyrodrop's repository, whose folder analysis/lab is not part of the installed "
            "package: clone it, and run pip install -e . in the clone"
        )
    return import_module(f"pyrodrop.analysis.lab.{module}")
