"""Atomic file writes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path to write to, which replaces `path` when the block ends without an exception."""
    part = path.with_name(f".{path.name}.part{os.getpid()}")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def writable_folder(path: str | Path) -> Path:
    """Create the folder if it does not exist and check that it is writable.

    Raises:
        ValueError: the folder cannot be created or written to.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-test-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(f"results need a folder that can be written to; got {folder}: {error.strerror}") from None
    return folder


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON atomically.

    Raises:
        ValueError: `content` has NaN or infinite numbers, which JSON does not define.
    """
    with whole(path) as part:
        part.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors atomically in the safetensors format, with `about` as JSON in the header."""
    own = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with whole(path) as part:
        save_file(own, part, metadata={"pyrodrop": json.dumps(about)})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the header of a file from `write_tensors`.

    Raises:
        ValueError: the file was not written by `write_tensors`.
    """
    with safe_open(path, framework="pt") as file:
        about = (file.metadata() or {}).get("pyrodrop")
        if about is None:
            raise ValueError(f"{path} was not written by pyrodrop: its header has no entry 'pyrodrop'")
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(about)  # noqa: SIM118
