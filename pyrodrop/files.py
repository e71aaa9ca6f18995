"""Files that are written whole or not at all."""

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
    """A path to write to, which takes the place of `path` once the block has ended well."""
    part = path.with_name(f".{path.name}.part{os.getpid()}")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def writable_folder(path: str | Path) -> Path:
    """The folder, made if need be; a ValueError if it cannot be written to."""
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
    """JSON without NaN, which readers do not agree on."""
    with whole(path) as part:
        part.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Tensors, with what they are about as JSON in the file's header (safetensors)."""
    own = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    with whole(path) as part:
        save_file(own, part, metadata={"pyrodrop": json.dumps(about)})


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `write_tensors` wrote; a ValueError for a file that it did not write."""
    with safe_open(path, framework="pt") as file:
        about = (file.metadata() or {}).get("pyrodrop")
        if about is None:
            raise ValueError(f"{path} is not a file of pyrodrop's: its header does not say what it holds")
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(about)  # noqa: SIM118
