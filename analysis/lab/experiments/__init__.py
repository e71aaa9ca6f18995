"""The experiments of ``pyrodrop run``: one module or package each with a function `run`, and a line in
``analysis/jobs.py``."""
