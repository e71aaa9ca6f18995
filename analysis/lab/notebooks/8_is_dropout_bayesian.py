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
# # Is dropout Bayesian? Look
#
# How near is dropout to the exact posterior of a network, and what comes nearer?
#
# Dropout is variational inference: it approximates a posterior. The literature says that it approximates it badly (Osband
# 2016; Foong et al. 2020; Le Folgoc et al. 2021). On a small network one can look, because there the exact posterior can be
# sampled. This notebook samples it, lays the approximations beside it, and ends with what helps.
#
# The data are the two clusters of [Foong et al. (2020)](https://arxiv.org/abs/1909.00719), the network and prior theirs:
# 2-50-1 with ReLU, w ~ N(0, 16 / fan-in), b ~ N(0, 1), noise of standard deviation .1.

# %%
# %matplotlib inline
import math

import matplotlib.pyplot as plt
import torch

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors

torch.manual_seed(0)
split = data.foong2020()
train, slice_x = split.train, split.test.x[::10]  # 100 points; 50 of the diagonal
model = models.MLP(
    [2, 50, 1],
    prior={"layers.0.*": priors.Gaussian(4 / math.sqrt(2)), "*": priors.Gaussian(4 / math.sqrt(50))},
    bias_prior=priors.Gaussian(1.0),
    likelihood=likelihoods.Gaussian(100.0),
)
print(model.describe())

# %% [markdown]
# ## The exact posterior
#
# `pyrodrop.sample` runs Hamiltonian Monte Carlo with all chains as one compiled step. Hidden units can be permuted, so
# chains never agree on the weights, and R-hat of a weight says nothing. What is predicted are functions: the diagnostics are
# those of $f$ at the data and of the log likelihood.

# %%
exact = pyrodrop.sample(model, train, chains=32, tune=500, draws=400, seed=0, progress=False)
print(exact.diagnostics(slice_x))

# %% [markdown]
# ## The approximations
#
# One line each. The two ensembles are five trainings from new starts, as one replicated fit.

# %%
settings = {"steps": 4000, "lr": 5e-3, "lr_schedule": pyrodrop.schedules.cosine(4000), "progress": False}
runs = {
    "MC dropout": pyrodrop.fit(
        model, guides.BernoulliDropout(model, 0.05, mask_input=False), train, estimator="local", **settings
    ),
    "mean field": pyrodrop.fit(model, guides.MeanField(model), train, estimator="local", **settings),
    "low rank": pyrodrop.fit(model, guides.LowRank(model, rank=4), train, **settings),
    "5 MC dropouts": pyrodrop.fit_replicates(
        model, guides.BernoulliDropout(model, 0.05, mask_input=False), train, estimator="local", count=5,
        starts="new", **settings,
    ),
    "5 networks": pyrodrop.fit_replicates(model, guides.Point(model), train, count=5, starts="new", **settings),
}  # fmt: skip

# %%
figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
t = slice_x[:, 0] * math.sqrt(2)
axes.semilogy(t, exact.predict(slice_x, 4000).spread[:, 0], color="black", linewidth=2, label="exact posterior")
for name, run in runs.items():
    axes.semilogy(t, run.predict(slice_x, 1000).spread[:, 0], label=name)
for end in (-math.sqrt(2), math.sqrt(2)):
    axes.axvline(end, color="grey", linestyle=":", linewidth=0.8)
axes.set(xlabel="along the diagonal; dotted lines: the data", ylabel="standard deviation of f")
axes.legend(fontsize=8, ncols=2)
plt.show()

# %% [markdown]
# The exact posterior is 47 times less sure between the clusters than at them (published: 43). A single dropout posterior or
# mean field with one hidden layer cannot be: Foong et al. prove it. The variance that they do have between the clusters
# comes with variance at the data, where there should be none.
#
# ## How far is each from it?
#
# `compare` with a reference measures the predictive distributions against that of the exact posterior, point by point and
# between points. The last row is the reference against itself: what Monte Carlo error alone gives. There are no observations
# on the slice, so y is drawn from the exact predictive distribution; the difference of log densities then estimates a
# Kullback-Leibler divergence, with its sign changed.

# %%
y = exact.predict(slice_x, 50, seed=1).sample_y(1)[0]
print(pyrodrop.compare(runs, (slice_x, y), "total_variation", reference=exact, num_samples=1000))

# %% [markdown]
# ## More data
#
# Osband (2016): the spread of a fixed rate does not shrink with data. For one weight with prior N(0, 1) and N observations
# of it, with mean 1 and unit noise, everything is in closed form. The exact posterior has the standard deviation
# $1/\sqrt{N+1}$. Dropout with rate $p$ and weight decay has $\sqrt{p/(1-p)}$ times the mean, whatever N is.

# %%
rate = 0.1
print("     N   exact  dropout")
for count in (1, 10, 100, 1000):
    weight = count / (count + 1 - rate)  # what is dropped or kept, where the loss with weight decay is least
    print(f"{count:6d} {1 / math.sqrt(count + 1):7.3f} {weight * math.sqrt(rate * (1 - rate)):8.3f}")

# %% [markdown]
# A learned rate does shrink. `guides.ConcreteDropout` and `guides.VariationalDropout` learn it; so does mean field.
#
# ## What to take from this
#
# - Between clusters of data, trust none of these approximations of a shallow network. Ensembles come nearest, and none is
#   near.
# - A fixed rate is a spread that you chose, not one that the data did. Learn it, or choose it by held-out density.
# - Judge by held-out log density, and, where the network is small, by the exact posterior: `pyrodrop.sample`.
#
# `pyrodrop run critiques` makes a page of the published critiques with our numbers beside theirs, and
# `pyrodrop run references` a table of every guide's distance from the exact posterior on six problems.

# %% [markdown]
# ## Where to go next
#
# - [Symptoms](../../../docs/symptoms.md) measures remedies.
# - [Sampling networks](../../../docs/sampling.md) samples exact posteriors.
# - [Judging](../../../docs/judging.md) has the distances on six problems.
