"""The fault suite counts what it has done to the package and prints it at the end: ``pytest -m slow tests/faults``."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

COUNTS: pytest.StashKey[Counter[str]] = pytest.StashKey()


@pytest.fixture
def counted(request: pytest.FixtureRequest) -> Counter[str]:
    """Counts by words, over all tests of the session."""
    return request.config.stash.setdefault(COUNTS, Counter())


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    counts = config.stash.get(COUNTS, Counter[str]())
    if counts:
        terminalreporter.section("faults")
        for what, count in sorted(counts.items()):
            terminalreporter.write_line(f"{count:5}  {what}")
