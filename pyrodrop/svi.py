"""Training a guide by stochastic variational inference.

    loss = temperature * nll + kl_weight * kl(weights) + kl(hyperparameters)

Every step draws once from the guide, takes the gradient of the loss on a minibatch, and lets the optimiser move the
parameters of guide and model. With both factors 1 the loss is minus the ELBO. Minibatches run through a fresh permutation
of the data in every epoch.
"""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuide
from torch import Tensor
from torch.distributions import constraints
from tqdm import tqdm

from pyrodrop.checkpoint import Checkpoint
from pyrodrop.data import Dataset
from pyrodrop.devices import resolve, seeded
from pyrodrop.fitted import Fit, describe
from pyrodrop.minibatches import Minibatches
from pyrodrop.names import known
from pyrodrop.reparam import STRATEGIES, reparameterize
from pyrodrop.stepper import NAMES, Engine, Parameter, Plan, Pyro, choose
from pyrodrop.stepper import Name as EngineName
from pyrodrop.stepper.graph import Batch, evaluate

Optimizer = Callable[..., torch.optim.Optimizer]
adam = functools.partial(torch.optim.Adam, fused=True)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_LOOK_EVERY = 100  # steps between looks at the losses: each waits for the device


def fit(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    data: Dataset | tuple[Tensor, Tensor],
    *,
    steps: int,
    batch_size: int | None = None,
    lr: float | Callable[[str], float] = 1e-3,
    optimizer: Optimizer = adam,
    schedule: Callable[[int], float] | None = None,
    estimator: Literal["shared", "per_example", "local", "flipout"] = "shared",
    kl_weight: float | Callable[[float], float] = 1.0,
    temperature: float = 1.0,
    engine: EngineName = "auto",
    precision: Literal["float32", "bfloat16"] | None = None,
    device: str | torch.device = "auto",
    seed: int = 0,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10_000,
) -> Fit:
    """Train a guide of a model on data.

    Works on copies: `model` and `guide` stay as they are, the trained ones are ``Fit.model`` and ``Fit.guide``, so one
    model serves many guides and the same call gives the same result. Pyro's autoguides, and whatever else keeps its
    parameters in Pyro's global store, are trained in place.

    Args:
        model: a Pyro model ``model(x, y)``, and ``model(x, y, num_data=N)`` if it is to be trained on minibatches.
        guide: its guide, called with the same arguments.
        data: a `Dataset` or a pair (x, y), in their own units. Where the data carry a standardisation, a model of
            `pyrodrop.models` takes it over.
        steps: number of gradient steps.
        batch_size: rows of a minibatch; all rows if None.
        lr: learning rate, or a function from a parameter's name to it.
        optimizer: a `torch.optim` class, or anything called like one; Adam if left out.
        schedule: factor of the learning rate at step 0, 1, ...
        estimator: how a minibatch shares noise, see `pyrodrop.reparam`: one weight draw for all of it (``shared``), one an
            example, noise on the activations (``local``: `torch.nn.Dropout` is that), or flipped signs. The expected
            gradient is the same, its variance is not.
        kl_weight: factor of the weights' divergence in the loss, at least 0: a number, or a function of the epochs done,
            such as ``schedules.linear(20)``. Likelihood and hyperparameters keep theirs; `Fit.elbo` knows nothing of it.
        temperature: Psaros' beta, positive: the likelihood to that power, whose posterior is tempered.
        engine: who makes the steps, see `pyrodrop.stepper`: ``pyro``, ``traced``, ``compiled``, or ``auto``, which weighs
            the work against the time of tracing and compiling. All draw the same noise; what cannot be traced is trained
            by Pyro, and the log of `pyrodrop` says why.
        precision: dtype of matrix products, ``bfloat16`` for autocast; divergences stay in the parameters' own. None for
            the parameters' own throughout.
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:1`` ...
        seed: of minibatches and noise. The same seed on the same machine with as many threads gives the same bits;
            the caller's random state is left alone.
        progress: whether to show a progress bar; if None, where the output is a terminal.
        checkpoint: file to save the whole state of training to, every `checkpoint_every` steps, and to go on from if
            it exists: the result is that of a run that was never interrupted.

    Raises:
        ValueError: before the first step, for data, shapes, settings or a device that cannot be trained with.
        RuntimeError: a step moves no parameter, as when a model reaches its network through a closure.
        FloatingPointError: the loss is no longer finite.
    """
    if steps < 1:
        raise ValueError(f"steps is the number of gradient steps and must be at least 1; got {steps}")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size is the number of rows of a minibatch and must be at least 1; got {batch_size}")
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(
            f"temperature is the power of the likelihood and must be positive and finite; got {temperature}"
        )
    weight = kl_weight if callable(kl_weight) else (lambda _: float(kl_weight))
    if not (math.isfinite(weight(0.0)) and weight(0.0) >= 0):
        raise ValueError(
            f"kl_weight is the factor of the divergence and must be finite and at least 0; got {weight(0.0)}"
        )
    known(engine, NAMES, "engine")
    dtype = None if precision is None else _DTYPES[known(precision, _DTYPES, "precision")]
    data = Dataset.of(data)
    device = resolve(device)
    if isinstance(guide, AutoGuide):
        model = copy.deepcopy(model)
    else:
        model, guide = copy.deepcopy((model, guide))
    if hasattr(model, "standardize"):
        model.standardize(data)
    if hasattr(model, "check"):
        model.check(data)
    for part in (model, guide):
        if isinstance(part, torch.nn.Module):
            part.to(device)
    batches = Minibatches(data, batch_size, device)
    batches.check(model, guide)
    strategy = STRATEGIES[known(estimator, STRATEGIES, "estimator")]
    trained = (model, guide) if strategy is None else reparameterize(model, guide, strategy)

    settings = {
        "model": describe(model),
        "guide": describe(guide),
        "steps": steps,
        "batch_size": batches.size,
        "num_data": len(data),
        "seed": seed,
        "device": device.type,
        "estimator": estimator,
        "kl_weight": "scheduled" if callable(kl_weight) else kl_weight,
        "temperature": temperature,
        "precision": precision,
    }
    start = time.perf_counter()
    with seeded(seed, device):
        parameters = _parameters(*trained, batches.first(), dtype)
        controls = Controls(lr, schedule, weight, temperature)
        training = Training(*trained, parameters, batches, optimizer, controls, steps, engine, dtype)
        store = None if checkpoint is None else Checkpoint(Path(checkpoint), training, settings)
        if store is not None:
            store.resume()
        training.run(progress, store, checkpoint_every)
    settings["seconds"] = time.perf_counter() - start
    settings["engine"] = training.engine.name
    return Fit(model=model, guide=guide, data=data, history=training.history.cpu(), settings=settings, device=device)


