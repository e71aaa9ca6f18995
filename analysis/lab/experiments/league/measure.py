"""Train our posteriors on the problems and store their rows.

Command: ``python -m pyrodrop.analysis.lab.experiments.league.measure FOLDER``. Every training is written to FOLDER as
PROBLEM/TAG.safetensors, and read if it exists: an interrupted run continues there. The fit from the first start is also
written as a file of the zoo, exact/PROBLEM.TAG.safetensors.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

from pyrodrop.analysis.lab import tidy
from pyrodrop.analysis.lab.experiments.league.rows import Referee, Row, mean_row
from pyrodrop.analysis.lab.experiments.peers.experiment import STORED
from pyrodrop.analysis.lab.experiments.references.posteriors import POSTERIORS, trained
from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.zoo.write import save_sampled
from pyrodrop.training.replicates import Replicates
from pyrodrop.zoo.exact import NAMED, PROBLEMS, TAGS

MEMBERS, STEPS, SEED = 5, 6000, 0
LOSSES = 100  # number of losses in a file of the zoo, evenly spaced


def measured(name: str, folder: Path, steps: int = STEPS) -> dict[str, Row]:
    """The rows of a problem: means over fits from different starts, and rows of the equal mixture of these fits."""
    referee, model, rows = Referee(name, SEED), PROBLEMS[name].model(), {}
    (folder / "exact").mkdir(parents=True, exist_ok=True)
    for posterior, tag in zip(POSTERIORS, TAGS, strict=True):
        path = folder / name / f"{tag}.safetensors"
        if not path.is_file():
            made = trained(posterior, model, referee.train, members=MEMBERS, steps=steps, engine="compiled", seed=SEED)
            path.parent.mkdir(parents=True, exist_ok=True)
            made.save(path)
        fits = Replicates.load(path, device="cpu")
        predicted = [
            (fit.predict(referee.test.x, referee.draws), fit.predict(referee.away, referee.draws).f)
            for fit in (*fits, fits)
        ]
        *single, rows[f"ensemble {posterior}"] = (referee.row(posterior, *each) for each in predicted)
        rows[posterior] = mean_row(single)
        first = replace(fits[0], history=fits[0].history[:: max(1, steps // LOSSES)])
        scores = {column: value for column, value in single[0].items() if value is not None}
        result = {"scores": scores, "seed": SEED, "steps": steps, "date": f"{date.today()}", "versions": versions()}
        of = NAMED[f"exact/{name}.{tag}"]
        save_sampled(folder / f"{of.name}.safetensors", of, first, referee.test.x, result)
        print(f"{name}, {posterior}: {rows[posterior]['wasserstein']:.3f}", flush=True)
    return rows


if __name__ == "__main__":
    of_league = {"study": "league", "seed": SEED}
    tidy.put(STORED, [
        of_league | {"problem": name, "method": method} | row
        for name in PROBLEMS for method, row in measured(name, Path(sys.argv[1])).items()
    ])  # fmt: skip
