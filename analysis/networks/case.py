"""A kind of network, and what is expected of it.

A case is a Python file whose ``CASE`` says how the network is built, a few rows of x, the likelihood, and every call that
is refused, with a part of the reason. All else must be right: agree with drawing one weight per draw and calling
``torch.func.functional_call(network, weights, x)``.
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
from pyrodrop.engines import Name as EngineName
from pyrodrop.inputs import Inputs, arguments, mapped, num_rows
from pyrodrop.training.settings import Estimator

SEED = 7


class Cell(NamedTuple):
    """One thing to check of a case.

    Attributes:
        guide: name of a posterior in `pyrodrop.analysis.networks.posteriors`.
        what: name of a check in `pyrodrop.analysis.networks.contract`.
        estimator, engine: of training, where the check trains.
    """

    guide: str
    what: str
    estimator: Estimator = "shared"
    engine: EngineName = "pyro"

    def __str__(self) -> str:
        return "-".join((self.guide, self.what, self.estimator, self.engine))


@dataclass(frozen=True)
class Refused:
    """Cells that are refused with a ValueError or TypeError of this package.

    Args:
        reason: a part of the message.
        guide, what, estimator, engine: patterns, separated by spaces; a cell is meant if each of its words fits one of them.
    """

    reason: str
    guide: str = "*"
    what: str = "*"
    estimator: str = "*"
    engine: str = "*"

    def means(self, cell: Cell) -> bool:
        patterns = (self.guide, self.what, self.estimator, self.engine)
        return all(
            any(fnmatch(value, one) for one in pattern.split()) for value, pattern in zip(cell, patterns, strict=True)
        )


@dataclass(frozen=True)
class Case:
    """A kind of network.

    Args:
        network: builds it; called under a fixed seed.
        x: makes a few rows of input; called under a fixed seed.
        likelihood: of y, which is drawn at random in the shape that the network's outputs ask for.
        scales: scale of the Gaussian prior by weight name, first fit decides; None for no prior.
        options: further arguments of `models.from_module`.
        drop_rate: of the Bernoulli posterior, by weight name as in `guides.BernoulliDropout`.
        units: input axis and number of groups of weights whose module does not tell them, by weight name.
        last: the weight of a fully connected last layer, if there is one.
        rows: whether a weight meets several rows of one example (positions, tokens, time steps): weight noise that is local
            then gives another posterior over activations, as documented.
        whole: whether the network takes only all rows of x at once.
        draws: share of the usual number of draws, for large networks.
        needs: packages.
        refused: what is refused, and why.
    """

    network: Callable[[], nn.Module]
    x: Callable[[], Inputs]
    likelihood: Callable[[], likelihoods.Likelihood] = lambda: likelihoods.Gaussian(2.0)
    scales: Mapping[str, float | None] = field(default_factory=lambda: {"*": 0.7})
    options: Mapping[str, Any] = field(default_factory=dict)
    drop_rate: float | Mapping[str, float] = 0.3
    units: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    last: str | None = None
    rows: bool = False
    whole: bool = False
    draws: float = 1.0
    needs: Sequence[str] = ()
    refused: Sequence[Refused] = ()
    name: str = ""
    about: str = ""

    def missing(self) -> str:
        """Why the case cannot be looked at here, or nothing."""
        absent = [package for package in self.needs if importlib.util.find_spec(package) is None]
        return f"needs {', '.join(absent)}, of the extra 'networks'" if absent else ""

    def build(self, seed: int = SEED) -> nn.Module:
        """The user's network, in double precision."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.network().double()

    def data(self) -> tuple[Inputs, Tensor]:
        """x and y."""
        with torch.random.fork_rng():
            torch.manual_seed(SEED + 1)
            x: Inputs = mapped(lambda part: part.double() if part.is_floating_point() else part, self.x())
            likelihood = self.likelihood()
            network = self.build().eval()
            with torch.no_grad():
                f = plain_call(network, x)
            if isinstance(likelihood, likelihoods.Categorical):
                return x, torch.arange(num_rows(x)) % f.shape[-1]
            return x, torch.randn_like(f)

    def model(self, network: nn.Module) -> models.NetworkModel:
        """The network as a Pyro model."""
        setting: Any = {n: None if s is None else priors.Gaussian(s) for n, s in self.scales.items()}
        return models.from_module(network, setting, self.likelihood(), **self.options)

    def scale_of(self, name: str) -> float | None:
        """Scale of the prior of one weight, or None if it has none."""
        return next((scale for pattern, scale in self.scales.items() if fnmatch(name, pattern)), None)


def plain_call(network: nn.Module, x: Inputs, tensors: Mapping[str, Tensor] | None = None) -> Tensor:
    """The network's outputs, for other parameters and buffers where some are given."""
    positional, named = arguments(x)
    return functional_call(network, dict(tensors or {}), positional, named)  # type: ignore[no-any-return]


def load(folder: Path) -> dict[str, Case]:
    """The cases of a folder, or of one file, by name.

    A file has one case, in CASE, whose name is the file's; or several that differ in little, in CASES, by name.

    Raises:
        ValueError: a file with neither, or two cases of one name.
    """
    files = [folder] if folder.is_file() else sorted(folder.glob("[a-z]*.py"))
    found: dict[str, Case] = {}
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
                "a file of a network says what is expected of it in CASE, a Case, or in CASES, a mapping of names to Cases; "
                f"{file} does not"
            )
        if twice := cases.keys() & found.keys():
            raise ValueError(f"every network has a name of its own; {file} has {', '.join(sorted(twice))} again")
        about = ((module.__doc__ or "").strip().splitlines() or [""])[0]
        found |= {name: replace(case, name=name, about=case.about or about) for name, case in cases.items()}
    return dict(sorted(found.items()))
