"""Entries of other packages: added in a process, and found by their entry point in a fresh one."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyrodrop import zoo
from pyrodrop.zoo.sources import SOURCES

CARDS = """
from pyrodrop import data, guides, likelihoods, models, priors, zoo

def network(train):
    likelihood = likelihoods.Gaussian(1.0, learned=True)
    return models.MLP([1, 20, 1], prior=priors.Gaussian(), likelihood=likelihood, seed=None)

def register():
    mine = zoo.Entry(
        name="mine/line", summary="MC dropout on thirty points", source="our report", data="thirty", model=network,
        guide=guides.BernoulliDropout, training=lambda train: {"steps": 500, "lr": 1e-2}, published={},
        check=zoo.Check(steps=50), draws=20,
    )
    zoo.add(mine, sources={"thirty": zoo.Source("thirty points of a line", lambda: [data.line_split(30)])})
"""
SCRIPT = """
import sys
from pyrodrop import cli, zoo
assert "mine/line" not in zoo.ENTRIES  # nothing is read before it is asked for
for words in (["list"], ["show", "mine/line"], ["run", "mine/line", "--steps", "5", "--quiet", "--save", "saved"]):
    assert cli.main(words) == 0, words
print("loaded", type(zoo.load("mine/line")).__name__)
print("check", cli.main(["check", "mine/line", "--quiet"]))
"""


def package(folder: Path, name: str, text: str) -> None:
    """An installed package with an entry point."""
    (folder / f"{name}.py").write_text(text)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[pyrodrop.zoo]\n{name} = {name}:register\n")


@pytest.mark.unshifted  # of another process
def test_entries_of_a_package_are_listed_shown_run_and_loaded(tmp_path: Path) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    site.mkdir()
    (work / "saved").mkdir(parents=True)
    package(site, "mine", CARDS)
    package(site, "broken", "raise RuntimeError('no such\\nmodel')")
    root = str(Path(zoo.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), root)), "PYRODROP_ZOO": "saved"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert "MC dropout on thirty points" in shown
    assert "thirty: thirty points of a line" in shown
    assert "loaded Fit" in shown
    assert "check 1" in shown
    assert "mine/line has no reference" in done.stderr
    warned = [line for line in done.stderr.splitlines() if "left out" in line]
    assert warned == ["the zoo entries of broken:register were left out: RuntimeError: no such model"]


def test_what_is_added_is_checked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "ENTRIES", dict(zoo.ENTRIES))
    monkeypatch.setattr(zoo, "SOURCES", dict(SOURCES))
    yacht = zoo.entry("uci/yacht")
    zoo.add(yacht)  # the same one again
    own = dataclasses.replace(yacht, name="own/yacht")
    line = zoo.Source("a line", list)
    for entries, sources, message in (
        ([own, dataclasses.replace(yacht, draws=7)], {}, "another entry called 'uci/yacht'"),
        ([own, dataclasses.replace(own, draws=7)], {}, "another entry called 'own/yacht'"),
        ([own], {"uci/yacht": line}, "another data set called 'uci/yacht'"),
        ([dataclasses.replace(own, data="uci/yatch")], {}, "no data set of the zoo is called 'uci/yatch'"),
    ):
        with pytest.raises(ValueError, match=message):
            zoo.add(*entries, sources=sources)
    assert "own/yacht" not in zoo.ENTRIES
    zoo.add(dataclasses.replace(own, data="line"), sources={"line": line})
    assert zoo.entry("own/yacht").data == "line"
