"""What a run was and what its figures show, in sentences made from its results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pyrodrop.analysis.reports.runs import Run

_SETTINGS = ("preset", "data", "split", "device", "seed", "steps", "epochs")
_SHORTEST, _LONGEST = 1, 400  # characters of a sentence that a results file has for a figure


def what_was_run(run: Run) -> str:
    """The job, its settings, and the best model by held-out log density, in a few sentences."""
    settings = run.results.get("settings")
    kept = settings if isinstance(settings, Mapping) else {}
    named = [f"{key} {kept[key]}" for key in _SETTINGS if isinstance(kept.get(key), str | int | float)]
    about = f"{run.job or 'A run'}{' with ' if named else ''}{_and(named)}."
    return " ".join(filter(None, (about, _models(run), _facts(run))))


def figure_alt(run: Run, name: str) -> str:
    """What a figure shows: the job's own words, if its results have some, or the results that it is a picture of."""
    words = run.results.get("figures")
    sentence = words.get(name) if isinstance(words, Mapping) else None
    if isinstance(sentence, str) and _SHORTEST <= len(sentence) <= _LONGEST:
        return sentence
    return " ".join(filter(None, (f"Figure {name.replace('_', ' ')} of this run.", _models(run), _facts(run))))


def histograms_alt(values: Mapping[str, Any], bins: int) -> str:
    """Which model's histogram is furthest from uniform, and where it has too many observations."""
    tops = {}
    for name, each in values.items():
        heights, edges = np.histogram(each, bins=bins, range=(0, 1))
        top = int(heights.argmax())
        tops[name] = (heights[top] * bins / each.size, edges[top], edges[top + 1])
    name = max(tops, key=lambda key: tops[key][0])
    times, left, right = tops[name]
    return (
        f"Histograms of the probability integral transform of {_count(len(values), 'model')}. Furthest from uniform is "
        f"{name}: between {left:.2f} and {right:.2f} it has {times:.1f} times as many observations as a "
        "calibrated prediction."
    )


def _models(run: Run) -> str:
    if "models" not in run.results:
        return ""
    models = run.models
    scores = {name: row["log_density"] for name, row in models.items() if row.get("log_density") is not None}
    if not scores:
        return f"{_count(len(models), 'model')}."
    ordered = sorted(scores, key=lambda name: -float(scores[name]))
    last = f"; the worst is {ordered[-1]} ({scores[ordered[-1]]:.2f})" if len(ordered) > 1 else ""
    return (
        f"{_count(len(models), 'model')}; the best by held-out log density is {ordered[0]} "
        f"({scores[ordered[0]]:.2f} nats per observation){last}."
    )


def _facts(run: Run) -> str:
    facts = run.results.get("facts")
    if not isinstance(facts, Mapping) or not facts or not all(isinstance(holds, bool) for holds in facts.values()):
        return ""
    failed = [fact for fact, holds in facts.items() if not holds]
    held = f"{len(facts) - len(failed)} of {_count(len(facts), 'statement')} hold{'s' if len(facts) == 1 else ''}"
    return f"{held}." if not failed else f"{held}; not: {'; '.join(failed)}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _and(words: list[str]) -> str:
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1] if words else ""
