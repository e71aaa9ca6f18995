"""Survival of 90 men with cancer of the larynx, of whom 40 were alive at the end of the study.

Kardaun (1983), Statistical survival analysis of male larynx-cancer patients, Statistica Neerlandica 37; as in lifelines
(MIT licence), https://github.com/CamDavidsonPilon/lifelines. The file larynx.csv next to this module has the numbers.
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch

from pyrodrop.data.dataset import Dataset


def larynx() -> Dataset:
    """x ``[90, 2]``: age in years, stage 1 to 4. y ``[90, 2]``: lower and upper end of the years to death.

    The ends are equal for men who died. For the others the upper end is infinite (`likelihoods.Censored`).
    """
    with (resources.files("pyrodrop.data") / "larynx.csv").open() as lines:
        years, died, *x = torch.from_numpy(np.loadtxt(lines, delimiter=",", skiprows=1)).float().T
    return Dataset(torch.stack(x, 1), torch.stack([years, years.where(died == 1, torch.inf)], 1))
