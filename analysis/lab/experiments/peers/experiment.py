"""Other packages and the exact posteriors of six small problems: distances and core-seconds.

The study ``peers`` of ``analysis/lab/results/distances.csv`` has the rows of this job, with the method ``chance``, between
two halves of the exact posterior's draws; the study ``league`` has our posteriors, from `league.measure`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from pyrodrop.analysis.comparison.to_reference import distances, independent_of_fits, log_density_difference, two_of
from pyrodrop.analysis.lab import RESULTS, tidy
from pyrodrop.analysis.lab.experiments.experiment import Experiment
from pyrodrop.analysis.lab.experiments.references import PROBLEMS, load
from pyrodrop.analysis.lab.experiments.references.stored import facts
from pyrodrop.analysis.lab.peers.processes import PEERS, SCRIPTS, Fault, Peer, arrays, interpreters, run_script
from pyrodrop.analysis.reports.folder import Cells
from pyrodrop.analysis.reports.job_options import JobOptions, with_job_options
from pyrodrop.analysis.reports.score_table import best_first, score_table
from pyrodrop.analysis.reports.terminal import paragraph, print_table
from pyrodrop.checks import known
from pyrodrop.data import Dataset
from pyrodrop.likelihoods import Likelihood, per_row
from pyrodrop.prediction.prediction import Prediction
from pyrodrop.sampling import Sampled
from pyrodrop.scaling import Standardize

STORED = RESULTS / "distances.csv"
SECONDS = 600.0  # time limit of a method
HEADERS = {
    "wasserstein": "W2 / sd", "total_variation": "TV", "covariance": "cov.", "to_reference": "to ref.",
    "to_reference se": "s.e.", "seconds": "core-s",
}  # fmt: skip
FORMS = {"wasserstein": ".3f", "total_variation": ".3f", "covariance": ".2f", "to_reference": ".3g",
         "to_reference se": ".2g", "seconds": ".1f"}  # fmt: skip
CAPTION = (
    "W2 / sd: Wasserstein-2 distance of f from the exact posterior's, over the standard deviation of f, means over points\n"
    "TV: total variation distance of the distributions of y, mean over points; cov.: of the covariance of f, relative\n"
    "to ref.: log density of held-out y minus the exact posterior's, nats per observation\n"
    "core-s: processor time of training and drawing; chance alone: between two halves of the exact posterior's draws"
)


# gradient steps of every training; draws of every method, 0 for as many as the stored reference has
SIZES = {"default": (3000, 0), "quick": (20, 32)}


@with_job_options()
def run(
    job: JobOptions,
    *,
    problems: list[str] = list(PROBLEMS),  # noqa: B006
    peers: list[str] = [],  # noqa: B006
    python: list[Path] = [],  # noqa: B006
    preset: Literal["default", "quick"] = "default",
    out: Path = Path("runs/peers"),
) -> dict[str, Any]:
    """Run other packages on problems whose exact posterior is known, and print and store how far they are from it.

    Args:
        problems: which of co2, mnist, foong, yacht, boston and energy.
        peers: packages, such as laplace-torch; all if left out. One that no interpreter has is skipped.
        python: interpreters with the packages of analysis/lab/peers/requirements.txt; this one is tried after them.
        preset: default takes half an hour on one core; quick is too short to show anything.
        out: folder for results.json, distances.csv and the finished rows: an interrupted run continues there.

    Returns:
        What is written to results.json.

    Raises:
        ValueError: a problem or package is unknown, or an interpreter cannot be started.
    """
    names = [known(name, PROBLEMS, "problem") for name in problems]
    packages = list(dict.fromkeys(peer.package for peer in PEERS.values()))
    asked = [known(name, packages, "package") for name in peers] or packages
    chosen = {name: peer for name, peer in PEERS.items() if peer.package in asked}
    interpreter_of = interpreters(python, asked)
    for package in asked:
        if package not in interpreter_of:
            paragraph(f"without {package}, which no interpreter has: see analysis/lab/peers/requirements.txt")
    steps, draws = SIZES[preset]
    with Experiment.begin("peers", out, job, {"preset": preset}) as experiment:
        rows: list[tidy.Row] = []
        for name in names:
            cells = experiment.cells(lambda record: record.text("method"), lambda peer: {"peer": peer}, where=name)
            rows += (of_problem := _measured(name, chosen, interpreter_of, steps, draws, job.seed, cells))
            print_table(table(name, of_problem))
            for row in of_problem:
                if "fault" in row:
                    paragraph(f"{row['method']}: {row['fault']}")
        tidy.put(experiment.folder / "distances.csv", rows)
        settings = {"steps": steps}
        return experiment.write({"rows": rows}, settings=settings, threads=1)


def of_draws(f: Any, likelihood: Likelihood, *, joint: bool = True, targets: Standardize | None = None) -> Prediction:
    """A prediction from draws ``[S, N, outputs]`` of what a network passes to the likelihood, in the units of `targets`."""
    scales = likelihood.units(Standardize() if targets is None else targets)
    output = torch.as_tensor(f)
    distribution, location = likelihood(output, scales), likelihood.location(output, scales)
    return Prediction(location, per_row(distribution, 2), joint=joint)


def _measured(
    name: str, peers: Mapping[str, Peer], python: Mapping[str, str], steps: int, draws: int, seed: int, cells: Cells
) -> list[tidy.Row]:
    """The rows of a problem, of the methods and of chance."""
    problem, reference = PROBLEMS[name], load(name)
    train, test = problem.data()
    judged = test if problem.observed else Dataset(test.x, torch.tensor(facts(name)["y"])[:, None])
    draws = draws or problem.kept
    judge = Judge(reference, judged, draws, seed)
    content = arrays(problem, train, test.x, draws=draws, steps=steps, seed=seed)
    key = {"study": "peers", "problem": name, "seed": seed}
    rows = [key | {"method": "chance"} | judge.chance()]
    for each, peer in peers.items():
        if peer.package not in python:
            continue
        kept = cells.kept(each)
        if kept is None:
            row: tidy.Row = key | {"method": each}
            with tempfile.TemporaryDirectory() as folder:
                try:
                    f, about = run_script(
                        SCRIPTS / peer.script, peer.method, python[peer.package], content, Path(folder), SECONDS
                    )
                except Fault as error:
                    row["fault"] = str(error)
                else:
                    prediction = of_draws(f, problem.likelihood(), joint=about["joint"], targets=train.targets)
                    row |= judge(each, prediction) | {"seconds": about["seconds"]}
                    row |= {n: ", ".join(f"{k} {v}" for k, v in about[n].items()) for n in ("settings", "versions")}
            kept = cells.keep(each, row)
        rows.append({name: value for name, value in kept.items() if name != "cell"})
    return rows


class Judge:
    """Distances from a reference at the points of `data`, estimated from `draws` draws of it."""

    def __init__(self, reference: Sampled, data: Dataset, draws: int, seed: int) -> None:
        self.reference: Sampled = reference
        self.data: Dataset = data
        self.draws: int = draws
        self.seed: int = seed
        self.predicted: Prediction = independent_of_fits(reference, data.x, draws, seed)
        self.spread: float = float(self.predicted.spread.double().mean())

    def __call__(self, name: str, prediction: Prediction) -> dict[str, float | None]:
        """All distances, W2 of f in units of its mean standard deviation, and log densities, in nats per observation."""
        values = self._scaled(distances(name, prediction, self.predicted).values)
        ours, its = (p.log_density(self.data.y).double() for p in (prediction, self.predicted))
        values |= {"log_density": float(ours.mean())} | log_density_difference(ours, its)
        return {name.replace("_se", " se"): value for name, value in values.items()}

    def chance(self) -> dict[str, float | None]:
        """The distances between the two halves of the reference's draws."""
        halves = two_of(self.reference, self.data.x, self.draws, self.seed)
        return self._scaled(distances("reference", *halves).values)

    def _scaled(self, values: dict[str, float | None]) -> dict[str, float | None]:
        w2 = values["wasserstein"]
        return values | {"wasserstein": None if w2 is None else w2 / self.spread}


def table(name: str, rows: Sequence[tidy.Row]) -> Any:
    """The rows of a problem, the nearest first."""
    shown = {row["method"]: {column: row.get(column) for column in HEADERS} for row in rows if "fault" not in row}
    chance = shown.pop("chance")
    by = "total_variation" if chance["wasserstein"] is None else "wasserstein"
    return score_table(
        best_first(shown, by, smallest=True), title=f"{name}: {PROBLEMS[name].summary}",
        caption=CAPTION, headers=HEADERS, forms=FORMS, apart={"chance alone": chance},
    )  # fmt: skip


def stored(study: str) -> dict[tuple[str, str], tidy.Row]:
    """The scores of a study of ``distances.csv`` by problem and method."""
    return {(row["problem"], row["method"]): tidy.scores(row) for row in tidy.read(STORED) if row["study"] == study}
