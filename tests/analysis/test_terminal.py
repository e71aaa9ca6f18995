"""What the command line prints: in any width every number is whole, and only a terminal gets control codes."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.table import Table

from pyrodrop import cli, zoo
from pyrodrop.analysis.comparison.comparison import Comparison
from pyrodrop.analysis.experiments import (
    JOBS,
    boston_ard,
    cnn,
    concrete,
    estimators,
    kingma_fig1a,
    kingma_fig1b,
    kingma_table1,
    sbc,
    solar,
    trained_network,
)
from pyrodrop.analysis.experiments import tuning as tuning_job
from pyrodrop.analysis.experiments.active_learning import digits, naval
from pyrodrop.analysis.experiments.active_learning import experiment as active_learning
from pyrodrop.analysis.experiments.critiques import experiment as critiques
from pyrodrop.analysis.experiments.critiques.panel import Panel
from pyrodrop.analysis.experiments.error_by_size import Study, tables
from pyrodrop.analysis.experiments.peers import experiment as peers
from pyrodrop.analysis.experiments.published.experiment import print_figures
from pyrodrop.analysis.experiments.published.facts import figures
from pyrodrop.analysis.experiments.published.outcome import Outcome
from pyrodrop.analysis.experiments.references import experiment as references_job
from pyrodrop.analysis.experiments.references.spreads import PLACES
from pyrodrop.analysis.experiments.references.table import ORDER
from pyrodrop.analysis.experiments.remedies import experiment as remedies
from pyrodrop.analysis.experiments.rotated_digit.report import print_tables as print_rotated
from pyrodrop.analysis.experiments.sparse import experiment as sparse
from pyrodrop.analysis.experiments.uci.table import print_tables as print_uci
from pyrodrop.analysis.reports.console import print_models
from pyrodrop.analysis.reports.runs import RunTable
from pyrodrop.analysis.reports.terminal import facts, pairs, paragraph, print_table
from pyrodrop.analysis.zoo import check, references
from pyrodrop.analysis.zoo.train import Measured, scores_table
from pyrodrop.compression.report import CompressionReport
from pyrodrop.compression.report import Measured as Sizes

NUMBER = re.compile(r"\d[\d.,e+-]*")
ENTRY = "sparse/lenet-300-100-molchanov2017"


def nasty() -> Iterator[float]:
    """Numbers that need much room and are all different: a part of one is none of the others."""
    for number in itertools.count(1):
        yield (-1) ** number * (98765.4321 + 1357.97531 * number)


def row(values: Iterator[float], *names: str) -> dict[str, Any]:
    return {name: next(values) for name in names}


def the_models(values: Iterator[float]) -> None:
    names = ("elbo", "elbo_se", "log_density", "rmse", "crps", "coverage_50", "coverage_95")
    names += ("sd_last_train", "sd_far", "noise_sd", "seconds")
    models = ("weight-averaging", "mc-dropout-tanh-0.1", "mean-field")
    rows = {name: row(values, *names) | {"elbo_convention": "up to a constant (theta = 0)"} for name in models}
    print_models(rows, "ppm", {"data": "mauna-loa", "preset": "default", "seed": 0, "device": "cpu"})
    facts({f"the spread {next(values)} is below {next(values)} within the data and above it after them": False})


def the_table_of_variances(values: Iterator[float]) -> None:
    rows = {name: [abs(next(values)) * 1e-9 for _ in range(4)] for name in kingma_table1.PUBLISHED}
    print_table(kingma_table1.table_of(rows, {name: next(values) for name in rows}, "default"))


def the_errors(study: Study, *sizes: float) -> Callable[[Iterator[float]], None]:
    def printed(values: Iterator[float]) -> None:
        rows = {
            f"{method}-{size}": {study.size: size, "method": method, **row(values, "error_percent", "se", "published")}
            for method in study.methods
            for size in sizes
        }
        settings = {"epochs": 1_000, "digits": 50_000, "images": 50_000, "seeds": 3}
        for table in tables(study, rows, settings):
            print_table(table)

    return printed


def the_estimators(values: Iterator[float]) -> None:
    curves = {name: [row(values, "seconds", "steps", "elbo", "se")] for name in ("shared", "per_example")}
    print_table(estimators.table_of(curves))


def the_turned_digit(values: Iterator[float]) -> None:
    columns = ("entropy", "mutual_information", "p(1)", "sd_p(1)", "p(5)", "sd_p(5)", "all_entropy", "all_mutual")
    angles = {f"{angle:.1f}": {"class": 1, "crosses": True, **row(values, *columns)} for angle in (0, 16.4, 180)}
    scores = {name: row(values, "accuracy", "nll", "ece", "brier") for name in ("weight averaging", "MC dropout")}
    print_rotated(
        {
            "angles": angles, "scores": scores, "facts": {"a fact": True},
            "difference": {"ece": row(values, "difference", "se")},
            "auroc": {"mean": {name: next(values) for name in scores}},
            "settings": {"posterior": "mc-dropout", "steps": 20_000, "draws": 100},
            "search": {"digit": 13, "turn": 111, "same": 11, "ones": 100, "whole": 2},
        },
        (1, 7, 5),
    )  # fmt: skip


def the_convolutional_networks(values: Iterator[float]) -> None:
    keys = ("mc", "averaged", "difference", "se")
    rows = {net: {"net": net, "steps": 10_000_000, **row(values, *keys)} for net in cnn.NETS}
    print_table(cnn.table_of(rows, 10_000))


def the_sparse_network(values: Iterator[float]) -> None:
    sites = [f"layers.{number}.weight" for number in range(4)]
    result = row(values, "error", "error_dense", "compression", "seconds") | {"sparsity": row(values, *sites)}
    theirs = row(values, "error", "compression", "seconds") | {"sparsity": [next(values) for _ in sites]}
    published = [{"method": "Sparse VD", **theirs}, {"method": "dynamic network surgery", **theirs}]
    print_table(sparse.table_of(ENTRY, {"name": ENTRY, "result": result, "published": published}))
    sizes = [Sizes([784, 300, 100, 10], *(int(abs(next(values)) * 10**6) for _ in range(5)),
                   *(next(values) for _ in range(4))) for _ in range(2)]  # fmt: skip
    print_table(CompressionReport(sizes[0], sizes[1], "error", 3.0, 1.0, 2))


def the_boston_table(values: Iterator[float]) -> None:
    columns = {name: {q: [next(values) for _ in range(3)] for q in boston_ard.METRICS} for name in boston_ard.FACTORS}
    print_table(boston_ard.table_of(columns))


def the_concrete_rates(values: Iterator[float]) -> None:
    print_table(concrete.table_of({n: [row(values, *concrete.QUANTITIES) for _ in range(3)] for n in (10, 10_000)}))


COLUMNS = (
    *ORDER, "log_density", "log_density_se", "to_reference", "to_reference_se", "sign_probability", "elbo", "elbo_se",
    "k_hat",
)  # fmt: skip


def the_peers(values: Iterator[float]) -> None:
    columns = ("wasserstein", "total_variation", "covariance", "to_reference", "to_reference_se")
    rows = {
        peer: {"values": row(values, *columns), "about": {"seconds": next(values)}}
        for peer in ("pyrodrop, mean field", "bayesian-torch, VI")
    }
    found = {"summary": "UCI yacht, first split", "rows": rows, "chance": row(values, *columns)}
    print_table(peers.table("yacht", found))


def the_distances(values: Iterator[float]) -> None:
    names = ("variational dropout B", "ensemble mixture .05, theta 0.05")
    rows: dict[str, dict[str, float | None]] = {name: row(values, *COLUMNS) for name in names}
    print_table(Comparison("wasserstein", rows, [f"a note on {next(values)}"], row(values, *COLUMNS)))
    ranges = {
        name: {place: row(values, "median", "lowest", "highest") for place in PLACES} for name in (*names, "reference")
    }
    print_table(references_job._ranges(ranges))


def the_trained_network(values: Iterator[float]) -> None:
    names = ("evaluation mode", "after fit, to_module in evaluation mode")
    print_table(trained_network.table_of({name: row(values, "accuracy", "nll", "nll_se", "ece") for name in names}))
    trained_network.print_elbos(
        {
            "elbo": {name: row(values, "value", "se") for name in ("before", "after")},
            "settings": {"steps": 500}, "convention": "up to a constant: " + 5 * "which depends on the weights ",
            "seconds": row(values, "train", "read", "passes", "predict", "elbo", "fit", "back"),
        }
    )  # fmt: skip


def the_critiques(values: Iterator[float]) -> None:
    made = [(f"the posterior is {next(values)} times as sure as {next(values)}, which is too much", True)]
    words = {"title": "Dropout is not Bayesian", "paper": "A. Uthor, 2000", "link": "https://a.b", "shown": "This."}
    critiques._print({"one": Panel(**words, tables={}, facts=dict(made), helps=(), figure=b"")})


def the_remedies(values: Iterator[float]) -> None:
    names = ("fixed rate .1", "ensemble, prior functions and noise")
    rows = {name: {f"N = {n}": [next(values) for _ in range(3)] for n in (25, 100, 1000)} for name in names}
    print_table(remedies.table_of("mean spread of f over [-1, 1] by the number of rows", rows))


def the_published_figures(values: Iterator[float]) -> None:
    found = [Outcome("outside", next(values), next(values), f"it is {next(values)} times as large") for _ in figures()]
    print_figures(list(zip(figures(), found, strict=True)))


def the_calibration(values: Iterator[float]) -> None:
    found = {
        name: SimpleNamespace(verdict=f"f[0] too wide ({next(values)}), f[1] biased ({next(values)}), " * 2,
                              settings={"cpu_seconds": next(values)})
        for name in sbc.GUIDES
    }  # fmt: skip
    print_table(sbc.table_of(found))  # type: ignore[arg-type]


def the_forecasts(values: Iterator[float]) -> None:
    names = ("persistence", "ridge", "LSTM, MC dropout", "LSTM, mean weights")
    rows = {name: {score: [next(values) for _ in range(3)] for score in solar.SCORES} for name in names}
    print_table(solar.table_of(rows))


def the_labels_that_are_asked_for(values: Iterator[float]) -> None:
    columns = ("labels", "labels_se", "accuracy", "accuracy_se", "over random", "over random_se")
    reached = {name: row(values, *columns) for name in digits.Digits.acquisitions}
    missed = {name: {**found, "labels_se": None, "reached": 5, "seeds": 6} for name, found in reached.items()}
    keys = [name + se for name in ("random", "variance", "difference") for se in ("", "_se")]
    content = {
        "mnist": {"MC dropout": reached, "mean field": missed},
        "naval": {name: row(values, *keys) for name in naval.POSTERIORS},
    }
    settings = {"labels": 300, "seeds": 6, "naval_labels": 55, "naval_seeds": 10}
    for table in active_learning.tables_of(content, settings):
        print_table(table)


def the_tuning(values: Iterator[float]) -> None:
    settings = {name: row(values, *tuning_job.RANGES) for name in ("default", "best")}
    scores = {name: row(values, *settings) for name in ("validation", "test")}
    print_table(tuning_job.table_of("concrete", {"trials": {"complete": 12, "pruned": 28}, **scores}, settings))


def the_uci_table(values: Iterator[float]) -> None:
    guides = ("bernoulli", "mean-field", "variational-a", "variational-b", "sparse", "heteroscedastic")
    cells = {
        (name, guide): {
            "rmse": [next(values) for _ in range(2)], "log_density": [next(values) for _ in range(2)],
            "plan": {"precision": "learned"},
        }
        for name in ("yacht", "boston", "naval")
        for guide in guides
    }  # fmt: skip
    print_uci(cells, "gal2016")


def the_comparison(values: Iterator[float]) -> None:
    columns = ("log_density", "rmse", "crps", "coverage_50", "coverage_95", "seconds", "difference", "difference_se")
    print_table(RunTable({f"runs/{number}/mc-dropout-tanh": row(values, *columns) for number in range(3)}, "waves"))


def the_scores(values: Iterator[float]) -> None:
    found = references.scores(ENTRY)
    print_table(scores_table(f"{ENTRY}, seed 0", zoo.entry(ENTRY), {"this run": row(values, *found)}))


def the_check(values: Iterator[float]) -> None:
    name = "co2/mean-field"  # a regression: of a classifier the data have to be there, to count the classes
    scores = references.load(name)["check"]["scores"]
    check._reported(zoo.entry(name), Measured((), row(values, *scores), {}, {}, next(values)))


def the_command(*words: str) -> Callable[[Iterator[float]], None]:
    return lambda values: None if cli.main(list(words)) == 0 else pytest.fail(" ".join(words))


PRINTED: Mapping[str, Callable[[Iterator[float]], None]] = {
    "co2": the_models,
    "kingma-table1": the_table_of_variances,
    "kingma-fig1a": the_errors(kingma_fig1a.STUDY, 100, 300, 400, 500, 750, 1000),
    "kingma-fig1b": the_errors(kingma_fig1b.STUDY, 0.25, 0.5, 1.0),
    "estimators": the_estimators,
    "rotated-digit": the_turned_digit,
    "cnn": the_convolutional_networks,
    "sparse": the_sparse_network,
    "boston-ard": the_boston_table,
    "concrete": the_concrete_rates,
    "published": the_published_figures,
    "references": the_distances,
    "peers": the_peers,
    "trained-network": the_trained_network,
    "critiques": the_critiques,
    "remedies": the_remedies,
    "sbc": the_calibration,
    "solar": the_forecasts,
    "active-learning": the_labels_that_are_asked_for,
    "tuning": the_tuning,
    "uci": the_uci_table,
    "compare": the_comparison,
    "run ENTRY": the_scores,
    "check": the_check,
    "show": the_command("show", ENTRY),
    "list": the_command("list"),
    "help": the_command("--help"),
}


def test_every_job_is_here() -> None:
    assert JOBS.keys() <= PRINTED.keys()


def shown(name: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    PRINTED[name](nasty())
    return capsys.readouterr().out


@pytest.mark.few(12)
@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("name", PRINTED)
def test_numbers_are_whole_in_every_width(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The numbers of a terminal so wide that nothing is cut or wrapped there are those of a narrow one."""
    wide, narrow = (shown(name, each, monkeypatch, capsys) for each in (5000, width))
    assert "…" not in narrow
    assert "\x1b" not in narrow
    assert max(map(len, narrow.splitlines())) <= width
    assert set(NUMBER.findall(narrow)) == set(NUMBER.findall(wide))


