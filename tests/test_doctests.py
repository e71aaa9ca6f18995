"""The examples in the docstrings of public callables, run as doctests."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import pyrodrop.sklearn
from tests.bad_calls.test_signatures import objects


def examples() -> Iterator[tuple[str, Any]]:
    """Every public class, function and method with an example, by name."""
    public = objects() | {f"sklearn.{name}": getattr(pyrodrop.sklearn, name) for name in pyrodrop.sklearn.__all__}
    for name, value in public.items():
        yield name, value
        if isinstance(value, type):
            members = inspect.getmembers(value, lambda each: inspect.isfunction(each) or inspect.ismethod(each))
            yield from (
                (f"{name}.{method}", each) for method, each in members if each.__module__.startswith("pyrodrop")
            )


EXAMPLES = {id(value): (name, value) for name, value in examples() if ">>>" in (value.__doc__ or "")}


@pytest.mark.parametrize(("name", "value"), EXAMPLES.values(), ids=[name for name, _ in EXAMPLES.values()])
def test_example_gives_what_it_shows(name: str, value: Any) -> None:
    text = inspect.cleandoc(value.__doc__ or "")
    example = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, name, name, 0)
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=report.append)
    assert not failed, "".join(report)
