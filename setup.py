"""What pyproject.toml cannot say: the description of the package is README.md, with the absolute links of its release."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
_RELATIVE = re.compile(r"""(\]\(|src="|srcset=")(?![a-z]+:|#)([^)"\s]+)""")
_IMAGES = (".png", ".svg")


def absolute(text: str, repository: str, tag: str) -> str:
    """Markdown whose links and images outside of code are those of the repository at a tag."""

    def replaced(match: re.Match[str]) -> str:
        view = "raw" if match[2].endswith(_IMAGES) else "blob"
        return f"{match[1]}{repository}/{view}/{tag}/{match[2]}"

    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if number % 2 else _RELATIVE.sub(replaced, part) for number, part in enumerate(parts))


project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
setup(
    long_description=absolute(
        (HERE / "README.md").read_text(encoding="utf-8"), project["urls"]["Repository"], f"v{project['version']}"
    ),
    long_description_content_type="text/markdown",
)
