"""Every block of every page is run by tests/readme.py."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def runner() -> Any:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "tests" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_block_of_every_page_is_run(runner: Any) -> None:
    """Blocks that the runner does not see, such as indented ones, would not be."""
    run = set(runner.pages())
    for page in [ROOT / "README.md", *PAGES]:
        name, text = page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")
        count = len(re.findall(r"^\s*```\s*(?:python|py|pycon)\b", text, flags=re.MULTILINE))
        assert (name in run) == (count > 0), name
        if name in run:
            assert len(runner.blocks(text)) == count, name
            assert len(re.findall(r"^```text$", text, flags=re.MULTILINE)) == sum(
                shown is not None for _, shown in runner.blocks(text)
            ), f"{name}: a block of text that belongs to no code"
