"""A training under way: parameters, optimiser, rows, losses and the number of steps done.

The session decides learning rates, factors and minibatches; an engine makes the steps: `ByPyro`, or one that it asks
`pyrodrop.compiled` for. `fit` and `Training` are a session of one fit; replicates are one whose tensors have a leading axis
(`pyrodrop.training.replicates`).
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyro
import torch
from pyro.optim import PyroOptim
from torch import Tensor
from tqdm import tqdm

from pyrodrop.changes import Flags, Kept, evaluating, modules_of
from pyrodrop.checks import count, real, shown
from pyrodrop.data.loader import Loader
from pyrodrop.devices import denormals_flushed, random_states, set_random_states
from pyrodrop.files import check_writable, read_tensors, under, write_tensors
from pyrodrop.private_apis import StoreAsItIs, without_compiler
from pyrodrop.steps import Engine, Loss, Plan, Update
from pyrodrop.training.checkpoint import Checkpoint, as_tensor, check_same, fingerprint, record
from pyrodrop.training.problem import Problem, describe
from pyrodrop.training.result import Fit
from pyrodrop.training.rows import rows_of
from pyrodrop.training.settings import LearningRate, Optimizer, Settings
from pyrodrop.training.step import ByPyro

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
    engine: Engine
    _first: Engine

    def __init__(self, problem: Problem, settings: Settings) -> None:
        self.problem = problem
        rows = rows_of(problem.data, settings.batch_size, settings.place, check=problem.targets_check())
        samples = rows.samples(settings.steps)
        self.loss: Loss = problem.loss(samples, settings.objective)
        self._sample = samples[0]
        leaves = {name: parameter.unconstrained for name, parameter in self.loss.parameters.items()}
        self._begin(settings, leaves, rows, describe(problem.guide).split("(")[0])
        self._first = self.engine = ByPyro(self.loss.objective, self.optimizer, as_svi=problem.program)
        self.record = record(settings, problem, settings.seed)
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
        mean = _Mean(self.parameters, steps, self.settings.average)
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
                        self.advance(min(steps, mean.next(self.done), *((self.done // n + 1) * n for n in stops)))
                        self.check_finite()
                mean.add(self.done)
                if saving is not None and (self.done % saving.every == 0 or self.done == steps):
                    self.save()
                ended = self._ends(after_epoch)
                if not bar.disable:
                    loss = self.history[self.done - 1, ..., :2].sum(-1).nanmedian()
                    words = "nll + kl" if self.settings.objective is None else "loss"
                    epochs = f"epoch {self.done / per_epoch:.1f}, " if per_epoch > 1 else ""
                    bar.set_postfix_str(f"{epochs}{words} {float(loss):.4g}", refresh=False)
                    bar.update(self.done - bar.n)
            self.check_finite(whole=True)
            self.engine.check(self.done)
        self.engine.finish(self.done)
        mean.take()
        if ended and saving is not None and self.done < steps:
            self.save()

    def result(self, *, ended: bool = False, **more: Any) -> Fit:
        """The fit with its present parameters and losses, of its own if training has `ended`; `more` adds settings."""
        kept = self.problem.kept() if ended else None
        return self.fit_of(self.problem, self.history[: self.done].clone().cpu(), {**self.record, **more}, kept)

    def fit_of(self, problem: Problem, history: Tensor, about: dict[str, Any], kept: Kept | None) -> Fit:
        """The fit of a problem of this session."""
        place, objective = self.settings.place, self.settings.objective
        return Fit(problem.model, problem.guide, problem.data, history, about, place, objective, kept, self.settings)

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
        self._guess()
        before = [p.detach().clone() for p in self.parameters.values()]
        self.advance(1)
        self.check_finite(whole=True)
        if all(torch.equal(b, p.detach()) for b, p in zip(before, self.parameters.values(), strict=True)):
            raise RuntimeError(
                f"the first step moved none of the {len(before)} parameters ({', '.join(self.parameters)}): "
                "the loss does not depend on them, or the learning rate is 0"
            )

    def _guess(self) -> None:
        """Draw the random numbers that Pyro draws before the first step."""
        if self.loss.objective.guesses:
            self.loss.objective.guess(self._sample)

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

    def forget_engine(self) -> None:
        """Return to the engine of the first step, for example after the optimiser's state was replaced."""
        self.engine, self._chosen = self._first, False

    def reserve(self, steps: int) -> None:
        """Make room in the history for `steps` steps."""
        if steps > len(self.history):
            longer = self.history.new_zeros(max(steps, 2 * len(self.history), 1000), *self.history.shape[1:])
            longer[: self.done] = self.history[: self.done]
            self.history = longer

    def advance(self, end: int) -> None:
        """Make the steps up to number `end`, without waiting for the device."""
        while self.done < end:
            if not self.engine.holds(self.done, self._changed()):
                self.engine = self._first
            first, until = self.done, self.engine.until(self.done, end)
            self.reserve(until)
            factors = [self.settings.factors(n / self.rows.per_epoch) for n in range(first, until)]
            scales = [self.settings.lr_factor(n) for n in range(first, until)]
            self.engine.begin(Plan(first, factors, [[rate * scale for rate in self._rates] for scale in scales]))
            weights = torch.tensor([weight for _, weight in factors]).to(self.history)
            self.history[first:until, ..., 2] = weights.reshape(-1, *(1,) * len(self.replicates))
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
        """The parameters and buffers that are not finite; waits for the device."""
        named = {**self.parameters, **self.loss.moving.named()}
        sums = torch.stack([value.detach().sum().double() for value in named.values()])
        if bool(torch.isfinite(sums).all()):  # then all values are
            return ""
        wrong = {n: ~torch.isfinite(v) if n in self.parameters else torch.isnan(v) for n, v in named.items()}
        names = [name for name, value in wrong.items() if bool(value.any())]
        more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        return f"{names[0]}{more}" if names else ""

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
            ValueError: as `load`; or a step changes Python attributes, which the state does not contain.
            OSError: the file cannot be read or written.
        """
        self._check_attributes()
        check_writable(saving.path)
        self.saving, _ = saving, self.fingerprint
        if saving.path.exists():
            self.load(read_tensors(saving.path)[0], f"the checkpoint {saving.path}")
            self._saved = self.done

    def save(self) -> None:
        """Write the state to the file, in place of what is there; if that fails, or is refused, the file stays as it was."""
        assert self.saving is not None
        write_tensors(self.saving.path, self.state(), {"settings": self.record})
        self._saved = self.done

    @functools.cached_property
    def fingerprint(self) -> dict[str, dict[str, str]]:
        """What the run is made of, to be computed before its first step; see `check_same`."""
        return fingerprint(self.settings, self.problem, self.loss, self.optimizer)

    def state(self) -> dict[str, Tensor]:
        """All that the next steps depend on, by name and by reference: parameters, buffers, the optimiser's state, place in
        the epoch, losses, torch's random state at this moment, and the fingerprint of the run.

        Raises:
            ValueError: a step changes Python attributes, which the state does not contain.
            FloatingPointError: a loss, a parameter or a buffer is not finite.
        """
        self._check_attributes()
        self.check_finite(whole=True)
        self.engine.finish(self.done)
        optimizer = {f"optimizer.{key}": value for key, value in _named(self.optimizer).items()}
        whole = {"entries": torch.tensor(len(optimizer)), "run": as_tensor(self.fingerprint)}
        return {**self._trained(), **optimizer, **self._place(), **whole}

    def load(self, state: Mapping[str, Tensor], name: str) -> None:
        """Continue from what `state` returned, with torch's random state of that moment; `name` says what it is in messages.

        Raises:
            ValueError: it is not a whole state, or the state of another run, or of more steps than this session has. Nothing
                is changed then.
        """
        trained, steps = self._trained(), self.settings.steps
        check_same(state.get("run"), self.fingerprint, name)
        mine, optimizer = _named(self.optimizer), under("optimizer.", state)
        missing = [n for n in (*trained, *self._place(), "entries") if n not in state]
        if not missing and int(state["entries"]) != len(optimizer):
            missing = ["entries of the optimizer"]
        if missing:
            raise ValueError(f"{name} is not whole: it lacks {', '.join(missing)}")
        wrong = [n for n, value in trained.items() if not _alike(state[n], value)]
        wrong += [n for n in mine.keys() & optimizer.keys() if not _alike(optimizer[n], mine[n])]
        if wrong:
            raise ValueError(
                f"{name} is of another model or guide: {', '.join(wrong)} has another shape or dtype there"
            )
        history, random, device = state["history"], under("random.", state), self.history.device
        if history.dim() != 2 or history.shape[1] != 3 or not history.is_floating_point():
            form = f"{list(history.shape)} of {history.dtype}"
            raise ValueError(f"{name} must have three numbers for every step in its history; it has shape {form}")
        done = len(history)
        if steps is not None and done > steps:
            raise ValueError(f"{name} has done {done} steps already; steps must be at least that, got {steps}")
        for kind in random_states(device):
            try:
                torch.Generator(kind).set_state(random[kind].cpu())
            except (RuntimeError, TypeError) as error:
                raise ValueError(
                    f"{name} has no random state of this version of PyTorch, random.{kind}: {error}"
                ) from None
        self.rows.load(under("batches.", state), name)  # the last check
        with torch.no_grad():
            for key, value in trained.items():
                value.copy_(state[key])
        if not _load(self.optimizer, optimizer) or done == 0:
            self.forget_engine()
        set_random_states(random, device)
        self.history = self.history.to(history.dtype)
        self.reserve(done)
        self.history[:done] = history.to(device)
        self.done = self.checked = done

    def _trained(self) -> dict[str, Tensor]:
        """Parameters and buffers, by reference."""
        state = {f"parameter.{n}": p for n, p in self.parameters.items()}
        return state | {f"buffer.{n}": b for n, b in self.problem.buffers(self.loss).items()}

    def _place(self) -> dict[str, Tensor]:
        """Where the session is: its losses, the place in the epoch, and the states of the random generators."""
        batches = {f"batches.{key}": value for key, value in self.rows.state().items()}
        random = {f"random.{kind}": value for kind, value in random_states(self.history.device).items()}
        return {"history": self.history[: self.done], **batches, **random}

    def _check_attributes(self) -> None:
        if self.loss.changes:
            raise ValueError(
                "the state of a training consists of the parameters and buffers of modules, but "
                f"{self.loss.changes}: register what must be saved as a buffer (register_buffer)"
            )

    def _note(self) -> None:
        """Note flags, modes and objects of all modules and parameters, which user code may change while training."""
        leaves = self.parameters
        self._flags = Flags(modules_of(self.problem.model, self.problem.guide), leaves)
        learning = {id(p) for p in (*self._flags.parameters.values(), *leaves.values()) if p.requires_grad}
        self._learning, self._known = learning, learning | set(map(id, leaves.values()))
        self._store = StoreAsItIs()

    def _changed(self) -> str:
        """The flag, mode or object of a module or parameter that has changed since the last call; empty if there is none.

        Raises:
            RuntimeError: a parameter has been replaced, or one requires a gradient that did not before.
        """
        replaced = [name for name in self._store.replaced() if id(self._store.before[name]) in self._known]
        name = self._flags.changed()
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


class _Mean:
    """The mean of parameters over the last share of all steps, of some hundred that are evenly spaced."""

    def __init__(self, parameters: Mapping[str, Tensor], steps: int, share: float) -> None:
        self.parameters, self.count = list(parameters.values()), 0
        self.first, self.steps = steps - math.floor(share * steps), steps
        self.every = max(1, (steps - self.first) // 100)
        self.means = [torch.zeros_like(parameter) for parameter in self.parameters] if self.first < steps else []

    def next(self, done: int) -> int:
        """The number of steps after which the next parameters count."""
        return self.first + max(0, (done - self.first) // self.every + 1) * self.every if self.means else self.steps

    def add(self, done: int) -> None:
        if self.means and done > self.first and (done - self.first) % self.every == 0:
            self.count += 1
            for mean, parameter in zip(self.means, self.parameters, strict=True):
                mean.lerp_(parameter.detach(), 1 / self.count)

    @torch.no_grad()
    def take(self) -> None:
        """Give the parameters their means."""
        for mean, parameter in zip(self.means if self.count else (), self.parameters, strict=False):
            parameter.copy_(mean)


# Of steps that test whether an optimiser is elementwise. A limit of the norm of gradients shows at large ones.
_LR, _SIZE = 0.01, 1e12


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
            does not step by one dense gradient, or, if stacked, mixes the gradients of independent fits.
    """
    of_pyro = isinstance(optimizer, PyroOptim) or getattr(optimizer, "__module__", "").startswith("pyro.optim.pytorch")
    if of_pyro or optimizer in (pyro.optim.ClippedAdam, pyro.optim.DCTAdam, pyro.optim.AdagradRMSProp):
        raise TypeError(
            "optimizer must be a torch.optim class or a function with the same arguments; got one of pyro.optim, which get "
            "their parameters from Pyro's SVI: use the same optimiser of torch.optim, or "
            "pyro.optim.clipped_adam.ClippedAdam, which is a torch.optim class"
        )
    for parameter in parameters.values():
        parameter.data = parameter.data.contiguous()  # as torch's fused Adam assumes, even of a transposed weight
    groups = [{"params": list(parameters.values()), "lr": lr}]
    if callable(lr):
        what = "the learning rate, here by its function for {!r},"
        rates = {name: real(lr(name), "lr", what.format(name), least=0) for name in parameters}
        groups = [{"params": [parameter], "lr": rates[name]} for name, parameter in parameters.items()]
    made = _made(optimizer, groups)
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(
            "optimizer must be a torch.optim class or a function with the same arguments, such as "
            f"functools.partial(torch.optim.SGD, momentum=0.9); it returned a {type(made).__name__}"
        )
    decay = next((group["weight_decay"] for group in made.param_groups if group.get("weight_decay", 0) != 0), None)
    if decay is not None:
        name = type(made).__name__
        raise ValueError(
            "optimizer must have weight_decay 0: the penalty of the weights is the model's prior, and a decay would be "
            f"another one, also of log scales, which the ELBO does not have; got {name} with weight_decay={decay}: use "
            f"functools.partial(torch.optim.{name}, weight_decay=0) and a prior, such as priors.Gaussian(scale=...)"
        )
    closure = inspect.signature(made.step).parameters.get("closure")
    if isinstance(made, torch.optim.SparseAdam) or (closure is not None and closure.default is closure.empty):
        raise ValueError(
            f"optimizer must step by one dense gradient; got {type(made).__name__}: use torch.optim.Adam or SGD, or a loop "
            "of your own around Pyro's ELBO()(model, guide)"
        )
    if stacked:
        _check_elementwise(optimizer)
    return made


