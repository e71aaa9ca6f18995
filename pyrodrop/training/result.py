"""The result of `pyrodrop.fit`: a trained model and guide."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import torch
from torch import Tensor

from pyrodrop.changes import Kept, evaluating, modules_of, put_back
from pyrodrop.checks import Count, Inputs, Real, Seed, checked, mapped
from pyrodrop.compression import compress
from pyrodrop.data import Data, Dataset, Keywords, Split
from pyrodrop.data.dataset import check_inputs
from pyrodrop.data.loader import Loader, read_for
from pyrodrop.devices import resolve
from pyrodrop.failed import Failed
from pyrodrop.files import under
from pyrodrop.guides.sparse_dropout import SparseDropout
from pyrodrop.parts import Card, number
from pyrodrop.prediction.agreement import check_guide, knows_sites
from pyrodrop.prediction.posterior import Posterior
from pyrodrop.prediction.stored import Stored
from pyrodrop.steps import Arguments, Call
from pyrodrop.threads import exclusive, outside
from pyrodrop.training.certificate import Certificate
from pyrodrop.training.elbo import Elbo, elbo_of
from pyrodrop.training.problem import describe, forget_others, trains_in_place
from pyrodrop.training.program_draws import draw_sites
from pyrodrop.training.rows import arguments_of, none_by_default
from pyrodrop.training.settings import Settings
from pyrodrop.training.worth import Worth, of_record, worth_of


@dataclass(repr=False)
class Fit(Posterior):
    """A trained model and guide.

    Attributes:
        model, guide: the trained copies; of a program, the caller's own.
        data: the training data: a data set, the `Keywords` of a Pyro program that was trained on a mapping, or a loader;
            None after loading.
        history: nll, kl and the weight of the weights' kl in the loss, for every step, ``[steps, 3]``. kl includes a guide's
            ``kl_scale``. After training with an `objective`, the first column is its loss and the second is 0. A posterior
            from `pyrodrop.zoo.load` has means over 100 stretches of the steps.
        settings: the settings of the training in plain numbers and words, with the fingerprint of the data.
        device: where the parameters are.
        kept: the trained values where model and guide are the caller's own, trained in place; else None.
        options: the settings of the training as objects; None after loading.
        certificate: what `certify` found; None before.

    Raises:
        ValueError: the guide was made for a model with other weights.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    data: Dataset | Loader | Keywords | None
    history: Tensor
    settings: dict[str, Any]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    kept: Kept | None = None
    options: Settings | None = None
    certificate: Certificate | None = None

    kind = "fit"

    def __post_init__(self) -> None:
        check_guide(self.model, self.guide)

    @contextmanager
    def as_trained(self) -> Iterator[None]:
        """Have model and guide compute with the trained values in evaluation mode within the block.

        What its calls change of a program is put back, and what was done to the program since the training stays.
        """
        programs = self.model, self.guide
        if knows_sites(*programs):
            with evaluating(*programs):
                yield
            return
        with (
            exclusive(),
            put_back(*programs, all_writes=False) if self.kept is None else self.kept.put_in(*programs),
            evaluating(*programs),
        ):
            yield

    @property
    def losses(self) -> Tensor:
        """nll + kl of every step, ``[steps]``: for a guide with ``kl_scale`` 1, minus a one-draw estimate of the ELBO.

        After training with an `objective` of Pyro, its losses.
        """
        return self.history[:, :2].sum(1)

    @property
    def worth(self) -> Worth | None:
        """The log density of training data, and that of a constant, ridge regression, a Gaussian process and a point
        estimate, as it was after training, or as it is now for a `Training`. None for a program that is no network.
        """
        return of_record(self.settings) or worth_of(self)

    @checked
    def report(self, held_out: Data | Split | None = None, *, seed: Seed = 0) -> Any:
        """A page about the fit: its scores beside those of a constant, ridge regression, a random forest (if scikit-learn is
        installed) and a Gaussian process; rates, k-hat, and what to try next. It takes seconds. Of a recipe's fit, the page
        has what the mixture consists of and which rows are odd; of a reading, the network in evaluation mode.

        Args:
            held_out: rows to score all predictors on; for a `Split`, its test rows. If None, a fifth of the training rows,
                which the fit has seen and the other predictors have not. A reading needs rows, and a `Split` for the others.
                A data frame, if the fit was trained on one.
            seed: of the draws, the choice of the fifth, and the forest.

        Returns:
            A report, which is printed in Markdown; its ``scores`` have the table, ``facts`` and ``advice`` the rest.

        Raises:
            TypeError: the fit is of a Pyro program, or its likelihood is neither Gaussian nor Student's t nor categorical.
            ValueError: the fit has no training data, as after loading, or was trained on a loader, or replicates are not a
                recipe's; there are fewer than 10 rows to learn from or to be scored on.
        """
        # pyrodrop.analysis imports this file, and is therefore imported when it is needed
        return import_module("pyrodrop.analysis.fit_report").report(self, held_out, seed)

    @checked
    def certify(
        self,
        refits: Annotated[int, Count("the number of data sets", least=2)] = 64,
        *,
        level: Annotated[float, Real("the nominal probability of the bands", above=0, below=1)] = 0.95,
        seed: Seed = 0,
    ) -> Certificate:
        """Whether the bands of this fit hold the function: stated coverage, and factors that repair them.

        Functions are drawn by the best predictor of the training data, a Gaussian process or this fit, and a data set of
        each; all are fitted anew, with the settings of this fit and new initial weights, as `pyrodrop.fit_replicates` does.
        The coverage of the refits is what can be expected of this one, by region: inside the data, at their edge and beyond.
        The certificate is kept, and saved with the fit: ``predict(x, certified=True)`` moves draws from their mean by the
        factor of each row's region. It assumes the noise of the likelihood, and functions like those of the best predictor.

        References:
            Beran (1987), Prepivoting to Reduce Level Error of Confidence Sets, https://doi.org/10.1093/biomet/74.3.457.
            Efron & Tibshirani (1993), An Introduction to the Bootstrap, sections 6.5 and 18.3.

        Args:
            refits: R, the number of data sets. The training of all of them costs far less than R trainings, where the
                network is small.
            level: the nominal probability of a central interval of f.
            seed: of functions, data sets and refits.

        Raises:
            TypeError: the fit is of a Pyro program that is no network.
            ValueError: the fit has no training data, or no settings of its training, as after loading or `pruned`; it was
                trained on a loader; a likelihood of a class of your own has parameters; or as
                `fit_replicates`.

        Example:
            >>> import torch, pyrodrop
            >>> from pyrodrop import guides, likelihoods, models, priors
            >>> x = torch.linspace(-1, 1, 40)[:, None]
            >>> y = x**2 + 0.1 * torch.randn(40, 1, generator=torch.Generator().manual_seed(0))
            >>> model = models.MLP([1, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(100.0))
            >>> fit = pyrodrop.fit(model, guides.MeanField(model), (x, y), steps=200, lr=0.01)
            >>> found = fit.certify(refits=4)
            >>> sorted(found.held), fit.predict(x, 10, certified=True).f.shape
            (['beyond', 'edge', 'inside'], torch.Size([10, 40, 1]))
        """
        # pyrodrop.analysis imports this file, and is therefore imported when it is needed
        found: Certificate = import_module("pyrodrop.analysis.calibration.certify").of_fit(self, refits, level, seed)
        self.certificate = found
        return found

    def card(self) -> Card:
        settings = self.settings
        rows = f"{settings['num_data']} rows" if "num_data" in settings else ", ".join(settings.get("arguments", ()))
        steps = settings.get("history_steps", len(self.history))
        named = ("batch_size", "kl_weight", "objective", "estimator", "engine", "seed")
        training = [f"{steps} steps", *(f"{name} {settings[name]}" for name in named if name in settings)]
        training += [f"{settings['seconds']:.1f} s"] if "seconds" in settings else []
        return Card(
            type(self).__name__,
            {
                "guide": describe(self.guide),
                "model": describe(self.model),
                "data": rows,
                "training": ", ".join(training),
                "loss": _ends(self.losses, steps),
                "log density": "" if (worth := self.worth) is None else worth.describe(),
                "bands": "" if self.certificate is None else self.certificate.finding,
            },
        )

    @checked
    @outside("elbo")
    @exclusive()
    def elbo(
        self,
        num_samples: Annotated[int, Count("the number of draws")] = 100,
        data: Data | Mapping[str, Any] | None = None,
        *,
        seed: Seed = 0,
    ) -> Elbo:
        """Estimate the ELBO on all of the training data, or on `data`. The network is in evaluation mode.

        The likelihood and the KL divergence count in full: `kl_weight` and the guide's ``kl_scale`` are
        left out. The posterior is the one over weights, with one draw for all of the data, also if another estimator than
        ``shared`` trained it.

        Args:
            num_samples: number of draws from the guide.
            data: needed after loading, which does not restore the training data; a mapping for a program that was trained on
                one. Every draw then takes another subsample of the program's plates.
            seed: of the draws.

        Raises:
            TypeError: an argument is of the wrong kind.
            ValueError: num_samples is less than 1, there are no data, or they do not fit the model; the guide leaves sites
                to be summed out, as for ``TraceEnum_ELBO``.

        Example:
            >>> import torch, pyrodrop
            >>> from pyrodrop import guides, likelihoods, models, priors
            >>> x = torch.linspace(-1, 1, 20)[:, None]
            >>> model = models.MLP([1, 8, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(10.0))
            >>> fit = pyrodrop.fit(model, guides.MeanField(model), (x, x**2), steps=5)
            >>> str(fit.elbo(10).convention)
            'exact'
        """
        with self.as_trained():
            return elbo_of(self, data_for(self, "elbo", data), num_samples, seed)

    def _drawing(self, count: int) -> Callable[..., Any]:
        return self.guide

    def _draws_of_sites(self, x: Any, count: int, seed: int, sites: Sequence[str] | None) -> dict[str, Tensor]:
        return draw_sites(self.model, self.guide, arguments_at(self, x), count, seed, sites)

    def pruned(self, threshold: float = 3.0) -> Fit:
        """A copy of this fit in which weights with ln alpha of at least `threshold` are 0, without noise.

        Raises:
            TypeError: the guide is no `guides.SparseDropout` or `guides.ARDDropout`, with an alpha per weight.
            ValueError: `threshold` is outside the range of ln alpha.
        """
        guide = self.guide
        if not isinstance(guide, SparseDropout):
            raise TypeError(
                "pruning needs a per-weight alpha: use guides.SparseDropout or guides.ARDDropout; got "
                f"{type(guide).__name__}"
            )
        settings = {name: value for name, value in self.settings.items() if name != "worth"}
        return replace(self, guide=guide.pruned(threshold), settings=settings, options=None, certificate=None)

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
            threshold: weights are pruned if their ln alpha, or that of their input unit, reaches it. If None, the guide's
                default: 3, or 0 for `guides.LogNormalDropout`, a signal-to-noise ratio of 1.
            structured: whether constant units go into the biases of the layers that read them, and units that no layer reads
                are removed. If False, every unit stays, and any network is returned with its own shape.
            x: example inputs, at least two rows, from which the shapes between layers are found; the training data if None.
                A loaded fit has no training data; models of this package know the shape of x.

        Raises:
            TypeError: the guide learns no alpha per weight or input unit; or no unit of the network can be traced from the
                layer that computes it to the layers that read it.
            ValueError: the shape of x is not known, so that `x` must be passed.
        """
        return compress(self.model, self.guide, threshold=threshold, structured=structured, x=self._example(x))

    def stored(self) -> Stored:
        if names := self.settings.get("in_store"):
            raise TypeError(
                f"only parameters of modules can be saved; {', '.join(names)} of this fit are in Pyro's global store: keep "
                "them in a PyroModule, or save them by pyro.get_param_store().save(path)"
            )
        with self.as_trained():
            found, about = ({}, None) if self.certificate is None else self.certificate.stored()
            settings = self.settings if about is None else {**self.settings, "certificate": about}
            stored = Stored.of({"model": self.model, "guide": self.guide}, settings)
            tensors = {"history": self.history, **{name: value.clone() for name, value in stored.tensors.items()}}
            tensors |= {f"certificate.{name}": value for name, value in found.items()}
            return Stored(tensors, stored.about)

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: Callable[..., Any] | None = None,
        guide: Callable[..., Any] | None = None,
        *,
        device: str | torch.device = "auto",
    ) -> Self:
        """Read a saved fit.

        If network, priors, likelihood and guide are those of this package, as in a fit of a recipe, the file is enough.
        A model or guide of your own code, such as `models.from_module` of your network, must be passed as it was built for
        the training; it is changed in place, after everything in the file is checked. Your own functions and classes are
        identified by name, and the layers of a network by their classes and PyTorch's settings.

        Args:
            path: of the file.
            model, guide: built like the saved ones; None for what the file describes. An autoguide of Pyro has parameters
                after its first call, so it must have been called, ``guide(**data)``.
            device: where to put them.

        Raises:
            ValueError: model or guide is None, and the file does not describe it; or it differs from the saved one: names,
                shapes or dtypes of parameters, the network, its activation, the priors, the likelihood or the guide's
                settings; or it is not such a file, or damaged.
            RuntimeError: model or guide is None, and another thread trains: all threads share torch's generator.
            OSError: the file cannot be read; the message names it.
        """
        return restoring(cls, Stored.read(path, "fit"), model, guide, device)()


def data_for(fit: Any, name: str, data: Any, optional: Collection[str] = ()) -> Dataset | Loader | Keywords:
    """The training data, or `data` if it is not None, which may lack the `optional` arguments of a program."""
    if data is None:
        if fit.data is None:
            raise ValueError(f"a loaded fit or a reading has no training data, which must be passed, {name}(data=...)")
        return _unchanged(fit, name)
    if "arguments" in fit.settings:
        return Keywords.named(data, fit.settings["arguments"], optional)
    return read_for(data) or Dataset.of(data)


def _unchanged(fit: Any, name: str) -> Any:
    """The data that a fit holds; a ValueError if they are no longer those that it was trained on."""
    if fit.data is not None and fit.data.fingerprint != fit.settings.get("data_fingerprint", fit.data.fingerprint):
        raise ValueError(
            f"{name} needs the data that this fit was trained on, which were changed in place: train again"
        )
    return fit.data


def arguments_at(fit: Any, x: Any) -> Arguments:
    """The arguments of a fitted program at x, or those of training if x is None; see `Fit.predict`."""
    if x is None or "arguments" in fit.settings:
        optional = none_by_default(fit.model) if isinstance(x, Mapping) else ()
        return arguments_of(data_for(fit, "predict", x, optional), fit.device)
    return Call((mapped(lambda part: part.to(fit.device), check_inputs(x)), None), {})


def rows_of(fit: Any, name: str) -> Dataset | None:
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
    return None if isinstance(fit.data, Loader) else _unchanged(fit, name)


F = TypeVar("F", bound=Fit)


def restoring(
    of: type[F],
    stored: Stored,
    model: Callable[..., Any] | None,
    guide: Callable[..., Any] | None,
    device: str | torch.device = "auto",
) -> Callable[[], F]:
    """Check what was read from a file against model and guide; returns a function that loads them.

    Args:
        of: the class of the result.
        model, guide, device: as of `Fit.load`; unchanged until the result is called.
    """
    place, settings, history = resolve(device), stored.settings, stored.tensors.get("history")
    if history is None or history.dim() != 2 or history.shape[1] != 3 or not history.is_floating_point():
        raise Failed(f"{stored.where} must have a history, with three numbers for every step")
    parts, put = stored.into({"model": model, "guide": guide})
    found = None
    if settings.pop("certificate", None) is not None:
        about = stored.record.record("settings").record("certificate")
        found = Certificate.of_file(about, under("certificate.", stored.tensors))
    fit = of(**parts, data=None, history=history, settings=settings, device=place, certificate=found)

    def restore() -> F:
        put(place)
        modules = list(modules_of(fit.model, fit.guide).values())
        if not trains_in_place(fit.model, modules):
            return fit
        forget_others(modules)
        return replace(fit, kept=Kept(fit.model, fit.guide))

    return restore


def _ends(losses: Tensor, steps: int) -> str:
    """The loss at the start and at the end of training, each the mean of a tenth of the steps."""
    if not len(losses):
        return ""
    tenth = max(1, len(losses) // 10)
    first, last = float(losses[:tenth].mean()), float(losses[-tenth:].mean())
    return f"{number(last)} in the last {max(1, steps // 10)} steps, {number(first)} in the first"
