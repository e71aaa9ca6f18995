"""How far the trainings of a run are, read from their checkpoints, so that it can be shown from outside their processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from tqdm import tqdm

_EVERY = 0.5  # seconds between two looks


def steps_done(checkpoint: Path) -> int:
    """The number of steps in a checkpoint of `pyrodrop.fit`; 0 if there is none that can be read."""
    try:
        with safe_open(checkpoint, framework="pt") as file:
            return int(file.get_slice("history").get_shape()[0])
    except (OSError, SafetensorError):  # not there yet, or replaced meanwhile; training says what is wrong with it
        return 0


@contextmanager
def shown(checkpoints: Mapping[str, Path], lengths: Mapping[str, int], hidden: bool | None) -> Iterator[None]:
    """Show the steps of all trainings and the time left within the block.

    Args:
        checkpoints: the file of every training, by name.
        lengths: the steps of every training, by name.
        hidden: whether to show nothing; None hides it where the output is no terminal.
    """
    before = sum(min(lengths[name], steps_done(path)) for name, path in checkpoints.items())
    bar = tqdm(
        total=sum(lengths.values()), initial=before, desc="training", unit="step", leave=False, disable=hidden,
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps, {remaining} left{postfix}",
    )  # fmt: skip
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_EVERY):
            done = {name: min(lengths[name], steps_done(path)) for name, path in checkpoints.items()}
            running = [
                f"{name} {count / lengths[name]:.0%}" for name, count in done.items() if 0 < count < lengths[name]
            ]
            bar.set_postfix_str(", ".join(running), refresh=False)
            bar.update(sum(done.values()) - bar.n)
            bar.refresh()

    with bar:
        watch = threading.Thread(target=look, daemon=True, name="co2-progress")
        if not bar.disable:
            watch.start()
        try:
            yield
        finally:
            ended.set()
            if watch.is_alive():
                watch.join()
