"""The state of stacked replicates between two steps, as tensors by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pyrodrop.training.loop import Loop
from pyrodrop.training.stack import Stack
from pyrodrop.training.state import State


class StackedState(State):
    """Reads and writes the state of a stack, with a leading axis ``[R, ...]`` on everything that replicates have.

    That is the state of a loop, one random generator per replicate, and which replicates have not failed.

    Args:
        stack: whose loop was made.
        loop: of the stack.
    """

    def __init__(self, stack: Stack, loop: Loop) -> None:
        super().__init__(loop, self._buffers)
        self._stack = stack

    def _buffers(self) -> Mapping[str, Tensor]:
        loss = self._stack.loss
        moving = dict(zip(self._stack.losses[0].moving.places, loss.buffers, strict=True))
        return moving | {"replicates.alive": loss.alive, "replicates.lived": loss.lived}

    def _random(self) -> dict[str, Tensor]:
        return {"random.generators": torch.stack([generator.get_state() for generator in self._stack.generators])}

    def _restore_random(self, tensors: Mapping[str, Tensor]) -> None:
        for generator, state in zip(self._stack.generators, _rows(tensors["random.generators"]), strict=True):
            generator.set_state(state)

    def _check_random(self, tensors: Mapping[str, Tensor], name: str) -> None:
        try:
            for generator, state in zip(self._stack.generators, _rows(tensors["random.generators"]), strict=True):
                torch.Generator(generator.device).set_state(state)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"{name} has no random states of this version of PyTorch for {len(self._stack.generators)} replicates: "
                f"{error}"
            ) from None


def _rows(states: Tensor) -> list[Tensor]:
    """The state of every generator, copied: PyTorch would set that of the first row for a view of any."""
    return [state.clone() for state in states.cpu()]
