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
# # Bring your own network
#
# How does a network of yours become a Bayesian one, without a change of its code?
#
# `models.from_module` makes any `torch.nn.Module` a Pyro model. Nothing in the network is rewritten: its weights become
# sample sites named as its parameters, and any guide fits. The page [Your own network](../../../docs/your-own-network.md)
# lists what has been checked.

# %%
# %matplotlib inline
import math

import matplotlib.pyplot as plt
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, metrics, models, priors
from pyrodrop.analysis import plots

torch.manual_seed(0)
angle = torch.rand(300) * math.pi
label = torch.arange(300) % 2
moons = torch.stack([torch.cos(angle) + label, torch.sin(angle) * (1 - 2 * label) + 0.4 * label], 1)
moons = moons + 0.15 * torch.randn(300, 2)
train, test = (moons[:200], label[:200]), (moons[200:], label[200:])

# %% [markdown]
# ## A network of yours
#
# Skip connections, normalisation, shared weights, parameters of its own. Only active dropout layers stay out: the noise is
# the guide's.


# %%
class Residual(nn.Module):
    """Two skip connections with a learned gain."""

    def __init__(self, units=50):
        super().__init__()
        self.lift = nn.Linear(2, units)
        self.blocks = nn.ModuleList([nn.Linear(units, units) for _ in range(2)])
        self.gain = nn.Parameter(torch.ones(2))
        self.head = nn.Linear(units, 2)

    def forward(self, x):
        h = self.lift(x)
        for gain, block in zip(self.gain, self.blocks, strict=True):
            h = h + gain * torch.relu(block(h))
        return self.head(h)


network = Residual()
model = models.from_module(network, prior=priors.Gaussian(scale=0.5), likelihood=likelihoods.Categorical())
for site, start in model.weight_sites().items():
    print(f"{site:16} {tuple(start.shape)!s:10} ~ {model.priors[site].describe()}")
print("points without a prior:", ", ".join(model.free))

# %% [markdown]
# ## Settings by name
#
# Priors and drop rates go by name patterns; the first that fits decides. Vectors, biases among them, are points unless
# `bias_prior` gives them a prior.

# %%
model = models.from_module(
    network,
    prior={"head.*": priors.Gaussian(scale=1.0), "*": priors.Gaussian(scale=0.5)},
    likelihood=likelihoods.Categorical(),
)
guide = guides.BernoulliDropout(model, drop_rate={"lift.*": 0.0, "blocks.*": 0.1, "*": 0.3})
guide.rates()

# %% [markdown]
# A prior of `None` makes a weight a point. So inference of the last layer alone is one line; `network.requires_grad_(False)`
# before it would keep the rest of the network as it is, as for a body that has been trained.

# %%
last = models.from_module(
    network, prior={"head.*": priors.Gaussian(scale=1.0), "*": None}, likelihood=likelihoods.Categorical()
)
run = pyrodrop.fit(last, guides.MeanField(last, init_scale=0.05), train, steps=1500, lr=5e-3, estimator="local")
print("inferred:", ", ".join(last.weight_sites()), "  points:", ", ".join(last.free))
print(metrics.classification_scores(run.predict(test[0], 500), test[1]))

# %% [markdown]
# What cannot work is refused before the first step, and the error says what would.

# %%
for wrong in (
    lambda: models.from_module(
        nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.1), nn.Linear(5, 2)), priors.Gaussian(), likelihoods.Categorical()
    ),
    lambda: guides.BernoulliDropout(model, drop_rate={"tail.*": 0.1, "*": 0.3}),
    lambda: pyrodrop.fit(model, guide, (moons, label.float()), steps=1),
):
    try:
        wrong()
    except ValueError as error:
        print(f"ValueError: {error}\n")

# %% [markdown]
# ## One network, three posteriors
#
# The point estimate is sure of itself everywhere. The mutual information of label and function, below, is what more data
# would teach. Dropout and the mean field have it where the boundary leaves the data, and more of it further out. Far from
# the data on either side of the boundary they have none: they are unsure where the boundary goes on, not wherever there
# were no data ([Is dropout Bayesian?](8_is_dropout_bayesian.ipynb)). The mean field pays for 5,000 weights with 200 points,
# and settles for a simpler boundary.

# %%
posteriors = {
    "Point": guides.Point(model),
    "BernoulliDropout": guide,
    "MeanField": guides.MeanField(model, init_scale=0.05),
}
runs = {
    name: pyrodrop.fit(model, posterior, train, steps=1500, lr=5e-3, estimator="local")
    for name, posterior in posteriors.items()
}
for name, run in runs.items():
    scores = metrics.classification_scores(run.predict(test[0], 500), test[1])
    print(f"{name:17}", "   ".join(f"{score} {value:.3f}" for score, value in scores.items()))

# %%
side = torch.linspace(-3, 4, 60)
square = torch.cartesian_prod(side, side)

figure, panels = plt.subplots(2, 3, figsize=(9, 5.6), sharex=True, sharey=True, layout="constrained")
for (above, below), (name, run) in zip(panels.T, runs.items(), strict=True):
    drawn = run.predict(square, 300)
    shown = {above: (drawn.mean[:, 1], 1.0, "RdBu"), below: (metrics.mutual_information(drawn), math.log(2), "viridis")}
    for axes, (values, top, colours) in shown.items():
        image = axes.pcolormesh(side, side, values.reshape(60, 60).T, vmin=0, vmax=top, cmap=colours, rasterized=True)
        axes.scatter(*train[0].T, c=train[1], cmap="RdBu", s=6, edgecolors="white", linewidths=0.3)
        if name == "MeanField":
            figure.colorbar(image, ax=axes)
    above.set_title(name)
panels[0, 0].set_ylabel("P(class 1)")
panels[1, 0].set_ylabel("mutual information (nats)")
plt.show()

# %% [markdown]
# ## What was learned
#
# Posterior weights against their priors, all weights of a layer in one histogram. Dropout draws locations or 0. The mean
# field leaves the blocks at their prior: the data were not worth moving them.

# %%
plots.weights(runs["BernoulliDropout"])

# %%
plots.weights(runs["MeanField"])

# %% [markdown]
# ## Where to go next
#
# - [Your trained network](7_your_trained_network.ipynb), if yours has been trained with dropout.
# - [Which guide?](5_which_guide.ipynb) compares posteriors.
# - [Your own network](../../../docs/your-own-network.md) lists kinds of networks that were checked.
# - [Symptoms](../../../docs/symptoms.md) says what mends a first fit that looks wrong.
