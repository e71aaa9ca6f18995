"""The page *What helps*: its tables are those of the stored results, and every section measures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from pyrodrop.analysis.lab import RESULTS
from pyrodrop.analysis.lab.experiments.critiques import osband
from pyrodrop.analysis.lab.experiments.remedies import experiment

STORED = json.loads((RESULTS / "remedies.json").read_text(encoding="utf-8"))


def test_every_section_is_stored() -> None:
    assert set(STORED["sections"]) == set(experiment.SECTIONS)


def test_every_number_has_three_seeds() -> None:
    for rows in STORED["sections"].values():
        for row in rows.values():
            assert all(len(values) == 3 and all(map(math.isfinite, values)) for values in row.values())


@pytest.mark.slow
@pytest.mark.parametrize("section", experiment.SECTIONS)
def test_a_section_at_the_size_of_a_test(section: str, data_folder: Path) -> None:
    done = experiment._measured(f"{section}-0", device=torch.device("cpu"), progress=False, size="quick", seed=0)
    joined = experiment._joined([done, done])
    assert joined.keys() == STORED["sections"][section].keys()
    json.dumps(joined, allow_nan=False)


def test_a_network_with_a_prior_function_is_the_sum_of_two_networks_of_the_prior() -> None:
    model = osband.network_with_prior_function()
    fixed = {n.removeprefix("prior_function."): v for n, v in model.network.named_buffers() if n.startswith("prior")}
    plain = nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Linear(50, 1))
    both = []
    for values in ({n.removeprefix("net."): v for n, v in model.weight_sites().items()}, fixed):
        plain.load_state_dict(values)
        both.append(plain(osband.POINTS))
    torch.testing.assert_close(model.outputs(model.weight_sites(), osband.POINTS), both[0] + both[1])
    draws = torch.cat([_first_weights() for _ in range(20)])
    assert float(draws.std()) == pytest.approx(2.0, rel=0.1)


def _first_weights() -> torch.Tensor:
    model = osband.network_with_prior_function()
    model.reset_parameters()
    return dict(model.network.named_buffers())["prior_function.0.weight"].flatten()
