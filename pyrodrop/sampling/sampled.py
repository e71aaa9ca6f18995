"""Draws from the exact posterior, which predict like a fit: of a network, and of any other Pyro program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyrodrop import threads
from pyrodrop.changes import Kept, evaluating
from pyrodrop.checks import count as whole_number
from pyrodrop.checks import mapped
from pyrodrop.data import Data, Dataset, Keywords
from pyrodrop.devices import made_on
from pyrodrop.failed import Failed
from pyrodrop.files import under
from pyrodrop.likelihoods import aligned
from pyrodrop.models import NetworkModel
from pyrodrop.parts import Card
from pyrodrop.prediction.posterior import Posterior
from pyrodrop.prediction.predict import draw_functions
from pyrodrop.prediction.stored import Stored
from pyrodrop.sampling.density import arguments_of
from pyrodrop.sampling.mixing import Diagnostics, diagnose
from pyrodrop.steps import Arguments
from pyrodrop.training.problem import describe
from pyrodrop.training.program_draws import draw_sites
from pyrodrop.training.rows import none_by_default

_POINTS = 100  # at which f is diagnosed
_AT_ONCE = 2**22  # values of f


@dataclass(repr=False)
class Sampled(Posterior):
    """Draws of all chains, of a network or of any other Pyro program; see `pyrodrop.sample`, which makes it.

    Attributes:
        model: a copy of the model in evaluation mode, with the standardisation of the data; or the program.
        samples: every continuous site that is not observed, on its support, ``[chains, draws, ...]`` by name, on the CPU.
        stats: of the transitions that led to each draw, ``[chains, draws]`` each: ``lp`` (log joint density in unconstrained
            coordinates), ``energy`` (the Hamiltonian), ``acceptance_rate``, ``diverging`` and ``n_steps`` (gradients).
        data: the data, None after loading; or the arguments of the program.
        settings: of the run, in plain numbers and words, with the fingerprint of the data of a network.
        device: where the model is.
        kept: of a program, its parameters and buffers at the time.
    """

    model: Any
    samples: dict[str, Tensor]
    stats: dict[str, Tensor]
    data: Any
    settings: dict[str, Any]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    kept: Kept | None = None
    kind = "sampled"

    @property
    def chains(self) -> int:
        """The number of chains."""
        return len(self.stats["lp"])

    @property
    def draws(self) -> int:
        """The number of draws of each chain."""
        return self.stats["lp"].shape[1]

    def sites(self, num_samples: int | None = None) -> dict[str, Tensor]:
        """Draws of every latent site in one sequence, ``[S, ...]`` by name: all of them, or S that are evenly spaced.

        Raises:
            TypeError, ValueError: `num_samples` is no whole number of at least 1.
        """
        count = self.chains * self.draws
        size = count if num_samples is None else whole_number(num_samples, "num_samples", "the number of draws")
        rows = torch.arange(size) * count // size
        return {name: values.flatten(0, 1)[rows] for name, values in self.samples.items()}

    @contextmanager
    def as_trained(self) -> Iterator[None]:
        """Have a program compute with its values when it was sampled, in evaluation mode, within the block."""
        if self.kept is None:
            yield
            return
        with threads.exclusive(), self.kept.put_in(self.model), evaluating(self.model), made_on(self.device):
            yield

    def _drawing(self, count: int) -> StoredDraws:
        return StoredDraws(self.sites(count), self.device)

    def draw(self, num_samples: int) -> dict[str, Tensor]:
        """The last draws of the chains in turn, ``[num_samples, ...]`` by site, from which further chains may start."""
        return {name: values[torch.arange(num_samples) % self.chains, -1] for name, values in self.samples.items()}

    @threads.exclusive()
    def log_likelihood(self, data: Data | None = None) -> Tensor:
        """ln p(y_n | x_n, w) of every draw and observation, ``[chains, draws, N]``.

        Args:
            data: observations; the data of the run if None.

        Raises:
            ValueError: there are no data, or they do not fit the model.
        """
        chosen = self.own_data("log_likelihood", data, others=True)
        self.model.targets_check(chosen.x)(chosen)
        y = self.model.likelihood.as_target(chosen.y)
        together, blocks = max(1, _AT_ONCE // (self.draws * len(chosen))), []
        for first in range(0, self.chains, together):  # so that not all of f is in memory
            weights = {name: values[first : first + together].flatten(0, 1) for name, values in self.samples.items()}
            guide, count = StoredDraws(weights, self.device), min(together, self.chains - first) * self.draws
            predicted = draw_functions(self.model, guide, chosen.x, count, seed=0, device=self.device)
            distribution = predicted.distribution
            blocks.append(distribution.log_prob(aligned(y, distribution)).cpu())
        return torch.cat(blocks).reshape(self.chains, self.draws, -1)

    def diagnostics(self) -> Diagnostics:
        """R-hat and effective sample sizes, divergences and E-BFMI; after loading those that are in the file.

        Of a network, of f at up to 100 points of the data, evenly spaced, and of the log likelihood of all data; of a
        program, of its sites and the log density.

        Raises:
            ValueError: fewer than 4 draws per chain; f is the same in all draws; the file has none.
        """
        if self.draws < 4:
            raise ValueError(f"diagnostics need at least 4 draws per chain; got {self.draws}")
        if self.data is None:
            if "diagnostics" not in self.settings:
                raise ValueError(
                    "diagnostics need the data of the run, which loaded draws do not have; the file has none"
                )
            return Diagnostics.of_dict(self.settings["diagnostics"])
        if self.kept is None:
            count = len(self.data)
            rows = torch.arange(min(_POINTS, count)) * count // min(_POINTS, count)
            f = self.predict(mapped(lambda part: part[rows], self.data.x), self.chains * self.draws).f
            log_density = self.log_likelihood().double().sum(2)
        else:
            f = torch.cat([values.reshape(self.chains * self.draws, -1) for values in self.samples.values()], 1)
            log_density = self.stats["lp"]
        f = f.reshape(self.chains, self.draws, -1)
        diverging, rounding = int(self.stats["diverging"].sum()), float(self.settings["energy_rounding"])
        return diagnose(f, log_density, diverging, rounding, self.stats.get("energy"))

    def _draws_of_sites(self, x: Any, count: int, seed: int, sites: Sequence[str] | None) -> dict[str, Tensor]:
        arguments: Arguments = self.data
        if x is not None:  # others in the same form; those that default to None may be left out of a mapping
            named = Keywords.named(x, list(self.data.kwargs), none_by_default(self.model)) if self.data.kwargs else x
            arguments = arguments_of(named, self.device)
        values = {name: value.to(self.device) for name, value in self.sites(count).items()}
        return draw_sites(self.model, None, arguments, count, seed, sites, values)

    def stored(self) -> Stored:
        if self.kept is not None:
            raise TypeError(
                "draws of a Pyro program have no file of this package: torch.save(sampled.samples, path), or "
                "pyrodrop.to_arviz(sampled).to_netcdf(path)"
            )
        stored = Stored.of({"model": self.model}, self.settings)
        stored.tensors.update({f"samples.{name}": values for name, values in self.samples.items()})
        stored.tensors.update({f"stats.{name}": values for name, values in self.stats.items()})
        return stored

    def card(self) -> Card:
        settings = self.settings
        lines = {"draws": f"{self.chains} chains of {self.draws}", "model": describe(self.model)}
        names = ("num_data", "tune", "dtype", "engine", "seed", "likelihood_power", "seconds", "thinned_from")
        lines["sampling"] = ", ".join(f"{name} {settings[name]:.6g}" if isinstance(settings[name], float) else
                                      f"{name} {settings[name]}" for name in names if name in settings)  # fmt: skip
        lines["transitions"] = f"{int(self.stats['diverging'].sum())} divergent"
        if "diagnostics" in settings:
            diagnostics = Diagnostics.of_dict(settings["diagnostics"])
            lines["diagnostics"] = "; ".join(diagnostics.problems) or str(diagnostics)
        return Card("Sampled", lines)

    @classmethod
    def load(cls, path: str | Path, model: NetworkModel | None = None) -> Sampled:
        """Read saved draws.

        Args:
            path: of the file.
            model: built like the saved one, which is changed in place, also to the dtype of the draws; needed and compared
                as in `Fit.load`. None for the model that the file describes.

        Raises:
            ValueError: the model differs from the saved one: names or shapes, the network, its activation, the priors or the
                likelihood; or it is not such a file, or damaged. The model is not changed then.
            OSError: the file cannot be read; the message names it.
        """
        stored = Stored.read(path, "sampled")
        samples, stats = under("samples.", stored.tensors), under("stats.", stored.tensors)
        dtype = _checked_dtype(stored, samples, stats)
        parts, restore = stored.into({"model": model}, dtype)
        made: NetworkModel = parts["model"]
        hyper = {name: value for sites in made.hyper_sites().values() for name, value in sites.items()}
        shapes = {name: list(value.shape) for name, value in {**made.weight_sites(), **hyper}.items()}
        if (there := {name: list(values.shape[2:]) for name, values in samples.items()}) != shapes:
            raise Failed(f"{stored.where} has draws of sites with the shapes {there}; the model's are {shapes}")
        restore()
        device = next(iter(made.weight_sites().values())).device
        return cls(made, samples, stats, None, stored.settings, device)

    def own_data(self, name: str, data: Data | None, *, others: bool = False) -> Dataset:
        """The data that the draws were made for, or that are passed, for the method of this name.

        Args:
            name: of the method, for messages.
            data: needed after loading.
            others: whether other data than those of the run are allowed.

        Raises:
            TypeError: the draws are of another Pyro program than a network.
            ValueError: there are no data, or their fingerprint differs from that of the run.
        """
        if self.kept is not None:
            raise TypeError(f"{name} takes data of networks alone, and these are draws of another Pyro program")
        chosen: Dataset | None = self.data if data is None else Dataset.of(data)
        if chosen is None:
            raise ValueError(f"loaded draws have no data: pass them as {name}(data=...)")
        if not others and self.fingerprint is not None and chosen.fingerprint != self.fingerprint:
            raise ValueError(f"{name} needs the data that the draws were made for; these have another fingerprint")
        return chosen


def _checked_dtype(stored: Stored, samples: Mapping[str, Tensor], stats: Mapping[str, Tensor]) -> torch.dtype:
    """The dtype of draws in a file; a ValueError if they are not whole, or damaged."""
    counts = {values.shape[:2] for values in samples.values()} | {values.shape for values in stats.values()}
    whole = {"lp", "diverging", "n_steps"} <= stats.keys()
    if len(counts) != 1 or 0 in min(counts) or len(min(counts)) != 2 or not whole:
        raise Failed(f"{stored.where} is not whole: its draws and statistics differ in number, or some are missing")
    dtypes = {values.dtype for values in samples.values()}
    if not dtypes <= {torch.float32, torch.float64} or len(dtypes) != 1:
        raise Failed(f"{stored.where} must have draws of one dtype, float32 or float64; got {sorted(map(str, dtypes))}")
    return dtypes.pop()


class StoredDraws:
    """Draws of every latent site, ``[S, ...]`` by name, with the method `draw` of a guide."""

    def __init__(self, weights: Mapping[str, Tensor], device: torch.device) -> None:
        self._weights, self._device, self._next = weights, device, 0

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        raise NotImplementedError("draws of a posterior are no guide that could be traced")

    def draw(self, count: int) -> dict[str, Tensor]:
        """The next draws, ``[count, ...]`` by site."""
        first, self._next = self._next, self._next + count
        return {name: values[first : self._next].to(self._device) for name, values in self._weights.items()}
