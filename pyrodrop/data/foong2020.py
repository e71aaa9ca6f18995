"""Two clusters of points in the plane: the data set ``origin`` of Foong, Burt, Li & Turner (2020), arXiv:1909.00719.

50 points around (1, 1) and 50 around (-1, -1), with y of each cluster near one value. The question is how uncertain a
posterior is between the clusters, along the diagonal. Source: https://github.com/cambridge-mlg/expressiveness-approx-bnns
(MIT licence).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pyrodrop.data.dataset import Dataset
from pyrodrop.data.download import data_file
from pyrodrop.data.splits import Split

COMMIT = "47099e0cd4fb23907cbef3fba572d01eaa8d52ae"
URL = f"https://raw.githubusercontent.com/cambridge-mlg/expressiveness-approx-bnns/{COMMIT}/datasets/origin/{{file}}"
SHA256 = {
    "origin_x.txt": "0138acedcb795f3abf15fc140681fb36c80ddee86433f140fe0132eca711b237",
    "origin_y.txt": "422bf501f1b40f281f3e1a90355ac68bd55d48073a591eba994d0b24614d7fb9",
}
SLICE = 500  # points along the diagonal


def foong2020() -> Split:
    """The two clusters: x ``[100, 2]`` and y ``[100, 1]``, float32, without standardisation.

    The test part is the diagonal slice of the paper's figures, 500 points from (-2, -2) to (2, 2). It has no observations;
    its y is 0.

    If the environment variable PYRODROP_DATA is set, the data are read from ``$PYRODROP_DATA/foong2020/``. Otherwise they
    are downloaded once and cached. In both cases their hashes are checked.

    Raises:
        FileNotFoundError: PYRODROP_DATA is set, but a file does not exist.
        ConnectionError: a file cannot be downloaded.
        ValueError: a file has the wrong content.
    """
    line = torch.linspace(-2, 2, SLICE)[:, None]
    return Split(
        name="foong2020-origin",
        train=Dataset(_read("origin_x.txt"), _read("origin_y.txt").reshape(-1, 1)),
        test=Dataset(line.expand(-1, 2).contiguous(), torch.zeros(SLICE, 1)),
        x_unit="",
        y_unit="",
        source=f"Foong et al. (2020), GitHub cambridge-mlg/expressiveness-approx-bnns (MIT) at {COMMIT}",
        truth=False,
    )


def _read(file: str) -> Tensor:
    path = data_file(f"foong2020/{file}", f"{file} of Foong et al. (2020)", URL.format(file=file), SHA256[file])
    return torch.from_numpy(np.loadtxt(path)).float()
