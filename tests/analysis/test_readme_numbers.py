"""Numbers that the README and the page of the references quote are those of the result files."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pyrodrop

ROOT = Path(__file__).parents[2]
README = re.sub(r"\s+", " ", (ROOT / "README.md").read_text(encoding="utf-8"))
REFERENCES = re.sub(r"\s+", " ", (ROOT / "analysis" / "reference" / "README.md").read_text(encoding="utf-8"))
JUDGING, CHOOSING, RECIPES, SCALE = (
    re.sub(r"\s+", " ", (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8"))
    for name in ("judging", "choosing", "recipes", "scale")
)


def result(path: str) -> Any:
    return json.loads((ROOT / "analysis" / path).read_text(encoding="utf-8"))


def test_effective_samples_beside_peers() -> None:
    measured = result("benchmarks/results/sampling-cpu.json")
    cases, chains, theirs = measured["cases"], measured["chains"], measured["peer chains"]
    origin, yacht = (cases[name]["rows"] for name in ("2-50-1, origin", "6-50-1, yacht"))
    nuts, chees, plain = "NumPyro, NUTS", "blackjax, ChEES", "blackjax, ChEES, no masses"

    def times(rows: Any, peer: str, key: str = "median, tuning too") -> str:
        return f"{rows['ours'][key] / rows[peer][key]:.1f}"

    after = "median per s"
    assert (
        f"**HMC** with {chains} chains draws {times(origin, chees)} and {times(yacht, chees)} times as many effective "
        "samples a second, tuning included, as blackjax's ChEES on 2-50-1 and 6-50-1, and "
        f"{times(origin, nuts)} and {times(yacht, nuts)} times as many as NumPyro's NUTS ([one run]"
    ) in README
    assert (
        f"with {chains} chains draws, tuning included, {times(origin, chees)} times as many effective samples of f a second "
        f"as blackjax's ChEES with as many chains, draws and steps of tuning, with its option for masses, on the 2-50-1 "
        f"network of Foong et al. (2020), and {times(yacht, chees)} times on the 6-50-1 network for yacht; after tuning "
        f"{times(origin, chees, after)} and {times(yacht, chees, after)}."
    ) in JUDGING
    unmixed = f"(R-hat {origin[plain]['R-hat']:.1f} and {yacht[plain]['R-hat']:.1f})"
    assert f"Without masses, its default, it had not mixed after as many steps {unmixed}" in JUDGING
    assert (
        f"NUTS with {theirs} chains has {times(origin, nuts)} and {times(yacht, nuts)} times fewer, tuning included; after "
        f"tuning {times(origin, nuts, after)} and {times(yacht, nuts, after)}."
    ) in JUDGING
    assert (
        f"for {measured['draws']} draws of each chain after {measured['tune']} steps of tuning, and for "
        f"{measured['peer draws']:,} draws of NumPyro's"
    ) in JUDGING
    for rows in (origin, yacht):
        assert all(row["R-hat"] < 1.05 for name, row in rows.items() if name != plain)


def test_whole_runs_beside_peers_that_are_as_near_to_the_exact_posterior() -> None:
    problems = result("reference/peers.json")["problems"]
    rows = {name: own["rows"] for name, own in problems.items()}
    seconds = {
        name: [own[method]["about"]["seconds"] for method in ("pyrodrop, sample", "numpyro, NUTS", "blackjax, MCLMC")]
        for name, own in rows.items()
    }
    for own in rows.values():
        ours, nuts = (own[method]["values"]["wasserstein"] for method in ("pyrodrop, sample", "numpyro, NUTS"))
        assert abs(ours - nuts) < 0.04
    slower = [name for name, (ours, nuts, _) in seconds.items() if ours > nuts]
    both = ", ".join(f"{name} {seconds[name][0]:.0f} and {seconds[name][1]:.0f}" for name in slower)
    assert f"more core-seconds than NUTS on {len(slower)} ({both}) and fewer on {len(rows) - len(slower)}" in JUDGING
    assert (
        f"takes longer than NUTS on {len(slower)} of {len(rows)} problems: on energy {seconds['energy'][0]:.0f} "
        f"core-seconds, NUTS {seconds['energy'][1]:.0f} and blackjax's MCLMC {seconds['energy'][2]:.0f}"
    ) in README
    assert f"blackjax's MCLMC takes {seconds['energy'][2]:.0f}" in JUDGING


def test_a_whole_fit_beside_plain_pytorch() -> None:
    fits = result("benchmarks/results/fits-cpu.json")
    own = fits["rows"]["13-50-1, minibatches of 128 of 506, 30,000 steps"]
    assert (
        f"a whole fit of 13-50-1 at rate {fits['rate']:g}, 30,000 ragged minibatches, takes {own['later']:.2f} of the time "
        f"of plain PyTorch with fused Adam, and {own['first']:.1f} where nothing has been compiled yet"
    ) in README
    small = fits["rows"]["1-8-1, all rows of 200, 20,000 steps"]
    compiling = round(20_000 * (small["first"] - small["later"]), -3)
    assert f"Compiling it takes as long as {compiling:,.0f} steps of plain PyTorch" in SCALE
    many = result("benchmarks/results/replicates-cpu.json")
    count = many["count"]
    assert ", 1 thread(s)," in many["machine"]
    assert (
        f"a step of {count} replicates, on one thread, is {many['times as fast as compiled fits']:.1f} times as fast as "
        f"{count} steps of compiled fits one after the other and "
        f"{many['times as fast']:.0f} times as fast as {count} of plain PyTorch with fused Adam"
    ) in README


def test_between_two_clusters() -> None:
    tables = result("reference/critiques.json")["panels"]["foong"]["tables"]
    rows = next(own for name, own in tables.items() if name.startswith("standard deviation"))
    ratio = {name: row["ratio"] for name, row in rows.items()}
    rate = f"MC dropout at rate 0.05 {ratio['1 hidden, MC dropout, rate .05']:.1f} times"
    deep = f"{ratio['2 hidden, MC dropout, rate .05']:.1f} times"
    assert (
        f"the exact posterior is {ratio['1 hidden, HMC (ours)']:.0f} times less sure than at them (published: "
        f"{ratio['1 hidden, HMC, published']:.0f}), a deep ensemble of five "
        f"{ratio['1 hidden, deep ensemble']:.0f} times, and {rate}, all with one hidden layer; with two, MC dropout is "
        f"{deep} less sure"
    ) in REFERENCES
    assert (
        f"with one hidden layer, at rate 0.05, its standard deviation of f is "
        f"{ratio['1 hidden, MC dropout, rate .05']:.1f} times that at them ({deep} with two), the exact posterior's "
        f"{ratio['1 hidden, HMC (ours)']:.0f} times"
    ) in README
    assert (
        f"is {ratio['1 hidden, HMC (ours)']:.0f} times less sure than at them, a deep ensemble of five "
        f"{ratio['1 hidden, deep ensemble']:.0f} times, and {rate}"
    ) in JUDGING
    assert f"With two hidden layers it is {deep} less sure" in JUDGING
    tried = {name.split(", ", 1)[1]: value for name, value in ratio.items() if name.startswith("1 hidden")}
    for name in ("HMC (ours)", "HMC, published", "Gaussian process, wide limit"):
        assert tried.pop(name) > 2 * tried["deep ensemble"]
    assert max(tried, key=lambda name: tried[name]) == "deep ensemble"
    assert (
        "no approximation that was tried has the uncertainty of the exact posterior; a deep ensemble comes nearest"
        in (CHOOSING)
    )


def test_between_two_other_clusters() -> None:
    """By place, for networks of 100 units and for the Gaussian process, with one to three layers."""
    places = result("reference/critiques.json")["panels"]["verdoja"]["tables"]["spread of f by place"]
    rows = [places[f"{depth} x 100"] for depth in (1, 2, 3)]
    ours = [f"{row['between, rate .1'] / row['at the data, rate .1']:.1f}" for row in rows]
    exact = [places[f"{depth} hidden, Gaussian process"] for depth in (1, 2, 3)]
    wide = [f"{row['between, exact'] / row['at the data, exact']:.0f}" for row in exact]
    assert (
        f"at rate 0.1 with 100 units a layer, MC dropout is {ours[0]}, {ours[1]} and {ours[2]} times less sure with one, "
        f"two and three layers, and exact inference of wide networks {wide[0]}, {wide[1]} and {wide[2]} times"
    ) in REFERENCES


def ensembles() -> list[str]:
    """The stored cells of ensembles on UCI data."""
    folder = ROOT / "analysis" / "reference" / "uci" / "gal2016"
    return [f"reference/uci/gal2016/{path.name}" for path in folder.glob("*-ensemble.json")]


def test_ensembles_of_point_networks_and_of_dropout() -> None:
    """On UCI data paired by split, by two standard errors; on the small problems that have observations to test."""
    better, _, count = beside_dropout("ensemble", "bernoulli", "grid")
    assert count == 9
    assert f"`Ensemble` of five `Point`s, on {better} of 9 UCI sets" in README
    assert f"five were better than one with dropout on {better} of 9 UCI sets" in CHOOSING
    assert all(own["plan"]["draws"] == 5 for own in map(result, ensembles()))

    tables = [result(f"reference/posterior/{name}.json") for name in ("co2", "mnist", "yacht", "boston", "energy")]
    assert all(own["recipe"]["test"]["observed"] and own["recipe"]["training"]["fits"] == 5 for own in tables)
    score = [{name: row["log_density"] for name, row in own["table"].items()} for own in tables]
    gain = max(own["ensemble MC dropout .05"] - own["MC dropout .05"] for own in score)
    below = [own["ensemble MC dropout .05"] < own["ensemble point"] for own in score]
    assert below == [True, True, True, False, True]
    assert (
        f"five dropout networks at rate .05, mixed, gain at most {gain:.3f} nats per observation over one of them. They are "
        f"below five point networks on {sum(below)} of {len(below)} and above them on boston"
    ) in CHOOSING


def test_what_the_recipes_say_of_their_rows() -> None:
    stored = result("benchmarks/results/tables.json")["tables"]
    tested = {name: sum(int(own["rows"]) // 5 for own in rows) for name, rows in stored.items()}
    assert all(own["coverage"] == 1 for own in stored["yacht"])
    assert f"All of the {tested['yacht']} test rows of *yacht*" in RECIPES
    assert f"on {tested['wine cultivars']} test rows" in RECIPES
    first = {name: int(stored[name][0]["rows"]) // 5 for name in ("boston", "diabetes")}
    assert f"Boston has {first['boston']} test rows and diabetes {first['diabetes']}" in RECIPES


def test_the_kinds_of_network() -> None:
    rows = (
        (ROOT / "docs" / "your-own-network.md").read_text(encoding="utf-8").partition("<!-- networks: generated -->")[2]
    )
    assert f"[{rows.count(chr(10) + '| `')} kinds of network]" in README


def test_the_verdicts_of_calibration() -> None:
    assert (
        "mean field, low rank and variational dropout come out too wide at the data and too narrow far out"
        in REFERENCES
    )
    assert "MC dropout at rate 0.1, of inputs and units, too narrow at all three inputs" in REFERENCES
    assert "MC dropout at rate 0.1, of inputs and units, too narrow at all three inputs" in JUDGING
    assert "MC dropout at rate 0.1, of inputs and units, is too narrow at all three inputs tried of 13-50-1" in README
    posteriors = result("reference/sbc.json")["posteriors"]
    assert posteriors["mc-dropout"]["settings"]["guide"] == "BernoulliDropout(drop_rate=0.1/0/0.1/0, theta=0)"
    counts = {(own["settings"]["count"], own["settings"]["num_data"]) for own in posteriors.values()}
    ((count, rows),) = counts
    assert f"in {count:,} data sets of {rows} rows" in REFERENCES
    assert f"in {count:,} data sets of {rows} rows" in JUDGING
    verdict = {name: own["verdict"] for name, own in result("reference/sbc.json")["posteriors"].items()}
    for name in ("mean-field", "low-rank", "variational-dropout"):
        assert "f[0]: too wide" in verdict[name]
        assert "f[2]: too narrow" in verdict[name]
    assert "f[0], f[1], f[2]: too narrow" in verdict["mc-dropout"]


def uci(protocol: str, epochs: int, batch: int) -> dict[str, dict[str, float]]:
    """z of MC dropout less the published figures of the same splits, by set and score; as good as published is positive."""
    published = result(f"reference/uci/published/{protocol}.json")["sets"]
    found = {}
    for path in (ROOT / "analysis" / "reference" / "uci" / protocol).glob("*-bernoulli.json"):
        cell = json.loads(path.read_text(encoding="utf-8"))
        name, about = cell["cell"]["data"], cell["cell"]
        theirs = published[name]
        assert (about["protocol"], about["precision"], about["penalty"]) == (protocol, "auto", "released")
        assert about["splits"] == len(theirs["rmse"]) == (5 if name == "protein" else 20)
        hidden = 100 if name == "protein" else 50
        assert cell["plan"].pop("hidden") in (hidden, [hidden])
        assert cell["plan"] == {
            "epochs": epochs // 2 if name == "protein" else epochs, "batch": batch, "precision": "grid", "draws": 10_000,
        }  # fmt: skip
        found[name] = {}
        for score, sign in (("rmse", -1), ("log_density", 1)):
            apart = [sign * (a - b) for a, b in zip(cell[score], theirs[score], strict=True)]
            found[name][score] = statistics.fmean(apart) / statistics.stdev(apart) * len(apart) ** 0.5
    return found


def test_the_published_figures_of_uci() -> None:
    """All sets are within two standard errors in both scores, and how many have a worse log density."""
    searched, contaminated = uci("gal2018", 4_000, 128), uci("gal2016", 400, 32)
    near, worse = (
        [sum(true(each) for each in z.values()) for z in (searched, contaminated)]
        for true in (lambda each: max(map(abs, each.values())) < 2, lambda each: each["log_density"] < 0)
    )
    assert near == [len(searched), len(contaminated)] == [9, 9]
    assert (
        f"On UCI data our log density is worse than published on {worse[0]} of {len(searched)} sets by the protocol of "
        f"2018, and on {worse[1]} by the contaminated one of 2016"
    ) in README


def test_the_published_figures_together() -> None:
    of = result("reference/published-results.json")["tally"]["all"]
    errors, near, far = (of[name] for name in ("with an error", "within 2 s.e.", "outside"))
    rows = result("reference/published-results.json")["figures"]
    uci = {row["figure"]["data"] for row in rows if row["figure"]["paper"] == "released"}
    within, outside = (
        [row["figure"] for row in rows if row["outcome"]["status"] == status and row["figure"]["where"] != "Table 1"]
        for status in ("within", "outside")
    )
    of_uci = sum(figure["data"] in uci for figure in within)
    assert (
        f"of {errors} with a standard error ours are within two of it in {near}, {of_uci} of them of MC dropout on UCI "
        f"data, and outside in {far}, of figure 1a of Kingma et al.; {errors - near - far} have not been run"
    ) in README
    assert all(figure["where"].startswith("Fig 1a") for figure in outside)


def beside_dropout(posterior: str, base: str, treatment: str) -> tuple[int, int, int]:
    """On how many sets a posterior has a better and a worse log density by two standard errors, and their number."""
    z = []
    for path in (ROOT / "analysis" / "reference" / "uci" / "gal2016").glob(f"*-{posterior}.json"):
        other = path.with_name(path.name.replace(posterior, base))
        if other.exists():
            cells = [json.loads(each.read_text(encoding="utf-8")) for each in (path, other)]
            for key in ("protocol", "splits", "data"):
                assert cells[0]["cell"][key] == cells[1]["cell"][key]
            assert {cell["plan"]["precision"] for cell in cells} == {treatment}
            assert cells[0]["plan"]["epochs"] == cells[1]["plan"]["epochs"] == (200 if "protein" in path.name else 400)
            apart = [a - b for a, b in zip(*(cell["log_density"] for cell in cells), strict=True)]
            z.append(statistics.fmean(apart) / statistics.stdev(apart) * len(apart) ** 0.5)
    return sum(value > 2 for value in z), sum(value < -2 for value in z), len(z)


def test_posteriors_beside_dropout_with_the_same_treatment_of_tau() -> None:
    better, worse, count = beside_dropout("ensemble", "bernoulli", "grid")
    assert (
        "(400 epochs; better and worse by two standard errors, paired by split): the ensemble has a better held-out log "
        f"density than one network with dropout on {better} of {count} sets and a worse one on {worse} of {count}, at the "
        "same fixed τ"
    ) in CHOOSING
    better, worse, count = beside_dropout("variational-b", "bernoulli-learned", "learned")
    assert (
        f"B is better than dropout on {better} of {count} and worse on {worse} of {count} where both learn τ"
        in CHOOSING
    )


def test_the_calibration_of_a_classifier() -> None:
    """Numbers of the page, as the file has them; averaging is not better."""
    rotated = result("reference/rotated-digit.json")
    weights, draws = rotated["scores"]["weight averaging"], rotated["scores"]["T = 100"]
    apart, auroc = rotated["difference"]["ece"], rotated["auroc"]["mean"]

    def short(value: float, digits: int = 4) -> str:
        return f"{value:.{digits}f}"[1:]

    assert (
        f"100 draws have an ECE of {short(draws['ece'])} on MNIST's test set, weight averaging {short(weights['ece'])} "
        f"(difference {short(apart['difference'])} ± {short(apart['se'])}), a Brier score of {short(draws['brier'])} "
        f"against {short(weights['brier'])}, and {100 - draws['error_percent']:.2f} % of their predictions are right"
    ) in REFERENCES
    assert f"AUROC {short(auroc['T = 100'], 3)} against {short(auroc['weight averaging'], 3)}" in REFERENCES
    assert draws["ece"] > weights["ece"] + 2 * apart["se"]


def test_programs_beside_loops_of_svi() -> None:
    measured = result("benchmarks/results/programs-cpu.json")["programs"]
    page = (ROOT / "docs" / "pyro-users.md").read_text(encoding="utf-8")
    for name, found in measured.items():
        first, later = (found["SVI.step us"] / found[which] for which in ("first us", "later us"))
        theirs = f"{found['SVI.step us'] / found['NumPyro us']:.0f}" if "NumPyro us" in found else ""
        row = [f"`{name}`", f"{found['steps']:,}", f"{later:.1f}", f"{first:.1f}", f"{found['pays from']:,.0f}", theirs]
        assert f"| {' | '.join(row)} |" in page
    quick = [name for name, found in measured.items() if found["steps"] == 20_000]
    later, first = (
        [measured[n]["SVI.step us"] / measured[n][which] for n in quick] for which in ("later us", "first us")
    )
    assert (
        f"20,000 steps of {len(quick)} programs, {min(later):.0f} to {max(later):.0f} times as fast as loops of `SVI.step`, "
        f"and {min(first):.0f} to {max(first):.0f} times where nothing has been compiled yet"
    ) in README


def test_what_reading_costs() -> None:
    measured = result("benchmarks/results/loaders-cpu.json")
    page = (ROOT / "docs" / "loaders.md").read_text(encoding="utf-8")
    for name, ratio in measured["ratios"].items():
        assert f"| {name} | {ratio:.2f} |" in page or name in ("tensors", "the DataLoader alone"), name
    assert (
        f"a sparse file of {measured['gigabytes']:.0f} GB takes {measured['resident_mib']:.0f} MiB of resident memory"
        in page
    )
    alone = measured["ratios"]["the DataLoader alone"]
    assert f"takes {alone:.2f} of a step".replace("0.", ".") in page


def test_likelihoods_on_real_data() -> None:
    measured = result("benchmarks/results/likelihoods-cpu.json")["tables"]
    page = (ROOT / "docs" / "likelihoods.md").read_text(encoding="utf-8")
    for data, table in measured.items():
        for name, row in table["summary"].items():
            gain = f"{row['gain']:+.3f} ± {row['gain_se']:.3f}" if "gain" in row else ""
            line = f"| {data} | {name} | {row['log_density']:.3f} ± {row['log_density_se']:.3f} | {gain} |"
            assert line in page or name.endswith("its density"), (data, name)


def test_deep_networks_by_chains_from_trained_starts() -> None:
    measured = result("benchmarks/results/deep-networks-cpu.json")
    page = re.sub(r"\s+", " ", (ROOT / "docs" / "sampling.md").read_text(encoding="utf-8"))
    bias = measured["variance_over_exact"]
    little, more = (f"{100 * (1 - bias[v]['ratio']):.1f} %" for v in ("0.0005", "0.02"))
    reached = [run["energy_variance_reached"] for runs in measured["runs"].values() for run in runs]
    much = f"{100 * (1 - bias['0.1']['ratio']):.0f} %"
    assert (
        f"variances that are {little} too small at the default 0.0005, {more} at 0.02, and {much} at 0.1, where the draws "
        f"reached {bias['0.1']['reached']:.2f}. The networks of several layers below were sampled at 0.1 and reached "
        f"{min(reached):.2f} to {max(reached):.2f}"
    ) in page
    assert f"those of a linear regression are {much} too small" in " ".join((pyrodrop.sample.__doc__ or "").split())
    yacht, foong = (measured["spread_over_hmc"][name] for name in ("yacht", "foong"))
    assert (
        f"the spread of f, at the default, is {yacht['median']:.2f} and {foong['median']:.2f} times that of `hmc`"
        in page
    )
    assert f"the chains of the second have an R-hat of {foong['r_hat_f']:.2f}" in page
    runs = measured["runs"]["airfoil"]
    own = runs[0]
    steps = 20 * (own["tune"] + own["draws"] * own["thin"])
    scores = ("rmse", "nll_of_moments", "nll")
    seconds = [run["core_seconds"] for run in runs]
    for name, rows, last in (
        (f"{own['chains']} trained networks", [run["starts"] for run in runs], ""),
        (
            f"{own['chains']} chains from these, {steps:,} steps each",
            runs,
            f"{min(seconds):.0f} to {max(seconds):.0f} ",
        ),
    ):
        means = " | ".join(f"{statistics.fmean(row[score] for row in rows):.3f}" for score in scores)
        assert f"| {name} | {means} | {last}|" in page
    nll, wide = ([run[key] for run in runs] for key in ("nll_of_moments", "r_hat_f"))
    assert f"Means of three seeds, by moments {min(nll):.3f} to {max(nll):.3f}" in page
    assert f"took {own['seconds']:.0f} seconds, {own['core_seconds']:.0f} core-seconds" in page
    one, two = (next(r["core_seconds"] for r in runs[1:] if r["threads"] == threads) for threads in (1, 2))
    assert f"beside other work it was {one:.0f} core-seconds on one thread, {two:.0f} on two" in page
    assert f"R-hat of f over all chains is {min(wide):.1f} to {max(wide):.1f}, in one chain" in page
    assert {f"{run['r_hat_within']:.2f}" for run in runs} == {"1.06"}
    bike = measured["runs"]["bike"]
    steps = 20 * (bike[0]["tune"] + bike[0]["draws"] * bike[0]["thin"])

    def of(form: str, key: str) -> str:
        return " and ".join(format(run[key], form) for run in bike)

    assert (
        f"{bike[0]['chains']} chains of {steps:,} steps have an RMSE of {of('.3f', 'rmse')} with two seeds, "
        f"{of('.3f', 'nll_of_moments')} by moments, {of('.3f', 'nll')} the mixture, in {of(',.0f', 'core_seconds')} "
        "core-seconds"
    ) in page


def test_what_early_stopping_costs() -> None:
    ratios = result("benchmarks/results/early-stopping-cpu.json")["ratios"]
    page = re.sub(r"\s+", " ", (ROOT / "docs" / "pyro-users.md").read_text(encoding="utf-8"))
    nothing, seldom, often = (f"{100 * (ratio - 1):.0f} %" for ratio in list(ratios.values())[1:])
    assert f"a function that does nothing costs {nothing} of the training when it is called every epoch" in page
    assert f"Early stopping costs {seldom} when it scores 1,000 held-out rows, with 20 draws, every 500 steps" in page
    assert f"every 500 steps, and {often} every 100" in page


def test_memory_beside_other_libraries() -> None:
    measured = result("benchmarks/results/memory-cpu.json")
    for name, row in measured["peak"].items():
        assert f"| {name} | " + " | ".join(f"{row[c]:.0f}" for c in ("MLP", "LeNet", "13-50-1")) + " |" in SCALE
    means = {name: row for name, row in measured["peak"].items() if "mean field" in name}
    assert all(row["MLP"] >= means["ours, mean field, pyro"]["MLP"] for row in means.values())
    growth = {(name, c): value for name, row in measured["growth"].items() for c, value in row.items()}
    most = max(growth, key=growth.__getitem__)
    assert most == ("plain PyTorch, nn.Dropout", "LeNet")
    assert f"adds at most {growth[most]:.0f} MiB, to plain PyTorch's LeNet, and nothing to ours" in SCALE
    assert all(value < 0.5 for (name, _), value in growth.items() if name.startswith("ours"))
