"""The user's cache folder, for compiled programs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pooch


def folder(name: str) -> Path | None:
    """A folder in the user's cache, created if necessary; None if it cannot be written to, or other users can write to it.

    Args:
        name: of the folder, inside of the folder that the environment variable ``PYRODROP_CACHE`` names, by default the
            cache folder of the system, such as ``~/.cache/pyrodrop``.
    """
    path = Path(os.environ.get("PYRODROP_CACHE") or pooch.os_cache("pyrodrop")) / name
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path if is_mine(path) and os.access(path, os.W_OK) else None
    except OSError:
        return None


def is_mine(path: Path) -> bool:
    """Whether this user owns a file or folder and no other user may write to it."""
    if not hasattr(os, "getuid"):  # Windows: the folder lies in the user's profile
        return True
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
