"""A pass of a network in training mode, with the masks that PyTorch itself drew.

`masks_of_a_pass` looks below the functions of PyTorch, at the operations that they are made of, where every mask is the result
of one random operation. It is independent of `DropoutCalls`, and so a test of it on the user's network.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from pyrodrop.reading.found import Trial

_A: Any = torch.ops.aten


def masks_of_a_pass(trial: Trial, seed: int = 0) -> tuple[Tensor, list[Tensor]]:
    """The output of one pass, and the masks it drew, in order. The caller's random state does not change."""
    devices = {value.device for value in trial.values.values() if value.is_cuda}
    with torch.random.fork_rng(list(devices)), _Masks() as drawn, sdpa_kernel(SDPBackend.MATH):
        torch.manual_seed(seed)
        with torch.backends.cudnn.flags(enabled=False):  # whose recurrent layers draw masks inside
            output = trial.plain()
    return output, drawn.masks


class _Masks(TorchDispatchMode):
    """Keeps the results of operations that draw Bernoulli numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = getattr(func, "overloadpacket", None)
        if packet in (_A.bernoulli, _A.bernoulli_):
            self.masks.append(result.clone())
        elif packet is _A.native_dropout:
            self.masks.append(result[1].to(result[0].dtype))
        return result
