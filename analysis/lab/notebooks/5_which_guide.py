# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Which guide? ELBO, held-out density, LOO and k-hat
#
# Which of several posteriors is best, and which number can say so?
#
# Four numbers offer to rank posteriors. Each has a range of validity, and outside it `pyrodrop` refuses to print it. The
# page [Judging](../../../docs/judging.md) has their sources.
#
# | number | compares | fails for |
# |---|---|---|
# | held-out log density | everything | few test data |
# | ELBO | one model, one convention | θ → 0 and improper priors against proper ones |
# | LOO, corrected for q | densities q with usable importance ratios | k-hat > .7, atoms |
# | k-hat | q to its posterior | atoms |

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis import UnreliableLoo, loo, plots

torch.manual_seed(0)
x = torch.cat([torch.rand(150, 1) - 2, torch.rand(150, 1) + 0.5])[torch.randperm(300)]
y = torch.sin(3 * x) + 0.2 * torch.randn(300, 1)
train, test = (x[:60], y[:60]), (x[60:], y[60:])

# %% [markdown]
# ## One model, five guides
#
# They differ in what they make of the left wave, and in how sure they are of it.

# %%
model = models.MLP(
    [1, 30, 1], activation="tanh", prior=priors.Gaussian(scale=2.0), likelihood=likelihoods.Gaussian(25.0)
)
posteriors = {
    "dropout, θ = 0": guides.BernoulliDropout(model, 0.05, mask_input=False),
    "dropout, θ = .05": guides.BernoulliDropout(model, 0.05, mask_input=False, theta=0.05),
    "Gaussian dropout": guides.GaussianDropout(model, "B", alpha=0.05),
    "mean field": guides.MeanField(model),
    "low rank": guides.LowRank(model, rank=4),
}
runs = {name: pyrodrop.fit(model, guide, train, steps=3000, lr=0.01) for name, guide in posteriors.items()}

# %%
grid = torch.linspace(-3, 3, 200)[:, None]
figure, panels = plt.subplots(1, 5, figsize=(12, 2.6), sharey=True, layout="constrained")
for axes, (name, run) in zip(panels, runs.items(), strict=True):
    drawn = run.predict(grid, 500)
    plots.shades(axes, grid[:, 0], drawn.mean[:, 0], drawn.spread[:, 0])
    axes.plot(*train, ".", color=plots.RED, markersize=2)
    axes.set(title=name, xlabel="x", ylim=(-3, 3))
plt.show()

# %% [markdown]
# ## Held-out log density: always

# %%
print(pyrodrop.compare(runs, test))

# %% [markdown]
# ## The ELBO: inside one convention
#
# At θ = 0 the posterior is made of atoms; its divergence has an infinite constant that is left out. Its "ELBO" is not on
# the scale of the others, and asking for the ranking is an error. Without it the ranking stands.

# %%
try:
    pyrodrop.compare(runs, by="elbo")
except ValueError as error:
    print(f"ValueError: {error}")

# %%
proper = {name: run for name, run in runs.items() if name != "dropout, θ = 0"}
print(pyrodrop.compare(proper, test, by="elbo"))

# %% [markdown]
# ## LOO and k-hat: is q good enough to be corrected?
#
# Draws from q are no posterior draws. `loo` weights them by p / q, and k-hat says whether the weights have a usable mean.
# Networks have symmetric modes and correlated weights, so the answer here is no, for all, and for θ = 0 there is no q to
# weight by.

# %%
print(pyrodrop.compare(runs, test, by="loo", num_samples=500))

# %% [markdown]
# ## Where it stands
#
# A linear model has a Gaussian posterior that `LowRank` can reach. Trained on the likelihood to the power 4 it has half the
# standard deviation: the draws look as good, and k-hat gives it away.

# %%
features = torch.randn(60, 4)
target = features @ torch.randn(4, 1) + 0.2 * torch.randn(60, 1)
line = models.from_module(
    nn.Linear(4, 1, bias=False), prior=priors.Gaussian(scale=1.0), likelihood=likelihoods.Gaussian(25.0)
)
guide = guides.LowRank(line, rank=3)
found = {}


def cooling(step):
    """The learning rate's factor."""
    return 1 - step / 4000


for power in (1.0, 4.0):
    run = pyrodrop.fit(line, guide, (features, target), steps=4000, lr=0.01, lr_schedule=cooling, kl_weight=1 / power)
    found[power] = loo(run, num_samples=2000, force=True)
    print(f"likelihood power {power:g}: {found[power]}")
try:
    loo(run, num_samples=2000)
except UnreliableLoo as error:
    print(f"\nUnreliableLoo: {error}")

# %%
plots.k_hat(found[1.0])

# %%
plots.k_hat(found[4.0])

# %% [markdown]
# The truth, in closed form: leaving out a row of a conjugate regression changes its residual by one over one minus its
# leverage.

# %%
f, t = features.double(), target.double()
covariance = torch.linalg.inv(25 * f.T @ f + torch.eye(4, dtype=torch.float64))
leverage = 25 * (f @ covariance * f).sum(1)
residual = (t - f @ (25 * covariance @ f.T @ t))[:, 0] / (1 - leverage)
exact = torch.distributions.Normal(0.0, (25 * (1 - leverage)) ** -0.5).log_prob(residual).sum()
for power, estimate in found.items():
    print(f"likelihood power {power:g}: LOO {estimate.elpd:.2f}, exact {exact:.2f} nats, k-hat {estimate.k_hat:.2f}")

# %% [markdown]
# ## Where to go next
#
# - [Posterior predictive checks](6_posterior_predictive_checks.ipynb) ask whether the model fits at all.
# - [Judging](../../../docs/judging.md) has more scores, and distances from the exact posterior.
