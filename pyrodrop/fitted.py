"""A trained guide with its model: what `pyrodrop.fit` returns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

from pyrodrop.compression import CompressionReport, DrawnNetworks, compress, compression_report
from pyrodrop.compression.layout import Layout
from pyrodrop.data import Dataset
from pyrodrop.devices import resolve, seeded
from pyrodrop.divergences import Convention
from pyrodrop.elbo import elbo_convention, elbo_terms
from pyrodrop.files import read_tensors, write_tensors
from pyrodrop.minibatches import takes_num_data
from pyrodrop.modules import assign
from pyrodrop.moments import Moments
from pyrodrop.predictive import Keep, Method, Prediction, draw_functions

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


@dataclass
class Fit:
    """A trained model and guide.

    Attributes:
        model, guide: the trained copies.
        data: what they were trained on; None after loading.
        history: of every step nll, kl and the weight that the weights' kl had in the loss, ``[steps, 3]``.
        settings: what the run was told, in plain numbers and words.
        device: where the parameters are.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    data: Dataset | None
    history: Tensor
    settings: dict[str, Any]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def losses(self) -> Tensor:
        """The loss nll + kl of every step, minus one draw's estimate of the ELBO: ``[steps]``."""
        return self.history[:, :2].sum(1)

    def elbo(
        self, num_samples: int = 100, data: Dataset | tuple[Tensor, Tensor] | None = None, *, seed: int = 0
    ) -> Elbo:
        """Estimate the ELBO on all of the training data, or of `data`.

        Args:
            num_samples: draws from the guide.
            data: needed after loading, when the training data are not at hand.
            seed: of the draws.
        """
        if num_samples < 1:
            raise ValueError(f"num_samples is the number of draws and must be at least 1; got {num_samples}")
        chosen = self.data if data is None else Dataset.of(data)
        if chosen is None:
            raise ValueError("a loaded fit has no training data with it; give them as elbo(data=...)")
        with torch.no_grad():
            seeds = torch.randint(2**62, (num_samples,), generator=torch.Generator().manual_seed(seed)).tolist()
            terms = torch.tensor([self._terms(chosen, draw) for draw in seeds]).double()
            few = (part[:_ROWS].to(self.device) for part in (chosen.x, chosen.y))
            with seeded(seed, self.device):
                meaning = elbo_convention(self.model, self.guide, *few)
        values = -terms.sum(1)
        return Elbo(
            value=float(values.mean()),
            se=float(values.std() / math.sqrt(num_samples)) if num_samples > 1 else math.nan,
            nll=float(terms[:, 0].mean()),
            kl=float(terms[:, 1].mean()),
            convention=meaning,
            num_samples=num_samples,
        )

    def _terms(self, data: Dataset, seed: int) -> tuple[float, float]:
        """nll and kl of one draw, some rows at a time: the seed makes it the same draw for all of them."""
        size, nll, kl = len(data), 0.0, 0.0
        rows = _ROWS if takes_num_data(self.model) and takes_num_data(self.guide) else size
        for first in range(0, size, rows):
            x, y = (part[first : first + rows].to(self.device) for part in (data.x, data.y))
            kwargs = {} if size <= rows else {"num_data": size}
            with seeded(seed, self.device):
                terms = elbo_terms(self.model, self.guide, x, y, **kwargs)
            nll += float(terms.nll) * len(x) / size
            kl = float(terms.kl)
        return nll, kl

    @overload
    def predict(
        self, x: Tensor, num_samples: int = ..., *, seed: int = ..., joint: bool = ..., keep: Literal["draws"] = ...
    ) -> Prediction: ...
    @overload
    def predict(
        self, x: Tensor, num_samples: int = ..., *, seed: int = ..., joint: bool = ..., keep: Literal["moments"]
    ) -> Moments: ...
    @overload
    def predict(self, x: Tensor, *, keep: Keep = ..., method: Literal["analytic"]) -> Moments: ...
    def predict(
        self,
        x: Tensor,
        num_samples: int = 1000,
        *,
        seed: int = 0,
        joint: bool = True,
        keep: Keep = "draws",
        method: Method = "draws",
    ) -> Prediction | Moments:
        """Draw functions from the posterior; see `pyrodrop.predict`."""
        return draw_functions(
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

        Raises:
            TypeError: the guide has no alpha a weight, or the network is no chain of layers.
        """
        return compress(
            self.model, self.guide, threshold=threshold, structured=structured, layout=layout, batch_size=batch_size
        )

    def compression_report(
        self,
        data: Dataset | tuple[Tensor, Tensor] | None = None,
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

    def ensemble(self, count: int, threshold: float | None = None, *, seed: int = 0) -> DrawnNetworks:
        """Plain networks, each a draw from the posterior, made when asked for: `count` at the storage of the posterior.

        Args:
            count: number of networks.
            threshold: cut the weights of larger ln alpha, and the units that this leaves dead; None keeps all.
            seed: of the first; the others have the next ones.
        """
        return DrawnNetworks(self.model, self.guide, count, threshold=threshold, seed=seed)

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
            module.to(chosen)
        return fit

    def _modules(self) -> dict[str, torch.nn.Module]:
        modules = {"model": self.model, "guide": self.guide}
        for part, value in modules.items():
            if not isinstance(value, torch.nn.Module):
                raise TypeError(f"only modules can be saved; the {part} of this fit is a {type(value).__name__}")
        return modules  # type: ignore[return-value]


def describe(part: Callable[..., Any]) -> str:
    """A model or guide in one line."""
    if hasattr(part, "describe"):
        return str(part.describe())
    return getattr(part, "__name__", type(part).__name__)
