"""How the code of pages is found and its output compared (tests/readme.py, which runs the pages)."""

from __future__ import annotations

import builtins
import dis
import importlib.util
import json
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


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("ELBO -720.1 +- 0.61", "ELBO -719.3 +- 0.63"),  # numbers nearly, also where they are small
        ("0.003", "0.001"),
        ("shape [500, 249]\n", "shape [500,   249]"),
        ("┏━━━┳━━┓\n│ a │ 2.00 │", "┏━━━━━┳━━┓\n│ a   │ 2.01 │"),
        ("1.0e-05", "1.1e-05"),
    ],
)
def test_the_same(runner: Any, shown: str, printed: str) -> None:
    assert runner.difference(shown, printed) is None


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("ELBO -720.1", "ELBO -520.1"),
        ("mean field 1.0", "low rank 1.0"),
        ("3 splits", "4 splits"),  # small whole numbers are counts
        ("-2.5", "2.5"),
        ("1.0e-05", "1.0e-03"),
        ("a 1.0", "a 1.0 2.0"),
        ("-4455", "-3700"),  # by more than 15 %
        ("True", "False"),
        ("", "something"),
    ],
)
def test_another_output(runner: Any, shown: str, printed: str) -> None:
    assert runner.difference(shown, printed) is not None


def test_a_page_that_shows_something_else_fails(runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\na = 2\nprint(a)\n```\n\n```text\n3\n```\n\n```python\nprint(a + 1)\n```\n")
    (tmp_path / "recorded_on.json").write_text("{}")
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "RECORDED", tmp_path / "recorded_on.json")
    with pytest.raises(ValueError, match=r"page.md, block 1: the page shows 3 where the code prints 2"):
        runner.check("page.md")
    runner.write("page.md")
    assert page.read_text() == "```python\na = 2\nprint(a)\n```\n\n```text\n2\n```\n\n```python\nprint(a + 1)\n```\n"
    runner.check("page.md")
    page.write_text(page.read_text() + "![a figure](images/none.png)\n")
    with pytest.raises(ValueError, match="images/none.png, which its code does not save"):
        runner.check("page.md")


def test_every_digit_counts_where_a_page_was_written(
    runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.md").write_text("```python\nprint(1.01)\n```\n\n```text\n1.02\n```\n")
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "RECORDED", tmp_path / "recorded_on.json")
    runner.RECORDED.write_text(json.dumps({"page.md": "another processor"}))
    runner.check("page.md")
    runner.RECORDED.write_text(json.dumps({"page.md": runner.here()}))
    with pytest.raises(ValueError, match=r"page.md, block 1: the page, which was written here, shows\n1.02"):
        runner.check("page.md")


def test_it_is_known_where_every_page_was_written(runner: Any) -> None:
    assert set(runner.recorded()) == set(runner.pages())


def test_every_block_of_the_readme_has_what_it_names(
    runner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers paste one of them; so does the runner."""
    for code, _ in runner.blocks((ROOT / "README.md").read_text(encoding="utf-8")):
        steps = list(dis.get_instructions(compile(code, "README.md", "exec")))
        named, bound = ({s.argval for s in steps if s.opname == name} for name in ("LOAD_NAME", "STORE_NAME"))
        assert named - bound <= set(dir(builtins))
    (tmp_path / "README.md").write_text("```python\na = 1\n```\n\n```python\nprint(a)\n```\n")
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    with pytest.raises(NameError):
        list(runner.run("README.md"))


def test_every_block_of_every_page_is_run(runner: Any) -> None:
    """Blocks that the runner does not see, such as indented ones, would not be; pages apart say why."""
    run = set(runner.pages())
    for page in [ROOT / "README.md", *PAGES]:
        name, text = page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")
        found = len(re.findall(r"^\s*```\s*(?:python|py|pycon)\b", text, flags=re.MULTILINE))
        assert (name in run) == (found > 0 and name not in runner.APART), name
        if name in run:
            assert len(runner.blocks(text)) == found, name
            assert len(re.findall(r"^```text$", text, flags=re.MULTILINE)) == sum(
                shown is not None for _, shown in runner.blocks(text)
            ), f"{name}: a block of text that belongs to no code"
    assert all(runner.APART.values())
