"""The problem that is trained: a model, a guide and data, looked at once, refused if they cannot be trained, or copied."""

from __future__ import annotations

import copy
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import ELBO, RenyiELBO
from pyro.infer.autoguide import AutoGuide
from pyro.nn import PyroModule
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from pyrodrop.changes import Kept, evaluating, modules_of, places_of, put_back, tensors_of
from pyrodrop.checks import HasPosterior, HasRows, HasWeights, shown
from pyrodrop.data import Dataset, Keywords
from pyrodrop.data.loader import Loader, loader_of
from pyrodrop.devices import seeded
from pyrodrop.distributions import BernoulliMixture
from pyrodrop.guides.ensemble import members_of
from pyrodrop.guides.guide import Guide
from pyrodrop.models.network import NetworkModel
from pyrodrop.modules import LocalModule
from pyrodrop.networks.checks import check_values
from pyrodrop.prediction.agreement import called, check_call, check_guide, knows_sites
from pyrodrop.private_apis import StoreAsItIs, forget_in_store
from pyrodrop.reparam import STRATEGIES, reparameterize
from pyrodrop.reparam.local import draws_by_row
from pyrodrop.steps import Arguments, Buffers, Loss, Objective, OfPyro, Parameter, making
from pyrodrop.training.elbo import MeanField, check_differentiable
from pyrodrop.training.rows import takes_num_data
from pyrodrop.training.settings import Settings

Data = Dataset | Loader | Keywords


