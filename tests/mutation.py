"""Mutation score: how many small changes of the code the tests notice.

    pip install cosmic-ray coverage
    python -P tests/mutation.py record                 # runs the tests once; notes the lines that each test executes
    python -P tests/mutation.py run --sample 300       # changes the code, one mutant after another, and runs those tests
    python -P tests/mutation.py run --again --first tests/pyrodrop/engines/test_engines.py   # survivors, new tests first
    python -P tests/mutation.py report                 # the score of every package, and the survivors
    python -P tests/mutation.py control                # the tests that killed mutants pass on the unchanged code

The mutants are those of Cosmic Ray, without those of type annotations and of the operators that tests/mutation.toml
excludes: at most one for each position of the source, of a random operator. A process that has imported PyTorch forks a
child for each mutant. The child imports the package with the changed module and runs the tests that execute the changed
statement, the fastest first, until one fails. No file is changed. What a run needs and finds is in runs/mutation/.

A mutant is `killed` if a test fails, `timeout` if the tests take much longer than unchanged, else it `survived`. A survivor
is read: either a test is missing, or the mutant computes the same (a tile of another size, a bound that is never met).
"""

from __future__ import annotations

import argparse
import ast
import collections
import difflib
import gc
import importlib
import importlib.machinery
import json
import os
import random
import re
import resource
import signal
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONFIG = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
FOLDER = ROOT / "runs" / "mutation"
_MEMORY = 12 * 2**30  # bytes that a child may take
_NONE_COLLECTED = 5
OPTIONS = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", "--durations=0", "-m", "not slow and not gpu"]


@dataclass(frozen=True)
class Mutant:
    """One change of a module: the `occurrence` of an operator of Cosmic Ray, which is at `line` and `column`."""

    package: str
    module: str
    line: int
    column: int
    operator: str
    occurrence: int

    @property
    def name(self) -> str:
        return f"{self.module}:{self.line}:{self.column} {self.operator}"


# -- record: which test executes which line -------------------------------------------------------------------------


class Recorder:
    """A pytest plugin: the lines of the packages that each test executes, and its duration."""

    def __init__(self, coverage: Any) -> None:
        self.coverage, self.seconds, self.failed = coverage, collections.Counter[str](), set[str]()

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration
        if not report.passed:
            self.failed.add(report.nodeid)


def record(arguments: argparse.Namespace) -> None:
    """Run the tests once, and store the lines that each of them executes, and its duration."""
    import coverage
    import pytest

    measured = coverage.Coverage(
        data_file=None, include=[str(ROOT / g) for g in CONFIG["packages"].values()], config_file=False
    )
    recorder = Recorder(measured)
    files = [str(f) for f in _test_files() if not arguments.only or re.search(arguments.only, f.name)]
    measured.start()
    pytest.main([*OPTIONS, *files], plugins=[recorder])
    measured.stop()
    data = measured.get_data()
    previous = json.loads((FOLDER / "record.json").read_text()) if arguments.only else {"seconds": {}, "lines": {}}
    tests = {t: s for t, s in recorder.seconds.items() if t not in recorder.failed}
    lines: dict[str, dict[str, list[str]]] = previous["lines"]
    for file in data.measured_files():
        known = lines.setdefault(str(Path(file).relative_to(ROOT)), {})
        for line, contexts in data.contexts_by_lineno(file).items():
            known[str(line)] = sorted({*known.get(str(line), []), *(c for c in contexts if c in tests)})
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "record.json").write_text(json.dumps({"seconds": previous["seconds"] | tests, "lines": lines}))
    print(f"{len(tests)} tests, {sum(tests.values()):.0f} s; left out: {sorted(recorder.failed)}")


def _test_files() -> Iterator[Path]:
    for folder in CONFIG["tests"]["folders"]:
        yield from (
            f for f in sorted((ROOT / folder).glob("test_*.py")) if not re.search(CONFIG["tests"]["exclude"], f.name)
        )


# -- the mutants, and the tests that execute them ---------------------------------------------------------------------


