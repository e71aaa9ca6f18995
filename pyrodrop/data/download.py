"""Files of data, and downloads that resume after an interruption.

The bytes received so far are stored next to the target file, with the version of the file on the server (ETag, or date of
last modification). The next attempt requests the rest of that version: RFC 9110, HTTP Semantics, sections 14.2 (Range) and
13.1.5 (If-Range), https://www.rfc-editor.org/rfc/rfc9110. If the version has changed, or the server reports no version or
does not support ranges, it sends the whole file and the download starts again.

A file enters the cache only after its content was checked, so the page of a network that wants a login first is never taken
for data. A file that is there is checked whenever it is read. Downloads and archives have a largest size.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pooch
import requests
from filelock import FileLock
from tqdm import tqdm
from urllib3.exceptions import ProtocolError, ReadTimeoutError

from pyrodrop.failed import Failed

_CHUNK = 2**16  # bytes
_BROKEN = (requests.ConnectionError, requests.Timeout, ProtocolError, ReadTimeoutError)


Check = Callable[[Path], object]
"""Raises a ValueError if the content of a file is not what it should be."""


def data_file(place: str, what: str, url: str, check: Check, *, most: int = 2**24, progress: bool = False) -> Path:
    """The path of a file of data, which was checked.

    It is in the folder that the environment variable PYRODROP_DATA names; where that is not set, it is downloaded once, to
    the user's cache.

    Args:
        place: of the file in either folder, ``mnist/NAME``.

    Raises:
        FileNotFoundError: PYRODROP_DATA is set, but the file does not exist.
        ConnectionError: the file cannot be downloaded.
        ValueError: the file has the wrong content.
    """
    local = os.environ.get("PYRODROP_DATA")
    path = Path(local or pooch.os_cache("pyrodrop")) / place
    if local and not path.is_file():
        raise FileNotFoundError(
            f"PYRODROP_DATA is set, so {what} is expected at {path}, but this file does not exist; its source is {url}"
        )
    if not path.exists():
        try:
            return fetch(url, path, check, most=most, progress=progress)
        except OSError as error:
            raise ConnectionError(
                f"{what} could not be downloaded from {url} ({error}); alternatively, put it at {path} yourself, or at "
                f"{place} in a folder and set PYRODROP_DATA to that folder"
            ) from error
    check(path)
    return path


def fetch(url: str, path: Path, check: Check, *, most: int, progress: bool = False) -> Path:
    """Return the file at `path`; download it first if it does not exist.

    If several processes ask for the same file, one downloads it and the others wait.

    Args:
        check: raises a ValueError if a file has the wrong content: for a new file, which then is not kept, and for a file
            that is there already.

    Raises:
        requests.RequestException: the server cannot be reached or has no such file, or the connection broke too often.
        ValueError: the file has the wrong content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with FileLock(path.with_name(f".{path.name}.lock")):
            if not path.exists():
                Resumable(progress=progress, most=most)(url, path, check)
                return path
    check(path)
    return path


def has_sha256(expected: str, what: str) -> Check:
    """A check of a file's SHA-256."""

    def check(path: Path) -> None:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != expected:
            raise Failed(
                f"{path} is not {what}: its SHA-256 hash is {digest} and should be {expected}; remove it and try again"
            )

    return check


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def unpacked(file: _Readable, most: int, what: str) -> bytes:
    """The content of a file from an archive; a ValueError if it is larger than `most` bytes, as a zip bomb's is."""
    content = file.read(most + 1)
    if len(content) > most:
        raise Failed(f"{what} must have at most {most:,} bytes when unpacked, and has more; remove it and try again")
    return content


def gunzipped(path: Path, most: int, hint: str = "") -> bytes:
    """The content of a gzip file of at most `most` bytes; a ValueError that ends in `hint` if it is none."""
    try:
        with gzip.open(path) as file:
            return unpacked(file, most, str(path))
    except (OSError, EOFError, zlib.error) as error:
        raise Failed(f"{path} is not a complete gzip file ({error}){hint}; remove it and try again") from None


