"""The result of `pyrodrop.fit`: a trained model and guide."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeGuard, TypeVar, overload

import torch
from pyro.infer import ELBO, TraceEnum_ELBO
from torch import Tensor

import pyrodrop.guides  # noqa: F401  files name its classes
from pyrodrop.agreement import check_guide, knows_sites
from pyrodrop.arguments import count as whole_number
from pyrodrop.arguments import seed as checked_seed
from pyrodrop.arguments import shown
from pyrodrop.cards import Card, carded, number
from pyrodrop.compression import CompressionReport, DrawnNetworks, compress, compression_report
from pyrodrop.constraints import Count, Flag, Seed, checked
from pyrodrop.data import Data, Dataset, Keywords
from pyrodrop.data.columns import Columns
from pyrodrop.data.dataset import check_inputs
from pyrodrop.data.sources import read_for
from pyrodrop.data.streamed import Streamed
from pyrodrop.devices import resolve, seeded
from pyrodrop.export import LEVELS, Functions, Output
from pyrodrop.export import export as exported
from pyrodrop.files import read_tensors, under, write_tensors
from pyrodrop.guides.ensemble import Ensemble
from pyrodrop.guides.guide import Guide
from pyrodrop.guides.sparse_dropout import SparseDropout
from pyrodrop.identity import check_made_of, is_settings
from pyrodrop.inputs import Inputs, mapped
from pyrodrop.likelihoods.missing import check_complete, leaves_out_missing
from pyrodrop.models.network import NetworkModel
from pyrodrop.module_states import evaluating
from pyrodrop.modules import assign, check_assignable, parts_of_file
from pyrodrop.parts import made_with
from pyrodrop.prediction.moments import Moments
from pyrodrop.prediction.predict import Keep, Method, draw_functions
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.steps import Arguments, Call
from pyrodrop.threads import exclusive
from pyrodrop.training.autoguides import autoguides
from pyrodrop.training.estimates import DrawnFrom, Draws, Elbo, Objective, elbo_of, objective_of
from pyrodrop.training.minibatches import arguments_of, none_by_default
from pyrodrop.training.problem import describe, stored
from pyrodrop.training.program_draws import draw_sites
from pyrodrop.training.program_estimates import ProgramDraws, convention_in_words, elbo_of_loss, objective_of_loss

_FILE = "fit"


@carded
@dataclass(repr=False)
class Fit:
    """A trained model and guide.

    Attributes:
        model, guide: the trained copies.
        data: the training data, `Keywords` of a Pyro program that was trained on a mapping, or where they are read from;
            None after loading.
        history: nll, kl and the weight of the weights' kl in the loss, for every step, ``[steps, 3]``. kl includes a guide's
            ``kl_scale``. After training with an `objective` of Pyro, whose loss has no such terms, it stands in the first
            column, and the second is 0. Of a posterior from `pyrodrop.zoo.load`, means over 100 stretches of the steps.
        settings: the settings of the training in plain numbers and words, with the fingerprint of the data.
        device: where the parameters are.
        loss: the loss object of Pyro that was minimised; None for the default, and after loading.

    Raises:
        ValueError: the guide was made for a model with other weights.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    data: Dataset | Streamed | Keywords | None
    history: Tensor
    settings: dict[str, Any]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    loss: ELBO | None = None

    def __post_init__(self) -> None:
        check_guide(self.model, self.guide)

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the training data, also after loading; None if it was not recorded, as of data that are read
        while training."""
        return self.settings.get("data_fingerprint") if self.data is None else self.data.fingerprint

    @property
    def losses(self) -> Tensor:
        """nll + kl of every step, ``[steps]``: for a guide with ``kl_scale`` 1, minus a one-draw estimate of the ELBO.

        After training with an `objective` of Pyro, its losses.
        """
        return self.history[:, :2].sum(1)

    def card(self) -> Card:
        """What text and HTML show of the fit."""
        told, losses = self.settings, self.losses
        training = [f"{told.get('history_steps', len(losses))} steps"]
        training += [f"batches of {told['batch_size']}"] if told.get("batch_size", 0) < told.get("num_data", 0) else []
        training += [f"{name} {told[name]}" for name in ("estimator", "engine", "seed") if name in told]
        training += [f"{told['seconds']:.1f} s"] if "seconds" in told else []
        factors = [
            f"{name} {told[name]}" for name in ("kl_weight", "likelihood_power") if told.get(name, 1.0) not in (1, 1.0)
        ]
        facts = {
            "guide": describe(self.guide),
            "model": describe(self.model),
            "data": f"{told['num_data']} rows" if "num_data" in told else ", ".join(told.get("arguments", ())),
            "training": ", ".join(training + factors),
            "loss": in_words(losses, told.get("history_steps", len(losses))),
            "objective": told.get("objective", ""),
            "ELBO": convention_in_words(self.model, self.guide, self.data),
        }
        return Card(type(self).__name__, {name: value for name, value in facts.items() if value})

    @exclusive()
    def elbo(
        self,
        num_samples: int = 100,
        data: Data | Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
    ) -> Elbo:
        """Estimate the ELBO on all of the training data, or on `data`. The network is in evaluation mode.

        The likelihood and the KL divergence count in full, whatever `kl_weight`, `likelihood_power` and the guide's
        ``kl_scale`` were in training (`objective` includes these factors), and the posterior is the one over weights, with
        one draw for all of the data, whatever estimator trained it. Trained with ``TraceEnum_ELBO``, which sums out discrete
        sites, it is the mean of that loss, of which nll and kl are not known: they are NaN.

        Args:
            num_samples: number of draws from the guide.
            data: needed after loading, which does not restore the training data; a mapping for a program that was trained on
                one. Every draw then takes another subsample of the program's plates.
            seed: of the draws.

        Raises:
            TypeError: an argument is of the wrong kind.
            ValueError: num_samples is less than 1, there are no data, or they do not fit the model.

        Example:
            >>> import torch, pyrodrop
            >>> from pyrodrop import guides, likelihoods, models, priors
            >>> x = torch.linspace(-1, 1, 20)[:, None]
            >>> model = models.MLP([1, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))
            >>> fit = pyrodrop.fit(model, guides.MeanField(model), (x, x**2), steps=5)
            >>> str(fit.elbo(10).convention)
            'exact'
        """
        if self.settings.get("objective") == TraceEnum_ELBO.__name__:
            return elbo_of_loss(*self._by_loss("elbo", num_samples, data, seed))
        return elbo_of(self._draws("elbo", num_samples, data, seed, whole=True), self.settings)

    @exclusive()
    def objective(
        self,
        num_samples: int = 100,
        data: Data | Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
    ) -> Objective:
        """Estimate what the last training step maximised, on all of the training data, or on `data`.

            -(likelihood_power nll + kl_weight kl_scale kl(weights) + kl(hyperparameters))

        With all factors 1 it is the ELBO. Otherwise it is not a bound on the evidence: with a smaller weight of the KL
        divergence it can exceed the evidence. After training with an `objective` of Pyro it is minus the mean of that loss,
        of which nll and kl are not known: they are NaN.

        Args:
            num_samples: number of draws from the guide.
            data: needed after loading, which does not restore the training data.
            seed: of the draws; the same seed draws the same weights as in `elbo`.

        Raises:
            TypeError: an argument is of the wrong kind.
            ValueError: num_samples is less than 1, there are no data, or they do not fit the model; a loaded fit was trained
                with an `objective` of Pyro, which the file does not have.
        """
        if "objective" in self.settings:
            return objective_of_loss(*self._by_loss("objective", num_samples, data, seed))
        return objective_of(
            self._draws("objective", num_samples, data, seed, whole=False),
            self.settings,
            self._kl_weight(),
            self.guide.rate_prior if isinstance(self.guide, Guide | Ensemble) else None,
        )

    def _draws(
        self,
        name: str,
        num_samples: int,
        data: Data | Mapping[str, Any] | None,
        seed: int,
        *,
        whole: bool,
    ) -> DrawnFrom:
        """Draws on the training data, or on `data`, for the method of this name."""
        num_samples, seed = whole_number(num_samples, "num_samples", "the number of draws"), checked_seed(seed)
        chosen = data_for(self, name, data)
        if isinstance(chosen, Keywords):
            given = arguments_of(chosen, self.device)
            return ProgramDraws(self.model, self.guide, given, num_samples, seed, whole=whole)
        return Draws(self.model, self.guide, chosen, self.device, num_samples, seed, whole=whole)

    def _by_loss(
        self, name: str, num_samples: int, data: Data | Mapping[str, Any] | None, seed: int
    ) -> tuple[ELBO, Any, Any, Arguments, int, int]:
        """The arguments of `elbo_of_loss` for the method of this name."""
        num_samples, seed = whole_number(num_samples, "num_samples", "the number of draws"), checked_seed(seed)
        given = arguments_of(data_for(self, name, data), self.device)
        if self.loss is None and name == "objective":
            raise ValueError(
                f"the file of a fit does not have the loss object it was trained with, {self.settings['objective']}: "
                "objective() needs the fit itself; elbo(data=...) is known of a loaded one"
            )
        return self.loss or TraceEnum_ELBO(), self.model, self.guide, given, num_samples, seed

    def _arguments(self, x: Any) -> Arguments:
        """The arguments of a program at x, or those of training."""
        if x is None or "arguments" in self.settings:
            optional = none_by_default(self.model) if isinstance(x, Mapping) else ()
            return arguments_of(data_for(self, "predict", x, optional), self.device)
        return Call((mapped(lambda part: part.to(self.device), check_inputs(x)), None), {})

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
    ) -> Moments: ...
    @overload
    def predict(self, x: Inputs, *, keep: Keep = ..., method: Literal["analytic"]) -> Moments: ...
    @overload
    def predict(
        self, x: None = ..., num_samples: int = ..., *, seed: int = ..., sites: Sequence[str] | None = ...
    ) -> dict[str, Tensor]: ...
    @overload
    def predict(
        self, x: Mapping[str, Any], num_samples: int = ..., *, seed: int = ..., sites: Sequence[str]
    ) -> dict[str, Tensor]: ...
    def predict(
        self,
        x: Any = None,
        num_samples: int = 1000,
        *,
        seed: int = 0,
        joint: bool = True,
        keep: Keep = "draws",
        method: Method = "draws",
        sites: Sequence[str] | None = None,
    ) -> Prediction | Moments | dict[str, Tensor]:
        """Draw functions from the posterior; see `pyrodrop.predict`. Of other Pyro programs, draw all sites.

        For a program whose model is not one of `pyrodrop.models` the result has draws ``[S, ...]`` of every site by name, as
        those of ``pyro.infer.Predictive(model, guide=guide, num_samples=S)``: latent sites from the guide, observed ones
        from the model given these, also where `x` has observations. Discrete sites that training summed out are drawn with
        them; `pyro.infer.infer_discrete` draws them given the observations.

        Args:
            x: as of `pyrodrop.predict`. For a program that was trained on a mapping, other arguments, such as ``{"x": x}``,
                where those that default to None in the model may be left out, and otherwise the first argument, with None
                for y; None for the training data.
            num_samples, seed, joint, keep, method: as of `pyrodrop.predict`; for a program only the first two.
            sites: names of the sites of a program to return; None for all. Sites after the last of them are not drawn.

        Raises:
            TypeError: an argument that a program does not have, or of the wrong kind.
            ValueError: as `pyrodrop.predict`; a site of a program is in a plate that takes subsamples, whose draws would be
                of other rows each, or has a distribution without samples.
        """
        if not isinstance(self.model, NetworkModel):
            usual = {"joint": joint is True, "keep": keep == "draws", "method": method == "draws"}
            wrong = [name for name, is_usual in usual.items() if not is_usual]
            if wrong:
                raise TypeError(f"{wrong[0]} is for networks of pyrodrop.models, not for other programs: leave it out")
            return draw_sites(self.model, self.guide, self._arguments(x), num_samples, seed, sites)
        if sites is not None:
            raise TypeError(f"sites is for Pyro programs; a network has predictions: leave it out; got {shown(sites)}")
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
        )

    @checked
    def export(
        self,
        path: str | Path,
        draws: Annotated[int, Count("the number of functions in the file")] = 100,
        *,
        outputs: Sequence[Output] | None = None,
        levels: Sequence[float] = LEVELS,
        moments: Annotated[bool, Flag("whether mean and sd are those in closed form")] = False,
        seed: Seed = 0,
        x: Any = None,
    ) -> Path:
        """Write predictions as one file that runs without this package: draws of the weights are constants of its graph.

        The file has the standardisations, the network and the likelihood, and takes any number of rows of x in the units of
        the training data: ``x``, or ``x_0``, ``x_1`` ... of a tuple, or ``x_NAME`` of a mapping. Of a data frame, x are its
        columns as `Dataset.x_of` has them, but not standardised. Before it is written it is compared with
        ``predict(x, draws, seed=seed)`` on some rows, from the file. An ``.onnx`` file needs no PyTorch to run; writing it
        needs the extra ``pyrodrop[onnx]``. Its metadata, JSON under ``pyrodrop`` (of a ``.pt2`` file ``pyrodrop.json``),
        have names and shapes of inputs, columns and classes, settings, versions, and a SHA-256 of the weights.

        Args:
            path: of the file, which ends with ``.onnx`` or ``.pt2``.
            draws: S, the number of functions, of which each is one set of weights. Masks are stored as such, other weights
                once per function.
            outputs: some of ``mean`` and ``sd`` of y ``[N, ...]``, ``quantiles`` of y ``[Q, N, ...]`` (Gaussian and
                log-normal likelihoods), ``probabilities`` of classes ``[N, ..., classes]``, or that y is 1, and ``draws`` of
                f ``[S, N, ...]``, all as a `Prediction` has them. None for mean and sd, or the probabilities of classes.
            levels: Q probabilities of the quantiles.
            moments: whether to write mean and sd in closed form, as ``predict(x, method="analytic")``, without draws.
            seed: of the draws.
            x: a few rows, where the fit has no training data, as after loading.

        Returns:
            The path.

        Raises:
            TypeError: an argument is of the wrong kind; the fit is of a Pyro program that is no network.
            ValueError: the likelihood has no such output; the network needs several rows together, branches on values, or
                has operations that the format has not; the fit is not on the CPU; there is no closed form; the program does
                not compute what `predict` does. No file is written then.
            ImportError: a package is missing.
            OSError: the file cannot be written; the message names it.
        """
        if not isinstance(self.model, NetworkModel):
            raise TypeError("export is for networks of pyrodrop.models; this fit is of another Pyro program")

        def predict(x: Inputs) -> Prediction | Moments:
            return self.predict(x, method="analytic") if moments else self.predict(x, draws, seed=seed)

        words = {"guide": describe(self.guide), "settings": self.settings}
        return exported(
            path,
            [Functions(self.model, self.guide, draws, seed)],
            predict,
            example_of(self, x),
            outputs=outputs,
            levels=levels,
            closed_form=moments,
            about=words | ({} if moments else {"draws": draws, "seed": seed}),
        )

    def pruned(self, threshold: float = 3.0) -> Fit:
        """A copy of this fit whose weights with ln alpha above `threshold` are 0, without noise.

        Raises:
            TypeError: the guide has no alpha per weight; `guides.SparseDropout` and `guides.ARDDropout` have. Noise by unit
                is for `compress` only.
        """
        guide = self.guide
        if not isinstance(guide, SparseDropout):
            raise TypeError(
                "pruning needs a per-weight alpha: use guides.SparseDropout or guides.ARDDropout; got "
                f"{type(guide).__name__}"
            )
        return replace(self, guide=guide.pruned(threshold))

    def compress(
        self,
        threshold: float | None = None,
        structured: bool = True,
        *,
        x: Inputs | None = None,
    ) -> torch.nn.Module:
        """The network of posterior means without the pruned weights, as a plain `torch.nn.Module`.

        It maps x to f, both in their own units, and equals the pruned network up to rounding.

        Args:
            threshold: weights with a larger ln alpha, of their own noise or of their input unit's, are pruned. If None, 3,
                or what the guide has: 0 for `guides.LogNormalDropout`, a signal-to-noise ratio of 1.
            structured: whether constant units go into the biases of the layers that read them, and units that no layer reads
                are removed. If False, every unit stays, and any network is returned with its own shape.
            x: example inputs, at least two rows, from which the shapes between layers are found; the training data if None.
                A loaded fit has no training data; models of this package know the shape of x.

        Raises:
            TypeError: the guide learns no alpha per weight or input unit; or no unit of the network is followed from the
                layer that makes it to those that read it.
            ValueError: nothing says which shape x has.
        """
        return compress(self.model, self.guide, threshold=threshold, structured=structured, x=self._example(x))

    def compression_report(self, data: Data | None = None, threshold: float | None = None) -> CompressionReport:
        """Parameters, FLOPs, latency and error of the network of posterior means and of the compressed one.

        Args:
            data: to measure errors on; the training data if None.
            threshold: as in `compress`.
        """
        chosen = rows_of(self, "compression_report") if data is None else Dataset.of(data)
        if chosen is None:
            raise ValueError("this fit does not hold its training data: pass them as compression_report(data)")
        check_complete(self.model, chosen.y, "compression_report")
        return compression_report(self.model, self.guide, chosen, threshold=threshold, kl_weight=self._kl_weight())

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
        return self.data.x if x is None and isinstance(self.data, Dataset) else x

    def save(self, path: str | Path) -> Path:
        """Write parameters, losses and settings to one safetensors file; a failed write leaves an old file as it was.

        Raises:
            TypeError: parameters of model or guide are in Pyro's global store and not in a module.
            OSError: the file cannot be written; the message names it.
        """
        tensors, about = contents(self)
        write_tensors(Path(path), tensors, {"kind": _FILE, **about})
        return Path(path)

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: Callable[..., Any] | None = None,
        guide: Callable[..., Any] | None = None,
        *,
        device: str | torch.device = "auto",
        allow: Collection[str] = (),
    ) -> Self:
        """Read a saved fit.

        Where network, priors, likelihood and guide are those of this package, as in a fit of a recipe, the file is enough.
        Model and guide of your own code, `models.from_module` of your network among it, are needed as they were built for
        the training; they are changed in place, after everything in the file is checked. Your own functions and classes are
        known by their names, and the layers of a network by their classes and PyTorch's settings.

        Args:
            path: of the file.
            model, guide: built like the saved ones; None for what the file describes. An autoguide of Pyro has parameters
                after its first call, so it must have been called, ``guide(**data)``.
            device: where to put them.
            allow: ``("model",)``, ``("guide",)`` or both, for parts that may be made of something else than the saved ones,
                such as a network whose code was rewritten to compute the same.

        Raises:
            ValueError: model or guide is None, and the file does not describe it; or it differs from the saved one: names,
                shapes or dtypes of parameters, the network, its activation, the priors, the likelihood or the guide's
                settings; or it is not such a file, or damaged.
            RuntimeError: model or guide is None, and another thread trains: all threads share torch's generator.
            OSError: the file cannot be read; the message names it.
        """
        tensors, about = read_tensors(Path(path))
        if about.get("kind", _FILE) != _FILE:
            raise ValueError(f"{path} is no file of Fit.save: it is one of {about['kind']!r}")
        return restoring(cls, tensors, about, model, guide, str(path), device, allow)()

    def _parts(self) -> dict[str, Any]:
        return {"model": self.model, "guide": self.guide}

    def _modules(self) -> dict[str, torch.nn.Module]:
        return {part: value for part, value in self._parts().items() if isinstance(value, torch.nn.Module)}

    def _check_in_modules(self) -> None:
        """Raise a TypeError for parameters that are in no module, found by a call unless this is a network of pyrodrop."""
        if self.data is None or knows_sites(self.model, self.guide):
            return
        with seeded(0, self.device), torch.no_grad(), evaluating(self.model, self.guide):
            found = stored(self.model, self.guide, arguments_of(self.data, self.device))
        if found:
            raise TypeError(
                f"only parameters of modules can be saved; {', '.join(found)} of this fit are in Pyro's global store: keep "
                "them in a PyroModule, or save them by pyro.get_param_store().save(path)"
            )


F = TypeVar("F", bound=Fit)


def contents(fit: Fit) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What a file has of a fit: its tensors by name, and settings and words about what it is made of.

    Raises:
        TypeError: parameters of model or guide are in Pyro's global store and not in a module.
    """
    fit._check_in_modules()
    tensors = {"history": fit.history}
    for part, module in fit._modules().items():
        tensors |= {f"{part}.{name}": value for name, value in module.state_dict().items()}
    return tensors, {"settings": fit.settings, "made_with": made_with(fit._parts())}