@dataclass
class Problem:
    """A model, a guide and their data.

    Attributes:
        model, guide: what training changes: the user's own (`in_place`), or copies.
        data: the data set, a loader of minibatches, or the keyword arguments of a program.
        trained: model and guide with the estimator applied.
        estimator: its name.
        in_place: whether model and guide are the user's own.
        source: the user's own model and guide.
    """

    model: Any
    guide: Any
    data: Data
    trained: tuple[Callable[..., Any], Callable[..., Any]]
    estimator: str = "shared"
    in_place: bool = False
    source: tuple[Any, Any] = field(default=(None, None), repr=False)

    @classmethod
    def of(
        cls, model: Any, guide: Any, data: Any, settings: Settings, num_data: int | None = None, *,
        start: int | None = None, like: Problem | None = None,
    ) -> Problem:  # fmt: skip
        """Copy, standardise, check and move to the device; a ValueError or TypeError for what cannot be trained.

        Args:
            num_data: the number of rows behind a loader.
            start: the seed of new initial weights; None for those of the model.
            like: a problem of the same model, whose network is not examined again.
        """
        source, device, autos = (model, guide), settings.place, autoguides(guide)
        for what, program in (("model", model), ("guide", guide)):
            if not callable(program) or isinstance(program, type):
                raise TypeError(f"{what} must be a Pyro {what}, called as {what}(x, y); got {shown(program)}")
        check_guide(model, guide)
        check_model(autos, model)
        data = loader_of(data, num_data)
        if isinstance(data, Mapping | Keywords):
            data = Keywords.of(data)
        elif not isinstance(data, Loader):
            data = Dataset.of(data)
        modules = list(modules_of(model, guide).values())
        in_place = bool(autos) or trains_in_place(model, modules)
        if in_place:
            forget_others(modules)
        else:
            model, guide = copy.deepcopy((model, guide))
            modules = list(modules_of(model, guide).values())
        if start is not None:
            place = next((parameter.device for parameter in guide.parameters()), torch.device("cpu"))
            with seeded(start, place):
                model.reset_parameters()
                guide.restart(model)
        for component in (model, guide):
            if isinstance(component, nn.Module):
                check_values(component)
        for module in modules:
            tensors = [*module._parameters.values(), *module._buffers.values()]
            if device.type != "cpu" or any(tensor is not None and tensor.device != device for tensor in tensors):
                module.to(device)
        problem = cls(model, guide, data, (model, guide), settings.estimator, in_place, source)
        if isinstance(model, NetworkModel) and not isinstance(data, Keywords):
            model.standardize(problem.example)
            model.check(problem.example, None if like is None else like.model)
        if isinstance(guide, HasRows) and not isinstance(data, Keywords):
            if isinstance(data, Loader):
                raise ValueError(f"{describe(guide)} needs all rows of the data in memory; got {data.source}")  # type: ignore[arg-type]
            guide.condition_on(data.x, data.y)
        for sentence in problem._refusals(settings):
            raise ValueError(sentence)
        if (strategy := STRATEGIES[settings.estimator]) is not None:
            problem.trained = reparameterize(model, guide, strategy)
        return problem

    def _refusals(self, settings: Settings) -> Iterator[str]:
        """A sentence for each combination of options, model, guide and data that cannot be trained."""
        model, guide, data = self.model, self.guide, self.data
        objective, estimator, size = settings.objective, settings.estimator, settings.batch_size
        if settings.average and settings.steps is None:
            yield f"average must be 0 for a Training, which has no last step; got {settings.average}: it belongs to fit"
        if objective is not None and (callable(settings.kl_weight) or settings.kl_weight != 1):
            yield (
                "kl_weight must be 1 with an objective, since a loss object of Pyro does not give its terms one by one; got "
                f"{shown(settings.kl_weight)}. pyro.poutine.scale in model or guide weights sites under any objective"
            )
        if isinstance(data, Keywords):
            if isinstance(model, HasWeights):
                yield f"data must be (x, y) or a Dataset for a model of a network; got {shown(data.values)}"
            if estimator != "shared" or size is not None:
                yield (
                    "estimator must be 'shared' and batch_size None where data are the keyword arguments of a Pyro program, "
                    f"which has no rows; got {estimator!r} and {size}. In the program, pyro.plate(name, size, "
                    "subsample_size=...) takes a minibatch at every step"
                )
            return
        x, loads, rows = self.example.x, isinstance(data, Loader), len(data)
        if loads and size is not None:
            yield f"batch_size must be None where a loader makes the minibatches; got {size}"
        taken = len(self.example) if loads else min(size or rows, rows)
        if isinstance(objective, RenyiELBO):
            members = [member for member in members_of(guide) if isinstance(member, Guide)]
            posteriors = [member.posterior(name) for member in members for name in member.sites]
            atoms = any(isinstance(q, BernoulliMixture) and q.theta == 0 for q in posteriors)
            if estimator != "shared" or loads or taken < rows or atoms:
                yield (
                    "the objective RenyiELBO weighs draws by the densities of all rows and of the posterior: estimator must "
                    f"be 'shared', batch_size None, data in memory, and theta above 0; got {estimator!r}, batch_size {size} "
                    f"and {describe(guide)}"
                )
        if taken < rows and not (takes_num_data(model) and takes_num_data(guide)):
            yield (
                "training on minibatches needs a model and a guide that take the size of the data set, (x, y, num_data=N), "
                f"or batch_size None; got {taken} of {rows} rows"
            )
        if not isinstance(model, NetworkModel):
            return
        if estimator != "shared" and (model.mixes_examples(x) or model.mixes_in_training(x)):
            yield (
                f"estimator={estimator!r} draws independent noise per example; in this network the output of one row of x "
                "depends on the others, if only in training mode, as under BatchNorm: use estimator='shared', or put those "
                "layers in evaluation mode (.eval()) before the model is made"
            )
        if taken < rows and model.properties(x).whole:
            yield f"this network can only be called on all {rows} rows of x together: batch_size must be None; got {taken}"

    @property
    def program(self) -> bool:
        """Whether model or guide is a program whose sites only a call shows."""
        return not knows_sites(self.model, self.guide)

    @property
    def networks(self) -> tuple[Any, ...]:
        """Model and guide, if training sets their modes, which it does for the models of `pyrodrop.models`."""
        return (self.model, self.guide) if isinstance(self.model, NetworkModel) else ()

    @property
    def example(self) -> Dataset:
        """The data set, or a minibatch of a loader."""
        assert not isinstance(self.data, Keywords)
        return self.data.sample if isinstance(self.data, Loader) else self.data

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

    def loss(self, batches: Sequence[Arguments], objective: ELBO | None = None) -> Loss:
        """The loss to minimise, with every parameter that Pyro sees in guide and model and all else that a call changes.

        Calls both on the first of the batches, which leaves them and the caller's random state unchanged; a program twice,
        since its first call may change what later calls do not. Networks with running statistics are called on the other
        batches, too.

        Raises:
            ValueError: the network cannot be called on such minibatches, as nn.BatchNorm on one row.
            RuntimeError: there is no parameter.
        """
        batch, programs = batches[0], (self.model, self.guide)
        kind = MeanField(*self.trained) if objective is None else OfPyro(objective, *self.trained)
        with evaluating(self.model), making(batch):
            prepare(self.guide, batch.device, *batch.args, **batch.kwargs)
        with put_back(*programs) as outer:
            if self.program:
                with poutine.trace(param_only=True) as capture:
                    self._call(kind, batch, first=True)  # which sets up what later calls do not
                # parameters of another network in the store under the name of a pyro.module, which Pyro would train instead
                modules: dict[str, Any] = {n: site for n, site in capture.trace.nodes.items() if "$$$" in n}
                outer.forget(
                    [n for n, s in modules.items() if not any(s["value"].unconstrained() is p for p in s["args"])]
                )
            with poutine.trace(param_only=True) as capture, put_back(*programs) as look:
                self._call(kind, batch)
        moving, parameters = Buffers.moved(look, *programs), Parameter.of_sites(capture.trace.nodes)
        if not parameters:
            raise RuntimeError(
                "neither model nor guide has a parameter that Pyro can see, so no step could change anything: parameters "
                "must be pyro.param statements or live in a PyroModule, not in a module reached through a closure. Above "
                "fixed layers guides.ExactLastLayer has none: learn the noise, likelihoods.Gaussian(1.0, learned=True), or "
                "call pyrodrop.last_layer, which trains nothing"
            )
        trained = {name: parameter for name, parameter in parameters.items() if parameter.unconstrained.requires_grad}
        for other in batches[1:] if len(moving) else []:
            with put_back(*programs):
                self._call(kind, other)
        in_modules = {id(p) for part in programs if isinstance(part, nn.Module) for p in part.parameters()}
        in_store = [name for name, parameter in parameters.items() if id(parameter.unconstrained) not in in_modules]
        return Loss(kind, trained, moving, look.changes, in_store, {*capture.trace.nodes} if self.program else ())

    def loss_like(self, other: Problem, loss: Loss) -> Loss:
        """The loss of this problem, whose modules have the same parameters and buffers as another problem's."""
        there = {id(tensor): name for name, tensor in tensors_of(other.model, other.guide).items()}
        here, kind = tensors_of(self.model, self.guide), copy.copy(loss.objective)
        kind.model, kind.guide = self.trained
        parameters = {
            name: Parameter(here[there[id(parameter.unconstrained)]], parameter.constraint)
            for name, parameter in loss.parameters.items()
        }
        every = places_of(self.model, self.guide) if loss.moving else {}
        places = {name: of_buffer for name, of_buffer in every.items() if name in loss.moving.places}
        return Loss(kind, parameters, Buffers((self.model, self.guide), places), loss.changes)

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

    def _call(self, objective: Objective, batch: Arguments, *, first: bool = False) -> None:
        """Call guide and model once; if `first`, with all checks of a program."""
        with seeded(0, batch.device):
            if first and isinstance(objective, MeanField):
                with making(batch):
                    check_differentiable(check_call(self.model, self.guide, *batch.args, **batch.kwargs)[0])
            with torch.no_grad():
                objective.terms(batch)

    def kept(self) -> Kept | None:
        """What the training has changed in the user's own model and guide, as it is now; None for copies."""
        return Kept(self.model, self.guide) if self.in_place else None

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of model and guide that are no parameters: rates, precisions, standardisations, prior scales."""
        priors = self.model.priors if isinstance(self.model, NetworkModel) else {}
        return Buffers((), places_of(self.model, self.guide)).named() | {
            f"prior.{site}.{n}": value for site, prior in priors.items() for n, value in prior.numbers().items()
        }


def trains_in_place(model: Any, modules: Sequence[nn.Module]) -> bool:
    """Whether a program and its modules are trained as they are, and not a copy of them."""
    return not isinstance(model, HasWeights) or any(map(_is_in_store, modules))


def _is_in_store(module: nn.Module) -> bool:
    """Whether Pyro's store has the module's parameters too, by names that a copy would share."""
    return isinstance(module, PyroModule) and not isinstance(module, LocalModule) and bool(module._parameters)


def forget_others(modules: Sequence[nn.Module]) -> None:
    """Delete parameters from Pyro's store that have the name of one of these `PyroModule`s' and are another module's.

    Otherwise the modules would take those in place of their own. Autoguides get names that are free (`prepare`).
    """
    of_autos = {inner for module in modules if isinstance(module, AutoGuide) for inner in module.modules()}
    store = StoreAsItIs().before
    for module in modules:
        if _is_in_store(module) and module not in of_autos:
            for name, parameter in module._parameters.items():
                full = f"{module._pyro_name}.{name}".strip(".").removesuffix("_unconstrained")
                if store.get(full, parameter) is not parameter:
                    forget_in_store(full)


@contextmanager
def training_mode(*problems: Problem) -> Iterator[None]:
    """Have models of `pyrodrop.models` in training mode, and in evaluation mode afterwards, with their guides.

    Submodules of a network that were in training mode when the model was made return to it. The modules of other programs
    keep their present modes.
    """
    for problem in problems:
        if problem.networks:
            problem.model.train()
    try:
        yield
    finally:
        for program in (program for problem in problems for program in problem.networks):
            if isinstance(program, nn.Module):
                program.eval()


def describe(program: Callable[..., Any]) -> str:
    """A model or guide in one line."""
    if hasattr(program, "describe"):
        return str(program.describe())
    function = getattr(program, "func", program)  # of functools.partial
    return getattr(function, "__name__", type(function).__name__)


# Pyro's autoguides. One refers to its model, loses that reference when it is copied or pickled, and creates its parameters
# at its first call, in Pyro's global store under the name of its class, where a second one of that class would silently
# share them. Therefore a guide that contains one is trained in place, together with its model; its parameters are created
# before training begins; and it gets a name that no other existing autoguide has.

_NAMED: weakref.WeakValueDictionary[str, AutoGuide] = weakref.WeakValueDictionary()


def autoguides(guide: Any) -> list[AutoGuide]:
    """Every outermost `AutoGuide` in a guide, which may be the guide itself, or be inside of Pyro's handlers or of the
    variables of a function; an `AutoGuideList` counts as one."""
    autos = [module for module in modules_of(guide).values() if isinstance(module, AutoGuide)]
    inner = {id(module) for auto in autos for module in auto.modules() if module is not auto}
    return [auto for auto in autos if id(auto) not in inner]


def check_model(autos: Sequence[AutoGuide], model: Any) -> None:
    """Raise a ValueError for an autoguide of a module other than the model that is trained, such as a copy of it."""
    for auto in autos:
        made_with = _inside(auto.model)
        if isinstance(made_with, nn.Module) and made_with is not _inside(model):
            raise ValueError(
                "guide: an autoguide belongs to the model that it was made with, which must be the model to be trained; got "
                f"an {type(auto).__name__} that was made with another {type(made_with).__name__}: make it with that model"
            )


def _inside(program: Any) -> Any:
    """The program inside of Pyro's handlers."""
    while isinstance(program, functools.partial):
        of_pyro = bool(program.args) and isinstance(program.args[0], Messenger)  # with the function inside it
        program = program.args[-1] if of_pyro else program.func
    return program


def prepare(guide: Any, device: torch.device, *args: Any, **kwargs: Any) -> None:
    """Create the parameters of all autoguides in `guide` by one call; the caller's random state does not change."""
    autos = autoguides(guide)
    for auto in autos:
        _name_apart(auto)
    modules = [module for auto in autos for module in auto.modules()]
    if any(module.prototype_trace is None for module in modules if isinstance(module, AutoGuide)):
        with seeded(0, device), pyro.poutine.block():
            called("guide", guide, args, kwargs)


def _name_apart(auto: AutoGuide) -> None:
    """Give an autoguide a name that no existing autoguide has and under which Pyro's store has no parameters."""
    old, its_parameters = auto._pyro_name, {id(parameter) for parameter in auto.parameters()}
    stored = [n for n, value in pyro.get_param_store().named_parameters() if id(value) not in its_parameters]
    names = (f"{old}_{number}" if number > 1 else old for number in itertools.count(1))
    free = (n for n in names if _NAMED.get(n, auto) is auto and not any(other.startswith(f"{n}.") for other in stored))
    _NAMED[name := next(free)] = auto
    for module in auto.modules():
        if isinstance(module, PyroModule):
            module._pyro_name = name + module._pyro_name.removeprefix(old)
