"""The problem that is trained: a model, a guide and data, checked, copied and moved to the device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import ELBO
from torch import Tensor, nn
from torch.distributions import constraints

from pyrodrop.agreement import check_call, check_guide, knows_sites
from pyrodrop.arguments import seed as checked_seed
from pyrodrop.arguments import shown
from pyrodrop.data import Data, Dataset, Keywords
from pyrodrop.data.loader import Check, Loader
from pyrodrop.devices import seeded
from pyrodrop.guides.ensemble import members_of
from pyrodrop.likelihoods.missing import leaves_out_missing
from pyrodrop.models.network import NetworkModel, mixes_examples
from pyrodrop.module_states import evaluating, modules_in, undisturbed
from pyrodrop.modules import keep_own_parameters
from pyrodrop.networks.checks import check_values
from pyrodrop.networks.starts import check_starts
from pyrodrop.private_apis import constraint_in_store
from pyrodrop.protocols import HasPosterior, HasRows, HasWeights
from pyrodrop.reparam import STRATEGIES, reparameterize
from pyrodrop.reparam.local import draws_by_row
from pyrodrop.steps import Arguments, Buffers, Loss, Objective, OfPyro, Parameter, Watch
from pyrodrop.steps.buffers import modules_of, places_of
from pyrodrop.steps.loss import making
from pyrodrop.steps.watched import Watched
from pyrodrop.training.autoguides import autoguides, check_model, prepare
from pyrodrop.training.objective import MeanField


@dataclass
class Problem:
    """A model, a guide and their data.

    Attributes:
        model, guide: copies of the user's, which training changes; the user's own where the guide contains an autoguide.
        data: the data set, a loader of minibatches, or the keyword arguments of a program.
        trained: model and guide with the estimator applied.
        estimator: its name.
    """

    model: Any
    guide: Any
    data: Dataset | Loader | Keywords
    trained: tuple[Callable[..., Any], Callable[..., Any]]
    estimator: str = "shared"

    @classmethod
    def of(
        cls,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        data: Data | Loader | Keywords | Mapping[str, Any],
        estimator: str,
        device: torch.device,
        start: int | None = None,
        like: Problem | None = None,
    ) -> Problem:
        """Copy, standardise, check and move to the device; a ValueError or TypeError for what cannot be trained.

        Args:
            start: the seed of new initial weights, as of `restart`; None for those of the model.
            like: a problem of the same model, whose network is not examined again; None if there is none.
        """
        for what, component in (("model", model), ("guide", guide)):
            if not callable(component) or isinstance(component, type):
                got = (
                    f"the class {component.__name__}: make one of it"
                    if isinstance(component, type)
                    else shown(component)
                )
                raise TypeError(
                    f"{what} must be a Pyro {what}, a function or module that is called as {what}(x, y); got {got}"
                )
        if start is None:
            check_guide(model, guide)
        else:
            _check_restart(model, guide)
        problem_data: Dataset | Loader | Keywords
        if isinstance(data, Mapping | Keywords):
            check_program(model, estimator, data)
            problem_data = Keywords.of(data)
        else:
            problem_data = data if isinstance(data, Loader) else Dataset.of(data, missing=leaves_out_missing(model))
        modules: list[nn.Module] = []  # of what was copied, also those of an object whose methods model and guide are
        if autoguides(guide):  # it refers to the model, and a copy of it would not
            check_model(guide, model)
            modules = [*modules_in(model).values(), *modules_in(guide).values()]
        else:
            copies: dict[int, Any] = {}
            model, guide = _copied(model, guide, copies)
            modules = [component for component in copies.values() if isinstance(component, nn.Module)]
            _part_from_originals(modules)
        if start is not None:
            _restart(model, guide, start)
        for component in (model, guide):
            if isinstance(component, nn.Module):
                check_values(component)
                component.to(device)
        for module in modules:
            module.to(device)
        if isinstance(problem_data, Keywords):
            return cls(model, guide, problem_data, (model, guide), estimator)
        example = problem_data.sample if isinstance(problem_data, Loader) else problem_data
        if isinstance(model, NetworkModel):
            model.standardize(example)
            model.check(example, None if like is None else like.model)
        if isinstance(guide, HasRows):
            if isinstance(problem_data, Loader):
                raise ValueError(
                    f"{describe(guide)} needs all rows of the data in memory, as tensors; got {problem_data.source}"
                )
            guide.condition_on(problem_data.x, problem_data.y)
        strategy = STRATEGIES[estimator]
        if strategy is not None and mixes_examples(model, example.x):
            raise ValueError(
                f"estimator={estimator!r} draws independent noise per example; in this network the output of one row of x "
                "depends on the others: use estimator='shared'"
            )
        if strategy is not None and isinstance(model, NetworkModel) and model.mixes_in_training(example.x):
            raise ValueError(
                f"estimator={estimator!r} draws independent noise per example; in training mode the output of one row of x "
                "depends on the others, as under BatchNorm: use estimator='shared', or put those layers in evaluation mode "
                "(.eval()) before the model is made"
            )
        trained = (model, guide) if strategy is None else reparameterize(model, guide, strategy)
        return cls(model, guide, problem_data, trained, estimator)

    @property
    def in_memory(self) -> Dataset | Keywords:
        """The data of a problem that is not trained on a loader."""
        assert not isinstance(self.data, Loader)
        return self.data

    @property
    def example(self) -> Dataset:
        """The data set, or a minibatch of a loader."""
        assert not isinstance(self.data, Keywords)
        return self.data.sample if isinstance(self.data, Loader) else self.data

    def targets_check(self) -> Check | None:
        """A function that raises a ValueError for observations that the model's likelihood does not allow."""
        return self.model.targets_check(self.example.x) if isinstance(self.model, NetworkModel) else None

    def noise_by_row(self) -> list[str]:
        """Names of the weights whose noise training draws independently for every row of an example (`LocalReparam`)."""
        if self.estimator != "local" or not isinstance(self.model, NetworkModel) or isinstance(self.data, Keywords):
            return []
        sites = self.model.properties(self.example.x).rows
        members = members_of(self.guide)
        return [
            name
            for name in sites
            if any(not isinstance(member, HasPosterior) or draws_by_row(member.posterior(name)) for member in members)
        ]

    def loss(self, batch: Arguments, objective: ELBO | None = None) -> Loss:
        """The loss to minimise, with every parameter that Pyro sees in guide and model and all else that a call changes.

        Calls both once on `batch`, which leaves them and the caller's random state unchanged.

        Raises:
            ValueError: the minibatch is too small for a network that normalises over its rows.
            RuntimeError: there is no parameter.
        """
        kind = MeanField(*self.trained) if objective is None else OfPyro(objective, *self.trained)
        with evaluating(self.model), making(batch):
            prepare(self.guide, batch.device, *batch.args, **batch.kwargs)
        if isinstance(kind, MeanField) and not knows_sites(self.model, self.guide):
            quiet = undisturbed(self.model, self.guide)
            with quiet, torch.no_grad(), seeded(0, batch.device), making(batch):
                check_call(self.model, self.guide, *batch.args, **batch.kwargs)
            with undisturbed(self.model, self.guide), seeded(0, batch.device):
                kind.check(batch)
        watched = None if knows_sites(self.model, self.guide) else Watched(self.model, self.guide)
        with poutine.trace(param_only=True) as capture, undisturbed(self.model, self.guide):
            seen = self._call(kind, batch)
        changes = seen.changes or (
            "" if watched is None or not (name := watched.changed()) else f"a call changes {name}"
        )
        parameters = _parameters(capture.trace.nodes)
        if not parameters:
            raise RuntimeError(
                "neither model nor guide has a parameter that Pyro can see, so no step could change anything: parameters "
                "must be pyro.param statements or live in a PyroModule, not in a module reached through a closure. Above "
                "fixed layers guides.ExactLastLayer has none: learn the noise, likelihoods.Gaussian(1.0, learned=True)"
            )
        trained = {name: parameter for name, parameter in parameters.items() if parameter.unconstrained.requires_grad}
        return Loss(kind, trained, seen.moving, changes)

    def check_batches(self, loss: Loss, batches: Sequence[Arguments]) -> None:
        """Raise a ValueError for minibatches that a network with running statistics cannot be trained on."""
        for batch in batches if len(loss.moving) else []:
            with undisturbed(self.model, self.guide):
                self._call(loss.objective, batch)

    def buffers(self, loss: Loss) -> dict[str, Tensor]:
        """The buffers that training may update, with their present values, by name: the part of the state beside the
        parameters."""
        places = places_of(self.model, self.guide)
        if isinstance(self.model, NetworkModel):  # the model knows them; its other buffers are initial values
            known = {id(buffer) for buffer in self.model.moving_buffers().values()}
            places = {
                name: [(module, key), *others]
                for name, [(module, key), *others] in places.items()
                if name in loss.moving.places or id(module._buffers[key]) in known or not name.startswith("model.")
            }
        return Buffers((), places).named()

    def _call(self, objective: Objective, batch: Arguments) -> Watch:
        """Call guide and model once and return what that changes in them."""
        try:
            with Watch(self.model, self.guide) as seen, torch.no_grad(), seeded(0, batch.device):
                objective.terms(batch)
        except NotImplementedError as error:
            raise ValueError(
                "objective needs the densities of observed sites and of draws of the guide; got a distribution without: "
                f"{error or type(error).__name__}"
            ) from error
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ValueError(
                "a network that normalises over the rows of a minibatch (nn.BatchNorm in training mode) needs at least 2 of "
                f"them; got a minibatch of {batch.rows} row(s), the last of an epoch where batch_size does not divide the "
                "data. Choose another batch_size, or put these layers in evaluation mode before the model is made"
            ) from error
        return seen

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of model and guide that are no parameters: rates, precisions, standardisations, prior scales."""
        tensors: dict[str, Tensor] = {}
        for role, module in (("model", self.model), ("guide", self.guide)):
            if isinstance(module, nn.Module):
                tensors |= {f"{role}.{name}": buffer for name, buffer in module.named_buffers()}
        priors = self.model.priors if isinstance(self.model, NetworkModel) else {}
        return tensors | {
            f"prior.{site}.{n}": value for site, prior in priors.items() for n, value in prior.numbers().items()
        }


def _copied(model: Any, guide: Any, copies: dict[int, Any]) -> tuple[Any, Any]:
    """A copy of both; a ValueError where a module keeps a tensor that a call has computed from parameters."""
    try:
        return copy.deepcopy((model, guide), copies)
    except RuntimeError as error:
        kept = [n for m in modules_of(model, guide).values() for n, v in vars(m).items() if getattr(v, "grad_fn", None)]
        if not kept:
            raise
        raise ValueError(
            f"model and guide cannot be copied: the attribute {kept[0]} is a tensor that a call has computed. "
            "Make them anew and train them before their first call, or train them in place by pyrodrop.compile_svi"
        ) from error


def _part_from_originals(copies: Sequence[nn.Module]) -> None:
    """Have copied modules train and use parameters of their own, whatever Pyro's store has under the names of the originals.

    Names from ``pyro.module`` statements are deleted from the store: Pyro would train the parameters there, while the copies
    compute with their own.
    """
    for module in copies:
        keep_own_parameters(module)
    within = {name for module in copies for name, _ in module.named_parameters()}
    store = pyro.get_param_store()
    for name in list(store.keys()):
        _, mark, short = name.rpartition("$$$")
        if mark and short in within:
            del store[name]


def stored(model: Any, guide: Any, batch: Arguments) -> list[str]:
    """Names of the parameters in Pyro's global store that belong to no module, found by a call of both."""
    with poutine.trace(param_only=True) as capture, undisturbed(model, guide):
        for program in (guide, model):
            program(*batch.args, **batch.kwargs)
    of_modules = {id(p) for program in (model, guide) if isinstance(program, nn.Module) for p in program.parameters()}
    parameters = _parameters(capture.trace.nodes)
    return [name for name, parameter in parameters.items() if id(parameter.unconstrained) not in of_modules]


