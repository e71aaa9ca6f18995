"""A pass of a network in training mode, with the masks that PyTorch itself drew.

`masks_of_a_pass` looks below the functions of PyTorch, at the operations that they are made of, where every mask is the
result of one random operation. It is independent of `DropoutCalls`, and so a test of it on the user's network.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from pyrodrop.private_apis import bernoulli_results
from pyrodrop.reading.found import Trial


def masks_of_a_pass(trial: Trial, seed: int = 0) -> tuple[Tensor, list[Tensor]]:
    """The output of one pass, and the masks it drew, in order. The caller's random state does not change."""
    devices = {value.device for value in trial.values.values() if value.is_cuda}
    with torch.random.fork_rng(list(devices)), bernoulli_results() as masks, sdpa_kernel(SDPBackend.MATH):
        torch.manual_seed(seed)
        with torch.backends.cudnn.flags(enabled=False):  # whose recurrent layers draw masks inside
            output = trial.plain()
    return output, masks