def mutants() -> Iterator[Mutant]:
    """All mutants of all packages, without those of annotations and those that change nothing."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.operators.provider import OperatorProvider

    provider = OperatorProvider()
    names = [n for n in provider if not any(re.search(e, n) for e in CONFIG["operators"]["exclude"])]
    for package, pattern in CONFIG["packages"].items():
        for path in sorted(ROOT.glob(pattern)):
            source = path.read_text()
            tree, annotations = get_ast(source), _annotations(ast.parse(source))
            for name in names:
                operator = provider[name]()
                positions = (p for node in ast_nodes(tree) for p in operator.mutation_positions(node))
                for occurrence, (start, _) in enumerate(positions):
                    if not any(first <= start < last for first, last in annotations):
                        yield Mutant(package, str(path.relative_to(ROOT)), start[0], start[1], name, occurrence)


def _annotations(tree: ast.AST) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    nodes = [getattr(n, a, None) for n in ast.walk(tree) for a in ("annotation", "returns")]
    return [((n.lineno, n.col_offset), (n.end_lineno, n.end_col_offset)) for n in nodes if isinstance(n, ast.expr)]  # type: ignore[misc]


def mutated(mutant: Mutant) -> str | None:
    """The source of the module, changed; None if it is no Python, or the same program."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.operators.provider import OperatorProvider

    source = (ROOT / mutant.module).read_text()
    changed = mutate_code(source, OperatorProvider()[mutant.operator](), mutant.occurrence)
    try:
        return None if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source)) else changed
    except SyntaxError:
        return None


def sample(size: int, seed: int) -> list[Mutant]:
    """One mutant for each of `size` positions, as many of a package as it has positions, at least 30."""
    chosen = random.Random(seed)
    packages: dict[str, dict[tuple[str, int, int], list[Mutant]]] = {p: {} for p in CONFIG["packages"]}
    for mutant in mutants():
        packages[mutant.package].setdefault((mutant.module, mutant.line, mutant.column), []).append(mutant)
    total = sum(map(len, packages.values()))
    found = []
    for positions in packages.values():
        quota = max(30, round(size * len(positions) / total))
        order = chosen.sample(sorted(positions), len(positions))
        picked = (chosen.choice(positions[position]) for position in order)
        found += [m for m, _ in zip((m for m in picked if mutated(m) is not None), range(quota), strict=False)]
    return chosen.sample(found, len(found))


def tests_of(mutant: Mutant, known: dict[str, Any]) -> list[str]:
    """The tests that execute the statement, or its function or class, or else the module: the fastest first."""
    lines, seconds = known["lines"].get(mutant.module, {}), known["seconds"]
    tree = ast.parse((ROOT / mutant.module).read_text())
    around = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and _span(n)[0] <= mutant.line <= _span(n)[1]]
    header = [_header(n) for n in reversed(around)]
    spans = [*header[:1], *(_span(n) for n in reversed(around)), (1, 10**6)]
    for first, last in spans:
        if tests := {t for line, ts in lines.items() if first <= int(line) <= last for t in ts}:
            return sorted((t for t in tests if Path(t.split("::")[0]).is_file()), key=seconds.__getitem__)
    return []


def _span(node: Any) -> tuple[int, int]:
    return min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]), node.end_lineno


def _header(node: Any) -> tuple[int, int]:
    """The lines of a statement without those of its body."""
    body = getattr(node, "body", None)
    return _span(node) if not body else (_span(node)[0], max(node.lineno, body[0].lineno - 1))


# -- run: one child for each mutant -----------------------------------------------------------------------------------


class Chosen:
    """A pytest plugin: runs the given tests, in their order, and writes down the first that fails."""

    def __init__(self, tests: list[str], file: Path) -> None:
        self.order, self.file = {t: i for i, t in enumerate(tests)}, file

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        def place(item: Any) -> int:
            names = (item.nodeid, item.nodeid.split("[")[0], item.nodeid.split("::")[0])
            return min((self.order[name] for name in names if name in self.order), default=-1)

        items[:] = sorted((item for item in items if place(item) >= 0), key=place)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.file.write_text(report.nodeid)

    pytest_collectreport = pytest_runtest_logreport


def attempt(mutant: Mutant, known: dict[str, Any], budget: float, first: list[str]) -> dict[str, Any]:
    """Run the tests in `first`, and others of at most `budget` seconds, on the mutant in a child process."""
    tests = [*first]
    total = 0.0
    for test in tests_of(mutant, known) if budget else ():
        total += known["seconds"][test]
        if tests and total > budget:
            break
        tests.append(test)
    result = {**asdict(mutant), "change": change(mutant), "tests": len(tests)}
    outcome, by, seconds = (
        in_child(tests, mutated(mutant), mutant.module, 20 + 5 * budget) if tests else ("survived", "", 0.0)
    )
    return result | {"outcome": outcome, "by": by, "seconds": round(seconds, 1)}


