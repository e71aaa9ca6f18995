"""A model card: description, source and results of an entry of the zoo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from pyrodrop.analysis.reports.terminal import console, pairs, print_table
from pyrodrop.analysis.zoo import references
from pyrodrop.analysis.zoo.train import load_splits, scores_table
from pyrodrop.zoo import Entry, trained
from pyrodrop.zoo.sources import SOURCES


def show(entry: Entry) -> None:
    """Print the card. Data are loaded only if the entry has no reference, which otherwise contains the recipe."""
    reference = references.load(entry.name) if references.file(entry.name).is_file() else None
    recipe = reference["recipe"] if reference else entry.recipe(load_splits(entry, 1)[0].train)
    console().print(Text.assemble((entry.name, "bold"), "  ", entry.summary, "\n"))
    pairs(facts(entry, recipe, reference))
    print()
    if references.scores(entry.name) or entry.published:
        print_table(scores_table("scores", entry, {}))


def facts(entry: Entry, recipe: Mapping[str, Any], reference: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """The lines of a card above its scores: titles, empty where a line belongs to the one before, and texts."""
    lines = [
        ("source", entry.source),
        ("data", f"{entry.data}: {SOURCES[entry.data].summary}"),
        ("network", recipe["network"]),
    ]
    lines += [("prior" if number == 0 else "", text) for number, text in enumerate(_priors(recipe["prior"]))]
    lines += [
        ("posterior", recipe["posterior"]),
        ("training", ", ".join(f"{name} {value}" for name, value in recipe["training"].items())),
        ("prediction", f"{entry.draws} draws"),
    ]
    run = entry.check
    parts = [f"{run.steps:,} steps", f"{run.draws} draws"]
    parts += [f"{count:,} to {what}" for what, count in (("train", run.train), ("test", run.test)) if count]
    parts += [f"{run.splits} splits"] if run.splits > 1 else []
    lines.append(("check", ", ".join(parts)))
    lines.append(("trained", _trained(entry)))
    if not entry.published:
        lines.append(("published", "only curves or text, no scores to compare with"))
    if reference is None:
        return [*lines, ("reference", "none yet")]
    result, machine = reference["result"], reference["machine"]
    words = f"no full run: {result}" if isinstance(result, str) else _result(result)
    versions = ", ".join(f"{name} {reference['versions'][name]}" for name in ("pyrodrop", "pyro-ppl", "torch"))
    return [*lines, ("reference", f"{words}; {machine['processor']}, {machine['device']}; {versions}")]


def _trained(entry: Entry) -> str:
    """Where the trained posterior is."""
    path = trained.file(entry.name)
    if path is None:
        return f"not here; pyrodrop run {entry.name} --save FOLDER makes it"
    place = "in this package" if path.is_relative_to(trained.SHIPPED) else str(path.parent)
    return f'pyrodrop.zoo.load("{entry.name}"), {path.stat().st_size / 1000:.0f} kB, {place}'


def _result(result: Mapping[str, Any]) -> str:
    splits = f"{result['splits']} splits, " if result["splits"] > 1 else ""
    note = f" ({result['note']})" if "note" in result else ""
    return f"{splits}seed {result['seed']}, {result['seconds']:.0f} s{note}"


def _priors(prior: Mapping[str, str]) -> list[str]:
    """One line per distinct prior, with the names of its weights."""
    names: dict[str, list[str]] = {}
    for name, text in prior.items():
        names.setdefault(text, []).append(name)
    if len(names) == 1:
        return [next(iter(names))]
    return [f"{text}: {', '.join(of)}" for text, of in names.items()]