def _parameters(sites: Mapping[str, Any]) -> dict[str, Parameter]:
    """The parameters of Pyro's param sites, each once, by its first name."""
    parameters: dict[int, tuple[str, Parameter]] = {}
    for name, site in sites.items():
        value = site["value"]
        unconstrained = value.unconstrained() if hasattr(value, "unconstrained") else value  # with module_local_params
        constraint = constraint_in_store(name, site["kwargs"].get("constraint", constraints.real))
        parameters.setdefault(id(unconstrained), (name, Parameter(unconstrained, constraint)))
    return dict(parameters.values())


def check_program(model: Any, estimator: str, data: Any) -> None:
    """Raise a ValueError for a model of a network, or an estimator, which need (x, y) in place of keyword arguments."""
    if isinstance(model, HasWeights):
        got = shown(data.values if isinstance(data, Keywords) else data)
        raise ValueError(
            f"data must be (x, y) or a Dataset for a model of a network, {type(model).__name__}, which is standardised and "
            f"checked by them; got {got}, as of the keyword arguments of a Pyro program"
        )
    if estimator != "shared":
        raise ValueError(
            f"estimator must be 'shared' where data are keyword arguments of a Pyro program; got {estimator!r}, which "
            "shares noise between the rows of x"
        )


@contextmanager
def training_mode(*problems: Problem) -> Iterator[None]:
    """Have models and guides in training mode, and in evaluation mode afterwards.

    In a model of `pyrodrop.models`, submodules of the network that were in training mode when the model was made return to
    it. Other models, and guides, keep their present modes.
    """
    for problem in problems:
        if isinstance(problem.model, NetworkModel):
            problem.model.train()
    try:
        yield
    finally:
        for problem in problems:
            for program in (problem.model, problem.guide):
                if isinstance(program, nn.Module):
                    program.eval()


