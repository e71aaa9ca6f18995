"""The result of `pyrodrop.fit`: a trained model and guide."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeGuard, overload

import torch
from torch import Tensor

from pyrodrop.arguments import count as whole_number
from pyrodrop.arguments import seed as checked_seed
from pyrodrop.cards import Card, carded, number
from pyrodrop.compression import CompressionReport, DrawnNetworks, compress, compression_report
from pyrodrop.compression.layout import Layout
from pyrodrop.data import Data, Dataset
from pyrodrop.data.columns import Columns
from pyrodrop.devices import resolve
from pyrodrop.files import read_tensors, under, write_tensors
from pyrodrop.identity import check_made_of, is_settings, made_of
from pyrodrop.inputs import Inputs
from pyrodrop.likelihoods.missing import check_complete, leaves_out_missing
from pyrodrop.modules import assign, check_assignable
from pyrodrop.networks.agreement import check_guide
from pyrodrop.prediction.moments import Moments
from pyrodrop.prediction.predict import Keep, Method, draw_functions
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.ranks import asked, digest, join, tensors_of
from pyrodrop.training.estimates import Draws, Elbo, Objective, convention_of, elbo_of, objective_of
from pyrodrop.training.problem import describe

_FILE = "fit"


@carded
@dataclass(repr=False)
class Fit:
    """A trained model and guide.

    Attributes:
        model, guide: the trained copies.
        data: the training data; None after loading.
        history: nll, kl and the weight of the weights' kl in the loss, for every step, ``[steps, 3]``. kl includes a guide's
            ``kl_scale``.
        settings: the settings of the training in plain numbers and words, with the fingerprint of the data.
        device: where the parameters are.

    Raises:
        ValueError: the guide was made for a model with other weights.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    data: Dataset | None
    history: Tensor
    settings: dict[str, Any]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        check_guide(self.model, self.guide)

    @property
    def fingerprint(self) -> str | None:
        """`Dataset.fingerprint` of the training data, also after loading; None if it was not recorded."""
        return self.settings.get("data_fingerprint") if self.data is None else self.data.fingerprint

    @property
    def losses(self) -> Tensor:
        """nll + kl of every step, ``[steps]``: for a guide with ``kl_scale`` 1, minus a one-draw estimate of the ELBO."""
        return self.history[:, :2].sum(1)

    def card(self) -> Card:
        """What text and HTML show of the fit."""
        told, losses = self.settings, self.losses
        training = [f"{len(losses)} steps"]
        training += [f"batches of {told['batch_size']}"] if told.get("batch_size", 0) < told.get("num_data", 0) else []
        training += [f"{name} {told[name]}" for name in ("estimator", "engine", "seed") if name in told]
        training += [f"{told['seconds']:.1f} s"] if "seconds" in told else []
        factors = [
            f"{name} {told[name]}" for name in ("kl_weight", "likelihood_power") if told.get(name, 1.0) not in (1, 1.0)
        ]
        facts = {
            "guide": describe(self.guide),
            "model": describe(self.model),
            "data": f"{told['num_data']} rows" if "num_data" in told else "",
            "training": ", ".join(training + factors),
            "loss": in_words(losses),
            "ELBO": convention_of(self.model, self.guide, self.data),
        }
        return Card(type(self).__name__, {name: value for name, value in facts.items() if value}, [losses])

    def elbo(
        self,
        num_samples: int = 100,
        data: Data | None = None,
        *,
        seed: int = 0,
        distributed: bool | None = False,
    ) -> Elbo:
        """Estimate the ELBO on all of the training data, or on `data`. The network is in evaluation mode.

        The likelihood and the KL divergence count in full, whatever `kl_weight`, `likelihood_power` and the guide's
        ``kl_scale`` were in training (`objective` includes these factors), and the posterior is the one over weights, with
        one draw for all of the data, whatever estimator trained it.

        Args:
            num_samples: number of draws from the guide.
            data: needed after loading, which does not restore the training data.
            seed: of the draws.
            distributed: whether the draws are shared by the ranks of `torch.distributed` (see `pyrodrop.fit`), which must
                then all make this call; each returns what one process returns. None: if there are several. By default a
                process estimates alone, so that one rank can do it while the others do something else.

        Raises:
            TypeError: an argument is of the wrong kind.
            ValueError: num_samples is less than 1, there are no data, or they do not fit the model; there are no ranks, or
                their fits, data or arguments differ.

        Example:
            >>> import torch, pyrodrop
            >>> from pyrodrop import guides, likelihoods, models, priors
            >>> x = torch.linspace(-1, 1, 20)[:, None]
            >>> model = models.MLP([1, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))
            >>> fit = pyrodrop.fit(model, guides.MeanField(model), (x, x**2), steps=5)
            >>> str(fit.elbo(10).convention)
            'exact'
        """
        return elbo_of(self._draws("elbo", num_samples, data, seed, distributed, whole=True), self.settings)

    def objective(
        self,
        num_samples: int = 100,
        data: Data | None = None,
        *,
        seed: int = 0,
        distributed: bool | None = False,
    ) -> Objective:
        """Estimate what the last training step maximised, on all of the training data, or on `data`.

            -(likelihood_power nll + kl_weight kl_scale kl(weights) + kl(hyperparameters))

        With all factors 1 it is the ELBO. Otherwise it is not a bound on the evidence: with a smaller weight of the KL
        divergence it can exceed the evidence.

        Args:
            num_samples: number of draws from the guide.
            data: needed after loading, which does not restore the training data.
            seed: of the draws; the same seed draws the same weights as in `elbo`.
            distributed: whether ranks share the draws, as in `elbo`.

        Raises:
            TypeError: an argument is of the wrong kind.
            ValueError: num_samples is less than 1, there are no data, or they do not fit the model.
        """
        return objective_of(
            self._draws("objective", num_samples, data, seed, distributed, whole=False),
            self.settings,
            self._kl_weight(),
        )

    def _draws(
        self, name: str, num_samples: int, data: Data | None, seed: int, distributed: bool | None, *, whole: bool
    ) -> Draws:
        """Draws on the training data, or on `data`, for the method of this name."""
        num_samples, seed = whole_number(num_samples, "num_samples", "the number of draws"), checked_seed(seed)
        chosen = self.data if data is None else Dataset.of(data, missing=leaves_out_missing(self.model))
        if chosen is None:
            raise ValueError(f"a loaded fit or a reading has no training data: pass them as {name}(data=...)")
        ranks = join(asked(distributed), self.device)
        if ranks.size > 1:
            with ranks.together():
                compared = {"num_samples": str(num_samples), "seed": str(seed), "data": chosen.fingerprint}
                compared["the fit"] = digest(tensors_of(self.model, self.guide))
            ranks.agree(compared, f"fit, data and arguments of {name}")
        return Draws(self.model, self.guide, chosen, self.device, num_samples, seed, whole=whole, ranks=ranks)

    def _kl_weight(self) -> float:
        """The weight of the KL divergence at the last step."""
        return float(self.history[-1, 2]) if len(self.history) else 1.0

    @overload
    def predict(
        self,
        x: Inputs,
        num_samples: int = ...,
        *,
        seed: int = ...,
        joint: bool = ...,
        keep: Literal["draws"] = ...,
        distributed: bool | None = ...,
    ) -> Prediction: ...
    @overload
    def predict(
        self,
        x: Inputs,
        num_samples: int = ...,
        *,
        seed: int = ...,
        joint: bool = ...,
        keep: Literal["moments"],
        distributed: bool | None = ...,
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
        distributed: bool | None = False,
    ) -> Prediction | Moments:
        """Draw functions from the posterior; see `pyrodrop.predict`."""
        # under torch.compile(run.predict) this runs as it is: Dynamo cannot follow the sizes of the blocks of draws
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
            distributed=distributed,
        )

    def pruned(self, threshold: float = 3.0) -> Fit:
        """A copy of this fit whose weights with ln alpha above `threshold` are 0, without noise.

        Raises:
            TypeError: the guide has no alpha per weight; `guides.SparseDropout` and `guides.ARDDropout` have.
        """
        guide: Any = self.guide
        if not hasattr(guide, "pruned"):
            raise TypeError(
                "pruning needs a per-weight alpha: use guides.SparseDropout or guides.ARDDropout; got "
                f"{type(guide).__name__}"
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
        """The network of posterior means without the pruned weights, as a plain `torch.nn.Module`.

        It maps x to f, both in their own units, and equals the pruned network up to rounding.

        Args:
            threshold: weights with a larger ln alpha are pruned.
            structured: whether to remove units whose incoming or outgoing weights are all pruned, and to fold constant units
                into the next layer's bias. If False, every unit stays, and a network that is not a chain of layers is
                returned unchanged but for its weights.
            layout: of dense layers: ``fastest`` by measurement, or ``dense``, ``picked`` (only inputs that are used) or
                ``csr`` for all. `torch.export` supports all but ``csr``.
            batch_size: of the measurements.
            x: example inputs, at least two rows, from which the shapes between layers are found; the training data if None.
                A loaded fit has no training data and tries shapes that fit its first layer.

        Raises:
            TypeError: the guide has no alpha per weight, or the network is not a chain of layers.
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
        data: Data | None = None,
        threshold: float = 3.0,
        *,
        layout: Layout = "fastest",
    ) -> CompressionReport:
        """Parameters, bytes, FLOPs, latency and error of the network of posterior means and of the compressed one.

        Args:
            data: to measure errors on; the training data if None.
            threshold: weights with a larger ln alpha are pruned.
            layout: of dense layers, as in `compress`.
        """
        chosen = self.data if data is None else Dataset.of(data)
        if chosen is None:
            raise ValueError("a loaded fit has no training data: pass them as compression_report(data)")
        check_complete(self.model, chosen.y, "compression_report")
        return compression_report(
            self.model, self.guide, chosen, threshold=threshold, layout=layout, kl_weight=self._kl_weight()
        )

    def ensemble(
        self, count: int, threshold: float | None = None, *, seed: int = 0, x: Inputs | None = None
    ) -> DrawnNetworks:
        """Plain networks, each a draw from the posterior, made on access: together they need the memory of one posterior.

        Args:
            count: number of networks.
            threshold: prune weights with a larger ln alpha, and units that are then unused; None keeps all.
            seed: of the first network; the others have the seeds that follow.
            x: example inputs, as in `compress`.
        """
        return DrawnNetworks(self.model, self.guide, count, threshold=threshold, seed=seed, x=self._example(x))

    def _example(self, x: Inputs | None) -> Inputs | None:
        return self.data.x if x is None and self.data is not None else x

    def save(self, path: str | Path) -> Path:
        """Write parameters, losses and settings to one safetensors file; a failed write leaves an old file as it was.

        Raises:
            TypeError: model or guide is not a module, so its parameters cannot be found.
            OSError: the file cannot be written; the message names it.
        """
        tensors = {"history": self.history}
        for part, module in self._modules().items():
            tensors |= {f"{part}.{name}": value for name, value in module.state_dict().items()}
        path = Path(path)
        made = {part: made_of(module, part) for part, module in self._modules().items()}
        write_tensors(path, tensors, {"kind": _FILE, "settings": self.settings, "made_of": made})
        return path

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        *,
        device: str | torch.device = "auto",
        allow: Collection[str] = (),
    ) -> Fit:
        """Read a saved fit into a model and guide that were built like the saved ones; they are changed in place.

        Everything in the file is checked before they change. Files of older versions of pyrodrop do not say what model and
        guide were made of; they are read, and the logger `pyrodrop` warns that only names and shapes were compared.

        Args:
            path: of the file.
            model, guide: built like the saved ones.
            device: where to put them.
            allow: ``("model",)``, ``("guide",)`` or both, for parts that may be made of something else than the saved ones,
                such as a network whose code was rewritten to compute the same.

        Raises:
            ValueError: model or guide differs from the saved one: names, shapes or dtypes of parameters, the network, its
                activation, the priors, the likelihood or the guide's settings; or it is not such a file, or damaged.
            TypeError: model or guide is not a module.
            OSError: the file cannot be read; the message names it.
        """
        tensors, about = read_tensors(Path(path))
        settings, history = about.get("settings"), tensors.get("history")
        if about.get("kind", _FILE) != _FILE or not is_settings(settings) or not _is_history(history):
            raise ValueError(f"{path} is no file of Fit.save: it lacks the history or the settings of a fit")
        chosen = resolve(device)
        fit = cls(model, guide, None, history, settings, chosen)
        modules = fit._modules()
        states = {part: under(f"{part}.", tensors) for part in modules}
        for part, module in modules.items():
            check_assignable(module, states[part], f"the fit in {path}")
        check_made_of(about.get("made_of"), modules, path, allow)
        columns = Columns.of_words(settings["columns"], str(path)) if "columns" in settings else None
        for part, module in modules.items():
            assign(module, states[part])
            module.to(chosen).eval()
        if columns is not None:
            model.columns = columns  # type: ignore[attr-defined]
        return fit

    def _modules(self) -> dict[str, torch.nn.Module]:
        modules = {"model": self.model, "guide": self.guide}
        for part, value in modules.items():
            if not isinstance(value, torch.nn.Module):
                raise TypeError(f"only modules can be saved; the {part} of this fit is a {type(value).__name__}")
        return modules  # type: ignore[return-value]


def in_words(losses: Tensor) -> str:
    """The loss at the start and at the end of training, each the mean of a tenth of the steps."""
    if not len(losses):
        return ""
    tenth = max(1, len(losses) // 10)
    first, last = float(losses[:tenth].mean()), float(losses[-tenth:].mean())
    return f"{number(last)} in the last {tenth} steps, {number(first)} in the first"


def _is_history(value: Tensor | None) -> TypeGuard[Tensor]:
    return value is not None and value.dim() == 2 and value.shape[1] == 3 and value.is_floating_point()
