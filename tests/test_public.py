"""Workflows, templates and hooks: they can be read, and the commands, files and versions that they name are there."""

from __future__ import annotations

import datetime
import email.policy
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import setuptools
import yaml

from pyrodrop.zoo import trained

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = ("ci", "pages", "release")
LINKS = ("models", "guides", "analysis")


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def jobs(name: str) -> dict[str, Any]:
    return read(f".github/workflows/{name}.yml")["jobs"]  # type: ignore[no-any-return]


def commands(name: str) -> list[str]:
    return [step["run"] for job in jobs(name).values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_commands_of_workflows_exist(name: str) -> None:
    """Files, targets of make, options of pip that are files, and the command of this package."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert commands(name)
    for command in commands(name):
        first, *rest = command.split()
        assert (
            first in ("git", "gh", "sleep", "python", "make", *PROJECT["project"]["scripts"])
            or (ROOT / first).is_file()
        ), command
        if first == "make":
            assert set(rest) <= set(targets), command
        files = re.findall(r"(?<!\S)(\.ci/[\w.]+|[\w/]+\.(?:txt|py))(?!\S)", command)
        assert all((ROOT / file).is_file() for file in files), command
    checks = jobs("ci")["checks"]
    steps = subprocess.run([ROOT / ".ci/run", "--list"], capture_output=True, text=True, check=True).stdout.split()
    assert checks["strategy"]["matrix"]["step"] == steps
    assert checks["steps"][-1]["run"] == ".ci/run ${{ matrix.step }}"


def test_a_tag_must_be_the_version_and_the_address_be_set(tmp_path: Path) -> None:
    version, address = PROJECT["project"]["version"], PROJECT["project"]["urls"]["Repository"]
    script = tmp_path / ".ci" / "tag_is_version.py"
    script.parent.mkdir()
    script.write_bytes((ROOT / ".ci" / "tag_is_version.py").read_bytes())
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert citation.count(f"repository-code: {address}\n") == 1
    (tmp_path / "CITATION.cff").write_text(citation.replace(address, "https://pyro.ai"), encoding="utf-8")
    public = (ROOT / "pyproject.toml").read_text(encoding="utf-8").replace(address, "https://pyro.ai")
    for tag, url, code in (
        (f"v{version}", "https://pyro.ai", 0),
        (version, "https://pyro.ai", 1),
        ("v9.9.9", "https://pyro.ai", 1),
        (f"v{version}", "https://example.org/pyrodrop", 1),
        (f"v{version}", "https://pyro.ai/another", 1),
    ):
        (tmp_path / "pyproject.toml").write_text(public.replace("https://pyro.ai", url), encoding="utf-8")
        assert subprocess.run([sys.executable, "-P", script, tag], capture_output=True).returncode == code, (tag, url)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_by_commit_and_dependabot_knows_them(name: str) -> None:
    text = (ROOT / f".github/workflows/{name}.yml").read_text(encoding="utf-8")
    used = re.findall(r"uses: (.*)", text)
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v[\d.]+", action) for action in used), used
    assert read(".github/dependabot.yml")["updates"][0]["package-ecosystem"] == "github-actions"


def test_files_of_a_release_are_found_by_an_installed_package(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-P", ROOT / ".ci/release_files.py", tmp_path / "files"], check=True)
    files = {path.name for path in (tmp_path / "files").iterdir()}
    lines = trained.HASHES.read_text(encoding="utf-8").splitlines()
    assert files == {line.split()[1].replace("/", ".") for line in lines}
    assert len(files) > 20
    one = lines[0].split()[1]
    assert (tmp_path / "files" / one.replace("/", ".")).read_bytes() == (trained.HASHES.parent / one).read_bytes()


def test_the_recipe_of_conda_needs_what_pip_needs() -> None:
    recipe = read(".ci/conda/recipe.yaml")
    run = [line.replace(" ", "").replace("pytorch", "torch") for line in recipe["requirements"]["run"]]
    assert run == [f"python{PROJECT['project']['requires-python']}", *PROJECT["project"]["dependencies"]]
    assert recipe["context"]["version"] == PROJECT["project"]["version"]
    assert recipe["about"]["license"] == PROJECT["project"]["license"]


def test_archives_describe_the_same_software() -> None:
    """What Zenodo reads, and the configuration of Read the Docs."""
    zenodo = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf-8"))
    citation = read("CITATION.cff")
    assert zenodo["title"] == citation["title"]
    assert zenodo["description"] == citation["abstract"]
    assert zenodo["keywords"] == citation["keywords"]
    assert {"upload_type", "creators", "license"} <= zenodo.keys()
    assert datetime.date.fromisoformat(citation["date-released"])
    site = read(".readthedocs.yaml")
    assert site["version"] == 2
    assert all(f"[{extra}" in str(site) or f",{extra}" in str(site) for extra in ("test", "docs"))


def test_hooks_have_the_version_that_is_tested() -> None:
    repository, _ = read(".pre-commit-config.yaml")["repos"]
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert f"ruff=={repository['rev'].removeprefix('v')}" in constraints
    assert [hook["id"] for hook in repository["hooks"]] == ["ruff-check", "ruff-format"]


def test_packages_are_found_without_the_laboratory() -> None:
    found = setuptools.find_packages(**PROJECT["tool"]["setuptools"]["packages"]["find"], where=str(ROOT))
    tops = ("pyrodrop", *LINKS)
    folders = [path.parent.relative_to(ROOT) for top in tops for path in (ROOT / top).rglob("__init__.py")]
    shipped = [f for f in folders if f.parts[:2] not in {("analysis", "lab"), *(("pyrodrop", name) for name in LINKS)}]
    expected = [".".join(f.parts if f.parts[0] == "pyrodrop" else ("pyrodrop", *f.parts)) for f in shipped]
    assert len(expected) > 20
    assert sorted(found) == sorted(expected)


def test_the_built_description_has_no_relative_link(tmp_path: Path) -> None:
    """Images are those of the tag. What is built without packages has the same description."""
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        (tmp_path / file).write_bytes((ROOT / file).read_bytes())
    code = "from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    folder = tmp_path / done.stdout.split()[-1]
    metadata = email.message_from_bytes((folder / "METADATA").read_bytes(), policy=email.policy.default)
    assert metadata["Description-Content-Type"] == "text/markdown"
    built = metadata.get_content()
    pattern = r"(?:\]\(|src=\"|srcset=\")([^)\"\s]+)"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (links, written) = (
        re.findall(pattern, re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)) for text in (built, readme)
    )
    place, tag = PROJECT["project"]["urls"]["Repository"], f"v{PROJECT['project']['version']}"
    assert len(links) == len(written) > 30
    for link, relative in zip(links, written, strict=True):
        if relative.startswith("https://"):
            assert link == relative
        else:
            kind = "raw" if re.search(r"\.(png|svg)$", relative) else "blob"
            assert link == f"{place}/{kind}/{tag}/{relative}"
    code = r"^```.*?^```"
    assert re.findall(code, built, flags=re.M | re.S) == re.findall(code, readme, flags=re.M | re.S)


def test_the_first_block_of_the_readme_is_found() -> None:
    """That which ``.ci/first_block.py`` runs, without running it."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.search(r"^```python\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    assert first is not None
    compile(first[1], "README.md", "exec")
    assert "recipes.curve(" in first[1]  # which needs nothing but the package
