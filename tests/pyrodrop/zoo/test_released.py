"""Trained posteriors outside of the wheel: in a clone, a folder or at an address, by their hash."""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import http.server
import threading
import tomllib
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

import pooch
import pytest

from pyrodrop import zoo
from pyrodrop.zoo import trained

ROOT = Path(__file__).parents[3]
NAME = "co2/mc-dropout-tanh-0.1"


def test_every_posterior_is_in_the_wheel_or_has_a_hash() -> None:
    """If this fails: ``cd pyrodrop/zoo/posteriors && sha256sum FOLDERS/*.safetensors > SHA256SUMS`` of the others."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packed = project["tool"]["setuptools"]["package-data"]["pyrodrop.zoo"]
    files = {path.relative_to(trained.SHIPPED.parent).as_posix() for path in trained.SHIPPED.rglob("*.safetensors")}
    others = {file.partition("/")[2] for file in files if not any(fnmatch.fnmatchcase(file, p) for p in packed)}
    listed = {file: digest for digest, file in map(str.split, trained.HASHES.read_text().splitlines())}
    assert listed.keys() == others
    assert len({file.replace("/", ".") for file in listed}) == len(listed)
    for file, digest in listed.items():
        assert hashlib.sha256((trained.SHIPPED / file).read_bytes()).hexdigest() == digest, file


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As if the package had been installed: without the files of a clone, and with an empty cache, which is returned."""
    monkeypatch.delenv("PYRODROP_ZOO", raising=False)
    monkeypatch.setattr(trained, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a web server, and the folder that it serves."""
    folder = tmp_path / "site"
    folder.mkdir()
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def test_an_address_is_asked_once_and_wrong_content_is_not_kept(
    installed: Path, site: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, folder = site
    right = (trained.HASHES.parent / f"{NAME}.safetensors").read_bytes()
    served, kept = folder / "co2.mc-dropout-tanh-0.1.safetensors", installed / "zoo" / f"{NAME}.safetensors"
    monkeypatch.setenv("PYRODROP_ZOO", f"{url}/")
    served.write_bytes(right[:-1] + b"x")
    monkeypatch.setattr("pyrodrop.data.files._RETRIES", 0)
    with pytest.raises(ValueError, match="is not the trained posterior co2/mc-dropout-tanh-0.1, and was not kept"):
        zoo.load(NAME)
    assert not kept.exists()
    served.unlink()
    with pytest.raises(
        ConnectionError, match="co2/mc-dropout-tanh-0.1 could not be downloaded from http.*alternatively, set the env"
    ):
        zoo.load(NAME)
    served.write_bytes(right)
    assert zoo.load(NAME).settings["zoo"]["name"] == NAME  # type: ignore[union-attr]
    served.unlink()
    assert trained.pull(NAME) == kept
    assert zoo.names(NAME, loads=True) == []


def test_without_an_address_it_says_how_to_get_the_file(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "address", lambda: "")
    for name in (NAME, "uci/year"):
        with pytest.raises(
            ValueError,
            match=f"no trained posterior of {name} is here or at an address: set .*pyrodrop run {name} --save",
        ):
            trained.pull(name)
    assert not installed.exists()
    monkeypatch.setenv("PYRODROP_ZOO", str(trained.HASHES.parent))  # a folder
    assert trained.pull(NAME) == trained.HASHES.parent / f"{NAME}.safetensors"


def test_the_address_is_the_releases_of_this_version(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = Message()
    about["Project-URL"], about["Version"] = "Repository, https://pyro.ai/p", "1.2"
    monkeypatch.setattr(trained, "metadata", lambda name: about)
    monkeypatch.setattr(trained, "download", lambda url, *_: Path(url).name)
    assert trained.address() == "https://pyro.ai/p/releases/download/v1.2"
    assert trained.pull(NAME) == "co2.mc-dropout-tanh-0.1.safetensors"
    about.replace_header("Project-URL", "Repository, https://example.org/p")
    assert trained.address() == ""
