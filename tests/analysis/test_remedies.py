"""The page *What helps*: its tables are those of the stored results, and every section measures."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import nn

from pyrodrop.analysis.experiments.critiques import osband
from pyrodrop.analysis.experiments.references.evidence import FILE
from pyrodrop.analysis.experiments.remedies import experiment, page
from pyrodrop.analysis.experiments.remedies.networks import FAULT, REMEDY
from pyrodrop.analysis.reports import generated

STORED = json.loads(Path(page.FOLDER / "remedies.json").read_text(encoding="utf-8"))
TEXT = page.PAGE.read_text(encoding="utf-8")
WORDS = re.sub(r"\s+", " ", TEXT)


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    assert set(STORED["sections"]) <= set(experiment.SECTIONS)
    for name, text in page.texts().items():
        assert generated.marked(name, text) in TEXT


def test_every_number_has_three_seeds() -> None:
    for rows in STORED["sections"].values():
        for row in rows.values():
            assert all(len(values) == 3 and all(map(math.isfinite, values)) for values in row.values())


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_the_sentences_about_the_spread() -> None:
    rows = STORED["sections"]["spread"]
    assert rows.keys() == {"fixed rate .1", *osband.ENSEMBLES, osband.WIDE}
    last, first = (
        {name: f"{mean(row[n]) / mean(rows[osband.WIDE][n]):.2g}" for name, row in rows.items()}
        for n in ("N = 1000", "N = 25")
    )
    plain, bootstrap, anchors, functions = osband.ENSEMBLES
    assert (
        f"At N = 1,000 and a fixed rate the spread is {last['fixed rate .1']} times that of the process, of the bootstrap "
        f"{last[bootstrap]} times, of anchors {last[anchors]} times, of prior functions {last[functions]} times, and of "
        f"the plain ensemble {last[plain]} times. At N = 25 the bootstrap has {first[bootstrap]} times the spread of the "
        f"process, anchors {first[anchors]} time"
    ) in WORDS
    cost = {
        name: f"{mean(row['core-seconds']) / mean(rows['fixed rate .1']['core-seconds']):.2g}"
        for name, row in rows.items()
    }
    assert (
        f"All ten members with anchors take {cost[anchors]} times the core-seconds of one network with dropout, with prior "
        f"functions {cost[functions]} times"
    ) in WORDS


def test_the_sentences_about_rates() -> None:
    """The price of a rate by SciPy, and the scores of the page."""
    beta, log_normal = stats.beta(2, 20), stats.lognorm(0.3, scale=0.05)
    price = [own.logpdf(0.05) - own.logpdf(1e-5) for own in (beta, log_normal)]
    assert (
        f"beside a rate of .05, one of 1e-5 costs {price[0]:.0f} nats under `Beta(2, 20)` and {price[1]:.0f} under "
        "`LogNormal(ln .05, .3)`"
    ) in WORDS
    rows = STORED["sections"]["rates"]
    density = {name: f"{mean(row['log density']):.2f}" for name, row in rows.items()}
    layer, unit = "concrete, per layer", "concrete, per unit"
    assert max(rows["concrete, per layer"]["largest rate"]) < 1e-5
    assert (
        f"One learned rate per layer ends below 1e-5 on every split, at a log density of {density[layer]} nats per row, and "
        f"one per unit at {density[unit]}; a fixed rate of .05 has {density['fixed rate .05']}. With one rate per unit, "
        f"LogNormal(ln .05, .3) gives {density[f'{unit}, LogNormal(ln .05, .3)']} and Beta(2, 20) "
        f"{density[f'{unit}, Beta(2, 20)']}; with one per layer {density[f'{layer}, LogNormal(ln .05, .3)']} and "
        f"{density[f'{layer}, Beta(2, 20)']}"
    ) in WORDS
    seconds = {name: mean(row["core-seconds"]) for name, row in rows.items()}
    ratio = seconds["concrete, per unit, LogNormal(ln .05, .3)"] / seconds["concrete, per unit"]
    assert f"{ratio:.1f} times the core-seconds of the same guide without" in WORDS


def test_the_sentences_about_objectives() -> None:
    rows = STORED["sections"]["objectives"]
    elbo, *others = rows
    density = {name: f"{mean(row['log density']):.2f}" for name, row in rows.items()}
    noise = {name: f"{mean(row['noise']):.2f}" for name, row in rows.items()}
    half, one, half_fixed, one_fixed = others
    assert (
        f"With a learned noise the log density falls from {density[elbo]} nats per row to {density[half]} at alpha .5 and "
        f"{density[one]} at 1: the noise shrinks from {noise[elbo]} to {noise[half]} and {noise[one]}. With the noise that "
        f"the ELBO has learned it is {density[half_fixed]} and {density[one_fixed]}, and at alpha 1 "
        f"{mean(rows[one_fixed]['coverage of 95 %']):.1%} of the observations are within intervals of 95 %, under the ELBO "
        f"{mean(rows[elbo]['coverage of 95 %']):.1%}"
    ) in WORDS
    ratio = mean([mean(rows[name]["core-seconds"]) for name in others]) / mean(rows[elbo]["core-seconds"])
    assert f"Ten draws take {ratio:.2g} times the core-seconds of the ELBO's one" in WORDS


def test_the_sentences_about_bounds() -> None:
    rows = STORED["sections"]["bounds"]
    elbo, weighted = rows.values()
    for row in rows.values():
        for seed in range(3):
            gaps = [row[f"k = {k}"][seed] for k in (1, 10, 100, 1000)]
            assert gaps == sorted(gaps, reverse=True)
            assert gaps[-1] > -0.01  # a bound, but for the error of 200 estimates
    assert (
        f"The ELBO of the fit that it has trained is {mean(elbo['k = 1']):.2g} nats below the log evidence, its bound of "
        f"ten draws {mean(elbo['k = 10']):.2g}. Trained by that bound, ten draws are {mean(weighted['k = 10']):.2g} nats "
        f"below, at {mean(weighted['core-seconds']) / mean(elbo['core-seconds']):.2g} times the core-seconds, and the ELBO "
        f"of the fit {mean(weighted['k = 1']):.2g}"
    ) in WORDS


def test_the_sentences_about_calibration() -> None:
    rows = STORED["sections"]["labels"]
    (ece, density) = (
        {name: f"{mean(row[score]):.3f}" for name, row in rows.items()} for score in ("ECE", "log density")
    )
    point, point_t, drawn, drawn_t = rows
    assert (
        f"The point estimate has a calibration error (ECE) of {ece[point]} and a log density of {density[point]}; with "
        f"its temperature {ece[point_t]} and {density[point_t]}; dropout has {ece[drawn]} and {density[drawn]} by 100 "
        f"draws, and with a temperature {ece[drawn_t]} and {density[drawn_t]}"
    ) in WORDS
    rows = STORED["sections"]["intervals"]
    density = {name: f"{mean(row['log density']):.2f}" for name, row in rows.items()}
    inside = {name: f"{mean(row['coverage of 95 %']):.1%}" for name, row in rows.items()}
    raw, temperature, residuals, *energy = rows
    assert (
        f"the log density rises from {density[raw]} to {density[temperature]} by a temperature and to {density[residuals]} "
        f"by residuals, and {inside[raw]} of the observations are in intervals of 95 %, then {inside[temperature]} and "
        f"{inside[residuals]}"
    ) in WORDS
    raw, temperature, residuals = energy
    assert f"it goes from {density[raw]} to {density[temperature]} and {density[residuals]}" in WORDS


def test_the_sentences_about_bounds_of_networks() -> None:
    rows, evidence = STORED["sections"]["networks"], json.loads(FILE.read_text(encoding="utf-8"))
    elbo, weighted = ({n: rows[f"{n}, {way}"] for n in evidence} for way in (FAULT, REMEDY))
    for name, truth in evidence.items():
        for row in (elbo[name], weighted[name]):
            assert row["log evidence"] == [truth] * 3
            gaps = [mean(row[f"k = {k}"]) for k in (1, 10, 100, 1000)]
            assert gaps == sorted(gaps, reverse=True)
            assert gaps[-1] > 0
    below = {name: round(mean(row["k = 1"])) for name, row in elbo.items()}
    least, most = min(below, key=below.__getitem__), max(below, key=below.__getitem__)
    modes = [mean(row["ln of equal modes"]) for row in elbo.values()]
    nearer, farther = (
        [sign * (mean(elbo[n][k]) - mean(weighted[n][k])) for n in evidence]
        for k, sign in (("k = 10", 1), ("k = 1", -1))
    )
    last = [mean(row["k = 1000"]) for row in weighted.values()]
    assert min(nearer) > 0
    assert min(farther) > 0
    for sentence in (
        f"The ELBO of mean field is {below[least]} ({least}) to {below[most]} ({most}) nats below it",
        f"the logarithm of their number is {min(modes):.0f} to {max(modes):.0f} nats",
        f"that bound is {min(nearer):.0f} to {max(nearer):.0f} nats nearer on all six, the ELBO {min(farther):.0f} to "
        f"{max(farther):.0f} nats farther, and a thousand draws are still {min(last):.0f} to {max(last):.0f} nats below",
    ):
        assert sentence in WORDS, sentence


@pytest.mark.slow
@pytest.mark.parametrize("section", experiment.SECTIONS)
def test_a_section_at_the_size_of_a_test(section: str, data_folder: Path) -> None:
    done = experiment._measured(f"{section}-0", device=torch.device("cpu"), progress=False, size="quick", seed=0)
    joined = experiment._joined([done, done])
    assert joined.keys() == STORED["sections"][section].keys()
    json.dumps(joined, allow_nan=False)


def test_a_network_with_a_prior_function_is_the_sum_of_two_networks_of_the_prior() -> None:
    model = osband.network_with_prior_function()
    fixed = {n.removeprefix("prior_function."): v for n, v in model.network.named_buffers() if n.startswith("prior")}
    plain = nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Linear(50, 1))
    both = []
    for values in ({n.removeprefix("net."): v for n, v in model.weight_sites().items()}, fixed):
        plain.load_state_dict(values)
        both.append(plain(osband.POINTS))
    torch.testing.assert_close(model.outputs(model.weight_sites(), osband.POINTS), both[0] + both[1])
    draws = torch.cat([_first_weights() for _ in range(20)])
    assert float(draws.std()) == pytest.approx(2.0, rel=0.1)


def _first_weights() -> torch.Tensor:
    model = osband.network_with_prior_function()
    model.reset_parameters()
    return dict(model.network.named_buffers())["prior_function.0.weight"].flatten()
