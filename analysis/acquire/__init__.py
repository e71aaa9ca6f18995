"""Acquisition: which unlabelled rows to ask a label for.

The scores say how much the label of each row would tell by itself; `batch` picks rows whose labels tell the most together.

    entropy    H[y_n]                           all uncertainty, noise included
    variance   Var[y_n]                         likewise
    bald       I[y_n; f]                        what y_n tells about the function
    epig       mean_m I[y_n; y*_m]              what y_n tells about predictions at the rows that matter
    batch      argmax I[y_A; f], |A| = size     greedily
"""

from pyrodrop.analysis.acquire.greedy import Batch, batch
from pyrodrop.analysis.acquire.scores import bald, entropy, epig, variance

__all__ = ["Batch", "bald", "batch", "entropy", "epig", "variance"]
