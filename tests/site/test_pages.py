"""What builds the documentation site: names, links, docstrings, cards and notebooks."""

from __future__ import annotations

import base64
import importlib
import inspect
import json
import re
import types
import zlib
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="needs the docs extra: make docs")

import api_pages
import gallery
import notebook_pages
import public
import zoo_pages
from dead_links import dead
from docstrings import changed
from links import rewritten

import pyrodrop
import pyrodrop.analysis.gp
import pyrodrop.analysis.plots
from pyrodrop import zoo
from pyrodrop.analysis.experiments import JOBS
from pyrodrop.analysis.reports.style import BLACK
from pyrodrop.analysis.zoo import references
from pyrodrop.analysis.zoo.agreement import agreements

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "docs" / "_build" / "html"


def public_objects() -> dict[int, str]:
    """Every public object, from the names that users can write after ``import pyrodrop``."""
    found: dict[int, str] = {}

    def walk(module: types.ModuleType) -> None:
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if isinstance(value, types.ModuleType):
                walk(value)
            else:
                found.setdefault(id(value), f"{module.__name__}.{name}")

    walk(pyrodrop)
    for path in ("pyrodrop.analysis", "pyrodrop.analysis.gp", "pyrodrop.sampling"):
        walk(importlib.import_module(path))
    for module in (pyrodrop.analysis.plots, pyrodrop.schedules):
        for name, value in inspect.getmembers(module, inspect.isroutine) + inspect.getmembers(module, inspect.isclass):
            if value.__module__ == module.__name__ and not name.startswith("_"):
                found.setdefault(id(value), f"{module.__name__}.{name}")
    return found


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


def test_pages_are_small() -> None:
    """At most 300 kB each, without figures, style sheets and scripts, which pages share."""
    if not (BUILT / "index.html").is_file():
        pytest.skip("the site is not built: make docs")
    large = {path.name: path.stat().st_size for path in BUILT.rglob("*.html") if path.stat().st_size > 300_000}
    assert large == {}


def test_every_name_of_pyrodrop_is_on_one_page() -> None:
    names = [name for topic in api_pages.TOPICS.values() for name in topic]
    assert sorted(names) == sorted(public.places()["pyrodrop"])


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.html").write_text('<p id="here">x</p><a href="../a.html">a</a><a href="#there">no</a>')
    (tmp_path / "a.html").write_text(
        '<a href="sub/b.html#here">b</a><a href="sub/b.html#gone">b</a><img src="gone.png">'
        '<source srcset="away.png 2x"><a href="https://example.org/x">e</a><a href="sub/c%20d.html">c</a>'
    )
    assert [line.split(": ", 1)[1] for line in dead(tmp_path)] == [
        "sub/b.html#gone: no such anchor", "gone.png: no such file", "away.png: no such file",
        "sub/c%20d.html: no such file", "#there: no such anchor",
    ]  # fmt: skip
    with pytest.raises(FileNotFoundError):
        dead(tmp_path / "sub" / "none")


def test_links_between_files_become_links_between_pages() -> None:
    def from_notebook(text: str) -> str:
        return rewritten(text, "analysis/notebooks/1_x.ipynb", "docs/notebooks/1_x.ipynb")

    readme = "docs/project/readme.md"
    assert rewritten("[a](docs/scale.md#b)", "README.md", readme) == "[a](../scale.md#b)"
    assert rewritten("[c](CHANGELOG.md)", "README.md", readme) == "[c](changelog.md)"
    assert rewritten("[n](analysis/notebooks)", "README.md", readme) == "[n](../notebooks/index.md)"
    assert rewritten("[x](https://pyro.ai) [y](#use)", "README.md", readme) == "[x](https://pyro.ai) [y](#use)"
    assert rewritten("see [the file](pyrodrop/cli.py)", "README.md", readme) == "see the file (`pyrodrop/cli.py`)"
    assert rewritten("[gone](docs/gone.md)", "README.md", readme) == "[gone](docs/gone.md)"  # Sphinx reports it
    assert from_notebook("[a](../../docs/scale.md)") == "[a](../scale.md)"
    assert from_notebook("[a](4_mauna_loa.ipynb)") == "[a](4_mauna_loa.ipynb)"
    scale = rewritten("[a](../analysis/notebooks/4_mauna_loa.ipynb)", "docs/scale.md", "docs/scale.md")
    assert scale == "[a](notebooks/4_mauna_loa.ipynb)"
    code = "```python\nx = f[a](docs/scale.md)\n```\n"
    assert rewritten(code + "[a](docs/scale.md)", "README.md", readme) == code + "[a](../scale.md)"


def test_docstrings_become_restructured_text() -> None:
    text = """What it does of |w|, and of `Fit`s, but ``|w|``.

    one      two
    |a|      b

Args:
    x, y: numbers
        of `Fit`s.
    z: another.

Returns:
    Per row: a number.

Raises:
    ValueError: no."""
    assert (
        "\n".join(changed(text.splitlines(), {"y": "a finite number above 0"}))
        == r"""What it does of \|w\|, and of `Fit`\ s, but ``|w|``.

::

    one      two
    |a|      b


Args:
    x: numbers
        of `Fit`\ s.
    y: numbers
        of `Fit`\ s.
        Allowed: a finite number above 0.
    z: another.

:returns: Per row: a number.


Raises:
    ValueError: no."""
    )


