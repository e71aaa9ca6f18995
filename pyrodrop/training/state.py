"""The state of a training between two steps, as tensors by name."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from pyrodrop.devices import random_states, set_random_states
from pyrodrop.files import under
from pyrodrop.private_apis import without_compiler
from pyrodrop.training.loop import Loop
from pyrodrop.training.ranks import Ranks, alone

_log = logging.getLogger("pyrodrop")


class State:
    """Reads and writes the state of a loop: parameters, buffers, optimiser, random state, place in the epoch, losses.

    Args:
        ranks: the processes that train together, of which all but rank 0 continue with new noise; None for one.
    """

    def __init__(self, loop: Loop, buffers: Callable[[], Mapping[str, Tensor]], ranks: Ranks | None = None) -> None:
        self.loop: Loop = loop
        self.buffers = buffers
        self.ranks: Ranks = ranks or alone(loop.history.device)

    def tensors(self) -> dict[str, Tensor]:
        """The state by name; tensors of the loop are not copied. The random state is torch's own at this moment."""
        loop = self.loop
        loop.engine.finish(loop.done)
        state = self._own()
        state |= {f"optimizer.{key}": value for key, value in self._optimizer().items()}
        state["history"] = loop.history[: loop.done]
        state |= {f"batches.{key}": value for key, value in loop.batches.state().items()}
        return state | self._random()

    def load(self, tensors: Mapping[str, Tensor], name: str) -> None:
        """Set the loop, its buffers and torch's random state to a state that was read before.

        The optimiser begins anew, as the log says, where the state is of one with other entries.

        Raises:
            ValueError: it is not a whole state, or the state of another model, guide or data set, or of more steps than the
                loop has. Nothing is changed then.
        """
        loop = self.loop
        self._check(tensors, name)
        done, optimizer = len(tensors["history"]), under("optimizer.", tensors)
        if loop.steps is not None and done > loop.steps:
            raise ValueError(f"{name} has done {done} steps already; steps must be at least that, got {loop.steps}")
        fresh = done > 0 and not self._is_of_this_optimizer(optimizer)
        if fresh:
            _log.warning("%s is of an optimizer whose state has other entries: it begins anew", name)
            optimizer = {}
        if not self.ranks.first:
            tensors = {**tensors, **self._new_noise(self.ranks.noise_seed(loop.settings.seed, done))}
        loop.batches.load(under("batches.", tensors), name)
        with torch.no_grad():
            for key, value in self._own().items():
                value.copy_(tensors[key])
        self._load_optimizer(optimizer)
        self._restore_random(tensors)
        loop.history = loop.history.to(tensors["history"].dtype)
        loop.reserve(done)
        loop.history[:done] = tensors["history"].to(loop.history.device)
        loop.done = loop.checked = done
        if done == 0 or fresh:
            loop.forget_engine()

    def _check(self, tensors: Mapping[str, Tensor], name: str) -> None:
        """Raise a ValueError unless these tensors are a whole state of this model, guide and data set."""
        wrong = [n for n, value in self._own().items() if n not in tensors or not _alike(tensors[n], value)]
        if wrong:
            raise ValueError(
                f"{name} is of another model or guide: {', '.join(wrong)} of this run is missing there or has another shape "
                "or dtype"
            )
        wanted = ["history", *(f"batches.{key}" for key in self.loop.batches.state()), *self._random()]
        missing = [n for n in wanted if n not in tensors]
        if missing:
            raise ValueError(f"{name} is not whole: it lacks {', '.join(missing)}")
        history, want = tensors["history"], self.loop.history
        if history.shape[1:] != want.shape[1:] or history.dim() != want.dim() or not history.is_floating_point():
            raise ValueError(
                f"{name} must have three numbers for every step in its history; it has shape {list(history.shape)} of "
                f"{history.dtype}"
            )
        self._check_random(tensors, name)

    def _is_of_this_optimizer(self, there: Mapping[str, Tensor]) -> bool:
        """Whether a state of an optimiser has the entries of this one, of the same shapes and dtypes."""
        # A parameter that no step has used, as of a member of an ensemble, has no state yet.
        used = {key.split(".", 1)[0] for key in there}
        here = self._optimizer() or self._after_a_step()
        here = {key: value for key, value in here.items() if key.split(".", 1)[0] in used or not used}
        return here.keys() == there.keys() and all(_alike(there[key], value) for key, value in here.items())

    def _random(self) -> dict[str, Tensor]:
        """The states of the random generators, by name."""
        return {f"random.{kind}": state for kind, state in random_states(self.loop.history.device).items()}

    def _new_noise(self, seed: int) -> dict[str, Tensor]:
        """States of generators that start from a seed, by name."""
        return {name: torch.Generator(name.split(".")[1]).manual_seed(seed).get_state() for name in self._random()}

    def _restore_random(self, tensors: Mapping[str, Tensor]) -> None:
        set_random_states(under("random.", tensors), self.loop.history.device)

    def _check_random(self, tensors: Mapping[str, Tensor], name: str) -> None:
        """Raise a ValueError unless these are states of generators of this version of PyTorch."""
        for key in self._random():
            try:
                torch.Generator("cuda" if key == "random.cuda" else "cpu").set_state(tensors[key].cpu())
            except (RuntimeError, TypeError) as error:
                raise ValueError(f"{name} has no random state of this version of PyTorch in {key}: {error}") from None

    def _own(self) -> dict[str, Tensor]:
        """Parameters and buffers, by reference."""
        state = {f"parameter.{n}": p for n, p in self.loop.parameters.items()}
        return state | {f"buffer.{n}": b for n, b in self.buffers().items()}

    def _optimizer(self) -> dict[str, Tensor]:
        return _named(self.loop.optimizer)

    def _after_a_step(self) -> dict[str, Tensor]:
        """The optimiser's state after a step, of a copy: it has none before."""
        mine = copy.deepcopy(self.loop.optimizer)
        for group in mine.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        with torch.no_grad():
            inspect.unwrap(type(mine).step)(mine)  # what PyTorch wraps around it imports its compiler
        return _named(mine)

    def _load_optimizer(self, tensors: dict[str, Tensor]) -> None:
        """In place where the optimiser has the same tensors already, since a compiled engine refers to them."""
        mine = self._optimizer()
        entries = self.loop.optimizer.state.values()
        if mine.keys() == tensors.keys() and all(isinstance(v, Tensor) for e in entries for v in e.values()):
            for name, value in mine.items():
                value.copy_(tensors[name])
            return
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = value
        with without_compiler():
            groups = self.loop.optimizer.state_dict()["param_groups"]
            self.loop.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.loop.forget_engine()


def _named(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimiser by name: number of the parameter and entry."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries = [
        (i, entry) for i, parameter in enumerate(parameters) for entry in optimizer.state.get(parameter, {}).items()
    ]
    return {f"{i}.{key}": torch.as_tensor(value) for i, (key, value) in entries if value is not None}


def _alike(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and one.dtype == two.dtype
