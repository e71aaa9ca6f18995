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
# # Posterior predictive checks with ArviZ
#
# Does a trained model generate data like ours?
#
# `pyrodrop.to_arviz` makes a data tree of a fit, and ArviZ checks it as it checks any Bayesian model.

# %%
# %matplotlib inline
import logging
import sys

import matplotlib.pyplot as plt
import torch
from arviz_plots import plot_ppc_dist
from arviz_stats import summary

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis import plots

logging.basicConfig(stream=sys.stdout, format="%(levelname)s: %(message)s")  # what fit warns of, between the outputs
torch.manual_seed(0)
x = torch.cat([torch.rand(200, 1) - 2, torch.rand(200, 1) + 0.5])[torch.randperm(400)]
y = torch.sin(3 * x) + 0.2 * torch.randn(400, 1)
train, test = (x[:200], y[:200]), (x[200:], y[200:])

# %% [markdown]
# ## Two models, one of them wrong
#
# The noise has standard deviation 0.2, precision 25. One model learns it. The precision of the other is
# fixed at 4, noise of 0.5, and `fit` warns that a point estimate of the same network predicts better.


# %%
def fitted(likelihood):
    """The same network and guide with another likelihood."""
    model = models.MLP([1, 50, 1], activation="tanh", prior=priors.Gaussian(scale=2.0), likelihood=likelihood)
    guide = guides.BernoulliDropout(model, 0.02, mask_input=False, theta=0.01)
    return pyrodrop.fit(model, guide, train, steps=4000, lr=0.01, estimator="local")


learned = fitted(likelihoods.Gaussian(precision=4.0, learned=True))
wrong = fitted(likelihoods.Gaussian(precision=4.0))
plots.prediction(learned, train, test)

# %% [markdown]
# ## The tree
#
# Draws of functions at the training points, replicated data, and predictions for the test data. It is written by
# `tree.to_netcdf` and read by xarray. Log likelihoods are left out, since these draws are not known to be the posterior's.

# %%
trees = {
    name: pyrodrop.to_arviz(run, train, test, 500, log_likelihood=False)
    for name, run in {"learned": learned, "wrong": wrong}.items()
}
for name, group in trees["learned"].children.items():
    print(f"{name:28}", ", ".join(f"{key} {dict(value.sizes)}" for key, value in group.data_vars.items()))

# %% [markdown]
# ## Does it generate data like ours?
#
# Distribution of the replicated data, blue, and of ours, black.

# %%
for name in trees:
    plot_ppc_dist(trees[name], kind="kde", num_samples=50, backend="matplotlib", figure_kwargs={"figsize": (7, 3)})
    plt.title(f"noise {name}")
    plt.show()

# %% [markdown]
# ## Is every observation where it should be?
#
# PIT values are uniform if the predictions are calibrated. The wrong model's intervals are too wide: too many observations
# in the middle, and the difference from uniform leaves its band.

# %%
plots.pit(trees["learned"], held_out=True)

# %%
plots.pit(trees["wrong"], held_out=True)

# %% [markdown]
# Coverage says it of central intervals: above the line, intervals hold more than they claim.

# %%
plots.pit(trees["wrong"], held_out=True, coverage=True)

# %% [markdown]
# ## Restarts as chains
#
# Draws of one fit are independent, so r_hat of one chain says nothing and a tree of one fit has one chain. Restarts from new
# initial weights are chains: r_hat asks whether they found the same function.

# %%
restarts = pyrodrop.fit_replicates(
    learned.model,
    guides.BernoulliDropout(learned.model, 0.02, mask_input=False, theta=0.01),
    train,
    steps=3000,
    lr=0.01,
    estimator="local",
    count=4,
    starts="new",
)
tree = pyrodrop.to_arviz(restarts, train, num_samples=250, log_likelihood=False)
summary(tree, var_names=["f"], coords={"obs_id": [0, 1, 2, 3]}, kind="all", ci_prob=0.89, ci_kind="eti", round_to=2)

# %% [markdown]
# What the tree says of the fit itself. An ELBO carries its convention; k-hat above .7 means that these draws cannot be
# reweighted to the posterior. ArviZ's `loo` would be wrong on this tree, which is why it has no log likelihoods;
# `pyrodrop.analysis.loo` refuses, too.

# %%
for key in ("guide", "elbo", "elbo_se", "elbo_convention", "khat"):
    print(f"{key:16} {trees['learned'].attrs.get(key)}")

# %% [markdown]
# ## Where to go next
#
# - [SVI results in ArviZ](../../../docs/arviz.md) says what the tree contains.
# - [Symptoms](../../../docs/symptoms.md) says what mends a fit that fails a check.
