"""The folder of a run: whose it is, what is found again after an interruption, and what is left after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrodrop.analysis.reports.folder import Cells, run_folder
from pyrodrop.failed import Failed
from pyrodrop.files import Record

SETTINGS = {"seed": 0, "steps": None, "names": ["a", "b"]}


def test_the_same_run_goes_on_and_another_is_refused(tmp_path: Path) -> None:
    """The message names what differs, and nothing in the folder is changed."""
    out = tmp_path / "run"
    with run_folder(out, "co2", SETTINGS) as folder:
        (folder / "results.json").write_text("{}")
    with run_folder(out, "co2", SETTINGS):
        pass
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for job, change, said in (
        ("co2", {"seed": 1}, "seed is 0 there and 1 here; choose another folder with --out"),
        ("co2", {"steps": 5}, "steps is None there and 5 here"),
        ("co2", {"seed": 1, "more": 2}, "seed is 0 there and 1 here, more is absent there and 2 here"),
        ("sbc", {}, "has a run of co2, this is one of sbc"),
    ):
        with pytest.raises(Failed, match=said), run_folder(out, job, {**SETTINGS, **change}):
            pytest.fail("the folder of another run was opened")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_results_of_other_versions_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_folder(tmp_path, "co2", SETTINGS):
        pass
    monkeypatch.setattr("pyrodrop.analysis.reports.console.version", lambda package: "99")
    with pytest.raises(Failed, match="torch is '.*' there and '99' here"), run_folder(tmp_path, "co2", SETTINGS):
        pytest.fail("opened")


def test_results_without_a_record_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(Failed, match="settings are not recorded"), run_folder(tmp_path, "co2", SETTINGS):
        pytest.fail("opened")


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (ValueError("wrong"), Failed),
        (OSError(28, "No space left on device"), OSError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_two_runs_at_once(error: BaseException, becomes: type[BaseException], tmp_path: Path) -> None:
    """The second is refused while the first runs. However the first ends, the folder is free again."""

    def ends() -> None:
        with run_folder(tmp_path, "co2", SETTINGS):
            with pytest.raises(Failed, match="another run is writing to"), run_folder(tmp_path, "co2", SETTINGS):
                pytest.fail("opened twice")
            raise error

    with pytest.raises(becomes) as ended:
        ends()
    if becomes is not KeyboardInterrupt:
        assert str(tmp_path) in str(ended.value), "the message names the folder"
    with run_folder(tmp_path, "co2", SETTINGS):
        pass


def test_cells_are_found_again_or_refused(tmp_path: Path) -> None:
    def check(record: Record) -> None:
        record.number("value")

    cells = Cells(tmp_path / "cells", lambda name: {"name": name, "seed": 0}, check)
    assert cells.kept("one") is None
    cells.keep("one", {"value": 1.5})
    assert cells.kept("one") == {"cell": {"name": "one", "seed": 0}, "value": 1.5}
    with pytest.raises(Failed, match="one.json has a result of other settings .seed is 0 there and 1 here"):
        Cells(tmp_path / "cells", lambda name: {"name": name, "seed": 1}, check).kept("one")
    cells.file("one").rename(cells.file("two"))
    with pytest.raises(Failed, match="two.json has a result of other settings .name is 'one' there and 'two' here"):
        cells.kept("two")
    for text in ("", "{", "[]", '{"value": 1.5}', '{"cell": {"name": "two", "seed": 0}, "value": NaN}'):
        cells.file("two").write_text(text)
        with pytest.raises(Failed, match="two.json .*remove this file and run the same command again"):
            cells.kept("two")
    cells.keep("two", {"value": "high"})
    with pytest.raises(Failed, match="two.json must have a finite number as value; it has the str 'high'"):
        cells.kept("two")
