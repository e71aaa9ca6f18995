"""Files: written completely or not at all, with the mode and the links of any other file, and checked when read."""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from pyrodrop.analysis.reports.json_files import write_json
from pyrodrop.files import check_writable, checksum, read_tensors, write_tensors

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.tensor(True),
    "c.d": torch.zeros(0, 3, dtype=torch.bfloat16),
}
ABOUT = {"settings": {"seed": 1, "name": "é"}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_tensors(tmp_path / "file", TENSORS, ABOUT)
    return tmp_path / "file"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def same(tensors: dict[str, torch.Tensor], about: object) -> bool:
    return (
        about == {"format": 2, **ABOUT}
        and tensors.keys() == TENSORS.keys()
        and all(torch.equal(v, TENSORS[n]) and v.dtype == TENSORS[n].dtype for n, v in tensors.items())
    )


def test_what_is_written_is_read(file: Path) -> None:
    assert same(*read_tensors(file))
    assert [path.name for path in file.parent.iterdir()] == ["file"]


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_tensors(tmp_path / "file", TENSORS, {})
        write_json(tmp_path / "json", {})
    finally:
        os.umask(before)
    assert mode(tmp_path / "file") == mode(tmp_path / "json") == 0o640


def test_a_file_that_is_replaced_keeps_its_mode(file: Path) -> None:
    file.chmod(0o604)
    write_tensors(file, TENSORS, {})
    assert mode(file) == 0o604


def test_a_link_stays_a_link(file: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name, target in (("link", file), ("broken", tmp_path / "elsewhere" / "new")):
        (tmp_path / name).symlink_to(target)
        write_json(tmp_path / name, {"by": "link"})
        assert (tmp_path / name).is_symlink()
        assert json.loads(target.read_text()) == {"by": "link"}


@pytest.mark.parametrize("write", [check_writable, lambda path: write_tensors(path, TENSORS, {})])
def test_what_cannot_be_written_is_named(write: object, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path, number in ((tmp_path / "folder", errno.EISDIR), (tmp_path / "none" / "file", errno.ENOENT)):
        with pytest.raises(OSError, match="cannot write the file") as caught:
            write(path)  # type: ignore[operator]
        assert (caught.value.errno, caught.value.filename) == (number, str(path))
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_file_that_may_not_be_written_is_not_replaced(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, kind: False)  # as the system says to a user that is not root
    old = file.read_bytes()
    with pytest.raises(PermissionError, match="cannot write the file: Permission denied"):
        write_tensors(file, TENSORS, {"new": 1})
    assert file.read_bytes() == old


def test_a_full_disk_leaves_the_old_file_and_nothing_else(file: Path) -> None:
    old, limits = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        for write in (
            lambda: write_tensors(file, {"a": torch.zeros(10_000)}, {}),
            lambda: write_json(file, {"a": "b" * 20_000}),
        ):
            with pytest.raises(OSError, match="cannot write the file: File too large") as caught:
                write()
            assert caught.value.filename == str(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == old
    assert [path.name for path in file.parent.iterdir()] == ["file"]


def test_file_and_folder_are_flushed_before_and_after_the_file_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    flush, replace = os.fsync, os.replace

    def flushed(handle: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        flush(handle)

    def replaced(source: Path, target: Path) -> None:
        calls.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", replaced)
    write_tensors(tmp_path / "file", TENSORS, {})
    assert calls == ["file", "replace", "folder"]


def test_reading_what_is_no_file_names_it(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "it is a folder"), (tmp_path / "none", "No such file")):
        with pytest.raises(OSError, match=f"cannot read the file: {reason}") as caught:
            read_tensors(path)
        assert caught.value.filename == str(path)


HEADERS = ["", "[]", "1", "null", '"text"', "{", "[" * 100_000, "NaN"]


@pytest.mark.parametrize("text", HEADERS)
def test_headers_of_another_form_are_refused(text: str, tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(1)}
    save_file(tensors, tmp_path / "file", metadata={"pyrodrop": text, "sha256": checksum(tensors, text)})
    with pytest.raises(ValueError, match="file is damaged: its header"):
        read_tensors(tmp_path / "file")


def test_files_without_an_own_header_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "file")
    with pytest.raises(ValueError, match="was not written by pyrodrop"):
        read_tensors(tmp_path / "file")
    save_file({"a": torch.ones(1)}, tmp_path / "file", metadata={"pyrodrop": '{"settings": {}}'})
    with pytest.raises(ValueError, match="has another checksum"):
        read_tensors(tmp_path / "file")


def test_the_checksum_is_of_names_dtypes_and_shapes_too(file: Path) -> None:
    tensors, _ = read_tensors(file)
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    a, b = tensors["a"], tensors["b"]
    changes: list[dict[str, torch.Tensor]] = [
        {"a": a.reshape(3, 2)}, {"a": a.view(torch.int32)}, {"a": b, "b": a}, {"e": a.clone()}, {"a": a + 1},
    ]  # fmt: skip
    for change in changes:
        save_file({**tensors, **change}, file, metadata=metadata)
        with pytest.raises(ValueError, match=f"{file} is damaged: its content has another checksum"):
            read_tensors(file)


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_file_is_refused_or_read_as_it_was(data: st.DataObject, file: Path) -> None:
    """Bytes changed, cut, inserted or swapped."""
    good = file.read_bytes()
    place = data.draw(st.integers(0, len(good) - 1))
    how = data.draw(st.sampled_from(["change", "cut", "insert", "swap", "append"]))
    other = data.draw(st.binary(min_size=1, max_size=8))
    end = place + len(other)
    bad = {
        "change": good[:place] + other + good[end:],
        "cut": good[:place],
        "insert": good[:place] + other + good[place:],
        "swap": good[:place] + good[end : 2 * end - place] + good[place:end] + good[2 * end - place :],
        "append": good + other,
    }[how]
    path = file.with_name("changed")
    path.write_bytes(bad)
    try:
        content = read_tensors(path)
    except ValueError as refused:
        message = str(refused)
    else:
        message = str(path) if same(*content) else "read as something else"
    assert str(path) in message