def _made(optimizer: Optimizer, groups: Sequence[Mapping[str, Any]]) -> Any:
    try:
        with without_compiler():
            return optimizer(groups)
    except Exception as error:  # the optimiser's own checks may raise anything
        raise ValueError(
            f"optimizer could not be made for the {len(groups)} groups of parameters of this fit; it says: {error}"
        ) from error


def _check_elementwise(optimizer: Optimizer) -> None:
    """Raise a ValueError unless the optimiser updates two stacked parameters as it would update each alone."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    gradients = torch.randn(3, 2, 4, 3, generator=generator, dtype=torch.float64)
    gradients *= torch.tensor([_SIZE, 100 * _SIZE]).reshape(2, 1, 1)

    def moved(start: Tensor, steps: Tensor) -> Tensor:
        parameter = torch.nn.Parameter(start.clone())
        update = Update(_made(optimizer, [{"params": [parameter], "lr": _LR}]))  # as in training, without the compiler
        for gradient in steps:
            parameter.grad = gradient.clone()
            update([_LR])
        return parameter.detach() - start

    alone = torch.stack([moved(values[r], gradients[:, r]) for r in range(2)])
    if not torch.allclose(moved(values, gradients), alone, rtol=1e-4, atol=1e-6 * float(alone.abs().max())):
        name = getattr(optimizer, "__name__", type(optimizer).__name__)
        raise ValueError(
            "replicates are trained as one stack of parameters, which needs an optimiser that updates every entry by "
            f"its own gradient alone, as Adam and SGD do; got {name}: use one of those, or fit one by one"
        )


def _named(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimiser by name: number of the parameter and entry."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries = [
        (i, entry) for i, parameter in enumerate(parameters) for entry in optimizer.state.get(parameter, {}).items()
    ]
    return {f"{i}.{key}": torch.as_tensor(value) for i, (key, value) in entries if value is not None}


def _load(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> bool:
    """Load the state of an optimiser; returns whether into its present tensors, to which a compiled engine refers."""
    mine = _named(optimizer)
    entries = optimizer.state.values()
    if mine.keys() == tensors.keys() and all(isinstance(v, Tensor) for e in entries for v in e.values()):
        for name, value in mine.items():
            value.copy_(tensors[name])
        return True
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    with without_compiler():
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return False


def _alike(there: Tensor, here: Tensor) -> bool:
    return there.shape == here.shape and there.dtype == here.dtype