class Resumable:
    """A download that resumes after an interruption.

    Args:
        attempts: number of connections per call. A later call resumes where the last one stopped.
        timeout: time in seconds without an answer after which a connection counts as broken.
    """

    def __init__(self, *, progress: bool = False, attempts: int = 3, timeout: float = 30.0, most: int = 2**30) -> None:
        self.progress: bool = progress
        self.attempts: int = attempts
        self.timeout: float = timeout
        self.most: int = most

    def __call__(self, url: str, path: Path, check: Check) -> None:
        """Download to `path`, after the content was checked.

        Raises:
            requests.RequestException: see `fetch`.
            ValueError: the server sent something else, or more than `most` bytes; nothing of it is kept.
        """
        part = path.with_name(f".{hashlib.sha256(url.encode()).hexdigest()[:16]}.part")
        failure: Exception | None = None
        for _ in range(self.attempts):
            try:
                self._go_on(url, part)
            except _BROKEN as error:
                failure = error
            else:
                self._accept(url, part, path, check)
                return
        raise requests.ConnectionError(
            f"the download of {url} failed in each of {self.attempts} attempts; {_size(part)} bytes were received "
            f"({failure}). They are kept, and the next call resumes from there"
        ) from failure

    def _accept(self, url: str, part: Path, path: Path, check: Check) -> None:
        """Rename a complete download if its content is right; otherwise remove it."""
        try:
            check(part)
        except ValueError as error:
            with part.open("rb") as file:
                begins = file.read(200).lstrip().lower().startswith((b"<!doctype", b"<html"))
            hint = "it is a web page, perhaps that of a network which wants a login first" if begins else str(error)
            part.unlink()
            _mark(part).unlink(missing_ok=True)
            raise Failed(
                f"what {url} sent is not the file that is expected, and was not kept: "
                + hint.replace(str(part), path.name).replace("; remove it and try again", "")
            ) from error
        os.replace(part, path)
        _mark(part).unlink(missing_ok=True)

    def _go_on(self, url: str, part: Path) -> None:
        """Request the missing bytes of `part` and append them, in one connection."""
        held = _size(part) if _mark(part).exists() else 0
        headers = {"Accept-Encoding": "identity"}  # no compression, so that byte positions refer to the stored file
        if held:
            headers |= {"Range": f"bytes={held}-", "If-Range": _mark(part).read_text()}
        with requests.get(url, headers=headers, stream=True, timeout=self.timeout) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                if _total(response) == held:
                    return  # the file was already complete
                _mark(part).unlink()
                raise requests.ConnectionError(f"{held} bytes were received, but the file has {_total(response)}")
            response.raise_for_status()
            if response.status_code != requests.codes.partial_content:
                held = 0
                _begin(part, response)
            elif _start(response) != held:
                _mark(part).unlink()
                raise requests.ConnectionError(
                    f"requested the bytes from {held}, but the server sent those from {_start(response)}"
                )
            self._add(part, held, response)

    def _add(self, part: Path, held: int, response: requests.Response) -> None:
        total = _total(response)
        if total is not None and total > self.most:
            raise self._too_large(response, part)
        bar = tqdm(
            total=total, initial=held, unit="B", unit_scale=True, leave=False, disable=None if self.progress else True
        )
        with bar, part.open("ab") as file:
            for chunk in response.raw.stream(_CHUNK, decode_content=False):
                file.write(chunk)
                bar.update(len(chunk))
                held += len(chunk)
                if held > self.most:
                    raise self._too_large(response, part)
        if total is not None and _size(part) != total:
            raise requests.ConnectionError(f"received {_size(part)} of {total} bytes")

    def _too_large(self, response: requests.Response, part: Path) -> ValueError:
        """The error to raise for a file that is larger than it may be; what was received is removed."""
        part.unlink(missing_ok=True)
        _mark(part).unlink(missing_ok=True)
        return Failed(
            f"what {response.url} sends is not the file that is expected, and was not kept: "
            f"it is larger than {self.most:,} bytes"
        )


def _begin(part: Path, response: requests.Response) -> None:
    """Create an empty part and store the version of the file. A weak ETag does not identify bytes and is not used."""
    _mark(part).unlink(missing_ok=True)
    part.write_bytes(b"")
    etag = response.headers.get("ETag", "W/")
    version = response.headers.get("Last-Modified") if etag.startswith("W/") else etag
    if version:
        _mark(part).write_text(version)


def _mark(part: Path) -> Path:
    return part.with_suffix(".mark")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _start(response: requests.Response) -> int | None:
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(match[1]) if match else None


def _total(response: requests.Response) -> int | None:
    """Length of the whole file in bytes; None if the server does not report it."""
    if "Content-Range" in response.headers:
        match = re.search(r"/(\d+)$", response.headers["Content-Range"])
        return int(match[1]) if match else None
    length = response.headers.get("Content-Length")
    return int(length) if length else None
