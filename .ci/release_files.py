"""Copy the trained posteriors that no wheel has into a folder, for a release: ``python -P .ci/release_files.py FOLDER``.

An error ends it unless each has the hash by which an installed package knows it.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

POSTERIORS = Path(__file__).parents[1] / "pyrodrop" / "zoo" / "posteriors"


def main() -> None:
    """Copy them to the folder that is the only argument."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for line in (POSTERIORS / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        sha256, name = line.split()
        if hashlib.sha256((POSTERIORS / name).read_bytes()).hexdigest() != sha256:
            raise SystemExit(f"{name} has another hash than in {POSTERIORS / 'SHA256SUMS'}")
        shutil.copyfile(POSTERIORS / name, folder / name.replace("/", "."))


if __name__ == "__main__":
    main()
