"""Runs read back: one table of several, and the page of one in a real browser."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from pyrodrop import cli, guides, metrics
from pyrodrop.analysis.reports.console import write_draws
from pyrodrop.analysis.reports.page import write_page
from pyrodrop.analysis.reports.runs import compare_runs, read_run
from pyrodrop.data import Split


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of it for the test to change; its name would break a page that does not escape it."""
    return Path(shutil.copytree(made, tmp_path / "a <run>"))


@pytest.fixture(scope="module")
def made(small: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a job would leave, of two small fits."""
    train, test = small.waves(), small.waves(30, seed=1)
    series = Split("waves", train, test, "year", "m", "made here")
    fits = {"dropout": small.fitted(small.dropout), "mean field": small.fitted(guides.MeanField, steps=20)}
    predictions = {name: fit.predict(test.x, 100) for name, fit in fits.items()}
    out = tmp_path_factory.mktemp("run")
    rows = {
        name: metrics.regression_scores(p, test.y) | {"elbo": None, "seconds": 1.5} for name, p in predictions.items()
    }
    content = {
        "models": rows,
        "facts": {"the sd grows & grows": True, "it < 2": False},
        "settings": {"data": "waves", "seed": 0, "networks": {"dropout": {"steps": 150, "guide": "<b>"}}},
        "published": [1, 2],
    }
    (out / "results.json").write_text(json.dumps(content))
    settings = {"preset": "default", "seed": 0, "device": "cpu"}
    write_draws(out / "draws.nc", series, {n: (p, p) for n, p in predictions.items()}, test.x, settings)
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot([1, 3, 2])
    figure.savefig(out / "figure.png")
    return out


def test_several_runs_in_one_table(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    table = compare_runs([read_run(folder), read_run(other)])
    assert len(table.rows) == 4
    values = [row["log_density"] for row in table.rows.values()]
    assert values == sorted(values, key=lambda v: -float(v or 0))
    density = read_run(folder).by_observation("log_density")
    *_, worst = table.rows
    best = next(iter(table.rows))
    difference = density[worst.split("/")[1]] - density[best.split("/")[1]]
    assert table.rows[worst]["difference"] == pytest.approx(difference.mean())
    assert table.rows[worst]["difference_se"] == pytest.approx(difference.std(ddof=1) / math.sqrt(30))
    assert table.rows[worst]["log_density"] == pytest.approx(density[worst.split("/")[1]].mean(), rel=1e-5)
    assert cli.main(["compare", str(folder), str(other)]) == 0
    shown = capsys.readouterr().out
    assert "other/dropout" in shown
    assert "held-out log density" in shown


def test_what_cannot_be_compared_is_said_in_a_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    results = json.loads((other / "results.json").read_text())
    for change, said in (
        (results | {"settings": {"data": "tides"}}, "these have tides, waves"),
        ({"rows": 1}, "a run with a table of models"),
    ):
        (other / "results.json").write_text(json.dumps(change))
        (folder / "results.json").write_text(json.dumps(results if "models" in change else change))
        assert cli.main(["compare", str(folder), str(other)]) == 1
        assert said in capsys.readouterr().err
    (other / "results.json").write_text("{")
    assert cli.main(["compare", str(other)]) == 1
    assert "is not valid JSON" in capsys.readouterr().err
    for words, said in (
        (["compare", str(tmp_path)], "must have a results.json"),
        (["report", str(tmp_path / "nowhere")], "must have a results.json"),
        (["report", str(folder), "-o", str(tmp_path / "no" / "page.html")], "folder of the report must exist"),
    ):
        assert cli.main(words) == 1
        assert said in capsys.readouterr().err
    assert cli.main(["compare"]) == 2
    assert "parameter FOLDERS requires an argument" in capsys.readouterr().err


def test_the_page_needs_no_other_file_and_escapes_names(folder: Path, tmp_path: Path) -> None:
    assert cli.main(["report", str(folder), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert len(re.findall("<img ", page)) == 2
    assert all(source.startswith("data:image/png;base64,") for source in re.findall(r'(?:src|href)="([^"]*)"', page))
    assert "a &lt;run&gt;" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "yes: the sd grows &amp; grows" in page
    assert cli.main(["report", str(folder)]) == 0
    assert (folder / "report.html").read_text() == page


def test_the_page_says_what_was_run_and_what_its_pictures_show(folder: Path, tmp_path: Path) -> None:
    results = json.loads((folder / "results.json").read_text())
    results["models"] = {
        "a": {"log_density": -1.5, "coverage_95": 0.951, "elbo": -122400.0},
        "b": {"log_density": -2.5, "coverage_95": 1.0, "elbo": None},
    }
    results["facts"] = {"it grows": True, "it stays": False}
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "run.json").write_text(json.dumps({"job": "waves"}))
    with h5py.File(folder / "draws.nc", "w") as written:
        written["a/predictions/pit"] = (np.arange(40) + 0.5) / 40
        written["b/predictions/pit"] = np.concatenate([np.full(20, 0.99), (np.arange(20) + 0.5) / 20])
    page = write_page(read_run(folder), tmp_path / "page.html").read_text()
    sentence = (
        "2 models; the best by held-out log density is a (-1.50 nats per observation); the worst is b (-2.50). "
        "1 of 2 statements hold; not: it stays."
    )
    assert f"<p>pyrodrop run waves with data {results['settings']['data']}" in page
    assert sentence in re.search(r"<p>pyrodrop.*?</p>", page)[0]  # type: ignore[index]
    first, second = re.findall(r'<img alt="([^"]*)"', page)
    assert sentence in first
    assert "Furthest from uniform is b: between 0.95 and 1.00 it has 10.5 times as many" in second  # 21 of 40, not 2
    assert "<td>95%</td>" in page
    assert "<td>-122,400</td>" in page
    results["figures"] = {Path(name).stem: "a wave <b>breaks" for name in map(str, folder.glob("*.png"))}
    (folder / "results.json").write_text(json.dumps(results))
    assert 'alt="a wave &lt;b&gt;breaks"' in write_page(read_run(folder), tmp_path / "page.html").read_text()
    (folder / "run.json").write_text(json.dumps({"job": 3}))
    with pytest.raises(ValueError, match="must have a line of text as job; it has the int 3"):
        read_run(folder)


def test_the_page_in_a_browser(folder: Path, tmp_path: Path) -> None:
    """Both pictures decode, no error is logged, and the screenshot is not blank."""
    browser = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    if browser is None:
        pytest.skip("needs chromium or google-chrome")
    cli.main(["report", str(folder), "-o", str(tmp_path / "page.html")])
    probe = (
        "<script>let errors = 0; onerror = () => errors++; onload = () => document.body.dataset.seen = "
        "[...document.images].map(i => i.complete ? i.naturalWidth : 0).join() + ';' + errors + ';' + "
        "document.body.scrollWidth</script></head>"
    )
    page = re.sub(r"<meta http-equiv[^>]*>", "", (tmp_path / "page.html").read_text(), count=1)  # else no script runs
    (tmp_path / "probed.html").write_text(page.replace("</head>", probe, 1))
    words = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}/profile",
        "--window-size=1200,1400",
    ]
    dom = subprocess.run(
        [*words, "--dump-dom", f"file://{tmp_path}/probed.html"], capture_output=True, text=True, timeout=120
    )
    seen = re.search(r'data-seen="([\d,]+);(\d+);(\d+)"', dom.stdout)
    assert seen is not None, dom.stderr[-500:]
    assert all(int(width) > 100 for width in seen[1].split(","))
    assert len(seen[1].split(",")) == 2
    assert seen[2] == "0"
    assert int(seen[3]) <= 1200  # wide tables scroll in their own box
    shot = tmp_path / "shot.png"
    subprocess.run(
        [*words, f"--screenshot={shot}", f"file://{tmp_path}/page.html"], capture_output=True, timeout=120, check=True
    )
    pixels = np.asarray(imread(shot))[..., :3]
    assert pixels.shape[:2] == (1400, 1200)
    ink = (pixels < 0.9).any(-1)
    assert all(part.mean() > 0.003 for part in np.array_split(ink[:1000], 4))
