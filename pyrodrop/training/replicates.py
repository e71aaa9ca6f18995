"""Many independent fits at once.

    fit(models, guides, data, replicates=R)  =  [fit(models[r], guides[r], data[r], seed=seed + r) for r in range(R)]

as one step of stacked parameters (`pyrodrop.engines.stacked`). Replicates may differ in data of equal shapes, initial
values, noise, minibatches, drop rates, precisions and scales of Gaussian priors; everything else is the same. They start
from the weights that the model has, and with ``starts="new"`` from new ones each (`pyrodrop.restart`), as deep ensembles do.
Every replicate moves the buffers of its own network, running statistics among them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyro
import torch
from torch import Tensor, fx
from torch.distributions import Independent

from pyrodrop.devices import seeded
from pyrodrop.engines import Batch, Engine, Name, Untraceable, evaluate, worth_compiling
from pyrodrop.engines.graph import near, trace
from pyrodrop.engines.stacked import Stacked, StackedCompiled
from pyrodrop.inputs import parts
from pyrodrop.networks.modes import undisturbed
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.training.fitted import Fit, describe
from pyrodrop.training.loop import Controls, LearningRate, Optimizer, Training, optimizer_of
from pyrodrop.training.minibatches import StackedMinibatches
from pyrodrop.training.problem import Problem

_log = logging.getLogger("pyrodrop")


@dataclass
class Replicates(Sequence[Fit]):
    """R fits, as a list.

    Attributes:
        fits: one a replicate; one that failed is as it was before the step that failed.
        failed: of every replicate whose loss or gradient stopped being finite, the number of that step.
    """

    fits: list[Fit]
    failed: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.fits)

    def __getitem__(self, index: Any) -> Any:
        return self.fits[index]

    def __iter__(self) -> Iterator[Fit]:
        return iter(self.fits)

    def predict(self, x: Tensor, num_samples: int = 1000, *, seed: int = 0) -> Prediction:
        """Predict as an ensemble: the equal mixture of all replicates that did not fail.

        Args:
            x: points, ``[N, ...]``.
            num_samples: draws in all, at least one a replicate; each gives an equal share, rounded up.
            seed: of the draws.
        """
        members = [fit for number, fit in enumerate(self.fits) if number not in self.failed]
        if num_samples < len(members):
            raise ValueError(
                f"num_samples must be at least one draw for each of {len(members)} replicates; got {num_samples}"
            )
        share = -(-num_samples // len(members))
        parts = [fit.predict(x, share, seed=seed + number) for number, fit in enumerate(members)]
        law = _joined([part.law for part in parts])
        return Prediction(f=torch.cat([part.f for part in parts]), law=law, seed=seed)


@dataclass(frozen=True)
class Settings:
    """What all replicates are trained with; see `pyrodrop.fit`."""

    steps: int
    batch_size: int | None
    lr: LearningRate
    optimizer: Optimizer
    controls: Controls
    engine: Name
    precision: torch.dtype | None
    device: torch.device
    progress: bool | None
    memory: float | None


def fit_replicates(
    problems: Sequence[Problem], seeds: Sequence[int], settings: Settings, about: Mapping[str, Any]
) -> Replicates:
    """Train all, as many at a time as fit into memory."""
    generators = [torch.Generator(settings.device).manual_seed(seed) for seed in seeds]
    chunk = Stack(problems[:1], generators[:1], settings).fitting()
    if chunk < len(problems):
        _log.info("training %d of %d replicates at a time, by their memory", chunk, len(problems))
    fits: list[Fit] = []
    failed: dict[int, int] = {}
    for first in range(0, len(problems), chunk):
        part = slice(first, first + chunk)
        done, broken = Stack(problems[part], generators[part], settings).train(about, seeds[part])
        fits += done
        failed |= {first + number: step for number, step in broken.items()}
    for number, step in failed.items():
        _log.warning("replicate %d stopped at step %d: its loss or gradient was not finite", number, step)
    return Replicates(fits, failed)


class Stack:
    """Replicates that are trained together.

    Args:
        problems: one a replicate, alike but for their tensors.
        generators: one a replicate.
        settings: of all.

    Raises:
        ValueError: they are not alike.
    """

    def __init__(self, problems: Sequence[Problem], generators: Sequence[torch.Generator], settings: Settings) -> None:
        self.problems, self.settings = problems, settings
        self.batches = StackedMinibatches([p.data for p in problems], settings.batch_size, generators, settings.device)
        batch = self.batches.first()
        self.each = [problem.parameters(batch.at(r), settings.precision) for r, problem in enumerate(problems)]
        changed = [problem.changes for problem in problems if problem.changes]
        if changed:
            raise _refusal(f"{changed[0]}, which a trace would freeze")
        samples = self.batches.samples(settings.steps)
        problems[0].try_([sample.at(0) for sample in samples[1:]], settings.precision)
        self.generators = generators
        self.held = [problem.tensors() for problem in problems]
        for r, (own, held) in enumerate(zip(self.each, self.held, strict=True)):
            shapes = [{n: v.shape for n, v in each.items()} for each in (held, self.held[0])]
            shapes[0] |= {n: p.unconstrained.shape for n, p in own.items()}
            shapes[1] |= {n: p.unconstrained.shape for n, p in self.each[0].items()}
            for of, problem in zip(shapes, (problems[r], problems[0]), strict=True):
                of |= {f"moving buffer {n}": b.shape for n, b in problem.moving.named().items()}
            other = sorted(n for n in shapes[0].keys() | shapes[1].keys() if shapes[0].get(n) != shapes[1].get(n))
            if other:
                raise ValueError(f"replicate {r} differs from replicate 0 in what it is made of: {', '.join(other)}")

    def fitting(self) -> int:
        """How many replicates the memory holds, at least 1."""
        first = self.problems[0]
        batch = self.batches.first().at(0)
        try:
            graph = trace(*first.trained, self.each[0], batch, self.settings.precision, first.moving)
        except Untraceable as error:
            raise _refusal(str(error)) from error
        weights = sum(p.unconstrained.nbytes for p in self.each[0].values())
        need = 5 * weights + _peak(graph.module.graph) + sum(x.nbytes for x in parts(first.data.x))
        budget = self.settings.memory or 0.5 * _available(self.settings.device)
        return max(1, int(budget // need))

    def training(self) -> Training:
        """The training of all, before its first step."""
        settings, count = self.settings, len(self.problems)
        self.stacked = {
            name: torch.stack([own[name].unconstrained.detach() for own in self.each]).requires_grad_()
            for name in self.each[0]
        }
        optimizer = optimizer_of(self.stacked, settings.optimizer, settings.lr, stacked=True)
        self.engine = engine = Stacked(
            self.problems[0].trained, self.each[0], list(self.stacked.values()), self.held, self.generators, optimizer,
            settings.precision, [problem.moving for problem in self.problems],
        )  # fmt: skip
        for batch in self.batches.samples(settings.steps):
            self._verify(engine, batch)
        return Training(
            self.stacked, self.batches, optimizer, settings.controls, settings.steps,
            first=engine, choose=lambda batches, steps: self._choose(engine, batches, steps),
            title=f"{count} x {describe(self.problems[0].guide).split('(')[0]}", replicates=(count,),
        )  # fmt: skip

    def train(self, about: Mapping[str, Any], seeds: Sequence[int]) -> tuple[list[Fit], dict[int, int]]:
        """Train all; the fits, and the step of every one that failed."""
        settings, count = self.settings, len(self.problems)
        start = time.perf_counter()
        training = self.training()
        training.run(settings.progress)
        seconds = time.perf_counter() - start
        with torch.no_grad():
            for name, values in self.stacked.items():
                for own, value in zip(self.each, values, strict=True):
                    own[name].unconstrained.copy_(value)
        for r, problem in enumerate(self.problems):
            problem.moving.take([buffer[r] for buffer in self.engine.buffers])
        history = training.history.cpu()
        fits = [
            Fit(
                model=problem.model,
                guide=problem.guide,
                data=problem.data,
                history=history[:, r].contiguous(),
                settings={
                    **about,
                    "model": describe(problem.model),
                    "guide": describe(problem.guide),
                    "seed": seeds[r],
                    "num_data": len(problem.data),
                    "noise_by_row": problem.noise_by_row(),
                    "data_fingerprint": problem.data.fingerprint,
                    "batch_size": self.batches.size,
                    "engine": training.engine.name,
                    "replicates": count,
                    "seconds": seconds,
                },
                device=settings.device,
            )
            for r, problem in enumerate(self.problems)
        ]
        lived = self.engine.lived.tolist()
        return fits, {r: lived[r] for r in (~self.engine.alive).nonzero().flatten().tolist()}

    def _choose(self, engine: Stacked, batches: Sequence[Batch], steps: int) -> Engine:
        name = self.settings.engine
        if name == "traced" or (
            name == "auto" and not worth_compiling(engine.graph(batches[0]).graph, steps, len(self.held))
        ):
            return engine
        try:
            compiled = StackedCompiled(engine)
            for batch in batches:
                compiled.prepare(batch)
            return compiled
        except Untraceable as error:
            _log.warning("training replicates without compiling: %s", error)
            return engine

    def _verify(self, engine: Stacked, batch: Batch) -> None:
        """Every replicate's loss and moved buffers by the stacked graph are those that its own model and guide give."""
        states = [generator.get_state() for generator in self.generators]
        try:
            graph = engine.graph(batch)
            with torch.no_grad():
                controls = torch.ones(2).to(engine.leaves[0])
                inputs = (*engine.buffers, *batch.tensors, controls, *graph.constants, *graph.draw())
                terms, *results = graph.module(*engine.leaves, *inputs)
        except Exception as error:  # an operation that cannot be mapped over replicates
            words = str(error) if isinstance(error, Untraceable) else f"it cannot be mapped over replicates: {error}"
            raise _refusal(words.splitlines()[0]) from error
        moved = results[len(engine.leaves) :]
        for r, (problem, generator, state) in enumerate(zip(self.problems, self.generators, states, strict=True)):
            generator.set_state(state)
            with torch.no_grad(), pyro.validation_enabled(False), seeded(0, batch.device):
                _set_state(state, batch.device)
                with undisturbed(problem.model, problem.guide):
                    alone = evaluate(*problem.trained, batch.at(r), self.settings.precision)
                    buffers = [buffer.detach().clone() for buffer in problem.moving.tensors()]
            want = torch.stack([alone.nll, alone.kl])
            tolerance = 0.05 if self.settings.precision is not None else 1e-3
            if not torch.allclose(want, terms[r], rtol=tolerance, atol=1e-4, equal_nan=True):
                raise ValueError(
                    f"replicate {r} differs from replicate 0 in more than replicates can: data, initial values, drop rates, "
                    f"alphas, precisions and scales of Gaussian priors; its loss alone is {want.tolist()}, stacked "
                    f"{terms[r].tolist()}"
                )
            if not all(near(own, got[r], tolerance) for own, got in zip(buffers, moved, strict=True)):
                raise _refusal("it moves the buffers of its network in another way for many replicates than for one")


