"""Trained posteriors that are no part of the package but files of its release, checked by their hashes.

``posteriors/SHA256SUMS`` has a line ``HASH  NAME.safetensors`` for each. A file of a release has the NAME with dots in place
of slashes.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pooch

from pyrodrop.data.files import download
from pyrodrop.failed import Failed

HASHES = Path(__file__).parent / "posteriors" / "SHA256SUMS"


def chosen() -> str:
    """The environment variable ``PYRODROP_ZOO`` if it is an address and no folder, otherwise nothing."""
    place = os.environ.get("PYRODROP_ZOO", "")
    return place.rstrip("/") if place.startswith(("https://", "http://")) else ""


def address() -> str:
    """Where the files of this release are; empty if the package has no public repository."""
    try:
        about = metadata("pyrodrop")
    except PackageNotFoundError:  # used from a checkout that is not installed
        return ""
    repository = dict(url.split(", ", 1) for url in about.get_all("Project-URL") or ()).get("Repository", "example.org")
    return "" if "example.org" in repository else f"{repository}/releases/download/v{about['Version']}"


def released(name: str) -> Path | None:
    """The file of a trained posterior, downloaded once from an address; None if the release has none of this name.

    Raises:
        Failed: there is no address, or what it sent has another hash.
        ConnectionError: the file cannot be downloaded.
    """
    lines = HASHES.read_text(encoding="utf-8").splitlines()
    sha256 = {file: digest for digest, file in (line.split() for line in lines)}.get(f"{name}.safetensors")
    if sha256 is None:
        return None
    offline = (
        "set the environment variable PYRODROP_ZOO to the folder pyrodrop/zoo/posteriors of a clone of the repository"
    )
    if not (place := chosen() or address()):
        raise Failed(
            f"the trained posterior {name} is no part of the installed package but a file of its release, and this version "
            f"has no release with an address: {offline}, or to an address that has the file"
        )
    path = Path(pooch.os_cache("pyrodrop")) / "zoo" / f"{name}.safetensors"
    url = f"{place}/{name.replace('/', '.')}.safetensors"
    return download(url, path, sha256, f"the trained posterior {name}", offline)
