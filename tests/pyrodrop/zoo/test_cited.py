"""What there is by name, and what to cite for it."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest

from pyrodrop import zoo
from pyrodrop.zoo import exact, trained

WORKS = (Path(zoo.__file__).parent / "works.bib").read_text(encoding="utf-8")
NAMES = zoo.names()


def test_names_are_those_of_entries_and_exact_posteriors() -> None:
    approximations = {f"exact/{name}.{tag}" for name in zoo.PROBLEMS for tag in exact.TAGS}
    assert {*zoo.ENTRIES, *(problem.name for problem in zoo.PROBLEMS.values()), *approximations} == set(NAMES)
    assert zoo.cite("exact/yacht.mean-field") == zoo.cite("exact/yacht")
    assert sorted(NAMES) == NAMES
    assert zoo.names("*/yacht") == ["exact/yacht", "uci/yacht"]
    assert zoo.names("Uci/*") == zoo.names("uci") == []


def test_what_loads_is_what_has_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = trained.SHIPPED.rglob("*.safetensors")
    shipped = sorted(file.relative_to(trained.SHIPPED).as_posix().removesuffix(".safetensors") for file in files)
    monkeypatch.delenv("PYRODROP_ZOO", raising=False)
    assert zoo.names(loads=True) == shipped != NAMES
    (tmp_path / "concrete").mkdir()
    (tmp_path / "concrete" / "synthetic.safetensors").touch()
    monkeypatch.setenv("PYRODROP_ZOO", str(tmp_path))
    assert zoo.names("concrete/*", loads=True) == ["concrete/synthetic"]


@pytest.mark.parametrize("name", NAMES)
def test_the_authors_of_a_source_are_cited(name: str) -> None:
    cited = zoo.cite(name)
    assert cited.count("\n@") + 1 >= 2, "a paper or data, and this package"
    assert cited.count("@software{pyrodrop,") == 1
    if name in zoo.ENTRIES:
        (authors, year), *_ = re.findall(r"^(.*?) \((\d{4})\)", zoo.ENTRIES[name].source)
        works = [work for work in cited.split("\n\n") if f"year = {{{year}}}" in work]
        assert any(all(surname in work for surname in re.split(", | & ", authors)) for work in works)


def test_works_are_bibtex_and_none_is_idle() -> None:
    keys = re.findall(r"^@[a-z]+{(\w+),$", WORKS, flags=re.MULTILINE)
    patterns = re.findall(r"^  zoo = {(.*)}$", WORKS, flags=re.MULTILINE)
    assert len(keys) == len(set(keys)) == len(patterns) == WORKS.count("@")
    for pattern in " ".join(patterns).split():
        assert fnmatch.filter(NAMES, pattern), pattern
    for name in NAMES:
        for work in zoo.cite(name).split("\n\n"):
            assert work.count("{") == work.count("}")
            assert re.fullmatch(r"@[a-z]+{\w+,\n(  [a-z]+ = {.*},\n)*  [a-z]+ = {.*}\n}", work), work
            assert "zoo = " not in work
