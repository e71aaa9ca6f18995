"""The first page: its length, its links, its badges, and how to cite."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def badge(name: str) -> str:
    drawn = (ROOT / "docs" / "_static" / "badges" / f"{name}.svg").read_text(encoding="utf-8")
    label, value = re.findall(r"<text [^>]*>([^<]*)</text>", drawn)
    assert f"<title>{label}: {value}</title>" in drawn
    return value


def test_it_is_short_and_sets_up_in_its_first_block() -> None:
    assert len(README.splitlines()) <= 153
    first = re.search(r"^```\w*\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    assert first is not None
    assert [line.split("#")[0].strip() for line in first[1].splitlines()] == ["make co2", "make test"]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "analysis/reference/README.md"])
def test_its_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"(?:src|srcset)=\"([^\"]+)\"", text)
    assert links or page in ("CONTRIBUTING.md", "SECURITY.md")
    for link in links:
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file) if file else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_its_badges_are_true(number_of_tests: int) -> None:
    versions = [text.rsplit(" ", 1)[1] for text in PROJECT["classifiers"] if "Python :: 3." in text]
    assert badge("python") == " | ".join(versions)
    assert badge("licence") == PROJECT["license"]
    assert f'requires-python = ">={versions[0]}"' in (ROOT / "pyproject.toml").read_text()
    least = int(badge("tests").removeprefix("more than ").replace(",", ""))
    if number_of_tests < 3000:
        pytest.skip("the number of tests is counted where all of them are collected")
    assert number_of_tests > least


def test_the_citation_is_of_this_version() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"title", "authors", "message"} <= citation.keys()  # what the format requires
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    for paper in citation["references"]:
        assert {"type", "title", "authors", "year", "url"} <= paper.keys()
        assert paper["url"] in README
