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
DISTANCES = ROOT / "analysis" / "lab" / "results" / "distances.csv"
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


def of_chains(peer: str) -> Callable[[Any], tuple[float, ...]]:
    """Effective samples a second beside those of a peer, tuning included, on two networks."""
    speed = timed("sampling-cpu", "median, tuning too")
    return lambda _: tuple(speed[case, "64 hmc"] / speed[case, peer] for case in ("2-50-1, origin", "6-50-1, yacht"))


def of_programs(_: Any) -> tuple[float, ...]:
    steps = timed("programs-cpu", "steps")
    names = [name for (name, _), count in steps.items() if count == 20_000]
    later, first = ([ratio("programs-cpu", n, "SVI.step", method) for n in names] for method in ("later", "first"))
    return len(names), min(later), max(later), min(first), max(first)


def of_clusters(_: Any) -> tuple[float, ...]:
    with (ROOT / "analysis" / "lab" / "results" / "critiques.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["method"]: row for row in csv.DictReader(file) if row["study"] == "foong"}
    names = ("1 hidden, MC dropout, rate .05", "2 hidden, MC dropout, rate .05", "1 hidden, HMC (ours)")
    return tuple(float(rows[name]["ratio"]) for name in names)


def of_peers(method: str, score: str) -> list[float]:
    """A score of a method by problem."""
    with DISTANCES.open(newline="", encoding="utf-8") as file:
        return [float(r[score]) for r in csv.DictReader(file) if (r["study"], r["method"]) == ("peers", method)]


def of_whole_runs(_: Any) -> tuple[float, ...]:
    ours, nuts, mclmc = (of_peers(name, "seconds") for name in ("pyrodrop, sample", "numpyro, NUTS", "blackjax, MCLMC"))
    energy = 3  # of co2, yacht, foong, energy, ...
    longer = sum(a > b for a, b in zip(ours, nuts, strict=True))
    return longer, len(ours), ours[energy], nuts[energy], mclmc[energy]


def of_sparse(first: Any) -> tuple[float, ...]:
    """Error in percent and one over the share of weights, of two runs."""
    again = result("reference/sparse/lenet-300-100-molchanov2017.json")["result"]["scores"]
    own = first["result"]
    return 100 * own["error"], again["error_percent"], own["compression"], again["compression"]


def of_seeds(stored: Any) -> tuple[float, ...]:
    errors, ratios = ([run["result"][name] for run in stored["runs"]] for name in ("error", "compression"))
    return 100 * min(errors), 100 * max(errors), min(ratios), max(ratios)


def distances(method: str) -> Callable[[Any], tuple[float, ...]]:
    return lambda _: tuple(of_peers(method, "wasserstein"))


SIX = "{:.2f}, {:.2f}, {:.2f}, {:.2f}, {:.2f} and {:.2f} for "
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
    ("{:.1f} and {:.1f} times as many effective samples a second, tuning included, as blackjax's ChEES",
     OF_TABLES, of_chains("64 ChEES, masses")),
    ("and {:.1f} and {:.1f} times as many as NumPyro's NUTS", OF_TABLES,
     of_chains("2 NUTS")),
    ("longer than NUTS on {} of {} problems: on energy {:.0f} core-seconds, NUTS {:.0f} and blackjax's MCLMC {:.0f}",
     OF_TABLES, of_whole_runs),
    ("20,000 steps of {} programs, {:.0f} to {:.0f} times as fast as loops of `SVI.step`, and {:.0f} to {:.0f} times where",
     OF_TABLES, of_programs),
    ("Whole fits of {} programs were {:.0f} to {:.0f} times as fast as loops of `SVI.step`, and {:.0f} to {:.0f} times",
     OF_TABLES, of_programs),
    ("is {:.1f} times that at them ({:.1f} times with two), the exact posterior's {:.0f} times",
     OF_TABLES, of_clusters),
    ("is {0:.1f} times that at the clusters, and that of the exact posterior {2:.0f} times", OF_TABLES, of_clusters),
    ("LeNet-300-100 at {:.2f} and {:.2f} % error with 1 of {:.0f} and {:.0f} weights, two runs",
     "reference/sparse-lenet-300-100-molchanov2017.json", of_sparse),
    ("three seeds, a fifth as long: {:.2f} to {:.2f} % with 1 of {:.0f} to {:.0f}",
     "lab/results/sparse-seeds.json", of_seeds),
    (f"{SIX}dropout at rate 0.05", OF_TABLES, distances("pyrodrop, MC dropout .05")),
    (f"{SIX}a mean field", OF_TABLES, distances("pyrodrop, mean field")),
    (f"{SIX}a last-layer Laplace approximation", OF_TABLES, distances("laplace-torch, last layer")),
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


def rows_of_crossing() -> list[str]:
    """Network-steps a second in thousands."""
    there, here = timed("crossing-cuda"), timed("crossing-cpu")
    rows = []
    for count in dict.fromkeys(count for count, _ in there):
        seconds = [value for each in (there, here) for (name, _), value in each.items() if name == count]
        speeds = [f"{1e-3 / value:,.1f}" for value in seconds]
        rows.append(f"| {count} | " + " | ".join(speeds + [""] * (6 - len(speeds))) + " |")
    return rows


def rows_of_chains() -> list[str]:
    keys = [("sampling-cuda", "2-50-1, origin, many chains", name, name) for name in ("64 hmc", "1,000 hmc")]
    keys += [("sampling-cuda", "2-50-1, origin, many chains", "64 NUTS", "64 NUTS, NumPyro")]
    keys += [("sampling-cpu", "2-50-1, origin", "64 hmc", "64 hmc, one CPU thread")]
    rows = []
    for study, problem, method, title in keys:
        speed, too, r_hat = (
            timed(study, score)[problem, method] for score in ("median per s", "median, tuning too", "R-hat")
        )
        rows.append(f"| {title} | {speed:,.0f} | {too:,.0f} | {r_hat:.2f} |")
    return rows


@pytest.mark.parametrize("rows", [rows_of_steps, rows_of_crossing, rows_of_chains])
def test_tables_of_a_gpu_are_those_of_the_files(rows: Callable[[], list[str]]) -> None:
    assert "\n".join(rows()) in BENCHMARKS


def test_the_verdict_of_calibration() -> None:
    """By simulation, of three inputs."""
    verdict = result("lab/results/sbc.json")["posteriors"]["mc-dropout"]["verdict"]
    assert "f[0], f[1], f[2]: too narrow" in verdict
    assert "MC dropout at rate 0.1, of inputs and units, is too narrow at all three inputs tried" in text_of(
        "docs/measured.md"
    )


def test_stored_results_are_small() -> None:
    folders = ("lab/results", "lab/benchmarks/results", "reference")
    files = [f for folder in folders for f in (ROOT / "analysis" / folder).rglob("*") if f.suffix not in ("", ".md")]
    assert 0 < sum(file.stat().st_size for file in files) <= 1_000_000