def restoring(
    of: type[F],
    tensors: Mapping[str, Tensor],
    about: Mapping[str, Any],
    model: Callable[..., Any] | None,
    guide: Callable[..., Any] | None,
    where: str,
    device: str | torch.device = "auto",
    allow: Collection[str] = (),
) -> Callable[[], F]:
    """Check `contents` that were read from a file against model and guide, and return what puts them there.

    Args:
        of: the class of the result.
        model, guide, device, allow: as of `Fit.load`; unchanged until the result is called.
    """
    settings, history = about.get("settings"), tensors.get("history")
    if not is_settings(settings) or not _is_history(history):
        raise ValueError(f"{where} is no file of Fit.save: it lacks the history or the settings of a fit")
    chosen = resolve(device)
    states = {part: under(f"{part}.", tensors) for part in ("model", "guide")}
    parts: dict[str, Any] = {"model": model, "guide": guide}
    if model is None or guide is None:
        with seeded(0, torch.device("cpu")):
            parts = parts_of_file(about.get("made_with"), states, parts, where)
    fit = of(**parts, data=None, history=history, settings=settings, device=chosen)
    modules = fit._modules()
    for part, module in modules.items():
        if states[part] and autoguides(module) and not list(module.parameters()):
            raise ValueError(
                f"{part} must have been called once before a file is read into it, {part}(...) with the data, since an "
                f"autoguide has no parameters before; got an {type(module).__name__} that was not"
            )
        check_assignable(module, states[part], f"the fit in {where}")
    check_made_of(about.get("made_with"), fit._parts(), where, allow)
    columns = Columns.of_words(settings["columns"], where) if "columns" in settings else None

    def restore() -> F:
        for part, module in modules.items():
            assign(module, states[part])
            module.to(chosen).eval()
        if columns is not None:
            fit.model.columns = columns  # type: ignore[attr-defined]
        return fit

    return restore


