"""What builds the site is in ``docs/_ext``, which is on Python's path here, as it is for Sphinx."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "docs" / "_ext"), str(Path(__file__).parent)]
