"""Print the lower bounds of pyproject.toml's dependencies and of two extras for this Python, as constraints of pip."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lower_bounds(dependencies: list[str]) -> list[str]:
    """``name==version`` of every dependency that the running Python needs.

    Raises:
        ValueError: a dependency has no lower bound, or more than one.
    """
    found = []
    for text in dependencies:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate():
            continue
        bounds = [part.version for part in requirement.specifier if part.operator == ">="]
        if len(bounds) != 1:
            raise ValueError(f"a dependency needs one lower bound, such as numpy>=2.0; got {text!r}")
        found.append(f"{requirement.name}=={bounds[0]}")
    return found


if __name__ == "__main__":
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = [project["optional-dependencies"][extra] for extra in ("analysis", "cli")]
    print("\n".join(dict.fromkeys(lower_bounds(sum(extras, project["dependencies"])))))
