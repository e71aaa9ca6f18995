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
from tqdm import tqdm

from pyrodrop.checkpoint import Checkpoint
from pyrodrop.data import Dataset
from pyrodrop.devices import resolve, seeded
from pyrodrop.elbo import elbo_terms
from pyrodrop.fitted import Fit, describe
from pyrodrop.minibatches import Arguments, Minibatches
from pyrodrop.names import known
from pyrodrop.reparam import STRATEGIES, reparameterize

Optimizer = Callable[..., torch.optim.Optimizer]
adam = functools.partial(torch.optim.Adam, fused=True)

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
    }
    start = time.perf_counter()
    with seeded(seed, device):
        parameters = _parameters(*trained, batches.first())
        controls = Controls(lr, schedule, weight, temperature)
        training = Training(*trained, parameters, batches, optimizer, controls, steps, describe(guide).split("(")[0])
        store = None if checkpoint is None else Checkpoint(Path(checkpoint), training, settings)
        if store is not None:
            store.resume()
        training.run(progress, store, checkpoint_every)
    settings["seconds"] = time.perf_counter() - start
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
        parameters: dict[str, Tensor],
        batches: Minibatches,
        optimizer: Optimizer,
        controls: Controls,
        steps: int,
        title: str,
    ) -> None:
        self.model, self.guide, self.batches = model, guide, batches
        self.parameters = parameters
        self.controls, self.title = controls, title
        lr = controls.lr
        rates = [lr(name) if callable(lr) else lr for name in parameters]
        groups = [{"params": [p], "lr": rate} for p, rate in zip(parameters.values(), rates, strict=True)]
        if not callable(lr):
            groups = [{"params": list(parameters.values()), "lr": lr}]
        self.optimizer = optimizer(groups)
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            raise TypeError(
                "optimizer is a torch.optim class or a function called like one, such as "
                f"functools.partial(torch.optim.SGD, momentum=0.9); it gave a {type(self.optimizer).__name__}"
            )
        self.base_rates = [group["lr"] for group in self.optimizer.param_groups]
        self.history = torch.zeros(steps, 3, device=next(iter(parameters.values())).device)
        self.done = 0

    def run(self, progress: bool | None, store: Checkpoint | None, every: int) -> None:
        steps = len(self.history)
        bar = tqdm(
            total=steps, initial=self.done, unit="step", desc=self.title, leave=False,
            disable=None if progress is None else not progress,
        )  # fmt: skip
        with bar:
            while self.done < steps:
                if self.done == 0:
                    self._first_step()
                else:
                    with pyro.validation_enabled(False):
                        self.step()
                if self.done % _LOOK_EVERY == 0 or self.done == steps:
                    self._look()
                    if not bar.disable:
                        nll, kl, _ = self.history[self.done - 1].tolist()
                        bar.set_postfix_str(f"ELBO {-(nll + kl):.4g}", refresh=False)
                bar.update()
                if store is not None and (self.done % every == 0 or self.done == steps):
                    store.save()

    def step(self) -> None:
        """One minibatch, one draw, one move."""
        schedule, kl_weight, temperature = self.controls.schedule, self.controls.kl_weight, self.controls.temperature
        weight = kl_weight(self.done / self.batches.per_epoch)
        if schedule is not None:
            factor = schedule(self.done)
            for group, rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
                group["lr"] = rate * factor
        args, kwargs = self.batches.next()
        terms = elbo_terms(self.model, self.guide, *args, **kwargs)
        self.optimizer.zero_grad()
        (temperature * terms.nll + weight * terms.kl_weights + terms.kl_hyper).backward()
        self.optimizer.step()
        self.history[self.done, 0] = terms.nll.detach()
        self.history[self.done, 1] = terms.kl.detach()
        self.history[self.done, 2] = weight
        self.done += 1

    def _first_step(self) -> None:
        """The first step, with Pyro's validation, and proof that it moved something."""
        before = [p.detach().clone() for p in self.parameters.values()]
        self.step()
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


def _parameters(model: Callable[..., Any], guide: Callable[..., Any], batch: Arguments) -> dict[str, Tensor]:
    """Every parameter that Pyro sees in guide and model, unconstrained, by name."""
    args, kwargs = batch
    with poutine.trace(param_only=True) as capture, torch.no_grad():
        elbo_terms(model, guide, *args, **kwargs)
    sites: dict[str, Any] = dict(capture.trace.nodes)
    found = {name: site["value"].unconstrained() for name, site in sites.items()}
    if not found:
        raise RuntimeError(
            "neither model nor guide has a parameter that Pyro can see, so no step could change anything: parameters must "
            "be pyro.param statements or live in a PyroModule, not in a module reached through a closure"
        )
    return {name: value for name, value in found.items() if value.requires_grad}
