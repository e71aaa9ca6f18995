"""A training under way: parameters, optimiser, rows, losses and the number of steps done.

The session decides learning rates, weights and minibatches; an engine makes the steps: `ByPyro`, or one that it asks
`pyrodrop.compiled` for. `fit` and `Training` are a session of one fit; replicates are one whose tensors have a leading axis
(`pyrodrop.training.replicates`).
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor
from tqdm import tqdm

from pyrodrop.changes import Flags, Kept, evaluating, modules_of
from pyrodrop.checks import count, real, shown
from pyrodrop.data.loader import Loader
from pyrodrop.devices import denormals_flushed, random_states, set_random_states
from pyrodrop.files import check_writable, read_tensors, under, write_tensors
from pyrodrop.models.network import NetworkModel
from pyrodrop.private_apis import StoreAsItIs, pyro_handlers, without_compiler
from pyrodrop.steps import Arguments, Engine, Loss, Objective, OfPyro, Plan, Update, does_more
from pyrodrop.training.checkpoint import Checkpoint, as_tensor, check_same, fingerprint, record
from pyrodrop.training.problem import Problem, describe
from pyrodrop.training.result import Fit
from pyrodrop.training.rows import rows_of
from pyrodrop.training.settings import LearningRate, Optimizer, Settings

_log = logging.getLogger("pyrodrop")

AfterEpoch = Callable[[Fit, Any], object]

CHECK_EVERY = 100  # steps between checks of the losses: each waits for the device


def check_after_epoch(after_epoch: Any) -> None:
    """Raise an error unless the argument is None or a function, which may have an attribute ``every``."""
    if after_epoch is not None and not callable(after_epoch):
        raise TypeError(
            f"after_epoch must be a function of a fit and the number of epochs, or None; got {shown(after_epoch)}"
        )
    if (every := getattr(after_epoch, "every", None)) is not None:
        count(every, "after_epoch.every", "the number of steps from one call to the next, or None,")


class ByPyro(Engine):
    """Steps by Pyro's handlers, for any model and guide: draw from the guide, evaluate the loss, differentiate, update.

    This is the definition; the faster engines of `pyrodrop.compiled` agree with it.

    Args:
        as_svi: whether a parameter that has had a gradient and gets none gets 0, as in `pyro.infer.SVI` and in recorded
            steps: the optimiser's momentum then continues to move it.
    """

    name = "pyro"

    def __init__(self, objective: Objective, optimizer: torch.optim.Optimizer, *, as_svi: bool = False) -> None:
        self.objective, self.update, self.as_svi = objective, Update(optimizer), as_svi

    def step(self, batch: Arguments, index: int) -> Tensor:
        self.update.clear()
        terms = self.objective.backward(batch, self.plan.weights[index])
        if self.as_svi:
            self.update.fill()
        self.update(self.plan.rates[index])
        return terms

    def finish(self, steps: int) -> None:
        self.update.clear()


class Session:
    """A training under way.

    Args:
        problem: to train, in training mode, with the training's random state.
        settings: of the training.

    Attributes:
        parameters: those that the optimiser changes, by name; with a leading axis for replicates.
        replicates: shape of the losses of a step: () or [R].
        engine: that made the last step. The first step is made with Pyro's validation.
        done: number of steps made so far.
        checked: number of steps whose losses are known to be finite.
        history: nll, kl and the weight of the KL divergence for every step, ``[at least done, ..., 3]``.
        record: the settings in plain numbers and words.
        saving: where and when `run` saves the state; None for nowhere.
    """

    replicates: tuple[int, ...] = ()
    saving: Checkpoint | None = None
    _saved: int | None = None  # steps of the state in the file
    _fingerprint: dict[str, str]  # of the run before its first step
    engine: Engine
    _first: Engine

    def __init__(self, problem: Problem, settings: Settings) -> None:
        self.problem = problem
        loads = isinstance(problem.model, NetworkModel) and isinstance(problem.data, Loader)
        check = problem.model.targets_check(problem.example.x) if loads else None
        rows = rows_of(problem.data, settings.batch_size, settings.place, check=check)
        samples = rows.samples(settings.steps)
        self.loss: Loss = problem.loss(samples, settings.objective)
        leaves = {name: parameter.unconstrained for name, parameter in self.loss.parameters.items()}
        self._begin(settings, leaves, rows, describe(problem.guide).split("(")[0])
        self._first = self.engine = ByPyro(self.loss.objective, self.optimizer, as_svi=problem.program)
        self.record = record(settings, problem, settings.seed)
        if self.loss.in_store:
            self.record["in_store"] = list(self.loss.in_store)
        self._note()

    def _begin(self, settings: Settings, parameters: Mapping[str, Tensor], rows: Any, title: str) -> None:
        self.settings, self.parameters, self.rows, self.title = settings, parameters, rows, title
        self.optimizer = optimizer_of(parameters, settings.optimizer, settings.lr, stacked=bool(self.replicates))
        self._rates: list[Any] = [group["lr"] for group in self.optimizer.param_groups]
        device = next(iter(parameters.values())).device
        self.history: Tensor = torch.zeros(settings.steps or 0, *self.replicates, 3, dtype=torch.float32, device=device)
        self.done = self.checked = 0
        self._chosen = False
        if settings.average and len(self.loss.moving):
            raise ValueError(
                "average must be 0 where steps update buffers of the network, as nn.BatchNorm does in training mode, which "
                f"are not those of the mean weights; got {settings.average}"
            )

    def run(self, progress: bool | None, after_epoch: AfterEpoch | None = None) -> None:
        """Make all remaining steps, unless `after_epoch` ends the training before.

        Args:
            progress: whether to show a progress bar; if None, where the output is a terminal.
            after_epoch: called with the fit and the number of epochs done, after every epoch or `every` steps.
        """
        steps, per_epoch, saving = len(self.history), self.rows.per_epoch, self.saving
        stops = [CHECK_EVERY]
        stops += [saving.every] if saving is not None else []
        stops += [getattr(after_epoch, "every", None) or per_epoch] if after_epoch is not None else []
        # the means of parameters over the last share of all steps, of some hundred that are evenly spaced
        span, counted = math.floor(self.settings.average * steps), 0
        every, means = max(1, span // 100), [torch.zeros_like(p) for p in self.parameters.values()] if span else []
        stops += [every] if span else []
        bar = tqdm(
            total=steps, initial=self.done, unit="step", desc=self.title, leave=False,
            disable=None if progress is None else not progress,
        )  # fmt: skip
        with bar, denormals_flushed():
            ended = self.done > 0 and self._ends(after_epoch)
            while self.done < steps and not ended:
                if self.done == 0:
                    self.first_step()
                else:
                    # by all steps, so that a run that was interrupted takes the same engine as one that was not
                    self.choose_engine(steps - 1)
                    with pyro.validation_enabled(False):
                        self.advance(min(steps, *((self.done // n + 1) * n for n in stops)))
                        self.check_finite()
                if self.done > steps - span and self.done % every == 0:
                    counted += 1
                    for mean, parameter in zip(means, self.parameters.values(), strict=True):
                        mean.lerp_(parameter.detach(), 1 / counted)
                if saving is not None and (self.done % saving.every == 0 or self.done == steps):
                    self.save()
                ended = self._ends(after_epoch)
                if not bar.disable:
                    loss = float(self.history[self.done - 1, ..., :2].sum(-1).nanmedian())
                    bar.set_postfix_str(f"loss {loss:.4g}", refresh=False)
                    bar.update(self.done - bar.n)
            self.check_finite(whole=True)
            self.engine.check(self.done)
        self.engine.finish(self.done)
        with torch.no_grad():
            for mean, parameter in zip(means if counted else (), self.parameters.values(), strict=False):
                parameter.copy_(mean)
        if ended and saving is not None and self.done < steps:
            self.save()

    def result(self, *, ended: bool = False, **more: Any) -> Fit:
        """The fit with its present parameters and losses, of its own if training has `ended`; `more` adds settings."""
        kept = self.problem.kept() if ended else None
        return self.fit_of(self.problem, self.history[: self.done].clone().cpu(), {**self.record, **more}, kept)

    def fit_of(self, problem: Problem, history: Tensor, about: dict[str, Any], kept: Kept | None = None) -> Fit:
        """The fit of a problem of this session."""
        place = self.settings.place
        return Fit(problem.model, problem.guide, problem.data, history, about, place, kept, self.settings)

    def _ends(self, after_epoch: AfterEpoch | None) -> bool:
        """Call `after_epoch` if it is due. Returns whether training ends. Its random draws do not affect training."""
        per_epoch, done = self.rows.per_epoch, self.done
        at_end = hasattr(after_epoch, "every") and done == self.settings.steps
        if after_epoch is None or (done % (getattr(after_epoch, "every", None) or per_epoch) and not at_end):
            return False
        epochs = done / per_epoch if done % per_epoch else done // per_epoch
        devices = [self.history.device] if self.history.is_cuda else []
        with torch.random.fork_rng(devices), evaluating(*self.problem.networks):
            answer = after_epoch(self.result(), epochs)
        self.engine.called(done)
        return isinstance(answer, bool | np.bool_) and bool(answer)  # and not another true value, such as a score

    def first_step(self) -> None:
        """Make the first step, with Pyro's validation; a RuntimeError if it changes no parameter."""
        if isinstance(self.loss.objective, OfPyro):
            self.loss.objective.begin()
        before = [p.detach().clone() for p in self.parameters.values()]
        self.advance(1)
        self.check_finite(whole=True)
        if all(torch.equal(b, p.detach()) for b, p in zip(before, self.parameters.values(), strict=True)):
            raise RuntimeError(
                f"the first step moved none of the {len(before)} parameters ({', '.join(self.parameters)}): "
                "the loss does not depend on them, or the learning rate is 0"
            )

    def choose_engine(self, steps: int) -> None:
        """Choose the engine for `steps` steps, unless it is chosen already."""
        if not self._chosen:
            self.engine, self._chosen = self._faster(steps) or self._first, True

    def _faster(self, steps: int) -> Engine | None:
        """An engine of `pyrodrop.compiled` for `steps` steps; None if Pyro makes them."""
        wanted, data = self.settings.engine, self.problem.data
        if wanted == "auto" and isinstance(data, Loader) and data.varies:  # every shape would be traced
            wanted = "pyro"
        if wanted == "pyro":
            return None
        from pyrodrop.compiled import Accelerated

        made = Accelerated(
            self.loss, self.optimizer, self.rows.samples, wanted, self.settings.steps, program=self.problem.program
        )
        return made if made.record(self.done, steps) else None

    def reserve(self, steps: int) -> None:
        """Make room in the history for `steps` steps."""
        if steps > len(self.history):
            longer = self.history.new_zeros(max(steps, 2 * len(self.history), 1000), *self.history.shape[1:])
            longer[: self.done] = self.history[: self.done]
            self.history = longer

    def advance(self, end: int) -> None:
        """Make the steps up to number `end`, without waiting for the device."""
        with pyro.poutine.infer_config(config_fn=self._check_site) if self.loss.sites else nullcontext():
            self._advance(end)

    def _check_site(self, site: Any) -> Any:
        """Raise an error at a parameter that the first call of a program did not read, unless the loss object reads it."""
        if site["type"] == "param" and site["name"] not in self.loss.sites and len(pyro_handlers()) > 1:
            raise RuntimeError(
                f"the parameter {site['name']} is read by a later call of the program, and by the first was not, so that no "
                "step would change it: read it in every call, or use pyrodrop.compile_svi, which trains it from there"
            )
        return {}

    def _advance(self, end: int) -> None:
        while self.done < end:
            if not self.engine.holds(self.done, self._changed()):
                self.engine = self._first
            first, until = self.done, self.engine.until(self.done, end)
            self.reserve(until)
            weights = [self.settings.kl_factor(n / self.rows.per_epoch) for n in range(first, until)]
            scales = [self.settings.lr_factor(n) for n in range(first, until)]
            self.engine.begin(Plan(first, weights, [[rate * scale for rate in self._rates] for scale in scales]))
            column = torch.tensor(weights).to(self.history)
            self.history[first:until, ..., 2] = column.reshape(-1, *(1,) * len(self.replicates))
            try:
                self.engine.advance(self.rows, until - first)
            finally:
                if made := self.engine.made:
                    if first == 0:  # in the dtype of the loss, if that is more precise than float32
                        self.history = self.history.to(torch.promote_types(self.history.dtype, made[0].dtype))
                    self.history[first : first + len(made), ..., :2] = torch.stack(made)
                    self.done += len(made)

    def check_finite(self, *, whole: bool = False) -> None:
        """Raise a FloatingPointError if a loss is not finite; with replicates, if none of them is.

        Args:
            whole: whether to also check parameters, and buffers that a step updates for NaN, before the next loss shows
                them.
        """
        finite = torch.isfinite(self.history[self.checked : self.done, ..., :2]).all(-1)
        bad = (~(finite.any(1) if self.replicates else finite)).nonzero()
        if len(bad):
            step = self.checked + int(bad[0])
            nll, kl, _ = self.history[step].reshape(-1, 3)[0].tolist()
            terms = f"nll {nll:g}, kl {kl:g}" if self.settings.objective is None else f"{nll:g}"
            broken = self._broken()
            after = f" After step {self.done - 1}, {broken} is not finite." if broken else ""
            self._fail(f"the loss stopped being finite at step {step}: {terms}.{after}")
        if whole and (broken := self._broken()):
            self._fail(f"{broken} stopped being finite at step {self.done - 1}.")
        self.checked = self.done

    def _broken(self) -> str:
        """The first parameter or buffer that is not finite, if any; waits for the device."""
        named = {name: ~torch.isfinite(value) for name, value in self.parameters.items()}
        named |= {name: torch.isnan(value) for name, value in self.loss.moving.named().items()}
        return next((name for name, wrong in named.items() if bool(wrong.any())), "")

    def _fail(self, what: str) -> None:
        where = ""
        if self.saving is not None and self._saved is not None:
            where = (
                f" The file {self.saving.path} has the state after {self._saved} steps: the same call with another lr "
                "continues from there."
            )
        raise FloatingPointError(
            f"{what} Try a smaller learning rate, a smaller initial scale, or standardised data.{where}"
        )

    def open(self, saving: Checkpoint) -> None:
        """Continue from the state in a file if it exists, and save the state there while running.

        Raises:
            ValueError: it is not a whole state, or the state of another run, or of more steps than this session has; a step
                changes Python attributes, which the state does not contain.
            OSError: the file cannot be read or written.
        """
        if self.loss.changes:
            raise ValueError(
                "the state of a training consists of the parameters and buffers of modules, but "
                f"{self.loss.changes}: register what must be saved as a buffer (register_buffer)"
            )
        check_writable(saving.path)
        self.saving, self._fingerprint = saving, fingerprint(self.settings, self.problem, self.loss, self.optimizer)
        if not saving.path.exists():
            return
        state, name = read_tensors(saving.path)[0], f"the checkpoint {saving.path}"
        check_same(state.get("run"), self._fingerprint, name)
        trained, history, device = self._trained(), state.get("history", torch.empty(0)), self.history.device
        like, there = ({n: (of[n].shape, of[n].dtype) for n in trained if n in of} for of in (trained, state))
        if like != there or history.dim() != 2 or history.shape[1] != 3 or not history.is_floating_point():
            wrong = [n for n in like if like[n] != there.get(n)] or ["history"]
            raise ValueError(f"{name} is damaged: {', '.join(wrong)} is missing, or has another shape or dtype")
        if (done := len(history)) > (steps := len(self.history)):
            raise ValueError(f"{name} has done {done} steps already; steps must be at least that, got {steps}")
        try:
            set_random_states(under("random.", state), device)
            self.rows.load(under("batches.", state), name)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{name} is damaged, or of another version of PyTorch: {error}") from error
        with torch.no_grad():
            for key, value in trained.items():
                value.copy_(state[key])
        own: dict[int, dict[str, Tensor]] = {}
        for key, value in under("optimizer.", state).items():
            own.setdefault(int(key.split(".")[0]), {})[key.split(".", 1)[1]] = value
        with without_compiler():
            self.optimizer.load_state_dict({"state": own, "param_groups": self.optimizer.state_dict()["param_groups"]})
        self.history = self.history.to(history.dtype)
        self.history[:done] = history.to(device)
        self.done = self.checked = self._saved = done

    def save(self) -> None:
        """Write the state to the file, in place of what is there; if that fails, or is refused, the file stays as it was.

        It has all that the next steps depend on: parameters, buffers, the optimiser's state, place in the epoch, losses,
        torch's random state, and the fingerprint of the run.

        Raises:
            FloatingPointError: a loss, a parameter or a buffer is not finite.
        """
        assert self.saving is not None
        self.check_finite(whole=True)
        self.engine.finish(self.done)
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        each = [(i, entry) for i, p in enumerate(parameters) for entry in self.optimizer.state.get(p, {}).items()]
        state = {
            **self._trained(),
            **{f"optimizer.{i}.{key}": torch.as_tensor(value) for i, (key, value) in each if value is not None},
            "history": self.history[: self.done],
            **{f"batches.{key}": value for key, value in self.rows.state().items()},
            **{f"random.{kind}": value for kind, value in random_states(self.history.device).items()},
            "run": as_tensor(self._fingerprint),
        }
        write_tensors(self.saving.path, state, {"settings": self.record})
        self._saved = self.done

    def _trained(self) -> dict[str, Tensor]:
        """Parameters and buffers, by reference."""
        state = {f"parameter.{n}": p for n, p in self.parameters.items()}
        return state | {f"buffer.{n}": b for n, b in self.problem.buffers(self.loss).items()}

    def _note(self) -> None:
        """Note flags, modes and objects of all modules and parameters, which user code may change while training."""
        leaves = self.parameters
        self._flags = Flags(modules_of(self.problem.model, self.problem.guide), leaves)
        learning = {id(p) for p in (*self._flags.parameters.values(), *leaves.values()) if p.requires_grad}
        self._learning, self._known = learning, learning | set(map(id, leaves.values()))
        self._store = StoreAsItIs(self._known)

    def _changed(self) -> str:
        """The flag, mode or object of a module or parameter that has changed since the last call; empty if there is none.

        Raises:
            RuntimeError: a parameter has been replaced, or one requires a gradient that did not before.
        """
        replaced, name = self._store.replaced(), self._flags.changed()
        if not replaced and not name:
            return ""
        known = self._known
        self._note()
        new = [name for name, p in self._flags.parameters.items() if id(p) in self._learning - known]
        if new or replaced:
            raise RuntimeError(
                f"the parameter {(new or replaced)[0]} has been replaced, or requires a gradient and did not when the "
                "training began, so that no step would change it: change values in place (copy_), and let parameters "
                "require a gradient before the training, which may freeze them"
            )
        return name


