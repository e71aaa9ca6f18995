"""Measured numbers of README, of the paper, of docs/scale.md and of the benchmarks are those of the stored results.

`QUOTED` has a phrase with its numbers in braces and a function that takes them from a file of ``analysis/``. A row of a
table of ratios names its study, problem and methods itself.
"""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
TIMINGS = ROOT / "analysis" / "lab" / "benchmarks" / "results" / "timings.csv"
UCI = ROOT / "analysis" / "lab" / "results" / "uci.csv"
PAGES = ("README.md", "docs/measured.md", "docs/paper/paper.md")
BENCHMARKS = "".join(
    (ROOT / page).read_text(encoding="utf-8") for page in ("docs/scale.md", "analysis/lab/benchmarks/results/README.md")
)
SCALE = re.findall(
    r"^\| .+ \| (.+) \| `([\w-]+) / (.+) / (.+) over (.+)` \|$",
    BENCHMARKS,
    flags=re.MULTILINE,
)


def result(path: str) -> Any:
    return json.loads((ROOT / "analysis" / path).read_text(encoding="utf-8"))


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8"))


def uci(protocol: str, method: str, score: str) -> dict[str, list[float]]:
    """The scores of the splits by set."""
    with UCI.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["study"], row["method"]) == (protocol, method)]
    return {
        name: [float(row[score]) for row in rows if row["problem"] == name] for name in {r["problem"] for r in rows}
    }


def z_of_uci(protocol: str, score: str) -> list[float]:
    """MC dropout less the published figure of the same splits, in standard errors, by set."""
    published = result(f"reference/uci/published/{protocol}.json")["sets"]
    ours = uci(protocol, "bernoulli", score)
    assert len(ours) == 9
    return [z(values, published[name][score]) for name, values in ours.items()]


def z_of_ensembles() -> list[float]:
    """The log density of five point networks less that of one network with dropout, in standard errors, by set."""
    networks = uci("gal2016", "bernoulli", "log_density")
    return [z(values, networks[name]) for name, values in uci("gal2016", "ensemble, grid", "log_density").items()]


def z(ours: list[float], theirs: list[float]) -> float:
    apart = [a - b for a, b in zip(ours, theirs, strict=True)]
    return statistics.fmean(apart) / statistics.stdev(apart) * len(apart) ** 0.5


def of_figures(stored: Any) -> tuple[int, ...]:
    """Published figures with a standard error, those within two of it, of these on UCI data, those outside, not run."""
    with (ROOT / "analysis" / "lab" / "results" / "published.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["paper"] != "quadrature"]
    figures = [row for row in rows if row["where"] != "Table 1" or row["paper"] != "gal2016"]
    with_error = [row["status"] for row in figures if row["error"] and row["status"] != "foreign"]
    errors, near, far = len(with_error), with_error.count("within"), with_error.count("outside")
    sets = {row["data"] for row in rows if row["paper"] == "released"}
    of_uci = [row for row in figures if row["data"] in sets and row["status"] == "within"]
    return errors, near, len(of_uci), far, errors - near - far


def timed(study: str, score: str = "seconds") -> dict[tuple[str, str], float]:
    """A score of a study of timings.csv by problem and method."""
    with TIMINGS.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["study"] == study]
    return {(row["problem"], row["method"]): float(row[score]) for row in rows if row[score]}


def ratio(study: str, problem: str, method: str, over: str) -> float:
    seconds = timed(study)
    return seconds[problem, method] / seconds[problem, over]


def of_fits(_: Any) -> tuple[float, ...]:
    case = "13-50-1, minibatches of 128 of 506, 30,000 steps"
    return tuple(ratio("fits-cpu", case, method, "plain PyTorch") for method in ("later", "first"))


def of_replicates(method: str) -> float:
    return ratio("replicates-cpu", "240 of 13-50-1", f"{method}, one by one", "together")


def of_samplers(peer: str) -> Callable[[Any], tuple[float, ...]]:
    """The number of programs, and the least and largest ratio of effective draws a second to a peer that has any."""
    speed = timed("sampling-programs-cpu", "per s")
    names = [name for name, method in speed if method == f"{peer}, first"]
    least, *_, most = sorted(
        speed[n, "ours, first"] / speed[n, f"{peer}, first"] for n in names if speed[n, f"{peer}, first"]
    )
    return lambda _: (len(names), least, most)


def rows_of_samplers() -> list[str]:
    """Effective draws a second in the first call and a later one, and the largest distance of our means from a reference."""
    speed, apart = (timed("sampling-programs-cpu", score) for score in ("per s", "apart"))

    def cell(name: str, peer: str) -> str:
        runs = [speed[name, f"{peer}, {run}"] for run in ("first", "later") if (name, f"{peer}, {run}") in speed]
        return " / ".join(f"{each:,.0f}" if each >= 10 else f"{each:.2g}" for each in runs)

    return [
        f"| {name} | {' | '.join(cell(name, peer) for peer in ('ours', 'NumPyro', 'nutpie', 'Pyro'))} | {value:.1f} |"
        for (name, method), value in apart.items()
        if method == "ours, first"
    ]


