"""Random numbers of code that reads data."""

from __future__ import annotations

import random

import numpy as np
import torch

from pyrodrop.data.streamed import RandomStreams, mixed


def drawn(own: torch.Generator) -> list[float]:
    return [float(torch.rand(())), random.random(), float(np.random.rand()), float(torch.rand((), generator=own))]


def test_blocks_continue_the_generators_as_if_nothing_were_between() -> None:
    own, seeds = torch.Generator(), (3, 4)
    outer = torch.get_rng_state(), random.getstate(), np.random.get_state()[1], own.get_state()
    streams = RandomStreams(seeds[0], {own: seeds[1]})
    found = []
    for _ in range(3):
        with streams.current():
            found.append(drawn(own))
        random.random(), np.random.rand(), torch.rand(2)  # of others
    random.setstate(outer[1])
    with torch.random.fork_rng([]):
        torch.manual_seed(seeds[0])
        twin, of_python, of_numpy = (
            torch.Generator().manual_seed(seeds[1]),
            random.Random(seeds[0]),
            np.random.RandomState(seeds[0]),
        )
        expected = [
            [float(torch.rand(())), of_python.random(), of_numpy.rand(), float(torch.rand((), generator=twin))]
            for _ in range(3)
        ]
    assert found == expected
    assert torch.equal(own.get_state(), outer[3])


def test_mixed_seeds_differ() -> None:
    assert len({mixed(seed, epoch) for seed in range(20) for epoch in range(20)}) == 400
    assert all(0 <= mixed(seed) < 2**56 for seed in range(20))