class Controls(NamedTuple):
    """How large each part of a step is: learning rate by name and its schedule, weights of divergence and likelihood."""

    lr: float | Callable[[str], float]
    schedule: Callable[[int], float] | None
    kl_weight: Callable[[float], float]
    temperature: float


class Training:
    """The state of training between two steps, and the step."""

    def __init__(
        self,
        model: Callable[..., Any],
        guide: Callable[..., Any],
        parameters: dict[str, Parameter],
        batches: Minibatches,
        optimizer: Optimizer,
        controls: Controls,
        steps: int,
        engine: EngineName,
        precision: torch.dtype | None,
    ) -> None:
        self.batches = batches
        self.parameters = {name: p.unconstrained for name, p in parameters.items()}
        self.controls, self.title = controls, describe(guide).split("(")[0]
        lr = controls.lr
        rates = [lr(name) if callable(lr) else lr for name in parameters]
        groups = [{"params": [p], "lr": rate} for p, rate in zip(self.parameters.values(), rates, strict=True)]
        if not callable(lr):
            groups = [{"params": list(self.parameters.values()), "lr": lr}]
        self.optimizer = optimizer(groups)
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            raise TypeError(
                "optimizer is a torch.optim class or a function called like one, such as "
                f"functools.partial(torch.optim.SGD, momentum=0.9); it gave a {type(self.optimizer).__name__}"
            )
        self.base_rates = [group["lr"] for group in self.optimizer.param_groups]
        self.history = torch.zeros(steps, 3, device=next(iter(self.parameters.values())).device)
        self.done = 0
        self.engine: Engine = Pyro(model, guide, self.optimizer, precision)
        self._choose = functools.partial(choose, engine, self.engine, parameters)

    def run(self, progress: bool | None, store: Checkpoint | None, every: int) -> None:
        steps = len(self.history)
        bar = tqdm(
            total=steps, initial=self.done, unit="step", desc=self.title, leave=False,
            disable=None if progress is None else not progress,
        )  # fmt: skip
        with bar:
            if self.done == 0:
                self._first_step()
            if self.done < steps:
                self.engine = self._choose(self.batches.first(), steps - self.done)
            with pyro.validation_enabled(False):
                while self.done < steps:
                    self._block(min(steps, _next_multiple(self.done, _LOOK_EVERY)), store, every)
                    self._look()
                    if not bar.disable:
                        nll, kl, _ = self.history[self.done - 1].tolist()
                        bar.set_postfix_str(f"ELBO {-(nll + kl):.4g}", refresh=False)
                        bar.update(self.done - bar.n)
        self.engine.finish(self.done)

    def _block(self, end: int, store: Checkpoint | None = None, every: int = 0) -> None:
        """The steps up to number `end`. Nothing in them waits for the device."""
        first = self.done
        plan = self._plan(first, end)
        self.engine.begin(plan)
        self.history[first:end, 2] = torch.tensor([weight for _, weight in plan.factors])
        for row in self.history[first:end, :2].unbind(0):
            row.copy_(self.engine.step(self.batches.next(), self.done - first))
            self.done += 1
            if store is not None and (self.done % every == 0 or self.done == len(self.history)):
                self.engine.finish(self.done)
                store.save()

    def _plan(self, first: int, end: int) -> Plan:
        schedule, kl_weight, temperature = self.controls.schedule, self.controls.kl_weight, self.controls.temperature
        numbers = range(first, end)
        factors = [(temperature, kl_weight(n / self.batches.per_epoch)) for n in numbers]
        scales = [1.0 if schedule is None else schedule(n) for n in numbers]
        return Plan(first, factors, [[rate * scale for rate in self.base_rates] for scale in scales])

    def _first_step(self) -> None:
        """The first step, with Pyro's validation, and proof that it moved something."""
        before = [p.detach().clone() for p in self.parameters.values()]
        self._block(1)
        self._look()
        if all(torch.equal(b, p.detach()) for b, p in zip(before, self.parameters.values(), strict=True)):
            raise RuntimeError(
                f"the first step moved none of the {len(before)} parameters ({', '.join(self.parameters)}): "
                "the loss does not depend on them, or the learning rate is 0"
            )

    def _look(self) -> None:
        recent = self.history[max(0, self.done - _LOOK_EVERY) : self.done]
        bad = (~torch.isfinite(recent).all(1)).nonzero()
        if len(bad):
            step = max(0, self.done - _LOOK_EVERY) + int(bad[0])
            nll, kl, _ = self.history[step].tolist()
            raise FloatingPointError(
                f"the loss stopped being finite at step {step}: nll {nll:g}, kl {kl:g}. A smaller learning rate, a smaller "
                "initial scale or standardised data are what usually helps."
            )


def _next_multiple(n: int, of: int) -> int:
    return (n // of + 1) * of


def _parameters(
    model: Callable[..., Any], guide: Callable[..., Any], batch: Batch, precision: torch.dtype | None
) -> dict[str, Parameter]:
    """Every parameter that Pyro sees in guide and model, by name."""
    with poutine.trace(param_only=True) as capture, torch.no_grad():
        evaluate(model, guide, batch, precision)
    sites: dict[str, Any] = dict(capture.trace.nodes)
    found = {
        name: Parameter(site["value"].unconstrained(), site["kwargs"].get("constraint", constraints.real))
        for name, site in sites.items()
    }
    if not found:
        raise RuntimeError(
            "neither model nor guide has a parameter that Pyro can see, so no step could change anything: parameters must "
            "be pyro.param statements or live in a PyroModule, not in a module reached through a closure"
        )
    return {name: parameter for name, parameter in found.items() if parameter.unconstrained.requires_grad}
