"""Train an entry of the zoo with a checkpoint, so that a run that was broken off goes on to the same result."""

from __future__ import annotations

from typing import Any

from pyrodrop.data import Dataset
from pyrodrop.files import write_json
from pyrodrop.json_files import read_record
from pyrodrop.training.checkpoint import Checkpoint
from pyrodrop.training.result import Fit
from pyrodrop.zoo import Entry


def fit_resumed(entry: Entry, data: Dataset, checkpoint: Checkpoint, **options: Any) -> Fit:
    """``entry.fit(data, checkpoint=checkpoint, **options)``, which makes the steps that the checkpoint does not have.

    How long a finished training took, and by which engine, is kept beside the checkpoint for the next call; that of a
    training which was broken off is counted from where it went on.

    Raises:
        ValueError: the checkpoint is of another training, or one of the files is broken.
    """
    checkpoint.path.parent.mkdir(exist_ok=True)
    path = checkpoint.path.with_suffix(".json")
    fit = entry.fit(data, checkpoint=checkpoint, **options)
    whole = {key: fit.settings[key] for key in ("steps", "seconds", "engine")}
    if path.exists():
        kept = read_record(path, "remove this file and run the same command again")
        steps, seconds = kept.number("steps") or 0, kept.number("seconds") or 0.0
        if steps == whole["steps"]:
            whole |= {"seconds": seconds, "engine": kept.text("engine")}
        elif steps < whole["steps"]:
            whole["seconds"] += seconds
    write_json(path, whole)
    fit.settings.update(whole)
    return fit
