"""JSON files: written whole or not at all, and read with bounds on size and depth, finite numbers and printable names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyrodrop.checks import shown
from pyrodrop.files import Record, is_line, whole

LARGEST = 2**28  # bytes of a file
_DEEPEST = 40  # objects within objects


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON atomically.

    Raises:
        ValueError: `content` has NaN or infinite numbers, which JSON does not define.
        OSError: as `whole`.
    """
    with whole(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


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
            if not is_line(key):
                return f"has a name with characters that cannot be printed: {key!r:.40}"
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, (_problem(each, depth + 1) for each in inner)), "")
