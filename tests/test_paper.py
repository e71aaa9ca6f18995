"""The paper docs/paper: its form and length, its references, and its numbers, which are those of stored results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
HEAD, BODY = (ROOT / "docs" / "paper" / "paper.md").read_text(encoding="utf-8").split("---\n", 2)[1:]
BIB = (ROOT / "docs" / "paper" / "paper.bib").read_text(encoding="utf-8")
SECTIONS = [
    "Summary", "Statement of need", "State of the field", "Software design", "Research impact statement",
    "AI usage disclosure", "References",
]  # fmt: skip


def result(path: str) -> Any:
    return json.loads((ROOT / "analysis" / path).read_text(encoding="utf-8"))


def of_uci() -> int:
    """Figures of MC dropout on UCI data within two standard errors; those of the paper's table count as released results."""
    rows = result("reference/published-results.json")["figures"]
    uci = {row["figure"]["data"] for row in rows if row["figure"]["paper"] == "released"}
    return sum(
        row["outcome"]["status"] == "within"
        for row in rows
        if row["figure"]["data"] in uci and row["figure"]["where"] != "Table 1"
    )


def of_the_published() -> str:
    tally = result("reference/published-results.json")["tally"]["all"]
    errors, near, far = (tally[name] for name in ("with an error", "within 2 s.e.", "outside"))
    return (
        f"of {errors} published figures with a standard error ours are within two of it in {near}, {of_uci()} of them of "
        f"MC dropout on UCI data, and outside in {far}; {errors - near - far} have not been run."
    )


def of_the_clusters() -> str:
    tables = result("reference/critiques.json")["panels"]["foong"]["tables"]
    rows = next(own for name, own in tables.items() if name.startswith("standard deviation"))
    dropout, exact = (rows[f"1 hidden, {name}"]["ratio"] for name in ("MC dropout, rate .05", "HMC (ours)"))
    return f"is {dropout:.1f} times that at the clusters, and that of the exact posterior {exact:.0f} times."


def of_the_peers() -> str:
    """Distances on all problems; the best approximation differs between them."""
    problems = result("reference/peers.json")["problems"]
    distances = [
        {name: row["values"]["wasserstein"] for name, row in problem["rows"].items()} for problem in problems.values()
    ]
    assert len(distances) == 6
    chains = {
        name for of in distances for name in of if re.search("sample|nuts|chees|mclmc", name, flags=re.IGNORECASE)
    }
    assert all(min(of, key=of.__getitem__) in chains for of in distances)
    best = {min(of.keys() - chains, key=of.__getitem__) for of in distances}
    assert len(best) > 1
    dropout, field, last = (
        "{:.2f}, {:.2f}, {:.2f}, {:.2f}, {:.2f} and {:.2f}".format(*(of[name] for of in distances))
        for name in ("pyrodrop, MC dropout .05", "pyrodrop, mean field", "laplace-torch, last layer")
    )
    return (
        f"{dropout} for dropout at rate 0.05, {field} for a mean field, and {last} for a last-layer Laplace approximation, "
        "in mean standard deviations of the exact posterior, from one run each."
    )


def of_others() -> str:
    scripts = len(list((ROOT / "docs" / "what-others-compute").glob("*.py")))
    return f"{scripts} scripts show a quantity of another package"


def of_the_cost() -> str:
    own = result("benchmarks/results/fits-cpu.json")["rows"]["13-50-1, minibatches of 128 of 506, 30,000 steps"]
    return (
        "a whole fit of a network with 50 hidden units, of 30,000 minibatches, takes "
        f"{own['later']:.2f} of the time of plain PyTorch, and {own['first']:.1f} where nothing has been compiled yet."
    )


def test_it_has_the_sections_and_at_most_1000_words() -> None:
    assert re.findall(r"^# (.+)$", BODY, flags=re.MULTILINE) == SECTIONS
    assert 750 <= len(BODY.split()) <= 1000


def test_its_head_has_what_the_journal_reads() -> None:
    """The authors are those of the citation file."""
    head, citation = yaml.safe_load(HEAD), yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"title", "tags", "authors", "affiliations", "bibliography"} == head.keys()
    assert [author["name"] for author in head["authors"]] == [author["name"] for author in citation["authors"]]
    assert (ROOT / "docs" / "paper" / head["bibliography"]).is_file()


def test_every_package_that_the_pages_run_is_in_the_state_of_the_field() -> None:
    """Those of the scripts of 'What others compute', and of the peers beside the exact posterior."""
    scripts = (ROOT / "docs" / "what-others-compute").glob("*.py")
    run = {script.read_text(encoding="utf-8").removeprefix("# ").split("==")[0] for script in scripts}
    rows = [row for problem in result("reference/peers.json")["problems"].values() for row in problem["rows"]]
    run |= {row.split(",")[0] for row in rows} - {"pyrodrop", "scikit-learn"}
    field = re.sub(r"\W", "", BODY.partition("# State of the field")[2].partition("# Software design")[0].lower())
    short = {"blitz-bayesian-pytorch": "blitz", "ivon-opt": "ivon"}
    assert [name for name in run if short.get(name, name).replace("-", "") not in field] == []


def test_every_reference_is_cited_and_there() -> None:
    cited = re.findall(r"@(\w+)", BODY)
    entries = re.findall(r"^@\w+\{(\w+),", BIB, flags=re.MULTILINE)
    assert len(entries) == len(set(entries))
    assert set(cited) == set(entries)
    assert BIB.count("{") == BIB.count("}")
    for entry in re.split(r"\n(?=@)", BIB):
        assert all(re.search(rf"^  {field} = ", entry, flags=re.MULTILINE) for field in ("author", "title")), entry
        assert re.search(r"^  (url|doi) = ", entry, flags=re.MULTILINE), entry


def test_every_number_is_that_of_a_stored_result() -> None:
    text = re.sub(r"\s+", " ", re.sub(r"@\w+", "", BODY))
    for sentence in (of_the_published(), of_the_clusters(), of_the_peers(), of_others(), of_the_cost()):
        assert sentence in text
        text = text.replace(sentence, "")
    assert re.findall(r"\d[\d.,]*", text) == []


def test_what_has_not_been_measured_is_said_as_in_the_readme() -> None:
    words = "Nothing has been measured on a GPU"
    assert (words in BODY) == (words in (ROOT / "README.md").read_text(encoding="utf-8"))
