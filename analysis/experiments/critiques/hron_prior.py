"""Hron, Matthews & Ghahramani (2017, 2018): with the log-uniform prior there is no posterior.

See `log_uniform_evidence` for the integrals.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import norm

from pyrodrop.analysis.experiments.critiques import log_uniform_evidence as log_uniform
from pyrodrop.analysis.experiments.critiques.panel import Panel, Size, Table
from pyrodrop.analysis.reports.style import BLACK, BLUE, GREY, RED, png, styled

SIGNED = (0.5, 1.0, -1.0, 1.5, 2.0)  # x, with the sign of the class; the third is on the wrong side
SEPARABLE = tuple(abs(a) for a in SIGNED)
HIGH, RADIUS = math.log(10.0), 1e-3
EXPONENTS = (2, 4, 8, 16, 32, 64, 128, 256, 300)  # eps = 10^-k
HIGHS = (2.0, 4.0, 8.0, 16.0)


def panel(size: Size, seed: int) -> Panel:
    """The panel; it needs neither training nor a seed."""
    table = evidence_table()
    sizes = np.array([k * math.log(10) for k in EXPONENTS])
    masses = np.array([row["evidence, prior 1/|w|"] for row in table.values()])
    slope, expected = float(np.polyfit(sizes[1:], masses[1:], 1)[0]), log_uniform.slope_at_zero(SIGNED)
    upper = [log_uniform.unnormalised(SEPARABLE, -5.0, high) for high in HIGHS]
    upper_slope = (upper[-1] - upper[-2]) / (HIGHS[-1] - HIGHS[-2])
    gaussian = log_uniform.near_zero_gaussian(SIGNED, 1.0, RADIUS)
    m, sd = log_uniform.variational(SIGNED)
    q = float(norm.cdf(RADIUS, m, sd) - norm.cdf(-RADIUS, m, sd))
    last = list(table.values())[-1]["P(|w| < .001 | data)"]
    checks = {
        "slope of the evidence over ln(1/eps)": {"measured": slope, "closed form": expected, "is": "2 L(0) = 2^(1-N)"},
        "slope over ln of the upper bound, separable data": {
            "measured": upper_slope, "closed form": 1.0, "is": "L at infinity",
        },
        "ln evidence, normalised, eps = 1e-300": {
            "measured": list(table.values())[-1]["ln evidence, normalised prior"],
            "closed form": -len(SIGNED) * math.log(2), "is": "its limit ln L(0) as eps falls to 0",
        },
    }  # fmt: skip
    near = {
        "log-uniform, eps = 1e-2": {"P(|w| < .001)": 0.0},
        "log-uniform, eps = 1e-300": {"P(|w| < .001)": last},
        "Gaussian prior, sd 1": {"P(|w| < .001)": gaussian},
        "variational dropout's q": {"P(|w| < .001)": q, "mean": m, "sd": sd},
    }
    return Panel(
        title="Under the log-uniform prior there is no posterior",
        paper="Hron, Matthews & Ghahramani (2017, https://arxiv.org/abs/1711.02989; 2018), Variational Bayesian dropout: "
        "pitfalls and fixes",
        link="https://arxiv.org/abs/1807.01969",
        shown=(
            "A logistic regression with one weight and five observations under the prior 1/|w| on eps <= |w| <= 10. The "
            "evidence grows with ln(1/eps) at the rate 2 L(0), twice the likelihood of the weight 0, without bound: the "
            "posterior of the improper prior does not exist. If the prior is normalised, the log evidence tends to ln L(0) "
            "instead and all posterior probability moves to 0. Where the data can be separated the evidence also grows with "
            "the logarithm of the upper bound."
        ),
        tables={"evidence by quadrature": table, "rates of growth": checks, "probability near zero": near},
        facts={
            "the evidence under 1/|w| grows as 2 L(0) ln(1/eps), within 1 %": abs(slope / expected - 1) < 0.01,
            "it also grows as the logarithm of the upper bound if the data can be separated, within 1 %": (
                abs(upper_slope - 1) < 0.01
            ),
            "at eps = 1e-300 more than 90 % of the posterior is at |w| < .001": last > 0.9,
        },
        helps=(
            f"A proper prior that is finite at 0: under N(0, 1) the posterior puts {gaussian:.1e} on |w| < .001, against "
            f"{last:.2f} under the truncated prior at eps = 1e-300.",
            f"Variational dropout itself gives a sensible q here, N({m:.2f}, {sd:.2f}^2), with {q:.1e} on |w| < .001: a "
            "Gaussian cannot follow the density to 0, so the approximation works because it is far from the posterior that "
            "it is meant to approximate. `priors.ARD` is the proper prior with a similar objective.",
            "In double precision eps cannot fall below 1e-308, where ln(1/eps) is 709. With N observations the pole needs "
            "ln(1/eps) of the order of max L / L(0) to matter, so that samplers and optimisers may never meet it.",
        ),
        figure=png(_figure(table, slope)),
    )


def evidence_table() -> dict[str, dict[str, float]]:
    """Evidences and the probability near zero by the lower bound of |w|."""
    rows = {}
    for k in EXPONENTS:
        low = -k * math.log(10)
        rows[f"eps = 1e-{k}"] = {
            "ln(1/eps)": -low,
            "evidence, prior 1/|w|": log_uniform.unnormalised(SIGNED, low, HIGH),
            "ln evidence, normalised prior": math.log(log_uniform.evidence(SIGNED, low, HIGH)),
            "P(|w| < .001 | data)": log_uniform.near_zero(SIGNED, low, HIGH, RADIUS) if 10**-k < RADIUS else 0.0,
        }
    return rows


@styled()
def _figure(table: Table, slope: float) -> Figure:
    figure = Figure(figsize=(9.5, 3.0), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    x = [row["ln(1/eps)"] for row in table.values()]
    left.plot(x, [row["evidence, prior 1/|w|"] for row in table.values()], "o-", color=BLUE, markersize=3)
    left.set(title=f"evidence under 1/|w|, slope {slope:.4f}", xlabel="ln(1/eps)")
    middle.plot(x, [row["ln evidence, normalised prior"] for row in table.values()], "o-", color=BLUE, markersize=3)
    middle.axhline(-len(SIGNED) * math.log(2), color=GREY, linestyle="--", linewidth=0.8, label="ln L(0)")
    middle.set(title="ln evidence, normalised prior", xlabel="ln(1/eps)")
    middle.legend()
    right.plot(x, [row["P(|w| < .001 | data)"] for row in table.values()], "o-", color=RED, markersize=3)
    right.axhline(1, color=BLACK, linestyle="--", linewidth=0.6)
    right.set(title="P(|w| < .001 | data)", xlabel="ln(1/eps)", ylim=(-0.03, 1.05))
    return figure
