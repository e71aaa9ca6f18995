"""The error for damaged files and failed runs."""


class Failed(ValueError):
    """A ValueError that is caused by the content of a file or the course of a run, not by an argument."""