def test_the_table_of_samplers_is_that_of_the_file() -> None:
    rows = rows_of_samplers()
    assert len(rows) == 11
    assert "\n".join(rows) in (ROOT / "docs" / "sampling.md").read_text(encoding="utf-8")
    assert max(timed("sampling-programs-cpu", "apart")[name, "ours, first"] for name in names_of(rows)) < 4


def names_of(rows: list[str]) -> list[str]:
    return [row.split(" | ")[0].removeprefix("| ") for row in rows]


def of_programs(_: Any) -> tuple[float, ...]:
    steps = timed("programs-cpu", "steps")
    names = [name for (name, _), count in steps.items() if count == 20_000]
    later, first = ([ratio("programs-cpu", n, "SVI.step", method) for n in names] for method in ("later", "first"))
    return len(names), min(later), max(later), min(first), max(first)


def of_sparse(first: Any) -> tuple[float, ...]:
    """Error in percent and one over the share of weights, of two runs."""
    again = result("reference/sparse/lenet-300-100-molchanov2017.json")["result"]["scores"]
    own = first["result"]
    return 100 * own["error"], again["error_percent"], own["compression"], again["compression"]


OF_TABLES = "lab/results/uci.json"  # beside tables that are read by their functions
# A phrase of a page, the file of its numbers, and how they are computed.
QUOTED: list[tuple[str, str, Callable[[Any], tuple[float, ...]]]] = [
    ("of {} with a standard error, our result is within two standard errors for {} ({} of them of MC dropout on UCI data) "
     "and outside for {}, of figure 1a of Kingma et al.; {} have not been run",
     OF_TABLES, of_figures),
    ("of {} published figures with a standard error, our result is within two standard errors for {} ({} of them of MC "
     "dropout on UCI data) and outside for {}; {} have not been run", OF_TABLES, of_figures),
    ("our log density is worse than published on {} of 9 sets by the protocol of 2018, and on {} by the contaminated one",
     OF_TABLES, lambda _: tuple(sum(z < 0 for z in z_of_uci(name, "log_density")) for name in ("gal2018", "gal2016"))),
    ("`Ensemble` of five `Point`s, on {} of 9 UCI sets", OF_TABLES, lambda _: (sum(z > 2 for z in z_of_ensembles()),)),
    ("takes {:.2f} of the time of plain PyTorch with fused Adam, and {:.1f} where nothing has been compiled yet",
     OF_TABLES, of_fits),
    ("takes {:.2f} of the time of plain PyTorch, and {:.1f} where nothing has been compiled yet",
     OF_TABLES, of_fits),
    ("a step of {} replicates, on one thread, is {:.1f} times as fast as", OF_TABLES,
     lambda _: (240, of_replicates("fits"))),
    ("and {:.0f} times as fast as {} of plain PyTorch with fused Adam", OF_TABLES,
     lambda _: (of_replicates("plain"), 240)),
    ("Of {} programs `sample` makes {:.1f} to {:.0f} times as many effective draws per core-second as NumPyro's NUTS",
     OF_TABLES, of_samplers("NumPyro")),
    ("and, on the same {}, {:.1f} to {:.0f} times as many as nutpie", OF_TABLES, of_samplers("nutpie")),
    ("20,000 steps of {} programs, {:.0f} to {:.0f} times as fast as loops of `SVI.step`, and {:.0f} to {:.0f} times where",
     OF_TABLES, of_programs),
    ("Whole fits of {} programs were {:.0f} to {:.0f} times as fast as loops of `SVI.step`, and {:.0f} to {:.0f} times",
     OF_TABLES, of_programs),
    ("LeNet-300-100 at {:.2f} and {:.2f} % error with 1 of {:.0f} and {:.0f} weights, two runs",
     "reference/sparse-lenet-300-100-molchanov2017.json", of_sparse),
]  # fmt: skip


@pytest.mark.parametrize(("phrase", "file", "numbers"), QUOTED, ids=[phrase[:40] for phrase, *_ in QUOTED])
def test_numbers_are_those_of_the_stored_results(
    phrase: str, file: str, numbers: Callable[[Any], tuple[float, ...]]
) -> None:
    quoted = phrase.format(*numbers(result(file)))
    assert any(quoted in text_of(page) for page in PAGES), quoted


@pytest.mark.parametrize(("stated", "study", "problem", "method", "over"), SCALE)
def test_the_table_of_scale_is_that_of_the_rows_it_names(
    stated: str, study: str, problem: str, method: str, over: str
) -> None:
    assert stated == f"{ratio(study, problem, method, over):.2f}"


def rows_of_steps() -> list[str]:
    """Seconds of a step over those of plain PyTorch."""
    names = ("13-50-1", "13-50-1, 1024 rows", "MLP", "MLP, 1024 rows", "LeNet")
    kinds = [kind for name, kind in timed("steps-cuda") if name == names[0]][1:]
    cells = {kind: [f"{ratio('steps-cuda', name, kind, 'plain PyTorch'):.2f}" for name in names] for kind in kinds}
    return [f"| {kind} | {' | '.join(row)} |" for kind, row in cells.items()]


def test_the_table_of_a_gpu_is_that_of_the_file() -> None:
    assert "\n".join(rows_of_steps()) in BENCHMARKS
