"""Downloads that go on where they broke off.

What has come so far is kept beside the file to be, with the server's mark of its version (ETag, or date of change). The
next attempt asks for the rest of that version: RFC 9110, HTTP Semantics, sections 14.2 (Range) and 13.1.5 (If-Range). A
server that has another version by now, gives no mark or sends no parts sends the whole, and the file begins anew.
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
    """The file at `path`, downloaded if it is not there; of several processes one downloads and the others wait.

    Args:
        url: where it comes from.
        path: where it is kept.
        known_hash: of the file as pooch writes it, ``sha256:...``; None leaves the check to the caller.
        progress: whether a download shows a bar on a terminal.

    Raises:
        requests.RequestException: the server cannot be reached, has no such file, or broke off too often.
        ValueError: the file has another hash.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    alone = nullcontext() if path.exists() else FileLock(path.with_name(f".{path.name}.lock"))
    with alone:
        return Path(pooch.retrieve(url, known_hash, path.name, path.parent, downloader=Resumable(progress=progress)))


class Resumable:
    """A downloader for pooch that resumes.

    Args:
        progress: whether to show a bar on a terminal.
        attempts: connections in one call; a later call goes on from what they brought.
        timeout: seconds without an answer after which a connection counts as broken.
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
            f"{url} broke off in each of {self.attempts} attempts, the last time with {_size(part)} bytes here "
            f"({failure}); they are kept, and the next call goes on from there"
        ) from failure

    def _go_on(self, url: str, part: Path) -> None:
        """Ask for what `part` lacks and add it, in one connection."""
        held = _size(part) if _mark(part).exists() else 0
        headers = {"Accept-Encoding": "identity"}  # bytes as they are stored, whose places can be counted
        if held:
            headers |= {"Range": f"bytes={held}-", "If-Range": _mark(part).read_text()}
        with requests.get(url, headers=headers, stream=True, timeout=self.timeout) as response:
            if response.status_code == requests.codes.requested_range_not_satisfiable:
                if _total(response) == held:
                    return  # all of it had come
                _mark(part).unlink()
                raise requests.ConnectionError(f"{held} bytes are more than the {_total(response)} of the file")
            response.raise_for_status()
            if response.status_code != requests.codes.partial_content:
                held = 0
                _begin(part, response)
            elif _start(response) != held:
                _mark(part).unlink()
                raise requests.ConnectionError(
                    f"the bytes from {held} were asked for, those from {_start(response)} came"
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
            raise requests.ConnectionError(f"{_size(part)} bytes of {total} came")


def _begin(part: Path, response: requests.Response) -> None:
    """An empty part, with the version of what will fill it; a weak ETag marks no bytes."""
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
    """Length of the whole file, where the server says it."""
    if "Content-Range" in response.headers:
        found = re.search(r"/(\d+)$", response.headers["Content-Range"])
        return int(found[1]) if found else None
    length = response.headers.get("Content-Length")
    return int(length) if length else None
