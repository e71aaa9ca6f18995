"""The page about a fit that `pyrodrop.Fit.report` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, repr=False)
class Report:
    """A fit compared with simple predictors; printed, a page in Markdown.

    Attributes:
        scores: of every predictor by name, on the same rows: ``log_density`` in nats per row, and ``rmse`` and
            ``coverage_95``, or ``accuracy`` and ``ece``.
        facts: other findings, such as rates and Pareto k-hat, by name.
        advice: what to try next, the most important first, with a page of the documentation.
    """

    scores: Mapping[str, Mapping[str, float]]
    facts: Mapping[str, str]
    advice: tuple[str, ...]

    def __str__(self) -> str:
        columns = list(next(iter(self.scores.values())))
        rows = [["", *(column.replace("_", " ") for column in columns)], ["---"] * (len(columns) + 1)]
        rows += [[name, *(f"{row[column]:.3g}" for column in columns)] for name, row in self.scores.items()]
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        facts = "\n".join(f"- {name}: {fact}" for name, fact in self.facts.items())
        tries = "\n".join(f"{number}. {each}" for number, each in enumerate(self.advice, 1)) or "Nothing looks wrong."
        return f"# Report of a fit\n\n{table}\n\n{facts}\n\n## What to try\n\n{tries}\n"

    __repr__ = _repr_markdown_ = __str__
