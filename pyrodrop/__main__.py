"""``python -m pyrodrop`` is ``pyrodrop``."""

import sys

from pyrodrop.cli import main

sys.exit(main())
