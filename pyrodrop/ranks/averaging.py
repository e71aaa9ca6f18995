"""The exchange of a training step: the mean of the gradients, and what stops a rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from pyrodrop.ranks.ranks import Lost, Ranks, StoppedElsewhere, words_of

_STOPPED = 2.0  # flag of a rank that an exception has stopped; 1 is that of a gradient that is not finite


class Averaging:
    """Replaces the gradient of a step by its mean over the ranks, and tells them what stops one.

    One all-reduce carries the gradient and a flag per rank. Every exchange of a training is one of these or comes after one
    (`pulse`), so a rank that an exception stops knows where the others are: at their next one.

    On a GPU the flags are not read at every step, which would wait for the device: there an exception on one rank ends in
    `Lost` on the others, when its process ends or after `WAIT`.

    Args:
        ranks: of the training.
        values: tensors whose elements a gradient has, in number and dtype.
    """

    def __init__(self, ranks: Ranks, values: Iterable[Tensor]) -> None:
        self.ranks = ranks
        like = torch.cat([value.detach().flatten() for value in values])
        self._buffer = like.new_zeros(like.numel() + ranks.size)
        self._flags = self._buffer[like.numel() :]
        self._reads = like.device.type == "cpu"
        self.steps = 0
        self._first = torch.full((ranks.size,), torch.inf, dtype=torch.float64, device=like.device)

    def __call__(self, flat: Tensor) -> None:
        shared = self._buffer[: flat.numel()]
        shared.copy_(flat)
        self._flags.zero_()
        self._flags[self.ranks.rank] = ~torch.isfinite(flat.sum())
        if self._exchange():
            self._first = torch.where(self._flags > 0, self._first.clamp(max=self.steps), self._first)
        self.steps += 1
        flat.copy_(shared.div_(self.ranks.size))

    def pulse(self) -> None:
        """Wait for the others; `StoppedElsewhere` if one of them has stopped."""
        self._buffer.zero_()
        self._exchange()

    def broken(self) -> list[tuple[int, int]]:
        """How many steps ago a rank's own gradient or loss was not finite for the first time, with the number of the rank,
        for those ranks that were the first."""
        first = self._first.tolist()
        least = min(first)
        return [] if least == torch.inf else [(self.steps - int(least), r) for r, at in enumerate(first) if at == least]

    def forget(self) -> None:
        """Forget which ranks were not finite, as after a state was loaded."""
        self._first.fill_(torch.inf)

    @contextmanager
    def stopping(self, *, closing: bool) -> Iterator[None]:
        """An exception of one rank within the block, outside of `Ranks.together`, stops all ranks.

        Args:
            closing: whether to wait at the end of the block until all ranks have come there.
        """
        try:
            yield
        except (Lost, StoppedElsewhere):
            raise
        except Exception as error:
            if error is not self.ranks._told and self._reads:
                self._stop(error)
            raise
        if closing:
            self.pulse()

    def _stop(self, error: Exception) -> None:
        """Tell the other ranks."""
        self._buffer.zero_()
        self._flags[self.ranks.rank] = _STOPPED
        with suppress(Lost):
            self.ranks.sum(self._buffer)
            self.ranks.gather(words_of(error))

    def _exchange(self) -> bool:
        """Sum over the ranks; returns whether there may be a flag of a gradient that is not finite."""
        self.ranks.sum(self._buffer)
        if not self._reads:
            return True
        flag = float(self._flags.max())
        if flag >= _STOPPED:
            self.ranks.check(self.ranks.gather(None))
        return flag > 0
