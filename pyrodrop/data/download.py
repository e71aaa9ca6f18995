"""Data files, which pooch downloads once to the user's cache and checks by their hashes.

https://www.fatiando.org/pooch. A file enters the cache whole and with the right hash, or not at all.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pooch

from pyrodrop.failed import Failed

_RETRIES = 3  # after a lost connection or a wrong hash


def data_file(place: str, what: str, url: str, known_hash: str | None, *, progress: bool = False) -> Path:
    """The path of a data file, after checking its hash.

    The file is read from the folder that the environment variable PYRODROP_DATA names. If the variable is not set, the file
    is downloaded once to the user's cache.

    Args:
        place: path of the file relative to either folder, such as ``mnist/NAME``.
        what: a short description of the file, for messages.
        known_hash: the SHA-256; None for a file whose content the caller checks.
        progress: whether to show a progress bar on a terminal.

    Raises:
        FileNotFoundError: PYRODROP_DATA is set, but the file does not exist.
        ConnectionError: the file cannot be downloaded.
        ValueError: the file has the wrong content.
    """
    local = os.environ.get("PYRODROP_DATA")
    if not local:
        path = Path(pooch.os_cache("pyrodrop")) / place
        offline = f"put it at {path} yourself, or at {place} in a folder and set PYRODROP_DATA to that folder"
        return download(url, path, known_hash, what, offline, progress=progress)
    path = Path(local) / place
    if not path.is_file():
        raise FileNotFoundError(
            f"PYRODROP_DATA is set, so {what} is expected at {path}, but this file does not exist; its source is {url}"
        )
    sha256 = None if known_hash is None else pooch.file_hash(str(path))
    if sha256 != known_hash:
        raise Failed(
            f"{path} is not {what}: its SHA-256 hash is {sha256} and should be {known_hash}; remove it and try again"
        )
    return path


def download(url: str, path: Path, known_hash: str | None, what: str, offline: str, *, progress: bool = False) -> Path:
    """The path of a file in the cache, which is downloaded if it is missing or has another hash.

    Args:
        known_hash: the SHA-256, or ``md5:`` and the MD5; None if it is not known.
        what, progress: as for `data_file`.
        offline: how to get the file without a network, for messages.

    Raises:
        ConnectionError: the file cannot be downloaded.
        ValueError: the server sent other content, which is not kept.
    """
    files = pooch.Pooch(
        path.parent, "", registry={path.name: known_hash}, urls={path.name: url}, retry_if_failed=_RETRIES
    )
    try:
        return Path(files.fetch(path.name, progressbar=progress and sys.stderr.isatty()))
    except OSError as error:
        raise ConnectionError(
            f"{what} could not be downloaded from {url} ({error}); alternatively, {offline}"
        ) from error
    except ValueError as error:
        raise Failed(
            f"what {url} sent is not {what}, and was not kept; it may be the page of a network that wants a login first. "
            f"{error} Alternatively, {offline}"
        ) from error
