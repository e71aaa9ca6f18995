"""The processes that train one model together: ranks 0 to W - 1 of `torch.distributed`.

Ranks exchange tensors through groups of their own, which no collective call of a user meets: a group of gloo, and on GPUs
one of nccl for gradients. Every rank must make the same calls in the same order. What can fail on one rank alone happens
within `Ranks.together` or `Averaging.stopping`, which tell the others, so that all of them stop with an error instead of
waiting.
"""

from pyrodrop.ranks.averaging import Averaging
from pyrodrop.ranks.joining import asked, join
from pyrodrop.ranks.ranks import Lost, Ranks, StoppedElsewhere, alone, digest, tensors_of

__all__ = [
    "Averaging",
    "Lost",
    "Ranks",
    "StoppedElsewhere",
    "alone",
    "asked",
    "digest",
    "join",
    "tensors_of",
]
