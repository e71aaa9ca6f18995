"""Files that are written completely or not at all, and files of tensors that are checked when they are read.

Nothing in a file is executed. What its header describes is read entry by entry, by a `Record`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
import unicodedata
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pyrodrop.checks import shown
from pyrodrop.failed import Failed

_FORMAT = 2  # of files of tensors


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which replaces `path` when the block ends without an exception.

    The file is on disk when the block has ended, also after a power failure. It has the mode of the file that it replaces,
    or that of any new file. Where `path` is a symbolic link, the file that it points to is replaced.

    The temporary path is a hidden file beside it, ``.pyrodrop-*``, which a process that is killed leaves.

    Raises:
        OSError: the file cannot be written; the message names it.
    """
    with _naming(path, "write"):
        target, temporary = _places(path)
        try:
            temporary.touch()
            mode = stat.S_IMODE((target if target.exists() else temporary).stat().st_mode)
            yield temporary
            _flush(temporary)
            temporary.chmod(mode)
            os.replace(temporary, target)
            with suppress(OSError):  # some file systems cannot flush folders
                _flush(target.parent)
        finally:
            temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raise an OSError that names the file unless it can be written now. An existing file does not change."""
    with _naming(path, "write"):
        _, temporary = _places(path)
        temporary.touch()
        temporary.unlink()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors atomically in the safetensors format. The header contains `about` as JSON, and a checksum of both.

    Raises:
        OSError: as `whole`.
    """
    copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    text = json.dumps({"format": _FORMAT, **about})
    with whole(path) as temporary:
        try:
            save_file(copies, temporary, metadata={"pyrodrop": text, "sha256": checksum(copies, text)})
        except SafetensorError as error:
            number = re.search(r"(?:os error|code:) (\d+)", str(error))
            if number is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the header of a file from `write_tensors`. Nothing in the file is executed.

    Raises:
        ValueError: the file was not written by `write_tensors`, is incomplete, or was changed since.
        OSError: it cannot be read; the message names it.
    """
    with _naming(path, "read"):
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait
            raise OSError(errno.EINVAL, "it is a folder" if path.is_dir() else "it is no regular file")
        path.open("rb").close()
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # whatever a file that is not whole makes the reader raise
        raise ValueError(f"{path} is no whole file in the safetensors format: {error}") from None
    text = metadata.get("pyrodrop")
    if text is None:
        raise ValueError(f"{path} was not written by pyrodrop: its header has no entry 'pyrodrop'")
    if metadata.get("sha256") != checksum(tensors, text):
        raise ValueError(f"{path} is damaged: its content has another checksum than when it was written")
    try:
        about = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its header is not JSON: {error}") from None
    if not isinstance(about, dict):
        raise ValueError(f"{path} is damaged: its header must be a mapping; got a {type(about).__name__}")
    return tensors, about


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Descriptions of the values of tensors: a number, or dtype, shape and digest."""
    return {name: _digest(value) for name, value in tensors.items()}


def _digest(value: Tensor) -> str:
    if value.dim() == 0:
        return str(value.item())
    form = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    try:
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError):  # a tensor without memory of its own, such as a sparse one
        return form
    return f"{form} {hashlib.blake2b(content, digest_size=8).hexdigest()}"


def checksum(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 of a text, and of the names, dtypes, shapes and bytes of tensors."""
    digest = hashlib.sha256(f"{len(text)} {text}".encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{len(name)} {name} {value.dtype} {list(value.shape)};".encode())
        digest.update(value.detach().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def _naming(path: Path, verb: str) -> Iterator[None]:
    """Name this file in every OSError of the system in the block."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, f"cannot {verb} the file: {error.strerror}", str(path)) from error


def _places(path: Path) -> tuple[Path, Path]:
    """The file that a path stands for, and a new path beside it; an OSError if the file may not be replaced."""
    target = Path(os.path.realpath(path))
    if target.exists():
        if not target.is_file():
            raise OSError(errno.EISDIR if target.is_dir() else errno.EINVAL, "it is a folder or no regular file")
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return target, target.with_name(f".pyrodrop-{uuid.uuid4().hex}")


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Record:
    """An object from a file, such as the header of tensors. Its methods return an entry, or raise a `Failed`.

    Attributes:
        path: of the file, in messages.
        content: the object.
        advice: how to fix a wrong entry, for error messages.
        where: the place of the object in the file, such as ``models.mean-field``; empty for the whole file.
    """

    path: str | Path
    content: Mapping[str, Any]
    advice: str = ""
    where: str = ""

    def fault(self, problem: str) -> Failed:
        """The error to raise for a problem with this file."""
        return Failed(f"{self.path} {problem}" + (f"; {self.advice}" if self.advice else ""))

    def number(self, key: str, *, optional: bool = False) -> float | None:
        """A finite number; with `optional`, None for null or a missing entry."""
        if optional and self.content.get(key) is None:
            return None
        return float(self._entry(key, "a finite number", _finite))

    def whole(self, key: str) -> int:
        """A whole number."""
        return int(self._entry(key, "a whole number", lambda value: type(value) is int))

    def numbers(self, key: str, count: int | None = None) -> list[float]:
        """A list of `count` finite numbers; of any length above 0 if `count` is None."""
        values = self._entry(key, "a list of finite numbers", lambda value: _list_of(value, _finite))
        if len(values) != count if count is not None else not values:
            wanted = "at least one number" if count is None else f"{count} numbers"
            raise self.fault(f"must have {wanted} as {self._name(key)}; it has {len(values)}")
        return [float(each) for each in values]

    def text(self, key: str, *, optional: bool = False) -> str:
        """A string of one line; with `optional`, an empty one for null or a missing entry."""
        if optional and self.content.get(key) is None:
            return ""
        return str(self._entry(key, "a line of text", is_line))

    def texts(self, key: str) -> list[str]:
        """A list of strings of one line."""
        return list(self._entry(key, "a list of lines of text", lambda value: _list_of(value, is_line)))

    def record(self, key: str) -> Record:
        """An object."""
        value = self._entry(key, "an object", lambda value: isinstance(value, dict))
        return Record(self.path, value, self.advice, self._name(key))

    def records(self, key: str) -> list[Record]:
        """A list of at least one object."""
        values = self._entry(
            key, "a list of objects", lambda value: bool(value) and _list_of(value, lambda each: isinstance(each, dict))
        )
        name = self._name(key)
        return [Record(self.path, each, self.advice, f"{name}[{number}]") for number, each in enumerate(values)]

    def _entry(self, key: str, what: str, right: Callable[[Any], bool]) -> Any:
        value = self.content.get(key)
        if not right(value):
            got = shown(value) if key in self.content else "none"
            raise self.fault(f"must have {what} as {self._name(key)}; it has {got}")
        return value

    def _name(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key


def is_line(text: object) -> bool:
    """Whether a terminal shows a text as one line: no control or format characters, no line separators."""
    kinds = [unicodedata.category(each) for each in text] if isinstance(text, str) else ["C"]
    return not any(kind[0] == "C" or kind in ("Zl", "Zp") for kind in kinds)


def _list_of(value: object, right: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(right, value))


def _finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
