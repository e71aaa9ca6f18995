"""The error of what a call could not foresee: files and runs."""


class Failed(ValueError):
    """A ValueError that no argument is to blame for, but the content of a file or the course of a run."""
