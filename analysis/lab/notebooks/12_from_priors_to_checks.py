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
# # From priors to checks
#
# Priors, guides, SVI, the ELBO, ArviZ's predictive checks, a Gaussian process and the exact posterior: one network, two
# hundred points, one figure.
#
# The points are those of Snelson & Ghahramani (2006). Some are held out at random, and others as a whole: those of two
# intervals, where a posterior should be unsure.

# %%
# %matplotlib inline
import logging
import sys

import matplotlib.pyplot as plt
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis import plots, to_arviz
from pyrodrop.analysis.gp import GaussianProcess, from_model
from pyrodrop.analysis.lab.benchmarks.small_problems import problem

logging.basicConfig(stream=sys.stdout, format="%(levelname)s: %(message)s")  # what fit warns of, between the outputs
snelson = problem("snelson")
train, test, away = snelson.train, snelson.inside, snelson.away
print(len(train.x), "rows to train on,", len(test.x), "held out at random,", len(away.x), "away from them")

# %% [markdown]
# ## One call
#
# Without a guide, `fit` chooses priors and noise that fit the data, and mean-field weights in the first layer with the
# exact posterior of the last layer above each draw of them.

# %%
model = models.MLP([1, 50, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
one_call = pyrodrop.fit(model, train)
print(one_call)

# %% [markdown]
# The rest of this notebook takes the call apart, and compares what it chose with other choices.
#
# ## Priors
#
# Weights from N(0, 1) are a choice, and rarely a good one. `priors.from_gp` asks the data: the network in its limit of
# infinite width is a Gaussian process, whose evidence is known in closed form, and the scales of priors and noise that
# it returns are those of the largest evidence.

# %%
fitted = priors.from_gp(model, train)
print(fitted)

# %% [markdown]
# ## Guides, by SVI
#
# Three more posteriors of the same network under these priors, each trained by the steps of `pyro.infer.SVI`.

# %%
network = fitted.model
posteriors = {
    "MC dropout": guides.BernoulliDropout(network, 0.05, mask_input=False),
    "variational dropout B": guides.VariationalDropout(network, "B"),
    "mean field": guides.MeanField(network),
}
runs = {name: pyrodrop.fit(network, guide, train, steps=4000, lr=0.01) for name, guide in posteriors.items()}
runs["exact last layer"] = one_call

# %% [markdown]
# Beside them what they approximate, by Hamiltonian Monte Carlo, and the Gaussian process that the network converges to.

# %%
exact = pyrodrop.sample(network, train, chains=8, tune=300, draws=150)
shown = runs | {
    "exact posterior": exact,
    "Gaussian process": GaussianProcess(train, from_model(network, tanh_as_erf=True), learn=False),
}

# %%
low, high = float(train.x.min()) - 1.5, float(train.x.max()) + 1.5
grid = torch.linspace(low, high, 300)[:, None]
figure, panels = plt.subplots(2, 3, figsize=(11, 5), sharex=True, sharey=True, layout="constrained")
for axes, (name, run) in zip(panels.ravel(), shown.items(), strict=True):
    drawn = run.predict(grid, 1000)
    plots.shades(axes, grid[:, 0], drawn.mean[:, 0], drawn.spread[:, 0])
    axes.plot(train.x, train.y, ".", color=plots.RED, markersize=3)
    axes.plot(away.x, away.y, ".", color=plots.GREY, markersize=3)
    axes.set(title=name, ylim=(-4, 4))
plt.show()

# %% [markdown]
# Bands are of f, without the noise; grey points were not seen. All six follow the data. Beyond them the exact posterior
# widens as the process does, and so does the exact last layer; MC dropout, variational dropout and the mean field stay
# as sure as they are within, at one hidden layer.
#
# ## ELBOs, and the evidence that they are below
#
# An ELBO is a bound on the evidence. That of the limit at infinite width is known, and ELBOs may be compared with it.
# MC dropout at θ = 0 has a constant left out, which would be infinite, and is not on this scale.

# %%
print(f"evidence at infinite width {fitted.evidence:8.1f} nats")
for name in ("exact last layer", "mean field"):
    print(f"{name + ', ELBO':26} {runs[name].elbo().value:8.1f} nats")
try:
    pyrodrop.compare(runs, by="elbo")
except ValueError as error:
    print(f"\nValueError: {error}")

# %% [markdown]
# ## Held out
#
# Log density compares everything: at random rows, and in the intervals left out.

# %%
print(pyrodrop.compare(shown, (test.x, test.y)))

# %%
print(pyrodrop.compare(shown, (away.x, away.y)))

# %% [markdown]
# ## Predictive checks, by ArviZ
#
# `to_arviz` of several fits is one tree with the dimension `model`. If the model is right, the probability integral
# transform of y, the share of predicted values below each observed one, is uniform.

# %%
tree = to_arviz(runs | {"exact posterior": exact}, train, num_samples=1000, log_likelihood=False)
print(tree["posterior_predictive"])

# %%
plots.pit(tree.sel(model="exact posterior", drop=True))

# %%
plots.pit(tree.sel(model="MC dropout", drop=True))

# %% [markdown]
# ## Where to go next
#
# - [Priors that fit](../../../docs/choosing.md#priors-that-fit-the-data) says how `from_gp` works and where it does not.
# - [Judging](../../../docs/judging.md) says which number may compare which.
