"""Hron, Matthews & Ghahramani (2018): the KL divergence of dropout is infinite; what is minimised instead.

See `quasi_kl` for the formulas.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from scipy.stats import ortho_group

from pyrodrop.analysis.experiments.critiques import quasi_kl
from pyrodrop.analysis.experiments.critiques.panel import Panel, Size, Table
from pyrodrop.analysis.reports.style import BLACK, BLUE, GREEN, GREY, RED, png, styled

EIGENVALUES = (4.0, 2.0, 1.0, 0.5, 0.25)
TAU = 1e-8
M, RATE, SCALE = 1.0, 0.1, 1.0
THETAS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001)
PLANE = np.array([[1.0, 0.8], [0.8, 1.0]])  # the posterior of the figure


def panel(size: Size, seed: int) -> Panel:
    """The panel; the seed sets the random rotation and the starts of the search."""
    covariance = posterior(seed)
    pca = pca_table(covariance, seed)
    limit = limit_table()
    expected = quasi_kl.dropout_limit(M, RATE, SCALE)
    off = max(abs(row["found"] - row["closed form"]) for row in pca.values())
    angle = max(row["angle to the principal components"] for row in pca.values())
    return Panel(
        title="The KL divergence of dropout is infinite; its finite part is a quasi-KL divergence",
        paper="Hron, Matthews & Ghahramani (2018), Variational Bayesian dropout: pitfalls and fixes",
        link="https://arxiv.org/abs/1807.01969",
        shown=(
            "Dropout and other singular approximations put all probability on a set of volume 0, so their KL divergence "
            "from a posterior with a density is infinite. Thickened by noise of variance theta^2 it is finite, and without "
            "the term that depends on theta alone it has a limit, which is what dropout minimises. For a Gaussian posterior "
            "and an approximation of rank K the minimum of this limit is principal component analysis: the directions of "
            "largest variance are kept, and all others have no uncertainty."
        ),
        tables={
            "posterior N(0, S) with eigenvalues 4, 2, 1, 1/2, 1/4: quasi-KL by L-BFGS and in closed form": pca,
            "dropout of one weight, m = 1, rate .1, prior N(0, 1): KL divergence by theta": limit,
        },
        facts={
            "the search finds the closed-form minimum within 1e-5 nats": off < 1e-5,
            "its columns span the principal components within 1e-3 radians": angle < 1e-3,
            "the KL divergence of dropout tends to infinity and its finite part to the closed-form limit, within 1e-3": (
                abs(limit["theta = 0.001"]["without its infinite part"] - expected) < 1e-3
            ),
        },
        helps=(
            f"theta > 0 makes the divergence finite and the ELBO a bound: {limit['theta = 0.1']['KL divergence']:.2f} nats "
            f"at theta = .1 and {limit['theta = 0.001']['KL divergence']:.2f} at .001, growing by ln 10 per factor of 10. "
            "ELBOs at theta = 0 leave the infinite part out and must not be compared with others; this package says so in "
            "their convention and refuses to rank them.",
            "Low rank plus a diagonal (`guides.LowRank`) keeps uncertainty in every direction: the true KL divergence is "
            f"{diagonal_gap(covariance):.3f} nats at rank 0 (mean field) and 0 at full rank.",
        ),
        figure=png(_figure(limit, expected)),
    )


def posterior(seed: int) -> np.ndarray:
    """A covariance matrix with the eigenvalues `EIGENVALUES` in random directions."""
    axes = ortho_group.rvs(len(EIGENVALUES), random_state=seed)
    covariance = axes @ np.diag(EIGENVALUES) @ axes.T
    return np.asarray((covariance + covariance.T) / 2)


def pca_table(covariance: np.ndarray, seed: int) -> dict[str, dict[str, float]]:
    """The search against the closed form, by rank."""
    rows = {}
    for rank in range(1, len(covariance)):
        found, angle = quasi_kl.optimised(covariance, rank, TAU, seed)
        rows[f"rank {rank}"] = {
            "found": found,
            "closed form": quasi_kl.minimum(covariance, rank),
            "angle to the principal components": angle,
        }
    return rows


def limit_table() -> dict[str, dict[str, float]]:
    """The KL divergence of dropout by theta, and its finite part."""
    rows = {}
    for theta in THETAS:
        kl = quasi_kl.dropout_kl(M, RATE, theta, SCALE)
        finite = kl + math.log(2 * math.pi * math.e * theta**2) / 2
        rows[f"theta = {theta:g}"] = {"KL divergence": kl, "without its infinite part": finite}
    closed = quasi_kl.dropout_limit(M, RATE, SCALE)
    return rows | {"limit, closed form": {"without its infinite part": closed}}


def diagonal_gap(covariance: np.ndarray) -> float:
    """KL divergence of the best fully factorised Gaussian from N(0, S): its variances are 1 / (S^-1)_kk."""
    precision = np.linalg.inv(covariance)
    return float((np.log(np.diag(precision)).sum() + np.linalg.slogdet(covariance)[1]) / 2)


@styled()
def _figure(limit: Table, expected: float) -> Figure:
    figure = Figure(figsize=(9, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    values, axes = np.linalg.eigh(PLANE)
    angle = math.degrees(math.atan2(axes[1, -1], axes[0, -1]))
    for k in (1, 2):
        size = 2 * k * np.sqrt(values)
        left.add_patch(
            Ellipse((0, 0), size[-1], size[0], angle=angle, fill=False, color=BLACK, label="exact" if k == 1 else None)
        )
        own = 2 * k / np.sqrt(np.diag(np.linalg.inv(PLANE)))
        left.add_patch(Ellipse((0, 0), own[0], own[1], fill=False, color=BLUE, label="factorised" if k == 1 else None))
    end = 2 * math.sqrt(values[-1]) * axes[:, -1]
    left.plot([-end[0], end[0]], [-end[1], end[1]], color=RED, linewidth=2, label="rank 1, minimum of the quasi-KL")
    left.set(title="posterior of two weights, 1 and 2 sd", xlim=(-2.6, 2.6), ylim=(-2.2, 3.4), aspect="equal")
    left.legend(fontsize=7, loc="upper left")
    rows = [row for name, row in limit.items() if name.startswith("theta")]
    right.semilogx(THETAS, [row["KL divergence"] for row in rows], "o-", color=RED, markersize=3, label="KL divergence")
    right.semilogx(
        THETAS,
        [row["without its infinite part"] for row in rows],
        "o-",
        color=GREEN,
        markersize=3,
        label="without its infinite part",
    )
    right.axhline(expected, color=GREY, linestyle="--", linewidth=0.8, label="limit, closed form")
    right.set(title="dropout of one weight, rate .1", xlabel="theta", ylabel="nats")
    right.legend(fontsize=7)
    return figure