def describe(program: Callable[..., Any]) -> str:
    """A model or guide in one line."""
    if hasattr(program, "describe"):
        return str(program.describe())
    return getattr(program, "__name__", type(program).__name__)


def restart(model: Any, guide: Any, seed: int) -> tuple[Any, Any]:
    """Copies of model and guide with new initial weights.

    The network's modules draw them by their own ``reset_parameters()`` from `seed`.

    Args:
        model: a model with a method ``reset_parameters()``, such as those of `pyrodrop.models`.
        guide: its guide, with a method ``restart(model)``, which those of `pyrodrop.guides` have.
        seed: of the new values; the caller's random state does not change.

    Raises:
        TypeError: model or guide has no such method; the seed is not a whole number.
        ValueError: a module of the network has parameters but no ``reset_parameters()``; the message names it. The guide was
            made for another model; the seed is negative.

    Example:
        >>> import torch, pyrodrop
        >>> model = pyrodrop.models.MLP(
        ...     [2, 4, 1], prior=pyrodrop.priors.Gaussian(), likelihood=pyrodrop.likelihoods.Gaussian(precision=1.0)
        ... )
        >>> guide = pyrodrop.guides.MeanField(model)
        >>> (_, one), (_, two), (_, other) = (pyrodrop.restart(model, guide, seed) for seed in (1, 1, 2))
        >>> weight = "layers.0.weight"
        >>> torch.equal(one.mean()[weight], two.mean()[weight]), torch.equal(one.mean()[weight], other.mean()[weight])
        (True, False)
    """
    seed = checked_seed(seed)
    _check_restart(model, guide)
    model, guide = copy.deepcopy((model, guide))
    _restart(model, guide, seed)
    return model, guide


def _check_restart(model: Any, guide: Any) -> None:
    """Raise an error for a model and a guide that cannot have new initial weights, as `restart`."""
    if not callable(getattr(guide, "restart", None)):
        raise TypeError(
            "new initial weights need a guide with a method restart(model), or lists of models and guides with initial "
            f"weights of their own; got {shown(guide)}, which has none"
        )
    check_guide(model, guide)
    check_starts(model)


def _restart(model: Any, guide: Any, seed: int) -> None:
    """Give model and guide new initial weights, in place; their device draws them."""
    device = next((parameter.device for parameter in guide.parameters()), torch.device("cpu"))
    with seeded(seed, device):
        model.reset_parameters()
        guide.restart(model)
