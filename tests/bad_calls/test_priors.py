"""Bad arguments of the priors."""

from __future__ import annotations

import pytest

from .harness import Call, Row, rows
from .kinds import POSITIVE

CALLS = [
    Call("priors.Gaussian", lambda: {"scale": 2.0}, {"scale": POSITIVE.but("None")}),
    Call("priors.Laplace", lambda: {"scale": 2.0}, {"scale": POSITIVE}),
]


@pytest.mark.parametrize("row", rows(CALLS), ids=str)
def test_prior(row: Row) -> None:
    assert row.judge() == ""
