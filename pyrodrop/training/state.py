"""The state of a training between two steps, as tensors by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pyrodrop.training.loop import Loop


class State:
    """Reads and writes the state of a loop: parameters, buffers, optimiser, random state, place in the epoch, losses.

    Args:
        loop: whose state it is.
        buffers: returns the buffers that the steps update, by name.
    """

    def __init__(self, loop: Loop, buffers: Callable[[], Mapping[str, Tensor]]) -> None:
        self.loop, self.buffers = loop, buffers

    def tensors(self) -> dict[str, Tensor]:
        """The state by name; tensors of the loop are not copied. The random state is torch's own at this moment."""
        loop = self.loop
        loop.engine.finish(loop.done)
        found = self._own()
        found |= {f"optimizer.{key}": value for key, value in self._optimizer().items()}
        found["history"] = loop.history[: loop.done]
        found["batches.order"] = loop.batches.order
        found["batches.position"] = torch.tensor(loop.batches.position)
        found["random.cpu"] = torch.get_rng_state()
        if loop.history.is_cuda:
            found["random.cuda"] = torch.cuda.get_rng_state(loop.history.device)
        return found

    def load(self, tensors: Mapping[str, Tensor], position: int, name: str) -> None:
        """Set the loop, its buffers and torch's random state to a state that was read before.

        Args:
            tensors: as of `tensors`, but for the position.
            position: the place in the epoch.
            name: of the state, for messages.

        Raises:
            ValueError: it is not a whole state, or the state of another model, guide or data set, or of more steps than the
                loop has. Nothing is changed then.
        """
        own = self._own()
        self._check(tensors, position, own, name)
        loop, done = self.loop, len(tensors["history"])
        if loop.steps is not None and done > loop.steps:
            raise ValueError(f"{name} has done {done} steps already; steps must be at least that, got {loop.steps}")
        with torch.no_grad():
            for key, value in own.items():
                value.copy_(tensors[key])
        self._load_optimizer(
            {k.removeprefix("optimizer."): v for k, v in tensors.items() if k.startswith("optimizer.")}
        )
        loop.reserve(done)
        loop.history[:done] = tensors["history"].to(loop.history.device)
        loop.batches.order = tensors["batches.order"].to(loop.history.device)
        loop.batches.position = position
        loop.done = done
        if done == 0:
            loop.forget_engine()
        torch.set_rng_state(tensors["random.cpu"])
        if loop.history.is_cuda:
            torch.cuda.set_rng_state(tensors["random.cuda"], loop.history.device)

    def _check(self, tensors: Mapping[str, Tensor], position: int, own: Mapping[str, Tensor], name: str) -> None:
        """Raise a ValueError unless these tensors are a whole state of this model, guide and data set."""
        wrong = [n for n, value in own.items() if n not in tensors or tensors[n].shape != value.shape]
        if wrong:
            raise ValueError(
                f"{name} is of another model or guide: {', '.join(wrong)} of this run is missing there or has another shape"
            )
        batches, random = self.loop.batches, "random.cuda" if self.loop.history.is_cuda else "random.cpu"
        missing = [n for n in ("history", "batches.order", "random.cpu", random) if n not in tensors]
        if missing:
            raise ValueError(f"{name} is not whole: it lacks {', '.join(dict.fromkeys(missing))}")
        order = tensors["batches.order"]
        rows = batches.num_rows if order.numel() else 0
        if order.shape != (rows,) or not torch.equal(order.sort().values.cpu(), torch.arange(rows)):
            raise ValueError(
                f"{name} is of other data: its order of the rows must be a permutation of {batches.num_rows}; "
                f"it has shape {tuple(order.shape)}"
            )
        end = batches.per_epoch * batches.size if rows else 0
        if not 0 <= position <= end:
            raise ValueError(f"{name} must be at a place in the epoch from 0 to {end}; got {position}")
        optimizer = {n: v for n, v in self._optimizer().items() if f"optimizer.{n}" in tensors}
        other = [n for n, v in optimizer.items() if tensors[f"optimizer.{n}"].shape != v.shape]
        if other:
            raise ValueError(f"{name} is of another optimizer: {', '.join(other)} of this run has another shape there")

    def _own(self) -> dict[str, Tensor]:
        """Parameters and buffers, by reference."""
        own = {f"parameter.{n}": p for n, p in self.loop.parameters.items()}
        return own | {f"buffer.{n}": b for n, b in self.buffers().items()}

    def _optimizer(self) -> dict[str, Tensor]:
        state = self.loop.optimizer.state_dict()["state"]
        return {
            f"{i}.{key}": torch.as_tensor(v) for i, entry in state.items() for key, v in entry.items() if v is not None
        }

    def _load_optimizer(self, tensors: dict[str, Tensor]) -> None:
        """In place where the optimiser has the same tensors already, since a compiled engine refers to them."""
        own = self._optimizer()
        entries = self.loop.optimizer.state.values()
        if own.keys() == tensors.keys() and all(isinstance(v, Tensor) for e in entries for v in e.values()):
            for name, value in own.items():
                value.copy_(tensors[name])
            return
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = value
        groups = self.loop.optimizer.state_dict()["param_groups"]
        self.loop.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.loop.forget_engine()
