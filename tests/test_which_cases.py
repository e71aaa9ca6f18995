"""Which cases of a test run by default, and what shifted seeds keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch


@pytest.mark.few(2)
@pytest.mark.parametrize("case", range(7))
def test_few_cases_run_by_default(case: int, request: pytest.FixtureRequest) -> None:
    items = [item for item in request.session.items if "test_few_cases_run_by_default" in item.name]
    by_default = [item for item in items if not item.get_closest_marker("more")]
    assert len(by_default) <= 2
    assert len(items) - len(by_default) <= 5


def test_equal_seeds_give_equal_draws_and_others_others() -> None:
    def draws(seed: int) -> list[float]:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        return [
            float(torch.rand(())),
            float(torch.rand((), generator=generator)),
            float(np.random.default_rng(seed).random()),
        ]

    assert draws(3) == draws(3)
    assert all(a != b for a, b in zip(draws(3), draws(4), strict=True))


@pytest.mark.unshifted
def test_recorded_draws_run_with_seeds_as_they_are() -> None:
    torch.manual_seed(0)
    assert torch.randint(1000, (3,)).tolist() == [44, 239, 933]
    assert np.random.default_rng(0).integers(1000) == 850
