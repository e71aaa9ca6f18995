"""Effective draws per second of the sites of Pyro programs: `pyrodrop.sample` against `pyro.infer.NUTS`.

``python -m pyrodrop.analysis.lab.benchmarks.sampling_programs [FILE]``: processor time of one thread, one run, with tuning
and compiling. *First* compiles anew, *later* finds the compiled program of the call before. Pyro's NUTS makes 100 draws
after as many transitions of tuning.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any
from unittest.mock import patch

import numpy as np
import pyro
from arviz_stats.base import array_stats
from pyro.infer import MCMC, NUTS
from torch import Tensor

import pyrodrop
from pyrodrop.analysis.lab.benchmarks.timing import Bench, Cells, command
from pyrodrop.analysis.lab.programs.posteriors import POSTERIORS, Posterior

NUTS_DRAWS = 100  # and as many transitions of tuning


def least(samples: dict[str, Tensor]) -> float:
    """The smallest effective number of draws over all numbers of all sites, ``[chains, draws, ...]`` each."""
    flat = [value.double().reshape(*value.shape[:2], -1).numpy() for value in samples.values()]
    columns = np.concatenate(flat, -1)
    return min(float(array_stats.ess(columns[..., i], method="bulk")) for i in range(columns.shape[-1]))


def compare(problem: Posterior, _: int, device: str) -> Cells:
    """Effective draws, processor seconds, and their ratio."""
    program, arguments = problem()
    cells: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {"PYRODROP_CACHE": folder}):
        for name in ("first", "later"):
            begun = time.process_time()
            sampled = pyrodrop.sample(program, arguments, device=device, progress=False)
            seconds, found = time.process_time() - begun, sampled.diagnostics()
            cells[name] = {"effective": least(sampled.samples), "seconds": seconds, "R-hat": found.r_hat_f}
            cells[name] |= {"divergent": found.diverging, "steps": int(sampled.stats["n_steps"][0].sum())}
    begun = time.process_time()
    pyro.set_rng_seed(0)
    mcmc = MCMC(NUTS(program), NUTS_DRAWS, NUTS_DRAWS, disable_progbar=True)
    mcmc.run(**arguments)
    seconds = time.process_time() - begun
    cells["NUTS of Pyro"] = {"effective": least(mcmc.get_samples(group_by_chain=True)), "seconds": seconds}
    for cell in cells.values():
        cell["per s"] = cell["effective"] / cell["seconds"]
    return cells


BENCH = Bench("sampling-programs", POSTERIORS, measure=compare)

if __name__ == "__main__":
    command(BENCH.run)
