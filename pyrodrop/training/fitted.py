"""A trained guide with its model: what `pyrodrop.fit` returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, overload

import pyro
import torch
from torch import Tensor

from pyrodrop.compression import CompressionReport, DrawnNetworks, compress, compression_report
from pyrodrop.compression.layout import Layout
from pyrodrop.data import Dataset
from pyrodrop.devices import resolve, seeded
from pyrodrop.divergences import Convention, worst
from pyrodrop.elbo import DrawnTerms, Factor, site_factors
from pyrodrop.files import read_tensors, write_tensors
from pyrodrop.inputs import Inputs, mapped
from pyrodrop.modules import assign
from pyrodrop.networks.mixing import mixes_examples
from pyrodrop.networks.modes import evaluating
from pyrodrop.prediction.moments import Moments
from pyrodrop.prediction.predict import Keep, Method, cannot_run, draw_functions
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.threads import drawing
from pyrodrop.training.minibatches import takes_num_data

_ROWS = 5000  # of the data whose activations are held at a time


@dataclass(frozen=True)
class Elbo:
    """An estimate of the evidence lower bound, in nats for the whole data set.

    Attributes:
        value: the estimate, ``-(nll + kl)``.
        se: its standard error; NaN for one sample.
        nll: mean over draws of minus the log likelihood.
        kl: the divergence of the posterior from the prior.
        convention: how far `kl` can be trusted. Bounds of different conventions cannot be compared.
        num_samples: number of draws.
    """

    value: float
    se: float
    nll: float
    kl: float
    convention: Convention
    num_samples: int

    def __str__(self) -> str:
        return f"{self.value:.4g} +- {self.se:.2g} nats ({self.convention})"


@dataclass(frozen=True)
class Objective:
    """An estimate of what training maximised at its end, in nats for the whole data set. It is no bound on the evidence.

        value = -(likelihood_power nll + kl)

    Attributes:
        value: the estimate.
        se: its standard error; NaN for one sample.
        nll: mean over draws of minus the log likelihood.
        kl: the divergence as the training counted it: the weights' times the guide's ``kl_scale`` and `kl_weight`, the
            hyperparameters' in full.
        likelihood_power, kl_weight: of the last step.
        convention: of kind ``objective``, with the factors in words. Objectives of two fits are not compared; `Fit.elbo` is.
        num_samples: number of draws.
    """

    value: float
    se: float
    nll: float
    kl: float
    likelihood_power: float
    kl_weight: float
    convention: Convention
    num_samples: int

    def __str__(self) -> str:
        return f"{self.value:.4g} +- {self.se:.2g} nats ({self.convention})"


@dataclass
class Fit:
    """A trained model and guide.

    Attributes:
        model, guide: the trained copies.
        data: what they were trained on; None after loading.
        history: of every step nll, kl and the weight that the weights' kl had in the loss, ``[steps, 3]``. A guide's
            ``kl_scale`` is in kl already.
        settings: what the run was told, in plain numbers and words, with the fingerprint of its data.
        device: where the parameters are.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    data: Dataset | None
    history: Tensor
    settings: dict[str, Any]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def fingerprint(self) -> str | None:
        """That of the training data (`pyrodrop.data.fingerprint`), also after loading; None where it was not recorded."""
        return self.settings.get("data_fingerprint") if self.data is None else self.data.fingerprint

    @property
    def losses(self) -> Tensor:
        """nll + kl of every step: ``[steps]``. Minus one draw's estimate of the ELBO, for a guide with ``kl_scale`` 1."""
        return self.history[:, :2].sum(1)

    def elbo(
        self, num_samples: int = 100, data: Dataset | tuple[Inputs, Tensor] | None = None, *, seed: int = 0
    ) -> Elbo:
        """Estimate the ELBO on all of the training data, or of `data`. The network is in evaluation mode.

        It has the likelihood itself and the whole divergence, whatever `kl_weight`, `likelihood_power` and a guide's
        ``kl_scale`` were in training; `objective` has these. It is that of the posterior over weights, one draw for all of
        the data, whatever estimator trained it.

        Args:
            num_samples: draws from the guide.
            data: needed after loading, when the training data are not at hand.
            seed: of the draws.
        """
        nll, kl_weights, kl_hyper, members = self._estimate("elbo", num_samples, data, seed, whole=True)
        kl = kl_weights + kl_hyper
        value, se = _mean(-(nll + kl))
        convention = self._trained_by(worst(factor.convention for member in members for factor in member.values()))
        return Elbo(value, se, float(nll.mean()), float(kl.mean()), convention, num_samples)

    def _trained_by(self, convention: Convention) -> Convention:
        """The convention, with a word on training where that had another posterior over activations."""
        sites = self.settings.get("noise_by_row")
        if not sites:
            return convention
        words = (
            "of the posterior over weights; training drew the noise of "
            f"{', '.join(sites)} per row or position, which is another posterior over activations"
        )
        return replace(convention, detail="; ".join(filter(None, [convention.detail, words])))

    def objective(
        self, num_samples: int = 100, data: Dataset | tuple[Inputs, Tensor] | None = None, *, seed: int = 0
    ) -> Objective:
        """Estimate what training maximised at its last step, on all of the training data, or of `data`.

            -(likelihood_power nll + kl_weight kl_scale kl(weights) + kl(hyperparameters))

        With all factors 1 it is the ELBO. Otherwise it is no bound on the evidence: with a smaller divergence it can exceed
        the evidence.

        Args:
            num_samples: draws from the guide.
            data: needed after loading, when the training data are not at hand.
            seed: of the draws; the same seed draws the same weights as `elbo`.
        """
        nll, kl_weights, kl_hyper, members = self._estimate("objective", num_samples, data, seed, whole=False)
        power = float(self.settings.get("likelihood_power", 1.0))
        weight = float(self.history[-1, 2]) if len(self.history) else 1.0
        kl = weight * kl_weights + kl_hyper
        value, se = _mean(-(power * nll + kl))
        factors = [factor for member in members for factor in member.values()]
        scales = sorted({factor.scale for factor in factors})
        words = [f"the likelihood to the power {power:g}"] if power != 1 else []
        words += [f"the weights' divergence times kl_weight {weight:g}"] if weight != 1 else []
        words += [f"divergences scaled by the guide, kl_scale {', '.join(f'{s:g}' for s in scales)}"] * (
            scales != [1.0]
        )
        rest = worst(factor.convention for factor in factors)
        detail = "; ".join([*(words or ["all factors are 1: the ELBO"]), f"of the divergence: {rest}"])
        meaning = Convention("objective", detail, rest.error)
        return Objective(value, se, float(nll.mean()), float(kl.mean()), power, weight, meaning, num_samples)

    def _estimate(
        self, name: str, num_samples: int, data: Dataset | tuple[Inputs, Tensor] | None, seed: int, *, whole: bool
    ) -> tuple[Tensor, Tensor, Tensor, list[dict[str, Factor]]]:
        """nll and the divergences of weights and hyperparameters of every draw, ``[num_samples]``; the guide's factors."""
        if num_samples < 1:
            raise ValueError(f"num_samples is the number of draws and must be at least 1; got {num_samples}")
        chosen = self.data if data is None else Dataset.of(data)
        if chosen is None:
            raise ValueError(f"a loaded fit has no training data with it; give them as {name}(data=...)")
        with drawing(), torch.no_grad(), evaluating(self.model, self.guide):
            seeds = torch.randint(2**62, (num_samples,), generator=torch.Generator().manual_seed(seed)).tolist()
            rows = self._rows_at_a_time(chosen)
            drawn = DrawnTerms(self.model, self.guide, whole=whole)
            try:
                terms = [self._terms(drawn, chosen, rows, seeds[0])]
            except (RuntimeError, IndexError) as error:
                if not mixes_examples(self.model, chosen.x):
                    raise
                raise ValueError(cannot_run(chosen.x, True, error)) from error
            with pyro.validation_enabled(False):  # the first draw was checked
                terms += [self._terms(drawn, chosen, rows, draw) for draw in seeds[1:]]
            with seeded(seed, self.device):
                members = site_factors(self.model, self.guide, *self._part(chosen, 0, rows))
        nll, kl_weights, kl_hyper = torch.tensor(terms, dtype=torch.float64).unbind(1)
        return nll, kl_weights, kl_hyper, members

    def _terms(self, drawn: DrawnTerms, data: Dataset, rows: int, seed: int) -> tuple[float, float, float]:
        """nll and the two divergences of one draw, some rows at a time: the seed makes it the same draw for all of them."""
        size = len(data)
        kwargs = {} if size <= rows else {"num_data": size}
        with seeded(seed, self.device):
            x, y = self._part(data, 0, rows)
            terms = drawn.terms(x, y, **kwargs)
        nll = float(terms.nll) * len(y) / size
        for first in range(rows, size, rows):
            x, y = self._part(data, first, rows)
            with seeded(seed, self.device):
                nll += float(drawn.nll(x, y, **kwargs)) * len(y) / size
        return nll, float(terms.kl_weights), float(terms.kl_hyper)

    def _rows_at_a_time(self, data: Dataset) -> int:
        """All of them where model or guide cannot say what a part stands for, or where examples see each other."""
        together = mixes_examples(self.model, data.x)  # a ValueError for an x that the network cannot be called on
        apart = takes_num_data(self.model) and takes_num_data(self.guide) and len(data) > _ROWS
        return _ROWS if apart and not together else len(data)

    def _part(self, data: Dataset, first: int, rows: int) -> tuple[Any, Tensor]:
        """Some rows of x and y, on the device."""
        chosen = slice(first, first + rows)
        return mapped(lambda part: part[chosen].to(self.device), data.x), data.y[chosen].to(self.device)

    @overload
    def predict(
        self, x: Inputs, num_samples: int = ..., *, seed: int = ..., joint: bool = ..., keep: Literal["draws"] = ...
    ) -> Prediction: ...
    @overload
    def predict(
        self, x: Inputs, num_samples: int = ..., *, seed: int = ..., joint: bool = ..., keep: Literal["moments"]
    ) -> Moments: ...
    @overload
    def predict(self, x: Inputs, *, keep: Keep = ..., method: Literal["analytic"]) -> Moments: ...
    def predict(
        self,
        x: Inputs,
        num_samples: int = 1000,
        *,
        seed: int = 0,
        joint: bool = True,
        keep: Keep = "draws",
        method: Method = "draws",
    ) -> Prediction | Moments:
        """Draw functions from the posterior; see `pyrodrop.predict`."""
        # torch.compile(run.predict) runs it as it is: draws come in blocks, whose sizes Dynamo cannot follow
        draw = torch.compiler.disable(draw_functions) if torch.compiler.is_compiling() else draw_functions
        return draw(
            self.model,
            self.guide,
            x,
            num_samples,
            seed=seed,
            device=self.device,
            joint=joint,
            keep=keep,
            method=method,
        )

    def pruned(self, threshold: float = 3.0) -> Fit:
        """This fit with the weights of larger ln alpha at 0: predictions draw noise for the others alone.

        Raises:
            TypeError: the guide has no alpha a weight; `guides.SparseDropout` and `guides.ARDDropout` have.
        """
        guide: Any = self.guide
        if not hasattr(guide, "pruned"):
            raise TypeError(
                f"weights are cut off by their own alpha (guides.SparseDropout); got {type(guide).__name__}"
            )
        return replace(self, guide=guide.pruned(threshold))

    def compress(
        self,
        threshold: float = 3.0,
        structured: bool = True,
        *,
        layout: Layout = "fastest",
        batch_size: int = 1000,
        x: Inputs | None = None,
    ) -> torch.nn.Module:
        """The network of posterior means without the weights of larger ln alpha: small, plain, without this package.

        It takes x and gives f, both in their own units, as the cut network would to rounding.

        Args:
            threshold: bound of ln alpha.
            structured: whether to cut out units that are left without weights on one side, folding constant ones into
                biases. False keeps every unit; a network that is no chain of layers is then given back as itself.
            layout: of dense layers: ``fastest`` as measured, or ``dense``, ``picked`` (only inputs that are used) or ``csr``
                for all. `torch.export` takes all but ``csr``.
            batch_size: that layouts are timed with.
            x: example inputs, two rows or more, by which the shapes between layers are found; the training data if None. A
                loaded fit has none, and tries what its first layer could take.

        Raises:
            TypeError: the guide has no alpha a weight, or the network is no chain of layers.
        """
        return compress(
            self.model,
            self.guide,
            threshold=threshold,
            structured=structured,
            layout=layout,
            batch_size=batch_size,
            x=self._example(x),
        )

    def compression_report(
        self,
        data: Dataset | tuple[Inputs, Tensor] | None = None,
        threshold: float = 3.0,
        *,
        layout: Layout = "fastest",
    ) -> CompressionReport:
        """Parameters, bytes, FLOPs, latency and error of the network of posterior means and of the compressed one.

        Args:
            data: to measure errors on; the training data if None.
            threshold: bound of ln alpha.
            layout: of dense layers, as in `compress`.
        """
        chosen = self.data if data is None else Dataset.of(data)
        if chosen is None:
            raise ValueError("a loaded fit has no training data with it; give data as compression_report(data)")
        weight = float(self.history[-1, 2]) if len(self.history) else 1.0
        return compression_report(self.model, self.guide, chosen, threshold=threshold, layout=layout, kl_weight=weight)

    def ensemble(
        self, count: int, threshold: float | None = None, *, seed: int = 0, x: Inputs | None = None
    ) -> DrawnNetworks:
        """Plain networks, each a draw from the posterior, made when asked for: `count` at the storage of the posterior.

        Args:
            count: number of networks.
            threshold: cut the weights of larger ln alpha, and the units that this leaves dead; None keeps all.
            seed: of the first; the others have the next ones.
            x: example inputs, as in `compress`.
        """
        return DrawnNetworks(self.model, self.guide, count, threshold=threshold, seed=seed, x=self._example(x))

    def _example(self, x: Inputs | None) -> Inputs | None:
        return self.data.x if x is None and self.data is not None else x

    def save(self, path: str | Path) -> Path:
        """Write parameters, losses and settings to one safetensors file, whole or not at all.

        Raises:
            TypeError: model or guide is not a module, so that its parameters are not its own.
        """
        tensors = {"history": self.history}
        for part, module in self._modules().items():
            tensors |= {f"{part}.{name}": value for name, value in module.state_dict().items()}
        path = Path(path)
        write_tensors(path, tensors, {"settings": self.settings})
        return path

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        *,
        device: str | torch.device = "auto",
    ) -> Fit:
        """Read a saved fit into a model and guide built as the saved ones were. They are changed and become the fit's.

        Raises:
            ValueError: they were not: names or shapes of their parameters differ from the file's, or the file is none.
        """
        tensors, about = read_tensors(Path(path))
        settings = about["settings"]
        chosen = resolve(device)
        fit = cls(model, guide, None, tensors["history"], settings, chosen)
        for part, module in fit._modules().items():
            state = {k.removeprefix(f"{part}."): v for k, v in tensors.items() if k.startswith(f"{part}.")}
            assign(module, state)
            module.to(chosen).eval()
        return fit

    def _modules(self) -> dict[str, torch.nn.Module]:
        modules = {"model": self.model, "guide": self.guide}
        for part, value in modules.items():
            if not isinstance(value, torch.nn.Module):
                raise TypeError(f"only modules can be saved; the {part} of this fit is a {type(value).__name__}")
        return modules  # type: ignore[return-value]


def _mean(values: Tensor) -> tuple[float, float]:
    """Mean and its standard error, NaN for one value."""
    se = float(values.std() / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return float(values.mean()), se


def describe(part: Callable[..., Any]) -> str:
    """A model or guide in one line."""
    if hasattr(part, "describe"):
        return str(part.describe())
    return getattr(part, "__name__", type(part).__name__)
