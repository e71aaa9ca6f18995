"""The page *What helps*: its tables are those of the stored results, and every section measures."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pyrodrop.analysis.lab.experiments.critiques import osband


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
