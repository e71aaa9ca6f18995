"""The error for damaged files and failed runs, and that for packages that ``pip install pyrodrop`` leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

EXTRAS = {
    "analysis": ("arviz", "arviz_base", "arviz_plots", "gpytorch", "h5netcdf", "h5py", "linear_operator", "matplotlib")
    + ("rich", "xarray"),
    "cli": ("cyclopts",),
    "sklearn": ("sklearn",),
}


INSTALL = "pip install 'pyrodrop"


@contextmanager
def extras() -> Iterator[None]:
    """Have the error of an import within the block, if an extra is missing, name the line that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        for extra, packages in EXTRAS.items():
            if package in packages and INSTALL not in error.msg:
                error.msg = f"this part of pyrodrop needs {package}, which is not installed: {INSTALL}[{extra}]'"
        raise


class Failed(ValueError):
    """A ValueError that is caused by the content of a file or the course of a run, not by an argument."""
