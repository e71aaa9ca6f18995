"""A kind of network, and the expected results for it.

A case is a Python file whose ``CASE`` defines how to build the network, a few rows of x, the likelihood, and every call that
must be refused, with a part of the error message. All other calls must agree with the reference: sample one set of weights
per function and call ``torch.func.functional_call(network, weights, x)``.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pyrodrop import likelihoods, models, priors
from pyrodrop.checks import EngineName, Inputs, arguments, mapped, num_rows
from pyrodrop.training.settings import Estimator

SEED = 7


class Cell(NamedTuple):
    """One check of a case.

    Attributes:
        guide: name of a posterior in `pyrodrop.analysis.lab.networks.posteriors`.
        what: name of a check in `pyrodrop.analysis.lab.networks.contract`.
        estimator: estimator of the training, if the check trains.
        engine: engine of the training, if the check trains.
    """

    guide: str
    what: str
    estimator: Estimator = "shared"
    engine: EngineName = "pyro"

    def __str__(self) -> str:
        return "-".join((self.guide, self.what, self.estimator, self.engine))


@dataclass(frozen=True)
class Refused:
    """Cells that must be refused with a ValueError or TypeError of this package.

    Args:
        reason: a part of the message.
        guide, what, estimator, engine: shell patterns separated by spaces; a cell is selected if each of its four fields
            matches one of the patterns of that field.
    """

    reason: str
    guide: str = "*"
    what: str = "*"
    estimator: str = "*"
    engine: str = "*"

    def means(self, cell: Cell) -> bool:
        patterns = (self.guide, self.what, self.estimator, self.engine)
        return all(
            any(fnmatch(value, alternative) for alternative in pattern.split())
            for value, pattern in zip(cell, patterns, strict=True)
        )


@dataclass(frozen=True)
class Case:
    """A kind of network.

    Args:
        network: builds the network; called with a fixed seed.
        x: makes a few rows of input; called with a fixed seed.
        likelihood: makes the likelihood. y is standard normal in the shape of the network's outputs, or the classes in turn.
        scales: scale of the Gaussian prior by name pattern, where the first match applies; None for no prior.
        options: further arguments of `models.from_module`.
        drop_rate: drop rate of the Bernoulli posterior, by weight name as in `guides.BernoulliDropout`.
        units: input axis and number of groups, by name, of weights whose module does not determine them.
        rows: whether a weight is applied to several rows of one example (positions, tokens, time steps). Local weight noise
            then has another distribution of the activations, as documented.
        whole: whether the network needs all rows of x at once.
        draws: share of the usual number of samples, for large networks.
        needs: packages that the case imports.
        refused: the cells that must be refused.
        name: name of the case's file.
        about: first line of the file's docstring.
    """

    network: Callable[[], nn.Module]
    x: Callable[[], Inputs]
    likelihood: Callable[[], likelihoods.Likelihood] = lambda: likelihoods.Gaussian(2.0)
    scales: Mapping[str, float | None] = field(default_factory=lambda: {"*": 0.7})
    options: Mapping[str, Any] = field(default_factory=dict)
    drop_rate: float | Mapping[str, float] = 0.3
    units: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    rows: bool = False
    whole: bool = False
    draws: float = 1.0
    needs: Sequence[str] = ()
    refused: Sequence[Refused] = ()
    name: str = ""
    about: str = ""

    def missing(self) -> str:
        """Why the case cannot be checked on this machine; empty if it can."""
        absent = [package for package in self.needs if importlib.util.find_spec(package) is None]
        return f"needs {', '.join(absent)}, of the extra 'networks'" if absent else ""

    def build(self, seed: int = SEED) -> nn.Module:
        """The user's network, in double precision."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.network().double()

    def data(self) -> tuple[Inputs, Tensor]:
        """x, in double precision if it is real, and y (see `likelihood`)."""
        with torch.random.fork_rng():
            torch.manual_seed(SEED + 1)
            x: Inputs = mapped(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, self.x())
            likelihood = self.likelihood()
            network = self.build().eval()
            with torch.no_grad():
                f = self.call(network, x)
            if isinstance(likelihood, likelihoods.Categorical):
                return x, torch.arange(num_rows(x)) % f.shape[-1]
            return x, torch.randn_like(f)

    def call(self, network: nn.Module, x: Inputs, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
        """The network's outputs, with `tensors` in place of its parameters and buffers of these names."""
        positional, named = arguments(x)
        returned = functional_call(network, dict(tensors or {}), positional, named)
        return self.options["output"](returned) if "output" in self.options else returned  # type: ignore[no-any-return]

    def model(self, network: nn.Module) -> models.NetworkModel:
        """The network as a Pyro model."""
        setting: Any = {n: None if s is None else priors.Gaussian(s) for n, s in self.scales.items()}
        return models.from_module(network, setting, self.likelihood(), **self.options)

    def scale_of(self, name: str) -> float | None:
        """Scale of the prior of one weight, or None if it has none."""
        return next((scale for pattern, scale in self.scales.items() if fnmatch(name, pattern)), None)


def load(folder: Path) -> dict[str, Case]:
    """The cases of a folder, or of one file, by name.

    A file defines one case, ``CASE``, which is named after the file, or several similar ones, ``CASES``, by name.

    Raises:
        ValueError: a file defines neither, or two cases have the same name.
    """
    files = [folder] if folder.is_file() else sorted(folder.glob("[a-z]*.py"))
    cases_by_name: dict[str, Case] = {}
    for file in files:
        if file.stem.startswith(("test_", "conftest")):
            continue
        spec = importlib.util.spec_from_file_location(f"networks_{file.stem}", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # modules of the network may look for their own
        spec.loader.exec_module(module)
        cases = getattr(module, "CASES", None) or {file.stem: getattr(module, "CASE", None)}
        if not all(isinstance(case, Case) for case in cases.values()):
            raise ValueError(
                f"a network file must define CASE, a Case, or CASES, a mapping from names to Cases; {file} does not"
            )
        if twice := cases.keys() & cases_by_name.keys():
            raise ValueError(f"names of networks must be unique; {file} defines {', '.join(sorted(twice))} again")
        about = ((module.__doc__ or "").strip().splitlines() or [""])[0]
        cases_by_name |= {name: replace(case, name=name, about=case.about or about) for name, case in cases.items()}
    return dict(sorted(cases_by_name.items()))
