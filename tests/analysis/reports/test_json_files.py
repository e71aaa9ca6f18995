"""JSON files that are cut off, changed, or made by somebody else are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyrodrop.analysis.reports.json_files import LARGEST, read_record
from pyrodrop.failed import Failed
from pyrodrop.files import Record

CONTENT = {"number": 1.5, "count": 2, "list": [1, 2.5], "text": "a line", "none": None, "flag": True, "inner": {"x": 1}}


def record(**change: Any) -> Record:
    return Record(Path("file.json"), {**CONTENT, **change}, "make it again")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not valid JSON"),
        ("{", "is not valid JSON"),
        ("[1]", "must be a JSON object; it has a list"),
        ('{"a": NaN}', "NaN is no number of JSON"),
        ('{"a": -Infinity}', "-Infinity is no number of JSON"),
        ('{"a": [{"b": 1e999}]}', "has a number that is too large"),
        ('{"a": ' + "1" * 5000 + "}", "is not valid JSON"),
        ('{"a": ' + "[" * 100_000, "is nested too deeply"),
        ('{"a": ' + "[" * 100 + "]" * 100 + "}", "has more than 40 objects within each other"),
        ('{"a": "\\ud800"}', "has text that is not valid Unicode"),
        ('{"\\u001b[31m": 1}', "has a name with characters that cannot be printed"),
        ('{"a": {"\\n": 1}}', "has a name with characters that cannot be printed"),
        ('{"a": {"\\u202e": 1}}', "has a name with characters that cannot be printed"),
    ],
)
def test_what_is_no_record_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(Failed, match=f"file.json .*{said}.*; make it again"):
        read_record(path, "make it again")


def test_files_that_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Failed, match="is not a file"):
        read_record(tmp_path)
    with pytest.raises(Failed, match="does not exist"):
        read_record(tmp_path / "nowhere")
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)  # takes no place on the disk
    with pytest.raises(Failed, match="is larger than"):
        read_record(path)
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(Failed, match="is not valid JSON"):
        read_record(path)


@pytest.mark.parametrize(
    ("method", "key", "said"),
    [
        ("number", "text", "a finite number as text; it has the str 'a line'"),
        ("number", "flag", "a finite number as flag; it has True"),
        ("number", "none", "a finite number as none; it has None"),
        ("number", "nowhere", "a finite number as nowhere; it has none"),
        ("whole", "number", "a whole number as number; it has the float 1.5"),
        ("whole", "flag", "a whole number as flag; it has True"),
        ("numbers", "number", "a list of finite numbers as number; it has the float 1.5"),
        ("text", "number", "a line of text as number; it has the float 1.5"),
        ("record", "list", "an object as list; it has a list"),
        ("records", "list", "a list of objects as list; it has a list"),
        ("records", "inner", "a list of objects as inner; it has a dict"),
    ],
)
def test_entries_of_the_wrong_kind(method: str, key: str, said: str) -> None:
    with pytest.raises(Failed, match=f"^file.json must have {said}; make it again$"):
        getattr(record(), method)(key)