def test_a_card_has_the_numbers_of_its_reference() -> None:
    entry = zoo.entry("uci/yacht")
    result = references.load(entry.name)["result"]
    text = zoo_pages.card(entry, None)
    head = re.search(r"^\| score \| (.*) \|$", text, re.MULTILINE)
    assert head is not None
    columns = head[1].split(" | ")
    found = re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE)
    rows = {name: dict(zip(columns, cells.split(" | "), strict=True)) for name, cells in found}
    assert rows.keys() == {*result["scores"], *entry.published}
    for name, row in rows.items():
        assert float(row["ours"]) == pytest.approx(result["scores"][name], rel=1e-3)
        assert float(row["s.e."]) == pytest.approx(result["standard_errors"][name], rel=0.05)
        if name in entry.published:
            assert float(row["published"]) == pytest.approx(entry.published[name], rel=1e-3)
            assert float(row["z"]) == pytest.approx(agreements(entry, result)[name].z, abs=0.05)
        else:
            assert row["published"] == row["z"] == "-"
    assert "pyrodrop run uci/yacht" in text
    assert "Gal & Ghahramani (2016), table 1" in text


def test_every_entry_is_in_the_index() -> None:
    rows = re.findall(r"^\* - (.+)\n" + r"  - (.+)\n" * (len(zoo_pages.HEADS) - 1), zoo_pages.index(), re.MULTILINE)
    assert list(rows[0]) == list(zoo_pages.HEADS)
    assert [row[0] for row in rows[1:]] == [f"[{name}]({name}.md)" for name in zoo.ENTRIES]
    for name, (_, data, posterior, network, published, ours, agreement) in zip(zoo.ENTRIES, rows[1:], strict=True):
        entry, scores = zoo.entry(name), references.scores(name)
        assert all(cell.strip() for cell in (data, posterior, network, published, ours, agreement))
        assert data == entry.data
        assert posterior in dir(pyrodrop.guides)
        first = next(iter([*entry.published, *scores]), "")
        if entry.published:
            score, value, known = re.fullmatch(r"`(\w+)` (\S+)(?: \((.+)\))?", published).groups()  # type: ignore[union-attr]
            assert float(value) == pytest.approx(entry.published[score], rel=1e-3)
            assert (known or "published") == entry.published_as
        else:
            assert published == "curves or text"
        job = references.of_sparse(name)
        if job and first == "error_percent" and first not in scores:
            assert float(ours.split()[1]) == pytest.approx(100 * job["result"]["error"], rel=1e-3)
            assert ours.endswith(f"(pyrodrop run sparse, {job['settings']['epochs']} epochs)")
            assert agreement == "no error to compare"
            continue
        assert (ours in ("waits for a GPU", "not run yet")) == (first not in scores)
        assert (agreement == ours) == (first not in scores)


def test_every_figure_of_the_gallery_says_where_it_is_from() -> None:
    """Its code, its page and its command are there, and no two have one name."""
    items = [item for section in gallery.FIGURES.values() for item in section]
    assert len({item.name for item in items}) == len(items) > 20
    for item in items:
        assert (ROOT / item.code).is_file(), item.code
        page = item.page[0].partition("#")[0]
        if page.startswith("notebooks/"):
            assert (ROOT / "analysis" / page).is_file(), page
        elif page.startswith("zoo/"):
            assert page.removeprefix("zoo/").removesuffix(".md") in zoo.ENTRIES, page
        else:
            assert page == "project/results.md" or (ROOT / "docs" / page).is_file(), page
        if item.run:
            assert item.run.split()[:2] == ["pyrodrop", "run"]
            assert item.run.split()[2] in JOBS, item.run
        assert item.shows.endswith(".")


def test_a_card_of_the_gallery_has_a_figure_for_each_theme() -> None:
    items = {item.name: item for section in gallery.FIGURES.values() for item in section}
    files = items["kingma-table1"].figure.files()
    assert list(files) == ["-light.svg", "-dark.svg"]
    assert BLACK.encode() in files["-light.svg"]
    assert BLACK.encode() not in files["-dark.svg"]
    assert [len(items[name].figure.files()) for name in ("co2", "start", "notebook-8-0")] == [2, 1, 1]
    text = "\n".join(gallery.card(items["kingma-table1"], ["figure-x-light.svg", "figure-x-dark.svg"]))
    assert text.count(":target: ../_images/figure-x-light.svg") == 2
    assert ":class: thumbnail only-dark" in text
    assert "{download}`kingma_table1.py <../../analysis/experiments/kingma_table1.py>`" in text


def test_a_notebook_is_shown_with_its_outputs(tmp_path: Path) -> None:
    stored = base64.b64encode(b"\x89PNG").decode()
    text = ["# A *title*\n", "\n", "Words of [a page](../../docs/scale.md)."]
    cells = [
        {"cell_type": "markdown", "metadata": {}, "source": text},
        {"cell_type": "code", "metadata": {}, "execution_count": 1, "source": ["1"],
         "outputs": [{"output_type": "display_data", "data": {"image/png": stored}}]},
    ]  # fmt: skip
    path = tmp_path / "12_name.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    found = notebook_pages.read(path)
    assert (found.name, found.title, found.summary, found.thumbnail) == (
        "12_name",
        "A *title*",
        "Words of a page.",
        b"\x89PNG",
    )
    assert "(../scale.md)" in found.content["cells"][0]["source"]
    assert notebook_pages.order(path) == (12, "12_name")
    assert ":link: 12_name" in notebook_pages.index([found])
    cells[1]["execution_count"] = None
    path.write_text(json.dumps({"cells": cells}))
    with pytest.raises(ValueError, match="not executed"):
        notebook_pages.read(path)
