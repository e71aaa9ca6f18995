"""Acquisition functions of active learning: which unlabelled rows to label next.

Scores rate every row by itself; `batch` selects rows whose labels are most informative together.

    entropy    H[y_n]                           total uncertainty, noise included
    variance   Var[y_n]                         total uncertainty, noise included
    bald       I[y_n; f]                        information of y_n about the function
    epig       mean_m I[y_n; y*_m]              information of y_n about observations at target rows
    batch      argmax I[y_A; f], |A| = size     information of several y about the function, greedily maximised
"""

from pyrodrop.analysis.acquire.greedy import Batch, batch
from pyrodrop.analysis.acquire.scores import bald, entropy, epig, variance

__all__ = ["Batch", "bald", "batch", "entropy", "epig", "variance"]
