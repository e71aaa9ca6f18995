"""What builds the documentation site: names, links, docstrings, cards and notebooks."""

from __future__ import annotations

import importlib
import inspect
import re
import types
import zlib
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="needs the docs extra: make docs")

import api_pages
import gallery
import public
import zoo_pages
from dead_links import dead

import pyrodrop
import pyrodrop.analysis.gp
import pyrodrop.analysis.plots
from pyrodrop import zoo
from pyrodrop.analysis.jobs import JOBS
from pyrodrop.analysis.zoo import references

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "docs" / "_build" / "html"


def public_objects() -> dict[int, str]:
    """Every public object, from the names that users can write after ``import pyrodrop``."""
    objects: dict[int, str] = {}

    def walk(module: types.ModuleType) -> None:
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if isinstance(value, types.ModuleType):
                walk(value)
            else:
                objects.setdefault(id(value), f"{module.__name__}.{name}")

    walk(pyrodrop)
    for path in ("pyrodrop.analysis", "pyrodrop.analysis.gp", "pyrodrop.sampling"):
        walk(importlib.import_module(path))
    for module in (pyrodrop.analysis.plots, pyrodrop.schedules):
        for name, value in inspect.getmembers(module, inspect.isroutine) + inspect.getmembers(module, inspect.isclass):
            if value.__module__ == module.__name__ and not name.startswith("_"):
                objects.setdefault(id(value), f"{module.__name__}.{name}")
    return objects


def test_every_public_name_has_one_place() -> None:
    placed = [id(public.value(module, name)) for module, names in public.places().items() for name in names]
    assert len(placed) == len(set(placed))
    missing = {path for key, path in public_objects().items() if key not in placed}
    assert not missing
    assert len(placed) > 150


@pytest.mark.slow
def test_the_built_reference_documents_every_public_name_once() -> None:
    """Read from the inventory that Sphinx wrote of what it documented."""
    if not (BUILT / "objects.inv").is_file():
        pytest.skip("the site is not built: make docs")
    content = (BUILT / "objects.inv").read_bytes().split(b"\n", 4)[4]
    rows = [line.split(" ") for line in zlib.decompress(content).decode().splitlines()]
    # Priority -1 is another path of what is documented: where a class is defined.
    documented = [row[0] for row in rows if row[1].startswith("py:") and row[1] != "py:module" and row[2] != "-1"]
    for module, names in public.places().items():
        for name in names:
            assert documented.count(f"{module}.{name}") == 1, f"{module}.{name}"
    html = "".join(path.read_text(encoding="utf-8") for path in (BUILT / "api").glob("*.html"))
    for module, names in public.places().items():
        for name in names:
            assert html.count(f' id="{module}.{name}"') == 1, f"{module}.{name}"
    assert "&lt;factory&gt;" not in html
    assert not re.search(r"~(typing|collections|torch|pyrodrop)\.", html)


@pytest.mark.slow
def test_no_link_of_the_built_site_is_dead() -> None:
    if not (BUILT / "index.html").is_file():
        pytest.skip("the site is not built: make docs")
    assert dead(BUILT) == []


@pytest.mark.slow
def test_the_built_site_loads_nothing_from_the_network() -> None:
    """Scripts, style sheets and pictures are files of the site, MathJax and its fonts too."""
    if not (BUILT / "index.html").is_file():
        pytest.skip("the site is not built: make docs")
    tags = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*>")
    pages = {path: path.read_text(encoding="utf-8") for path in BUILT.rglob("*.html")}
    far = [
        tag for text in pages.values() for tag in tags.findall(text) if re.search(r'(?:src|href)="(?:https?:)?//', tag)
    ]
    assert [tag for tag in far if 'rel="canonical"' not in tag] == []
    assert any("mathjax/tex-chtml.js" in text for text in pages.values())
    assert list((BUILT / "_static" / "mathjax" / "output" / "chtml" / "fonts").rglob("*.woff"))


def test_every_name_of_pyrodrop_is_on_one_page() -> None:
    names = [name for topic in api_pages.TOPICS.values() for name in topic]
    assert sorted(names) == sorted(public.places()["pyrodrop"])


def test_a_card_has_the_numbers_of_its_reference() -> None:
    entry = zoo.entry("uci/yacht")
    result = references.load(entry.name)["result"]
    text = zoo_pages.card(entry, None)
    head = re.search(r"^\| score \| (.*) \|$", text, re.MULTILINE)
    assert head is not None
    columns = head[1].split(" | ")
    lines = re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE)
    rows = {name: dict(zip(columns, cells.split(" | "), strict=True)) for name, cells in lines}
    assert rows.keys() == {*result["scores"], *entry.published}
    for name, row in rows.items():
        assert float(row["ours"]) == pytest.approx(result["scores"][name], rel=1e-3)
        assert float(row["s.e."]) == pytest.approx(result["standard_errors"][name], rel=0.05)
        if name in entry.published:
            assert float(row["published"]) == pytest.approx(entry.published[name], rel=1e-3)
        else:
            assert row["published"] == "-"
    assert "pyrodrop run uci/yacht" in text
    assert "Gal & Ghahramani (2016), table 1" in text


def test_every_figure_of_the_gallery_says_where_it_is_from() -> None:
    """Its code, its page and its command are there, and no two have one name."""
    items = [item for section in gallery.FIGURES.values() for item in section]
    assert len({item.name for item in items}) == len(items) > 12
    for item in items:
        assert (ROOT / item.code).is_file(), item.code
        page = item.page[0].partition("#")[0]
        if page.startswith("notebooks/"):
            assert (ROOT / "analysis" / "lab" / page).is_file(), page
        elif page.startswith("zoo/"):
            assert page.removeprefix("zoo/").removesuffix(".md") in zoo.ENTRIES, page
        else:
            assert (ROOT / "docs" / page).is_file(), page
        if item.run:
            assert item.run.split()[:2] == ["pyrodrop", "run"]
            assert item.run.split()[2] in JOBS, item.run
        assert item.shows.endswith(".")
