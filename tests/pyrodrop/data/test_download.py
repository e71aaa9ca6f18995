"""Downloads that break off, from a server on this machine that does so on purpose."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import re
import shutil
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import requests

from pyrodrop import data
from pyrodrop.data.download import Resumable, fetch, has_sha256, unpacked

CONTENT = np.random.default_rng(0).bytes(300_000)
HALF = 150_000
right = has_sha256(hashlib.sha256(CONTENT).hexdigest(), "the file")


def any_content(path: Path) -> None:
    """A check that accepts everything."""


class Server(ThreadingHTTPServer):
    """Serves `files`, notes every request's Range, and breaks off the answers numbered in `breaks` after half of them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {"/file": CONTENT}
        self.version: dict[str, str] = {"ETag": '"one"'}
        self.ranges, self.shift, self.hides = True, 0, False
        self.breaks: Callable[[int], bool] = lambda number: False
        self.asked: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append((self.path, wanted))
        content = server.files.get(self.path)
        if content is None:
            return self.send_error(404)
        start = 0
        same = self.headers.get("If-Range") in server.version.values()
        if wanted and server.ranges and same:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])  # type: ignore[index]
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start + server.shift}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if not server.hides:
            self.send_header("Content-Length", str(len(content) - start))
        for name, value in server.version.items():
            self.send_header(name, value)
        self.end_headers()
        rest = content[start:]
        self.wfile.write(rest[: len(rest) // 2] if server.breaks(len(server.asked)) else rest)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ranges(server: Server) -> list[str | None]:
    return [wanted for _, wanted in server.asked]


def broken_once(server: Server, target: Path) -> None:
    """A download of one attempt that breaks off in the middle."""
    server.breaks = lambda number: number == 1
    with pytest.raises(
        requests.ConnectionError, match=f"each of 1 attempts; {HALF} bytes were received.*next call resumes"
    ):
        Resumable(attempts=1)(f"{server.url}/file", target, any_content)
    assert not target.exists()


def test_the_next_call_asks_for_the_rest(server: Server, tmp_path: Path) -> None:
    target = tmp_path / "file"
    broken_once(server, target)
    Resumable()(f"{server.url}/file", target, any_content)
    assert target.read_bytes() == CONTENT
    assert ranges(server) == [None, f"bytes={HALF}-"]
    assert [p.name for p in tmp_path.iterdir()] == ["file"], "nothing is left beside it"


def test_one_call_makes_several_attempts(server: Server, tmp_path: Path) -> None:
    server.breaks = lambda number: number < 3
    path = fetch(f"{server.url}/file", tmp_path / "file", right, most=10**6)
    assert path.read_bytes() == CONTENT
    assert ranges(server) == [None, f"bytes={HALF}-", f"bytes={HALF + HALF // 2}-"]
    assert fetch(f"{server.url}/file", path, right, most=10**6) == path
    assert len(server.asked) == 3, "what is there is not fetched again"


def test_what_a_failed_fetch_brought_is_kept(server: Server, tmp_path: Path) -> None:
    server.breaks = lambda number: number < 4
    with pytest.raises(requests.ConnectionError, match="each of 3 attempts"):
        fetch(f"{server.url}/file", tmp_path / "file", right, most=10**6)
    assert fetch(f"{server.url}/file", tmp_path / "file", right, most=10**6).read_bytes() == CONTENT
    assert ranges(server)[-1] == f"bytes={300_000 - 300_000 // 8}-"


def test_a_server_without_parts_starts_anew(server: Server, tmp_path: Path) -> None:
    broken_once(server, tmp_path / "file")
    server.ranges = False
    Resumable(attempts=1)(f"{server.url}/file", tmp_path / "file", any_content)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_halves_of_two_versions_are_never_joined(server: Server, tmp_path: Path) -> None:
    broken_once(server, tmp_path / "file")
    server.files["/file"], server.version = CONTENT[::-1], {"ETag": '"two"'}
    Resumable(attempts=1)(f"{server.url}/file", tmp_path / "file", any_content)
    assert (tmp_path / "file").read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize(
    ("version", "resumes"),
    [({}, False), ({"ETag": 'W/"weak"'}, False), ({"ETag": 'W/"w"', "Last-Modified": "Tue, 01 Feb 2022"}, True)],
)
def test_only_a_marked_version_is_resumed(
    version: dict[str, str], resumes: bool, server: Server, tmp_path: Path
) -> None:
    server.version = version
    broken_once(server, tmp_path / "file")
    Resumable(attempts=1)(f"{server.url}/file", tmp_path / "file", any_content)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert ranges(server)[1] == (f"bytes={HALF}-" if resumes else None)


@pytest.mark.parametrize(("more", "asked"), [(b"", 2), (b"x", 3)])
def test_a_part_that_is_whole_or_too_long(more: bytes, asked: int, server: Server, tmp_path: Path) -> None:
    """416: a whole part is used as it is, one that is longer than the file is begun anew."""
    broken_once(server, tmp_path / "file")
    (part,) = tmp_path.glob(".*.part")
    part.write_bytes(CONTENT + more)
    Resumable(attempts=2)(f"{server.url}/file", tmp_path / "file", any_content)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(server.asked) == asked


def test_another_part_than_asked_for_is_not_added(server: Server, tmp_path: Path) -> None:
    broken_once(server, tmp_path / "file")
    server.shift = 7
    with pytest.raises(
        requests.ConnectionError, match=f"requested the bytes from {HALF}, but the server sent those from {HALF + 7}"
    ):
        Resumable(attempts=1)(f"{server.url}/file", tmp_path / "file", any_content)
    Resumable(attempts=1)(f"{server.url}/file", tmp_path / "file", any_content)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_file_that_is_not_there_is_asked_for_once(server: Server, tmp_path: Path) -> None:
    with pytest.raises(requests.HTTPError, match="404"):
        fetch(f"{server.url}/nothing", tmp_path / "nothing", right, most=10**6)
    assert len(server.asked) == 1


def test_a_wrong_hash_is_refused_and_begun_anew(server: Server, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="is not the file that is expected, and was not kept: file is not it: its SHA-256"
    ):
        fetch(f"{server.url}/file", tmp_path / "file", has_sha256("0" * 64, "it"), most=10**6)
    assert fetch(f"{server.url}/file", tmp_path / "file", right, most=10**6).read_bytes() == CONTENT
    assert ranges(server) == [None, None]


PORTAL = b"\n<!DOCTYPE html><html><title>Welcome to the hotel</title><form action=login>...</form></html>"
LOADERS = {
    "uci": ("pyrodrop.data.uci", lambda: data.uci("yacht"), "URL", "/{folder}"),
    "year": ("pyrodrop.data.uci", lambda: data.uci("year"), "YEAR_URL", "/year"),
    "mnist": ("pyrodrop.data.mnist", lambda: data.mnist(progress=False), "URL", "/"),
    "cifar10": ("pyrodrop.data.cifar10", lambda: data.cifar10(progress=False), "URL", "/cifar10"),
    "gal2016": ("pyrodrop.data.gal2016", lambda: data.gal2016("co2"), "URL", "/{series}/{part}"),
    "foong2020": ("pyrodrop.data.foong2020", data.foong2020, "URL", "/{file}"),
}


class Everything(dict[str, bytes]):
    """The same answer to every request, as from the network of a hotel."""

    def get(self, key: str, default: bytes | None = None) -> bytes:  # type: ignore[override]
        return self["/file"]


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("content", [PORTAL, b"", CONTENT[:1000], gzip.compress(CONTENT[:100])])
def test_what_is_not_the_data_never_enters_the_cache(
    content: bytes, name: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does it when it is asked for again, and a file that was spoilt in the cache is refused with its name."""
    place, load, url, path = LOADERS[name]
    server.files = Everything({"/file": content})
    monkeypatch.delenv("PYRODROP_DATA", raising=False)
    monkeypatch.setattr("pooch.os_cache", lambda _: tmp_path)
    monkeypatch.setattr(importlib.import_module(place), url, f"{server.url}{path}")
    for _ in range(2):
        with pytest.raises(ValueError, match="is not the file that is expected, and was not kept") as found:
            load()
        assert ("web page" in str(found.value)) == (content == PORTAL)
        assert [each.suffix for each in tmp_path.rglob("*") if each.is_file()] in ([".lock"], [])
    asked = len(server.asked)
    assert asked == 2

    def spoilt(url: str, path: Path, check: object, **_: object) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return fetch(url, path, check, most=10**6)  # type: ignore[arg-type]

    monkeypatch.setattr(importlib.import_module(place), "fetch", spoilt)
    with pytest.raises(ValueError, match=f"{tmp_path}/.*remove it and try again"):
        load()
    assert len(server.asked) == asked


def test_a_file_that_is_too_large_is_not_kept(server: Server, tmp_path: Path) -> None:
    """Whether the server says so before or not."""
    server.breaks = lambda number: number == 1
    with pytest.raises(ValueError, match="was not kept: it is larger than 299,999 bytes"):
        fetch(f"{server.url}/file", tmp_path / "file", right, most=299_999)
    server.hides = True
    with pytest.raises(ValueError, match="was not kept: it is larger than 100,000 bytes"):
        fetch(f"{server.url}/file", tmp_path / "file", right, most=100_000)
    assert [path.name for path in tmp_path.iterdir()] == [".file.lock"]
    assert fetch(f"{server.url}/file", tmp_path / "file", right, most=300_000).read_bytes() == CONTENT


def test_bombs_are_refused_before_they_are_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MB of zeros in 100 kB, as gzip and as zip, with a bound of 1 MB, in little memory."""
    module, table = (importlib.import_module(f"pyrodrop.data.{name}") for name in ("mnist", "uci"))
    monkeypatch.setattr(module, "LARGEST", 2**20)
    monkeypatch.setattr(table, "YEAR_LARGEST", 2**20)
    monkeypatch.setenv("PYRODROP_DATA", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "uci" / "year").mkdir(parents=True)
    with gzip.open(tmp_path / "mnist" / "train-images-idx3-ubyte.gz", "wb", 1) as packed:
        for _ in range(100):
            packed.write(bytes(10**6))
    with zipfile.ZipFile(tmp_path / "uci" / "year" / table.YEAR, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(table.YEAR.removesuffix(".zip"), bytes(10**8))
    for load in (data.mnist, lambda: data.uci("year")):
        tracemalloc.start()
        with pytest.raises(
            ValueError, match="must have at most 1,048,576 bytes when unpacked.*remove it and try again"
        ):
            load()
        assert tracemalloc.get_traced_memory()[1] < 2 * 10**7
        tracemalloc.stop()
    assert unpacked(io.BytesIO(b"123"), 3, "it") == b"123"


@pytest.mark.parametrize("name", ["gal2016", "foong2020", "uci"])
def test_files_below_the_data_folder_are_checked_too(
    name: str, tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A digit that was changed, in every file."""
    _, load, _, _ = LOADERS[name]
    place = {"uci": "uci/yacht"}.get(name, name)
    shutil.copytree(data_folder / place, tmp_path / place)
    monkeypatch.setenv("PYRODROP_DATA", str(tmp_path))
    load()
    used = {"gal2016": "co2_*.csv", "foong2020": "origin_*.txt", "uci": "data.txt"}[name]
    for file in sorted((tmp_path / place).glob(used)):
        content = file.read_bytes()
        changed = bytearray(content)
        changed[-3] = ord("1") if changed[-3] != ord("1") else ord("2")
        file.write_bytes(changed)
        with pytest.raises(ValueError, match=f"{file} is not .*remove it and try again"):
            load()
        file.write_bytes(content)


def test_several_at_once_download_once(server: Server, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: fetch(f"{server.url}/file", tmp_path / "file", right, most=10**6), range(4)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert len(server.asked) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("progress", [True, False])
def test_a_bar_is_shown_on_a_terminal_when_asked_for(
    progress: bool, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed one starts in the middle."""
    broken_once(server, tmp_path / "file")
    monkeypatch.setattr(sys, "stderr", Terminal())
    Resumable(progress=progress)(f"{server.url}/file", tmp_path / "file", any_content)
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert ("150k/300k" in shown) if progress else shown == ""


def test_mnist_comes_through_a_bad_connection(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four files of two digits in MNIST's format, every second answer broken off."""
    module = importlib.import_module("pyrodrop.data.mnist")  # the package has a function of this name
    idx = {
        "images": b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 28, 28)) + CONTENT[: 2 * 784],
        "labels": b"\0\0\x08\x01" + (2).to_bytes(4, "big") + bytes([7, 2]),
    }
    raw = {name: idx[name.split("-")[1]] for name in module.SHA256}
    server.files = {f"/{name}.gz": gzip.compress(content) for name, content in raw.items()}
    server.breaks = lambda number: number % 2 == 1
    monkeypatch.delenv("PYRODROP_DATA", raising=False)
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path)
    monkeypatch.setattr(module, "URL", f"{server.url}/")
    monkeypatch.setattr(module, "SHA256", {name: hashlib.sha256(content).hexdigest() for name, content in raw.items()})
    split = data.mnist(progress=False)
    assert split.train.x.shape == (2, 784)
    assert split.test.y.tolist() == [7, 2]
    assert (split.test.x * 255).round().byte().numpy().tobytes() == CONTENT[: 2 * 784]
    assert len(server.asked) == 8

    monkeypatch.setitem(module.SHA256, "t10k-labels-idx1-ubyte", "0" * 64)
    with pytest.raises(ValueError, match="should be 0{64}; remove it"):
        data.mnist(progress=False)