def data_for(fit: Fit, name: str, data: Any, optional: Collection[str] = ()) -> Dataset | Streamed | Keywords:
    """The training data, or `data` in their place, where the `optional` arguments of a program may be left out."""
    if data is None and fit.data is None:
        raise ValueError(f"a loaded fit or a reading has no training data: pass them as {name}(data=...)")
    names = fit.settings.get("arguments")
    if names is not None and data is not None:
        return Keywords.named(data, names, optional)
    if isinstance(data, Mapping):
        raise TypeError(f"data must be (x, y) or a Dataset, as in training, or None; got {shown(data)}")
    if isinstance(fit.data, Keywords):
        return fit.data
    if data is None:
        assert fit.data is not None
        return fit.data
    missing = leaves_out_missing(fit.model)
    return read_for(data, missing=missing) or Dataset.of(data, missing=missing)


def rows_of(fit: Fit, name: str) -> Dataset | None:
    """The training data of a fit, for the function of this name, which needs rows of x and y.

    None after loading, and where training read them a minibatch at a time.

    Raises:
        TypeError: the fit is of a Pyro program, whose data are keyword arguments.
    """
    if isinstance(fit.data, Keywords):
        raise TypeError(
            f"{name} needs data with rows, (x, y) or a Dataset; this fit is of a Pyro program with the keyword arguments "
            f"{', '.join(fit.data.values)}"
        )
    return None if isinstance(fit.data, Streamed) else fit.data


def example_of(fit: Fit, x: Any) -> Any:
    """x, or rows of the training data if it is None; None if there are neither."""
    return fit.data.sample.x if x is None and isinstance(fit.data, Streamed) else fit._example(x)


def in_words(losses: Tensor, steps: int) -> str:
    """The loss at the start and at the end of training, each the mean of a tenth of the steps."""
    if not len(losses):
        return ""
    tenth = max(1, len(losses) // 10)
    first, last = float(losses[:tenth].mean()), float(losses[-tenth:].mean())
    return f"{number(last)} in the last {max(1, steps // 10)} steps, {number(first)} in the first"


def _is_history(value: Tensor | None) -> TypeGuard[Tensor]:
    return value is not None and value.dim() == 2 and value.shape[1] == 3 and value.is_floating_point()
