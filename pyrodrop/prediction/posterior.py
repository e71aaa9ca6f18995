"""What all results can do: a fit, replicates, draws of the exact posterior, and the reading of a trained network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, overload

import torch
from torch import Tensor

from pyrodrop.checks import Count, Inputs, Seed, checked, shown
from pyrodrop.data import Dataset
from pyrodrop.data.loader import Loader
from pyrodrop.distributions.rebuilt import rebuilt
from pyrodrop.models.network import NetworkModel
from pyrodrop.parts import Card, carded
from pyrodrop.prediction.module import Functions, Keep, functions_of
from pyrodrop.prediction.predict import draw_functions
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.prediction.stored import Stored

Member = tuple["Posterior", int, int]  # a posterior of one model, the number of its draws, and their seed


@carded
class Posterior(ABC):
    """A posterior over functions, which predicts and is saved. Printing it shows its `card`.

    Implementing a result:

    - The attributes `model`, `data`, `settings` and `device`, as of `Fit`, and `kind`, the name of its kind of files.
    - `_drawing` returns what draws the weights; `_members`, in its place, returns other results of which it is a mixture.
    - `card` is printed, and `stored` is the content of a file.
    """

    model: Any
    data: Any
    settings: dict[str, Any]
    device: torch.device
    kind: ClassVar[str]

    @abstractmethod
    def card(self) -> Card:
        """The summary that is printed."""

    @abstractmethod
    def stored(self) -> Stored:
        """The content of the file that `save` writes.

        Raises:
            TypeError: parameters of model or guide are in Pyro's global store and not in a module.
        """

    def _drawing(self, count: int) -> Callable[..., Any]:
        """A guide that can draw `count` functions."""
        raise NotImplementedError

    def _members(self, count: int, seed: int, name: str) -> Sequence[Member]:
        """The posteriors of single models that this is a mixture of, with their shares of `count` draws."""
        return [(self, count, seed)]

    @contextmanager
    def as_trained(self) -> Iterator[None]:
        """Have the model compute with its values and in its mode at the end of training within the block."""
        yield

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the data, also after loading; None if it was not recorded, as for a loader."""
        return self.settings.get("data_fingerprint", getattr(self.data, "fingerprint", None))

    @overload
    def predict(self, x: Inputs, num_samples: int = ..., *, seed: int = ..., certified: bool = ...) -> Prediction: ...
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
        certified: bool = False,
        sites: Sequence[str] | None = None,
    ) -> Any:
        """Draw functions from the posterior, with the network in evaluation mode. Of other Pyro programs, draw all sites.

        Replicates predict with the mixture of those that did not fail: each contributes an equal share of the functions,
        rounded up, of at least one; with `weights`, its weight times their number, rounded up or down. Fits in a row with
        equal weights are a component, and if there are 40 functions or more for each, every one has some. Functions of a
        `Sampled` are draws that are evenly spaced over chains and within each chain, the same for any x and seed; if there
        are fewer draws than `num_samples`, each appears several times.

        For a program whose model is not one of `pyrodrop.models` the result has draws ``[S, ...]`` of every site by name, as
        ``pyro.infer.Predictive(model, guide=guide, num_samples=S)`` returns: latent sites from the guide, observed ones
        from the model given these, also where `x` has observations. Discrete sites that training summed out are drawn with
        them; `pyro.infer.infer_discrete` draws them given the observations.

        Args:
            x: points, ``[N, ...]`` in the units of the training data, or a tuple or mapping of tensors as in training. If
                the network's examples depend on each other, it is called on all points at once. After training on
                `data.Dataset.from_frame` also a DataFrame, whose columns are found by name. For a program that was trained
                on a mapping, a mapping of arguments, such as ``{"x": x}``; those that default to None in the model may be
                left out. For other programs, the first argument; y is then None. None for the training data.
            num_samples: S, number of sampled functions, each with one set of weights for all points.
            seed: seed of the samples; the caller's random state is unchanged. The same seed gives the same functions at any
                x.
            certified: whether bands are widened, or narrowed, by the factors that `certify` found.
            sites: names of the sites of a program to return; None for all. With sites of the guide alone, the model
                is not called.

        Returns:
            A `Prediction` with f ``[S, N, ...]`` in the units of y, and in float64 where float32 would round a y far from
            zero (`Dataset.standardized`); or a dictionary of draws by site.

        Raises:
            TypeError: an argument that a program does not have, or of the wrong kind; the likelihood has no mixture of the
                distributions of replicates.
            RuntimeError: x requires a gradient, or the call is inside of a transform of torch.func: it would be 0.
            ValueError: x is empty, has NaN or infinite values, or another width than in training; a number is out of range;
                a site of a program is in a plate that takes subsamples, which are other rows in every draw, or has a
                distribution without samples; fewer draws than replicates, or all of them failed.
        """
        found = getattr(self, "certificate", None) if certified else None
        if certified and (found is None or not isinstance(self.model, NetworkModel)):
            raise ValueError(
                f"certified must be False before certify() has found the factors of the bands; got {shown(certified)}"
            )
        each: list[Any] = []
        for member, count, its_seed in self._members(num_samples, seed, "num_samples"):
            network = isinstance(member.model, NetworkModel)
            if network and sites is not None:
                raise TypeError(
                    f"sites is for Pyro programs; a network has predictions: leave it out; got {shown(sites)}"
                )
            with member.as_trained():
                if network:
                    place: dict[str, Any] = {"seed": its_seed, "device": member.device}
                    place |= {} if found is None else {"widened": found.widened}
                    each.append(draw_functions(member.model, member._drawing(count), x, count, **place))
                else:
                    each.append(member._draws_of_sites(x, count, its_seed, sites))
        if len(each) == 1:
            return each[0]
        if isinstance(each[0], dict):
            return {name: torch.cat([draws[name] for draws in each]) for name in each[0]}
        try:
            distribution = rebuilt(lambda *values: torch.cat(values), *(prediction.distribution for prediction in each))
        except TypeError as error:
            raise TypeError(
                "replicates predict as a mixture of their distributions of y, which is made of the parameters of each: "
                f"predict with each fit by itself. {error}"
            ) from error
        return Prediction(torch.cat([prediction.f for prediction in each]), distribution, seed)

    def _draws_of_sites(self, x: Any, count: int, seed: int, sites: Sequence[str] | None) -> dict[str, Tensor]:
        """Draws of the sites of a Pyro program that is no network; see `predict`."""
        raise NotImplementedError

    @checked
    def module(
        self,
        draws: Annotated[int, Count("the number of functions")] = 100,
        *,
        keep: Keep = "moments",
        seed: Seed = 0,
        x: Inputs | None = None,
    ) -> Functions:
        """Functions of the posterior as one `torch.nn.Module`, differentiable in x, for `torch.export` and `torch.onnx`.

        They are the functions of ``predict(x, draws, seed=seed)``, in evaluation mode. The module's argument is x, tensors
        as of `predict`. What `torch.export` or `torch.onnx` makes of it runs without this package.

        Args:
            draws: S, the number of functions. Weights that differ between them are stored once per function.
            keep: what the module returns: ``"moments"``, mean and sd of y, ``[N, ...]`` each, observation noise included,
                or for class labels their probabilities, ``[N, ..., classes]``; or ``"draws"``, f ``[S, N, ...]`` in the
                units of y.
            seed: of the draws; the functions of a `Sampled` are the same for any.
            x: rows of x; needed after loading by networks that `pyrodrop.read` has read, and by guides of Pyro.

        Raises:
            TypeError: the fit is of a Pyro program that is no network. With ``"moments"`` a call of the module raises it if
                y has no mean and variance in closed form.
            ValueError: a number is out of range; x is needed; or as `predict`.
        """
        members = self._members(draws, seed, "draws")
        each = [functions_of(m.model, m._drawing(n), m._example(x), n, s, m.device) for m, n, s in members]
        return Functions(each, keep)

    def _example(self, x: Any) -> Any:
        """x, or rows of the training data if it is None; None if there are neither."""
        data = self.data.sample if isinstance(self.data, Loader) else self.data
        return data.x if x is None and isinstance(data, Dataset) else x

    def save(self, path: str | Path) -> Path:
        """Write parameters or draws, losses and settings to one safetensors file. A failed write leaves an old file.

        Raises:
            TypeError: parameters of model or guide are in Pyro's global store and not in a module.
            OSError: the file cannot be written; the message names it.
        """
        return self.stored().write(path, kind=self.kind)
