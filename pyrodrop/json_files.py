"""Read JSON files that may be cut off, changed or made by somebody else: every entry is checked before it is used.

What is read is data: nothing in a file is run, numbers are finite, names can be printed, and size and depth are bounded.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyrodrop.arguments import shown
from pyrodrop.failed import Failed

LARGEST = 2**28  # bytes of a file
_DEEPEST = 40  # objects within objects


@dataclass(frozen=True)
class Record:
    """A JSON object from a file.

    Attributes:
        path: of the file.
        content: the object.
        advice: what to do if an entry is wrong, for error messages.
        where: the place of the object in the file, such as ``models.mean-field``; empty for the whole file.
    """

    path: Path
    content: Mapping[str, Any]
    advice: str = ""
    where: str = ""

    def fault(self, words: str) -> Failed:
        """The error to raise for what is wrong with this file."""
        return Failed(f"{self.path} {words}" + (f"; {self.advice}" if self.advice else ""))

    def number(self, key: str, *, optional: bool = False) -> float | None:
        """A finite number; with `optional`, None for null or a missing entry."""
        value = self.content.get(key)
        if value is None and optional:
            return None
        if not _finite(value):
            raise self.fault(f"must have a finite number as {self._name(key)}; it has {_words(self.content, key)}")
        return float(value)  # type: ignore[arg-type]

    def whole(self, key: str) -> int:
        """A whole number."""
        value = self.content.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fault(f"must have a whole number as {self._name(key)}; it has {_words(self.content, key)}")
        return value

    def numbers(self, key: str, count: int | None = None) -> list[float]:
        """A list of finite numbers, of this length if it is given and otherwise of at least one."""
        value = self.content.get(key)
        if not isinstance(value, list) or not all(map(_finite, value)):
            raise self.fault(
                f"must have a list of finite numbers as {self._name(key)}; it has {_words(self.content, key)}"
            )
        if len(value) != count if count is not None else not value:
            wanted = "at least one number" if count is None else f"{count} numbers"
            raise self.fault(f"must have {wanted} as {self._name(key)}; it has {len(value)}")
        return [float(each) for each in value]

    def text(self, key: str) -> str:
        """A string of one line."""
        value = self.content.get(key)
        if not isinstance(value, str) or not _line(value):
            raise self.fault(f"must have a line of text as {self._name(key)}; it has {_words(self.content, key)}")
        return value

    def record(self, key: str) -> Record:
        """An object."""
        value = self.content.get(key)
        if not isinstance(value, dict):
            raise self.fault(f"must have an object as {self._name(key)}; it has {_words(self.content, key)}")
        return Record(self.path, value, self.advice, self._name(key))

    def _name(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key


def read_record(path: Path, advice: str = "") -> Record:
    """The object in a JSON file.

    Args:
        path: of the file.
        advice: what to do if it is not as it should be, for error messages.

    Raises:
        Failed: the file is too large, is not JSON, or not an object; a number is NaN or infinite, which JSON does not
            define; or a name has characters that cannot be printed.
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
    """What is wrong with a value of a file; empty if nothing is."""
    if depth > _DEEPEST:
        return f"has more than {_DEEPEST} objects within each other"
    if isinstance(value, float) and not math.isfinite(value):
        return "has a number that is too large"
    if isinstance(value, str) and not _encodable(value):
        return f"has text that is not valid Unicode: {value!r:.40}"
    if isinstance(value, dict):
        for key in value:
            if not _line(key):
                return f"has a name with characters that cannot be printed: {key!r:.40}"
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, (_problem(each, depth + 1) for each in inner)), "")


def _encodable(text: str) -> bool:
    return not any(0xD800 <= ord(character) <= 0xDFFF for character in text)


def _line(text: str) -> bool:
    """Whether a terminal shows it as one line: no control or format characters, no line separators."""
    return not any(unicodedata.category(each)[0] == "C" or unicodedata.category(each) in ("Zl", "Zp") for each in text)


def _finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _words(content: Mapping[str, Any], key: str) -> str:
    return shown(content[key]) if key in content else "none"
