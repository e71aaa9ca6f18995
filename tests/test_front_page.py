"""The first page: its links, and how to cite."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from pyrodrop.analysis.lab.networks import load

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_it_is_short() -> None:
    """At most 700 words and 25 numbers outside of code, addresses not counted."""
    text = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    assert len(text.split()) <= 700
    assert len(re.findall(r"(?<![\w.])\d[\d.,]*", text)) <= 25


def test_what_it_says_of_other_packages_was_run() -> None:
    """The versions are those of the scripts, and a cell with words has a script about it."""
    rows = [line.strip("| ").split(" | ") for line in README.splitlines() if re.match(r"\| [\w-]+ \d", line)]
    others = (ROOT / "docs" / "what-others-compute.md").read_text(encoding="utf-8")
    assert len(rows) == 6
    for package, divergence, functional in rows:
        titles = " ".join(re.findall(rf"^\| {re.escape(package)} \| \[([^\]]+)", others, flags=re.MULTILINE))
        assert (divergence != "-") == ("KL" in titles), package
        assert (functional != "-") == ("F.dropout" in titles), package


def test_the_kinds_of_network_are_counted() -> None:
    assert f"[{len(load(ROOT / 'tests' / 'networks'))} kinds of network]" in README


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "analysis/lab/results/README.md"])
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
