"""Read entries of files that may be truncated, modified or not ours: every entry is checked before it is used.

Of JSON files, numbers are finite, names can be printed, and size and depth are bounded.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyrodrop.arguments import shown
from pyrodrop.failed import Failed

LARGEST = 2**28  # bytes of a file
_DEEPEST = 40  # objects within objects


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
        return str(self._entry(key, "a line of text", _line))

    def texts(self, key: str) -> list[str]:
        """A list of strings of one line."""
        return list(self._entry(key, "a list of lines of text", lambda value: _list_of(value, _line)))

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
            raise self.fault(f"must have {what} as {self._name(key)}; it has {_words(self.content, key)}")
        return value

    def _name(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key


def read_record(path: Path, advice: str = "") -> Record:
    """The object in a JSON file.

    Args:
        advice: how to fix a wrong file, for error messages.

    Raises:
        Failed: the file does not exist, is too large, is no JSON object, or is nested too deeply; a number is NaN or
            infinite; a text is no Unicode, or a name has characters that cannot be printed.
        OSError: it cannot be read.
    """
    record = Record(path, {}, advice)
    if not path.is_file():
        raise record.fault("is not a file" if path.exists() else "does not exist")
    if path.stat().st_size > LARGEST:
        raise record.fault(f"is larger than {LARGEST:,} bytes")
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # also bytes that are not UTF-8, and numbers of thousands of digits
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise record.fault(f"is not valid JSON: {reason}") from None
    if not isinstance(content, dict):
        raise record.fault(f"must be a JSON object; it has {shown(content)}")
    problem = _problem(content, 0)
    if problem:
        raise record.fault(problem)
    return Record(path, content, advice)


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is no number of JSON")


def _problem(value: Any, depth: int) -> str:
    """The problem with a value of a file, or an empty string."""
    if depth > _DEEPEST:
        return f"has more than {_DEEPEST} objects within each other"
    if isinstance(value, float) and not math.isfinite(value):
        return "has a number that is too large"
    if isinstance(value, str) and any(0xD800 <= ord(character) <= 0xDFFF for character in value):
        return f"has text that is not valid Unicode: {value!r:.40}"
    if isinstance(value, dict):
        for key in value:
            if not _line(key):
                return f"has a name with characters that cannot be printed: {key!r:.40}"
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, (_problem(each, depth + 1) for each in inner)), "")


def _line(text: object) -> bool:
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


def _words(content: Mapping[str, Any], key: str) -> str:
    return shown(content[key]) if key in content else "none"