# Those that update every entry by its own gradient alone.
_ELEMENTWISE = {
    torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.ASGD,
    torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.SGD,
}  # fmt: skip


def optimizer_of(
    parameters: Mapping[str, Tensor], optimizer: Optimizer, lr: LearningRate, *, stacked: bool = False
) -> torch.optim.Optimizer:
    """The optimiser of these parameters: one group, or one per parameter where `lr` is a function of the name.

    Args:
        lr: learning rate, or a function from a parameter's name to it.
        stacked: whether the first axis of every parameter is that of independent fits.

    Raises:
        TypeError: `optimizer` does not return a `torch.optim.Optimizer`, or `lr` no number.
        ValueError: a learning rate is negative, NaN or infinite; the optimiser fails for these parameters, decays them,
            maximises, does not step by one dense gradient, or, if stacked, may mix the gradients of independent fits.
    """
    for parameter in parameters.values():
        parameter.data = parameter.data.contiguous()  # as torch's fused Adam assumes, even of a transposed weight
    groups = [{"params": list(parameters.values()), "lr": lr}]
    if callable(lr):
        what = "the learning rate, here by its function for {!r},"
        rates = {name: real(lr(name), "lr", what.format(name), least=0) for name in parameters}
        groups = [{"params": [parameter], "lr": rates[name]} for name, parameter in parameters.items()]
    try:
        with without_compiler():
            made: Any = optimizer(groups)
    except Exception as error:  # the optimiser's own checks may raise anything
        raise ValueError(
            f"optimizer could not be made for the {len(groups)} groups of parameters of this fit; it says: {error}"
        ) from error
    name = type(made).__name__
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(
            "optimizer must be a torch.optim class or a function with the same arguments, such as "
            f"functools.partial(torch.optim.SGD, momentum=0.9); it returned a {name}"
        )
    if any(group.get("weight_decay", 0) != 0 for group in made.param_groups):
        raise ValueError(
            "optimizer must have weight_decay 0: the penalty of the weights is the model's prior, and a decay would be "
            f"another one, also of log scales, which the ELBO does not have; got {name}: use "
            f"functools.partial(torch.optim.{name}, weight_decay=0) and a prior, such as priors.Gaussian(scale=...)"
        )
    if any(group.get("maximize") for group in made.param_groups):
        raise ValueError(f"optimizer must minimise, since the loss is minus the ELBO; got {name} with maximize=True")
    closure = inspect.signature(made.step).parameters.get("closure")
    if isinstance(made, torch.optim.SparseAdam) or (closure is not None and closure.default is closure.empty):
        raise ValueError(
            f"optimizer must step by one dense gradient; got {name}: use torch.optim.Adam or SGD, or a loop of your own "
            "around Pyro's ELBO()(model, guide)"
        )
    if stacked and (type(made) not in _ELEMENTWISE or does_more(made)):
        raise ValueError(
            "replicates are trained as one stack of parameters, which needs an optimiser of torch.optim that updates every "
            f"entry by its own gradient alone, as Adam and SGD do, without hooks; got {name}: use one of those, or fit one "
            "by one"
        )
    return made