def _refusal(why: str) -> ValueError:
    return ValueError(
        f"replicates are one traced step, for which this model and guide will not do: {why}. Fit one by one"
    )


def _joined(laws: Sequence[Any]) -> Any:
    """Laws of one kind, one behind the other along their first axis."""
    first = laws[0]
    if isinstance(first, Independent):
        return _joined([law.base_dist for law in laws]).to_event(first.reinterpreted_batch_ndims)
    names = [n for n in first.arg_constraints if n in first.__dict__] or list(first.arg_constraints)
    try:
        return type(first)(**{n: torch.cat([getattr(law, n) for law in laws]) for n in names})
    except (TypeError, AttributeError) as error:
        raise TypeError(
            "replicates predict as a mixture of their distributions of y, which is made of the parameters of each; "
            f"{type(first).__name__} is not made of {', '.join(names) or 'parameters'}: predict with each fit by itself"
        ) from error


def _set_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def _peak(graph: fx.Graph) -> int:
    """Largest number of bytes that the graph's results hold at a time."""
    last = {used: node for node in graph.nodes for used in node.all_input_nodes}
    live = peak = 0
    ends: dict[fx.Node, list[fx.Node]] = {}
    for used, node in last.items():
        ends.setdefault(node, []).append(used)
    for node in graph.nodes:
        live += _bytes(node)
        peak = max(peak, live)
        live -= sum(_bytes(used) for used in ends.get(node, []))
    return peak


def _bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0


def _available(device: torch.device) -> float:
    """Free bytes of the device's memory."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
