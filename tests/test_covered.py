"""What ``make coverage`` makes of the measurement."""

from __future__ import annotations

import json

import pytest

from tests import covered


def file(statements: int, lines: int, branches: int, taken: int) -> dict[str, dict[str, int]]:
    return {"summary": dict(zip(covered.COUNTS, (statements, lines, branches, taken), strict=True))}


def test_packages_and_the_core_are_added_up() -> None:
    files = {
        "pyrodrop/elbo.py": file(10, 9, 4, 2),
        "pyrodrop/engines/graph.py": file(20, 10, 0, 0),
        "guides/point.py": file(5, 5, 2, 2),
        "analysis/plots.py": file(100, 0, 50, 0),
    }
    found = covered.totals(files)
    assert list(found) == ["core", "pyrodrop", "pyrodrop.analysis", "pyrodrop.engines", "pyrodrop.guides"]
    assert covered.share(found["core"]) == pytest.approx(100 * 24 / 35)
    assert covered.share(found["core"], "branches") == pytest.approx(100 * 4 / 6)
    assert covered.share(found["pyrodrop.engines"], "branches") == 100


def test_the_badge_is_of_the_file() -> None:
    if not covered.FILE.is_file():
        assert not covered.BADGE.exists()
        pytest.skip("has not been measured yet")
    core = json.loads(covered.FILE.read_text(encoding="utf-8"))["packages"][covered.CORE]
    assert covered.BADGE.read_text(encoding="utf-8") == covered.badge(f"{covered.share(core):.1f} %")
    contributing = (covered.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"{covered.share(core):.1f} % of the lines of the core" in contributing
