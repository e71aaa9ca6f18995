"""Pages are checked in Chromium: defects are found, and there are none in the site and with a run's report."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from look import axe, barriers, look, main, pages_of, why_not
from matplotlib.figure import Figure

from pyrodrop.analysis.reports.page import write_page
from pyrodrop.analysis.reports.runs import read_run
from pyrodrop.analysis.reports.style import png

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "docs" / "_build" / "html"
browser = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


with_axe = pytest.mark.skipif(
    why_not() is not None or axe() is None,
    reason="needs Chromium, playwright, and AXE=.../axe.min.js: npm install axe-core",
)


def site() -> list[Path]:
    """All built pages, but one card of each set of the zoo."""
    if not (BUILT / "index.html").is_file():
        pytest.skip("the site is not built: make docs")
    cards = [page for page in (BUILT / "zoo").rglob("*.html") if page.parent != BUILT / "zoo"]
    kept = {page.parent: page for page in sorted(cards)}
    pages = [page for page in pages_of([BUILT]) if page not in cards or page in kept.values()]
    assert len(pages) > 30
    return pages


def picture() -> bytes:
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot([1, 3, 2])
    return png(figure)


@browser
@pytest.mark.slow
def test_what_is_wrong_with_a_page_is_found(tmp_path: Path) -> None:
    """In every width and theme, and nothing in a page without defects that is checked beside it."""
    (tmp_path / "good.png").write_bytes(picture())
    data = base64.b64encode(picture()).decode()
    head = '<!DOCTYPE html><html lang="en"><head><title>t</title><link rel="icon" href="data:,">'
    head += '<meta name="viewport" content="width=device-width"></head>'
    right = f'{head}<p>text</p><img src="good.png" alt=""><img src="data:image/png;base64,{data}" alt="">'
    wide = "<div style='overflow-x: auto'><pre style='width: 1500px'>x</pre></div>"
    far = "<img src='https://example.org/badge.svg' alt=''>"
    (tmp_path / "right.html").write_text(f"{right}{wide}{far}<script>console.log('fine')</script>")
    (tmp_path / "wrong.html").write_text(
        f"{right}<img src='gone.png' alt=''><img src='data:image/png;base64,AAAA' alt=''>"
        "<p style='width: 1300px'>wide</p><script>console.error('said'); undefined_name()</script>"
    )
    found = look(pages_of([tmp_path]), tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.png"))) == 8
    assert all(line.startswith("wrong, ") for line in found), found
    for width in (1280, 400):
        for theme in ("light", "dark"):
            lines = [line.removeprefix(f"wrong, {width} pixels, {theme}: ") for line in found]
            kinds = sorted(line.partition(":")[0].split(" by ")[0] for line in lines if not line.startswith("wrong"))
            expected = ["console", "missing", "missing picture", "missing picture", "script", "scrolls sideways"]
            assert kinds == expected, found


def test_pages_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there are no pages"):
        pages_of([tmp_path])
    with pytest.raises(FileNotFoundError, match="must exist"):
        pages_of([tmp_path / "gone.html"])


@browser
@pytest.mark.slow
def test_the_report_of_a_run_has_nothing_wrong(tmp_path: Path) -> None:
    """A wide table, facts, nested settings and a figure."""
    scores = {f"score_{number}": 1.5 * number for number in range(20)}
    results = {
        "models": {f"a model with a long name {number}": scores for number in range(3)},
        "facts": {"the sd grows": True, "it does not": False},
        "settings": {"networks": {"one": {"steps": 150, "words": "w" * 300}}},
        "published": [1, 2],
    }
    run = tmp_path / "run"
    run.mkdir()
    (run / "results.json").write_text(json.dumps(results))
    (run / "figure.png").write_bytes(picture())
    assert look([write_page(read_run(run), tmp_path / "report.html")]) == []


@browser
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_site_has_nothing_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """Pictures: ``python tests/site/look.py docs/_build/html --out FOLDER``."""
    assert main([*map(str, site())]) == 0, capsys.readouterr().out


@with_axe
@pytest.mark.slow
def test_barriers_are_found(tmp_path: Path) -> None:
    """A picture without words and text that is too pale, and none in a page without them."""
    head = '<!DOCTYPE html><html lang="en"><head><title>t</title><link rel="icon" href="data:,"></head><main><h1>t</h1>'
    (tmp_path / "right.html").write_text(f"{head}<p>text</p></main>")
    (tmp_path / "wrong.html").write_text(f"{head}<p style='color: #ccc'>pale</p><img src='data:,'></main>")
    script = axe()
    assert script is not None
    found = barriers(pages_of([tmp_path]), script)
    assert sorted({line.split(": ")[1] for line in found}) == ["color-contrast", "image-alt"]
    assert all(line.startswith("wrong.html, ") for line in found)


@with_axe
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_site_can_be_read_by_everyone() -> None:
    script = axe()
    assert script is not None
    assert barriers(site(), script) == []