@pytest.mark.parametrize("width", [35, 28])
def test_a_block_of_lines_where_two_columns_do_not_fit(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown("compare", width, monkeypatch, capsys)
    assert max(map(len, text.splitlines())) <= width
    assert "runs/0/mc-dropout-tanh\n    log density" in text
    assert "    s.e." in text


def test_a_standard_error_is_beside_its_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At every width that has room for a name, a number and its standard error."""
    table = Table("run", "first", "s.e.", "second", "third", "s.e.", "fourth", "s.e.")
    table.add_row("a", *["1.234567"] * 7)
    cut = 0
    for width in range(30, 80):
        monkeypatch.setenv("COLUMNS", str(width))
        print_table(table)
        heads = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("run ")]
        cut += len(heads) > 1
        assert [name for head in heads for name in head[1:]] == [column.header for column in table.columns[1:]]
        for head in heads:
            assert head[1] != "s.e.", (width, heads)
    assert cut > 10


def test_names_are_no_markup(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    table = Table(title="[red]title[/red]", caption=":smile: [0, 1]")
    table.add_column("[bold]name")
    table.add_row("[link=file:///]one[/link]")
    print_table(table)
    text = capsys.readouterr().out
    assert all(part in text for part in ("[red]title[/red]", ":smile: [0, 1]", "[bold]name", "[link=file:///]one"))


def test_paragraphs_and_pairs_hang(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    paragraph("one two three four five six", first="- ", then="  ")
    pairs({"a": "one two three four five", "bb": "six"})
    pairs({"a long name, too long": "one two three four"})
    facts({"so": True, "thus": False})
    assert capsys.readouterr().out == (
        "- one two three four\n  five six\n"
        "  a   one two three four\n      five\n  bb  six\n"
        "  a long name, too long\n      one two three four\n"
        "  yes  so\n  NO   thus\n"
    )


def in_a_terminal(program: str, width: int) -> str:
    """What a program writes to a terminal of this width."""
    own = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    parts = []
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program], stdin=theirs, stdout=theirs, stderr=theirs,
        env=own | {"TERM": "xterm-256color"},
    ) as process:  # fmt: skip
        os.close(theirs)
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while part := os.read(ours, 4096):
                parts.append(part)
    os.close(ours)
    assert process.returncode == 0
    return b"".join(parts).decode()


@pytest.mark.more
def test_only_a_terminal_gets_control_codes_and_none_with_no_color() -> None:
    words = f"cli.main(['show', '{ENTRY}'])"
    program = f"import os; from pyrodrop import cli; {words}; print('and'); os.environ['NO_COLOR'] = '1'; {words}"
    coloured, plain = in_a_terminal(program, 70).split("and\r\n")
    assert "\x1b[1m" in coloured
    assert "\x1b" not in plain
    for text in (coloured, plain):
        assert max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in text.splitlines()) <= 70


def test_nothing_else_prints_tables() -> None:
    """A job that has its own console would cut numbers again."""
    folder = Path(str(check.__file__)).resolve().parents[1]
    own = re.compile(r"\bConsole\(|rich\.print|console\(\)\.print")
    files = [file for file in folder.rglob("*.py") if file.parts[-2] != "notebooks"]
    found = [str(file.relative_to(folder)) for file in files if own.search(file.read_text())]
    assert len(files) > 50
    assert sorted(found) == ["comparison/comparison.py", "reports/terminal.py", "zoo/card.py"]
