"""Downloads that resume after an interruption.

The bytes received so far are stored next to the target file, with the version of the file on the server (ETag, or date of
last modification). The next attempt requests the rest of that version: RFC 9110, HTTP Semantics, sections 14.2 (Range) and
13.1.5 (If-Range), https://www.rfc-editor.org/rfc/rfc9110. If the version has changed, or the server reports no version or
does not support ranges, it sends the whole file and the download starts again.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import nullcontext
from pathlib import Path

import pooch
import requests
from filelock import FileLock
from tqdm import tqdm
from urllib3.exceptions import ProtocolError, ReadTimeoutError

_CHUNK = 2**16  # bytes
_BROKEN = (requests.ConnectionError, requests.Timeout, ProtocolError, ReadTimeoutError)


def fetch(url: str, path: Path, *, known_hash: str | None = None, progress: bool = False) -> Path:
    """Return the file at `path`; download it first if it does not exist.

    If several processes ask for the same file, one downloads it and the others wait.

    Args:
        url: address of the file.
        path: path of the local copy.
        known_hash: expected hash in the notation of pooch, ``sha256:...``; None for no check.
        progress: whether to show a progress bar on a terminal.

    Raises:
        requests.RequestException: the server cannot be reached or has no such file, or the connection broke too often.
        ValueError: the file has another hash.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    alone = nullcontext() if path.exists() else FileLock(path.with_name(f".{path.name}.lock"))
    with alone:
        return Path(pooch.retrieve(url, known_hash, path.name, path.parent, downloader=Resumable(progress=progress)))


class Resumable:
    """A downloader for pooch that resumes interrupted downloads.

    Args:
        progress: whether to show a progress bar on a terminal.
        attempts: number of connections per call. A later call resumes where the last one stopped.
        timeout: time in seconds without an answer after which a connection counts as broken.
    """

    def __init__(self, *, progress: bool = False, attempts: int = 3, timeout: float = 30.0) -> None:
        self.progress, self.attempts, self.timeout = progress, attempts, timeout

    def __call__(self, url: str, output_file: str | Path, pooch: object = None) -> None:
        part = Path(output_file).with_name(f".{hashlib.sha256(url.encode()).hexdigest()[:16]}.part")
        failure: Exception | None = None
        for _ in range(self.attempts):
            try:
                self._go_on(url, part)
            except _BROKEN as error:
                failure = error
            else:
                os.replace(part, output_file)
                _mark(part).unlink(missing_ok=True)
                return
        raise requests.ConnectionError(
            f"the download of {url} failed in each of {self.attempts} attempts; {_size(part)} bytes were received "
            f"({failure}). They are kept, and the next call resumes from there"
        ) from failure

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
        bar = tqdm(
            total=total, initial=held, unit="B", unit_scale=True, leave=False, disable=None if self.progress else True
        )
        with bar, part.open("ab") as file:
            for chunk in response.raw.stream(_CHUNK, decode_content=False):
                file.write(chunk)
                bar.update(len(chunk))
        if total is not None and _size(part) != total:
            raise requests.ConnectionError(f"received {_size(part)} of {total} bytes")


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
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(found[1]) if found else None


def _total(response: requests.Response) -> int | None:
    """Length of the whole file in bytes; None if the server does not report it."""
    if "Content-Range" in response.headers:
        found = re.search(r"/(\d+)$", response.headers["Content-Range"])
        return int(found[1]) if found else None
    length = response.headers.get("Content-Length")
    return int(length) if length else None
