"""A model card: description, source and results of an entry of the zoo."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from pyrodrop.analysis.reports.score_table import score_table
from pyrodrop.analysis.reports.terminal import console, pairs, print_table
from pyrodrop.analysis.zoo import references
from pyrodrop.analysis.zoo.train import load_splits
from pyrodrop.zoo import Entry, trained
from pyrodrop.zoo.sources import SOURCES

FORMS = {"s.e.": ".2g", "its s.e.": ".2g", "sd of seeds": ".2g"}


def show(entry: Entry) -> None:
    """Print the card. Data are loaded only if the entry has no reference, which otherwise contains the recipe."""
    reference = references.load(entry.name) if references.file(entry.name).is_file() else None
    recipe = reference["recipe"] if reference else references.recipe(entry, load_splits(entry, 1)[0].train)
    console().print(Text.assemble((entry.name, "bold"), "  ", entry.summary, "\n"))
    pairs(facts(entry, recipe, reference))
    print()
    rows = scores(entry, reference["result"] if reference else None)
    if rows:
        print_table(score_table(rows, title="scores", corner="score", forms=FORMS))


def facts(entry: Entry, recipe: Mapping[str, Any], reference: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """The lines of a card above its scores, each a title and a text; the title is empty if a line continues the previous."""
    lines = [
        ("for", entry.purpose or "whatever its source is about"),
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
    lines.append(("trained", _trained(entry)))
    lines += [] if entry.published else [("published", "no scores to compare with")]
    result = None if reference is None else reference["result"]
    more = _of_sparse(entry)
    if not isinstance(result, Mapping):
        return [*lines, ("result", result or "not run yet"), *more]
    lines += [("result", _result(result)), *more]
    diagnostics = result["diagnostics"]
    fits = "the fit" if diagnostics["fits"] == 1 else f"{diagnostics['still_falling']} of {diagnostics['fits']} fits"
    falls = (
        "still fell at the end"
        if diagnostics["fits"] > 1 or diagnostics["still_falling"]
        else "did not fall any more at the end"
    )
    lines += [("diagnostics", f"the loss of {fits} {falls}"), ("command", result["command"])]
    if "as_loaded" in result:
        scores = ", ".join(f"{name} {value:.4g}" for name, value in result["as_loaded"].items())
        lines.append(("as loaded", f"{scores}, without pruned weights, which the scores below include"))
    return lines


def _of_sparse(entry: Entry) -> list[tuple[str, str]]:
    """The stored result of ``pyrodrop run sparse``, a separate run with the same recipe; empty if there is none."""
    content = references.of_sparse(entry.name)
    if content is None:
        return []
    result, ratios = content["result"], content["compressed"]["ratios"]
    text = (
        f"{content['settings']['epochs']} epochs, one seed: {100 * result['error']:.2f} % error, "
        f"1 of {result['compression']:.3g} weights, 1 of {ratios['flops']:.3g} operations"
    )
    return [("run sparse", text)]


def _where(made: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {made['versions'][name]}" for name in ("pyrodrop", "pyro-ppl", "torch"))
    return f"{made['machine']['processor']}, {made['machine']['device']}; {versions}"


def _trained(entry: Entry) -> str:
    """Size and place of the trained posterior, or the command that makes it."""
    path = trained.file(entry.name)
    if path is None:
        return f"not here; pyrodrop run {entry.name} --save FOLDER makes it"
    place = "in this package" if path.is_relative_to(trained.SHIPPED) else str(path.parent)
    return f"zoo.load(NAME): {path.stat().st_size / 1000:.0f} kB, {place}"


def _result(result: Mapping[str, Any]) -> str:
    seeds = list(result["seeds"])
    parts = [f"{result['splits']} splits"] if result["splits"] > 1 else []
    parts += [f"seeds {', '.join(seeds)}, of which the first is shown" if len(seeds) > 1 else f"one seed, {seeds[0]}"]
    parts += [f"{result['seconds']:.0f} s", result["date"]]
    return f"{', '.join(parts)}; {_where(result)}"


def scores(entry: Entry, result: Mapping[str, Any] | str | None) -> dict[str, dict[str, float | None]]:
    """A row per score: ours with standard error and sd between seeds, and the published one with its error."""
    ours = result if isinstance(result, Mapping) else {"scores": {}, "standard_errors": {}, "seeds": {}}
    rows: dict[str, dict[str, float | None]] = {}
    for name in dict.fromkeys([*entry.published, *ours["scores"]]):
        values = [scores[name] for scores in ours["seeds"].values() if name in scores]
        rows[name] = {
            "ours": ours["scores"].get(name),
            "s.e.": ours["standard_errors"].get(name),
            "sd of seeds": statistics.stdev(values) if len(values) > 2 else None,
            entry.published_as: entry.published.get(name),
            "its s.e.": entry.published_errors.get(name),
        }
    shown = {column for row in rows.values() for column, value in row.items() if value is not None}
    return {name: {c: v for c, v in row.items() if c in shown} for name, row in rows.items()}


def _priors(prior: Mapping[str, str]) -> list[str]:
    """One line per distinct prior, with the names of its weights."""
    names: dict[str, list[str]] = {}
    for name, text in prior.items():
        names.setdefault(text, []).append(name)
    if len(names) == 1:
        return [next(iter(names))]
    return [f"{text}: {', '.join(of)}" for text, of in names.items()]
