"""Draws from the exact posterior, which predict like a fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pyrodrop import threads
from pyrodrop.checks import Inputs, mapped
from pyrodrop.checks import count as whole_number
from pyrodrop.data import Data, Dataset
from pyrodrop.failed import Failed
from pyrodrop.files import under
from pyrodrop.likelihoods import aligned
from pyrodrop.models import NetworkModel
from pyrodrop.parts import Card
from pyrodrop.prediction.posterior import Posterior
from pyrodrop.prediction.predict import draw_functions
from pyrodrop.prediction.stored import Stored
from pyrodrop.sampling.mixing import Diagnostics, diagnose

_POINTS = 100  # at which f is diagnosed
_AT_ONCE = 2**22  # values of f


@dataclass(repr=False)
class Sampled(Posterior):
    """Draws of all chains; see `pyrodrop.sample`, which makes it.

    Attributes:
        model: a copy of the model in evaluation mode, with the standardisation of the data.
        samples: every latent site on its support, ``[chains, draws, ...]`` by name, on the CPU.
        stats: of the transitions that led to each draw, ``[chains, draws]`` each: ``lp`` (log joint density in unconstrained
            coordinates), ``diverging`` (any), ``n_steps`` (gradients); of kernel hmc ``energy`` (the Hamiltonian) and
            ``acceptance_rate``, of mclmc ``energy_error`` (root mean square of the change of energy in a step).
        data: the data; None after loading.
        settings: of the run, in plain numbers and words, with the fingerprint of the data.
        device: where the model is.
    """

    model: NetworkModel
    samples: dict[str, Tensor]
    stats: dict[str, Tensor]
    data: Dataset | None
    settings: dict[str, Any]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    kind = "sampled"

    @property
    def chains(self) -> int:
        """The number of chains."""
        return len(self.stats["lp"])

    @property
    def draws(self) -> int:
        """The number of draws of each chain."""
        return self.stats["lp"].shape[1]

    @property
    def kernel(self) -> Literal["hmc", "mclmc"]:
        """The kernel that made the draws."""
        return "hmc" if "acceptance_rate" in self.stats else "mclmc"

    def _drawing(self, count: int) -> StoredDraws:
        return StoredDraws(self.weights(count), self.device)

    def weights(self, num_samples: int | None = None) -> dict[str, Tensor]:
        """Draws of every latent site in one sequence, ``[S, ...]`` by name: all of them, or S that are evenly spaced.

        Raises:
            TypeError: `num_samples` is not a whole number.
            ValueError: it is less than 1.
        """
        count = self.chains * self.draws
        size = count if num_samples is None else whole_number(num_samples, "num_samples", "the number of draws")
        rows = torch.arange(size) * count // size
        return {name: values.flatten(0, 1)[rows] for name, values in self.samples.items()}

    def last(self, count: int) -> dict[str, Tensor]:
        """The last draws of the chains in turn, ``[count, ...]`` by site."""
        return {name: values[torch.arange(count) % self.chains, -1] for name, values in self.samples.items()}

    @threads.exclusive()
    def log_likelihood(self, data: Data | None = None) -> Tensor:
        """ln p(y_n | x_n, w) of every draw and observation, ``[chains, draws, N]``.

        Args:
            data: observations; the data of the run if None.

        Raises:
            ValueError: there are no data, or they do not fit the model.
        """
        chosen = self._chosen("log_likelihood", data)
        self.model.check_targets(chosen)
        y = self.model.likelihood.as_target(chosen.y)
        together, blocks = max(1, _AT_ONCE // (self.draws * len(chosen))), []
        for first in range(0, self.chains, together):  # so that not all of f is in memory
            weights = {name: values[first : first + together].flatten(0, 1) for name, values in self.samples.items()}
            distribution = self.distribution_of(weights, chosen.x, min(together, self.chains - first) * self.draws)
            blocks.append(distribution.log_prob(aligned(y, distribution)).cpu())
        return torch.cat(blocks).reshape(self.chains, self.draws, -1)

    def distribution_of(self, weights: Mapping[str, Tensor], x: Inputs, count: int) -> TorchDistribution:
        """The distribution of y at x for each of `count` sets of weights ``[count, ...]`` by name; batch ``[count, N]``."""
        guide = StoredDraws(weights, self.device)
        prediction: Any = draw_functions(self.model, guide, x, count, seed=0, device=self.device)
        return prediction.distribution  # type: ignore[no-any-return]

    def diagnostics(self, x: Inputs | None = None, data: Data | None = None) -> Diagnostics:
        """R-hat and effective sample sizes of f at points and of the log likelihood of the data, and divergences.

        Args:
            x: the points for f; up to 100 of the data's, evenly spaced, if None.
            data: the data of the run; needed after loading.

        Raises:
            ValueError: there are no data, or not those of the run; fewer than 4 draws per chain; f is the same in all draws.
        """
        if self.draws < 4:
            raise ValueError(f"diagnostics need at least 4 draws per chain; got {self.draws}")
        chosen = self.own_data("diagnostics", data)
        count = len(chosen)
        rows = torch.arange(min(_POINTS, count)) * count // min(_POINTS, count)
        points = mapped(lambda part: part[rows], chosen.x) if x is None else x
        f = self.predict(points, self.chains * self.draws).f
        return diagnose(
            f.reshape(self.chains, self.draws, *f.shape[1:]),
            self.log_likelihood(chosen).double().sum(2),
            int(self.stats["diverging"].sum()),
            float(self.settings["energy_rounding"]),
            self.stats.get("energy"),
        )

    def stored(self) -> Stored:
        stored = Stored.of({"model": self.model}, self.settings)
        stored.tensors.update({f"samples.{name}": values for name, values in self.samples.items()})
        stored.tensors.update({f"stats.{name}": values for name, values in self.stats.items()})
        return stored

    def thinned(self, num_samples: int) -> Sampled:
        """A copy with fewer draws: the same number of each chain, evenly spaced, including the last one.

        Args:
            num_samples: draws in all, at least one per chain; rounded down to a multiple of the number of chains.

        Raises:
            TypeError: `num_samples` is not a whole number.
            ValueError: it is less than the number of chains, or more than all draws.
        """
        most, what = self.chains * self.draws, "the number of draws in all, at least one per chain,"
        share = whole_number(num_samples, "num_samples", what, least=self.chains, most=most) // self.chains
        rows = (torch.arange(1, share + 1) * self.draws) // share - 1

        def some(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: value[:, rows].contiguous() for name, value in values.items()}

        settings = {**self.settings, "draws": share, "thinned_from": self.draws}
        return Sampled(self.model, some(self.samples), some(self.stats), self.data, settings, self.device)

    @classmethod
    def load(cls, path: str | Path, model: NetworkModel | None = None, *, allow: Collection[str] = ()) -> Sampled:
        """Read saved draws.

        Args:
            path: of the file.
            model: built like the saved one, which is changed in place, also to the dtype of the draws; needed and compared
                as in `Fit.load`. None for the model that the file describes.
            allow: ``("model",)`` to accept a model that is not built as the saved one, as in `Fit.load`.

        Raises:
            ValueError: the model differs from the saved one: names or shapes, the network, its activation, the priors or the
                likelihood; or it is not such a file, or damaged. The model is not changed then.
            OSError: the file cannot be read; the message names it.
        """
        stored = Stored.read(path, "sampled")
        samples, stats = under("samples.", stored.tensors), under("stats.", stored.tensors)
        dtype = _checked_dtype(stored, samples, stats)
        parts, restore = stored.into({"model": model}, allow, dtype)
        _check_sites(stored, samples, parts["model"])
        restore()
        device = next(iter(parts["model"].weight_sites().values())).device
        return cls(parts["model"], samples, stats, None, stored.settings, device)

    @property
    def _transitions(self) -> str:
        """A summary of the transitions."""
        if self.kernel == "hmc":
            rate = f"mean acceptance {float(self.stats['acceptance_rate'].mean()):.2g}"
        else:
            change = self.stats["energy_error"].square().nanmean().sqrt()
            rate = f"energy changes by {float(change):.2g} nats a step"
        return f"{rate}, {int(self.stats['diverging'].sum())} divergent"

    def card(self) -> Card:
        settings = self.settings
        names = ("tune", "thin", "dtype", "engine", "seed")
        sampling = [f"{name} {settings[name]}" for name in names if name in settings]
        power = settings.get("likelihood_power", 1.0)
        sampling += [f"likelihood_power {power}"] if power != 1 else []
        sampling += [f"{settings['seconds']:.1f} s"] if isinstance(settings.get("seconds"), float) else []
        return Card(
            "Sampled",
            {
                "draws": f"{self.chains} chain{'s' * (self.chains > 1)} of {self.draws}",
                "model": self.model.describe(),
                "data": f"{settings['num_data']} rows" if "num_data" in settings else "",
                "sampling": ", ".join(sampling),
                "transitions": self._transitions,
                "diagnostics": self._diagnosed(),
            },
        )

    def _diagnosed(self) -> str:
        """The diagnostics in the settings, as text; empty if there are none."""
        if "diagnostics" not in self.settings:
            return ""
        diagnostics = Diagnostics.of_dict(self.settings["diagnostics"])
        judged = "; ".join(diagnostics.problems) or str(diagnostics)
        if "thinned_from" not in self.settings:
            return judged
        return f"before thinning, with {self.settings['thinned_from']} draws per chain: {judged}"

    def own_data(self, name: str, data: Data | None) -> Dataset:
        """The data that the draws were made for, for the method of this name.

        Args:
            name: of the method, for messages.
            data: needed after loading.

        Raises:
            ValueError: there are no data, or their fingerprint differs from that of the run.
        """
        chosen = self._chosen(name, data)
        if self.fingerprint is not None and chosen.fingerprint != self.fingerprint:
            raise ValueError(f"{name} needs the data that the draws were made for; these have another fingerprint")
        return chosen

    def _chosen(self, name: str, data: Data | None) -> Dataset:
        chosen = self.data if data is None else Dataset.of(data)
        if chosen is None:
            raise ValueError(f"loaded draws have no data: pass them as {name}(data=...)")
        return chosen


def _checked_dtype(stored: Stored, samples: Mapping[str, Tensor], stats: Mapping[str, Tensor]) -> torch.dtype:
    """The dtype of draws in a file; a ValueError if they are not whole, or damaged."""
    counts = {values.shape[:2] for values in samples.values()} | {values.shape for values in stats.values()}
    whole = {"lp", "diverging", "n_steps"} <= stats.keys() and {"acceptance_rate", "energy_error"} & stats.keys()
    if len(counts) != 1 or 0 in min(counts) or len(min(counts)) != 2 or not whole:
        raise Failed(f"{stored.where} is not whole: its draws and statistics differ in number, or some are missing")
    dtypes = {values.dtype for values in samples.values()}
    if not dtypes <= {torch.float32, torch.float64} or len(dtypes) != 1:
        raise Failed(f"{stored.where} must have draws of one dtype, float32 or float64; got {sorted(map(str, dtypes))}")
    settings = stored.record.record("settings")
    settings.number("energy_rounding", optional=True)
    if "diagnostics" in settings.content:
        try:
            Diagnostics.of_dict(settings.content["diagnostics"])
        except ValueError as error:
            raise settings.fault(f"is damaged: {error}") from None
    return dtypes.pop()


def _check_sites(stored: Stored, samples: Mapping[str, Tensor], model: NetworkModel) -> None:
    """Raise a ValueError unless the draws in a file are of the sites of this model."""
    hyper = [site for sites in model.hyper_sites().values() for site in sites.items()]
    sites = {**model.weight_sites(), **dict(hyper)}
    if samples.keys() != sites.keys():
        raise Failed(f"{stored.where} has draws of {sorted(samples)}; the model has the latent sites {sorted(sites)}")
    for name, values in samples.items():
        if values.shape[2:] != sites[name].shape:
            raise Failed(
                f"{stored.where} has draws of {name!r} with shape {tuple(values.shape)}; they must be [chains, draws, "
                f"{', '.join(map(str, sites[name].shape))}]"
            )


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