def in_child(tests: list[str], source: str | None, module: str, limit: float) -> tuple[str, str, float]:
    """Run tests with another source of a module: the outcome, the first test that failed, and the seconds."""
    witness = FOLDER / "failed.txt"
    witness.unlink(missing_ok=True)
    began = time.monotonic()
    child = os.fork()
    if not child:
        _run_tests(tests, source, module, witness)
    while not (done := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() - began < limit:
        time.sleep(0.02)
    if not done[0]:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(done[1]) if done[0] else None
    by = witness.read_text() if witness.exists() else ""
    outcome = {None: "timeout", 0: "survived", _NONE_COLLECTED: "no tests"}.get(code, "killed")
    return outcome, by, time.monotonic() - began


def _run_tests(tests: list[str], source: str | None, module: str, witness: Path) -> None:
    status = 99
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        output = os.open(FOLDER / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        if source is not None:
            _install(source, ROOT / module)
        import pytest

        files = dict.fromkeys(test.split("::")[0] for test in tests)
        status = int(pytest.main([*OPTIONS, "-x", *files], plugins=[Chosen(tests, witness)]))
    finally:
        sys.stdout.flush()
        os._exit(status)


def _install(source: str, path: Path) -> None:
    """Imports of the file from now on execute this source."""
    original = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: Any, fullname: str) -> Any:
        if Path(self.path).resolve() == path:
            return compile(source, str(path), "exec", dont_inherit=True)
        return original(self, fullname)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def run(arguments: argparse.Namespace) -> None:
    """Run the tests on mutants that have no result yet, or on those that survived, and store the results."""
    known, old = _known(), _results()
    if missing := [test for test in arguments.first if not Path(test.split("::")[0]).is_file()]:
        raise SystemExit(f"--first takes tests and files of tests; there is no {', '.join(missing)}")
    if arguments.again:
        todo = [mutant for mutant, result in old.items() if result["outcome"] != "killed"]
    else:
        todo = [mutant for mutant in sample(arguments.sample, arguments.seed) if mutant not in old]
    todo = [mutant for mutant in todo if re.search(arguments.only, mutant.name)]
    for name in CONFIG["tests"]["imports"]:
        importlib.import_module(name)
    gc.freeze()  # the children collect garbage of their own alone
    for number, mutant in enumerate(todo, 1):
        result = attempt(mutant, known, arguments.budget, arguments.first)
        print(f"{number}/{len(todo)}  {result['outcome']}  {result['seconds']} s  {mutant.name}", flush=True)
        with (FOLDER / "results.jsonl").open("a") as file:
            file.write(json.dumps(result) + "\n")
    report(arguments)


# -- report -----------------------------------------------------------------------------------------------------------


def report(arguments: argparse.Namespace) -> None:
    """Print the score of every package, and the survivors."""
    results = _results()
    for package in [*CONFIG["packages"], "all"]:
        outcomes = collections.Counter(r["outcome"] for m, r in results.items() if package in (m.package, "all"))
        if total := sum(outcomes.values()):
            score = (outcomes["killed"] + outcomes["timeout"]) / total
            print(f"{package:15}{score:7.1%} of {total}  {dict(outcomes)}")
    for mutant, result in sorted(results.items(), key=lambda item: item[0].name):
        if result["outcome"] not in ("killed", "timeout"):
            print(mutant.name, *result["change"], sep="\n    ")


def control(arguments: argparse.Namespace) -> None:
    """Run the tests that killed mutants on the unchanged code: none may fail."""
    tests = sorted({r["by"] for r in _results().values() if "::" in r["by"]})
    outcome, by, seconds = in_child(tests, None, "", 3600)
    print(f"{len(tests)} tests that killed, on the unchanged code: {outcome} {by} {seconds:.0f} s")


def change(mutant: Mutant) -> list[str]:
    """The line that the mutant changes, before and after."""
    before, after = (ROOT / mutant.module).read_text().splitlines(), (mutated(mutant) or "").splitlines()
    rest = difflib.ndiff(before, after)
    return [line for line in rest if line[0] in "-+"]


def _known() -> Any:
    return json.loads((FOLDER / "record.json").read_text())


def _results() -> dict[Mutant, dict[str, Any]]:
    """The last result of every mutant."""
    file = FOLDER / "results.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {Mutant(**{f: row[f] for f in Mutant.__dataclass_fields__}): row for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(required=True)
    for function in (record, run, report, control):
        command = commands.add_parser(function.__name__, help=function.__doc__)
        command.set_defaults(function=function)
        if function is record:
            command.add_argument(
                "--only", help="a regular expression: record these files of tests, keep the other records"
            )
        if function is run:
            command.add_argument("--sample", type=int, default=300, help="number of mutants")
            command.add_argument("--seed", type=int, default=0, help="of the sample")
            command.add_argument("--budget", type=float, default=30.0, help="seconds of tests for one mutant")
            command.add_argument("--first", nargs="*", default=[], help="tests, or files of tests, to begin with")
            command.add_argument("--only", default="", help="a regular expression: mutants of these modules")
            command.add_argument("--again", action="store_true", help="run again what survived or took too long")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    arguments.function(arguments)


if __name__ == "__main__":
    main()
