"""Downloads from a server on this machine that breaks off, or sends something else."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest

from pyrodrop import data
from pyrodrop.data.files import FILES, File, located

CONTENT = np.random.default_rng(0).bytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PORTAL = b"\n<!DOCTYPE html><html><title>Welcome to the hotel</title><form action=login>...</form></html>"


class Server(ThreadingHTTPServer):
    """Sends what `files` has for a path, or else `content`; answers whose numbers `breaks` accepts are cut in half."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content: bytes | None = CONTENT
        self.files: dict[str, bytes] = {}
        self.breaks: Callable[[int], bool] = lambda number: False
        self.asked = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked += 1
        content = self.server.files.get(self.path, self.server.content)
        if content is None:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if self.server.breaks(self.server.asked) else content)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server, a cache below `tmp_path`, and no waiting between attempts."""
    monkeypatch.delenv("PYRODROP_DATA", raising=False)
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path)
    monkeypatch.setattr("pooch.core.time", SimpleNamespace(sleep=lambda seconds: None))
    with Server() as server:
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_file_is_downloaded_once_through_a_bad_connection(server: Server, tmp_path: Path) -> None:
    server.breaks = lambda number: number < 3
    for _ in range(2):
        path = located(File("set/file", SHA256, f"{server.url}/file"), "the file")
        assert path.read_bytes() == CONTENT
        assert files(tmp_path) == ["set/file"], "nothing is left beside it"
        assert server.asked == 3
    path.write_bytes(CONTENT[:-1])
    assert located(File("set/file", SHA256, f"{server.url}/file"), "the file").read_bytes() == CONTENT, (
        "it is made anew"
    )


@pytest.mark.parametrize("failure", ["breaks", "404", "no server"])
def test_what_cannot_be_downloaded_says_from_where_and_how_to_do_without(
    failure: str, server: Server, tmp_path: Path
) -> None:
    url = "http://127.0.0.1:1/file" if failure == "no server" else f"{server.url}/file"
    server.breaks = lambda number: failure == "breaks"
    server.content = None if failure == "404" else CONTENT
    with pytest.raises(
        ConnectionError, match=f"the file could not be downloaded from {url} .*put it at {tmp_path}.*set PYRODROP_DATA"
    ):
        located(File("set/file", SHA256, url), "the file")
    assert files(tmp_path) == []


LOADERS = {
    "uci": (lambda: data.uci("yacht"), "data.txt"),
    "mnist": (lambda: data.mnist(), "images.gz"),
    "gal2016": (lambda: data.gal2016("co2"), "series.h5"),
    "foong2020": (data.foong2020, "origin.txt"),
}


@pytest.mark.parametrize("name", LOADERS)
def test_what_is_not_the_data_never_enters_the_cache(
    name: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the page of a hotel's network."""
    load, path = LOADERS[name]
    server.content = PORTAL
    for known, file in FILES.items():
        if file.url:
            monkeypatch.setitem(FILES, known, file._replace(url=f"{server.url}/{path}"))
    with pytest.raises(ValueError, match=r"and was not kept; it may be the page of a network.*set PYRODROP_DATA"):
        load()
    assert files(tmp_path) == []


def test_mnist_is_read_from_its_files(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four files of two digits in MNIST's format."""
    idx = {
        "images": b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 28, 28)) + CONTENT[: 2 * 784],
        "labels": b"\0\0\x08\x01" + (2).to_bytes(4, "big") + bytes([7, 2]),
    }
    for name in [name for name in FILES if "ubyte" in name]:
        content = idx[name.split("-")[1]]
        server.files[f"/{name}.gz"] = packed = gzip.compress(content, mtime=0)
        file = FILES[name]._replace(
            url=f"{server.url}/{name}.gz", sha256=hashlib.sha256(content).hexdigest(),
            published=f"md5:{hashlib.md5(packed).hexdigest()}",
        )  # fmt: skip
        monkeypatch.setitem(FILES, name, file)
    split = data.mnist()
    assert split.train.x.shape == (2, 784)
    assert split.test.y.tolist() == [7, 2]
    assert (split.test.x * 255).round().byte().numpy().tobytes() == CONTENT[: 2 * 784]
