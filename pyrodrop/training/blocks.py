"""Replicates in blocks, which are units of work for several processes (`pyrodrop.training.jobs`).

The blocks depend on the call and not on the workers, so any number of workers gives the same bits. A block is

    1 replicate       where the arithmetic of one takes longer than the calls of its operations
    up to 95          where it does not, for the engine `traced`; the replicates of one call of the program for `compiled`

Blocks of the second kind have the bits of the call in one process. Vector instructions round differently from those that
compute the rest of a tensor, and a stack that is cut at a multiple of 32 replicates has the same rest. A replicate alone is
the same as in a stack up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from pyrodrop.arguments import MOST
from pyrodrop.data import Dataset, Keywords
from pyrodrop.devices import available
from pyrodrop.engines import Untraceable, worth_compiling
from pyrodrop.engines.graph import Graph
from pyrodrop.engines.stacked_compiled import block_size
from pyrodrop.training.calls import batches_of
from pyrodrop.training.fitted_replicates import Replicates, grouped, merged, of_all
from pyrodrop.training.jobs import pickled, run_each
from pyrodrop.training.problem import Problem, training_mode
from pyrodrop.training.settings import Settings
from pyrodrop.training.stack import form_of

_LANES = 32  # entries of float32 in two of the widest vectors, which PyTorch's operations compute at a time
_LIGHT = 64  # replicates in a block, besides a rest of less than 32
_CALL_SECONDS, _ELEMENT_SECONDS = 5e-6, 1e-9  # of an operation, and of an element of its result


@dataclass(frozen=True)
class Block:
    """Some replicates of a call.

    Attributes:
        settings: of the call, with the engine that the call in one process takes.
    """

    numbers: list[int]
    settings: Settings


class Parts:
    """What replicates are made of: a pair of model and guide, or a list of them, and data sets."""

    def __init__(
        self, pairs: Sequence[tuple[Any, Any]], sets: Sequence[Dataset | Keywords], seeds: Sequence[int]
    ) -> None:
        self.pairs: Sequence[tuple[Any, Any]] = pairs
        self.sets: Sequence[Dataset | Keywords] = sets
        self.seeds: Sequence[int] = seeds

    def __len__(self) -> int:
        return len(self.seeds)

    def some(self, numbers: Sequence[int]) -> Parts:
        """Those of some replicates."""
        pairs = self.pairs if len(self.pairs) == 1 else [self.pairs[r] for r in numbers]
        return Parts(pairs, [self.sets[r] for r in numbers], [self.seeds[r] for r in numbers])

    def pair(self, replicate: int) -> tuple[Any, Any]:
        """Model and guide of one replicate, which others may share."""
        return self.pairs[0 if len(self.pairs) == 1 else replicate]


Train = Callable[[Parts, Settings, float | None, bool | None], tuple[Replicates, FloatingPointError | None]]


def train_in_blocks(
    train: Train, parts: Parts, settings: Settings, memory: float | None, progress: bool | None, jobs: int | None
) -> tuple[Replicates, FloatingPointError | None]:
    """All replicates, trained in blocks by several processes; with an error where none of them has a finite loss.

    Args:
        memory: bytes for the processes of this machine together, or for each worker of a cluster.

    Raises:
        ValueError: several processes of this machine would share a GPU.
        TypeError: model, guide or settings cannot be sent to another process.
    """
    if settings.place.type != "cpu" and jobs is not None and jobs > 1:
        raise ValueError(
            f"replicates train on {settings.place} together, in one process: jobs must be None; got {jobs}"
        )
    for name, values in (("a model", [m for m, _ in parts.pairs]), ("a guide", [g for _, g in parts.pairs])):
        pickled({name: values})
    names = ("optimizer", "lr", "lr_schedule", "kl_weight")
    pickled({f"the {name} of the call": getattr(settings, name) for name in names})
    if jobs is not None and jobs > 1:
        memory = min(memory or 0.5 * available(settings.place), MOST) / jobs
    blocks = blocks_of(parts, settings)
    arguments = ((train, parts.some(block.numbers), block.settings, memory) for block in blocks)
    done = run_each(
        _trained, arguments, len(blocks), jobs=jobs, title=f"{len(parts)} replicates", unit="block", progress=progress
    )
    replicates = merged((block.numbers, some) for block, (some, _) in zip(blocks, done, strict=True))
    fits = [replace(fit, data=data) for fit, data in zip(replicates, parts.sets, strict=True)]
    return replace(replicates, fits=fits), of_all([error for _, error in done])


def _trained(
    train: Train, parts: Parts, settings: Settings, memory: float | None
) -> tuple[Replicates, FloatingPointError | None]:
    """A block without its data, which need not be sent."""
    done, error = train(parts, settings, memory, False)
    return replace(done, fits=[replace(fit, data=None) for fit in done]), error


def blocks_of(parts: Parts, settings: Settings) -> list[Block]:
    """The blocks of a call. Networks of different widths, and data of different sizes, are in different ones."""
    blocks = []
    for group in grouped(_shapes(parts, r) for r in range(len(parts))):
        graph = _graph(parts, group[0], settings)
        if graph is None:  # what training raises for it
            blocks.append(Block(group, settings))
            continue
        assert settings.steps is not None
        compiled = settings.engine == "compiled" or (
            settings.engine == "auto" and worth_compiling(graph, settings.steps - 1, len(group))
        )
        of_group = replace(settings, engine="compiled" if compiled else "traced")
        sizes = block_sizes(len(group), heavy=_heavy(graph), program=block_size(len(group)) if compiled else None)
        firsts = [sum(sizes[:n]) for n in range(len(sizes))]
        blocks += [Block(group[first : first + size], of_group) for first, size in zip(firsts, sizes, strict=True)]
    return blocks


def block_sizes(count: int, *, heavy: bool, program: int | None) -> list[int]:
    """The sizes of the blocks of so many equal replicates.

    Args:
        heavy: whether the arithmetic of one replicate takes longer than the calls of its operations.
        program: the number of replicates of a call of the compiled program; None for the engine `traced`.
    """
    if heavy:
        return [1] * count
    if program is not None:
        return [program] * (count // program)
    lanes, rest = divmod(count, _LANES)
    if lanes < 2:
        return [_LANES, rest] if lanes and rest > 1 else [count]
    blocks = max(2, -(-count // _LIGHT))
    each, more = divmod(lanes, blocks)
    sizes = [_LANES * (each + (number < more)) for number in range(blocks)]
    sizes[-1] += rest
    return sizes


def _shapes(parts: Parts, replicate: int) -> Hashable:
    """What `pyrodrop.training.stack.shapes_of` says of a replicate, before its training is prepared."""
    pair, data = parts.pair(replicate), parts.sets[replicate]
    tensors = [part.state_dict().items() for part in pair if isinstance(part, nn.Module)]
    priors = getattr(pair[0], "priors", {})
    tensors += [{f"{site}.{n}": v for n, v in prior.numbers().items()}.items() for site, prior in priors.items()]
    shapes = [(name, value.shape, str(value.dtype)) for of_module in tensors for name, value in of_module]
    return (tuple(map(type, pair)), *shapes, form_of(data))


def _graph(parts: Parts, replicate: int, settings: Settings) -> Graph | None:
    """The graph of the gradient of a replicate; None if it cannot be traced."""
    problem = Problem.of(*parts.pair(replicate), parts.sets[replicate], settings.estimator, settings.place)
    with settings.products(), training_mode(problem):
        batch = batches_of(problem.in_memory, settings).first()
        loss = problem.loss(batch, settings.dtype, settings.objective)
        try:
            return loss.graph(batch)
        except Untraceable:
            return None


def _heavy(graph: Graph) -> bool:
    """Whether the arithmetic of a step takes longer than the calls of its operations; by sizes and never by a clock."""
    return graph.entries * _ELEMENT_SECONDS > len(graph.operations) * _CALL_SECONDS
