"""Find the packages: pyrodrop/ and, as parts of it, models/, guides/ and analysis/ without its laboratory.

These folders are found themselves, not by the links in pyrodrop/, which a clone on Windows may lack.
"""

from setuptools import find_packages, setup

PARTS = ("models", "guides", "analysis")
LABORATORY = ("analysis.lab", "analysis.lab.*")
folders = find_packages(
    include=["pyrodrop", "pyrodrop.*", *(pattern for name in PARTS for pattern in (name, f"{name}.*"))],
    exclude=[*LABORATORY, *(pattern for name in PARTS for pattern in (f"pyrodrop.{name}", f"pyrodrop.{name}.*"))],
)

setup(
    packages=[name if name.split(".")[0] == "pyrodrop" else f"pyrodrop.{name}" for name in folders],
    package_dir={f"pyrodrop.{name}": name for name in PARTS},
)
