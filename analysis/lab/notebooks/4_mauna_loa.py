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
# # Mauna Loa: dropout against a GP
#
# What does a model believe about CO2 after the data end?
#
# Gal & Ghahramani (2016) asked it in their figure 2. A Gaussian
# process with the right kernel is the answer to beat, and an infinitely wide network is a Gaussian process too.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt

import pyrodrop
from pyrodrop import data, zoo
from pyrodrop.analysis import gp, plots

co2 = data.mauna_loa()  # years and ppm; training ends after 272 months
print(f"{len(co2.train)} months for training, {len(co2.test)} held out")

# %% [markdown]
# ## Two dropout networks
#
# Trained as in the zoo. ReLU extends its last straight pieces, each draw another way; TanH saturates: outside the data it
# has one value, and its band does not grow. The TanH network is one wide layer whose units bend all over the data, and
# learns most of the seasons; dropout at this rate leaves the ReLU network the trend.

# %%
relu = zoo.entry("co2/mc-dropout-relu").fit(co2.train)
tanh = zoo.entry("co2/mc-dropout-tanh-0.1").fit(co2.train)
plots.traces(relu)

# %%
plots.prediction(relu, co2.train, co2.test, x_label="year", y_label="ppm")

# %%
plots.prediction(tanh, co2.train, co2.test, x_label="year", y_label="ppm")

# %% [markdown]
# ## Gaussian processes
#
# A squared exponential knows smoothness alone and returns to its prior. Trend plus season is what a person would write
# down. Hyperparameters maximise the evidence.

# %%
smooth = gp.GaussianProcess(co2.train, gp.squared_exponential)
strong = gp.GaussianProcess(co2.train, gp.trend_and_season(co2.period / float(co2.train.inputs.scale)))
plots.prediction(smooth, co2.train, co2.test, x_label="year", y_label="ppm")

# %%
plots.prediction(strong, co2.train, co2.test, x_label="year", y_label="ppm")

# %% [markdown]
# ## The network's own prior
#
# At infinite width the ReLU network's prior is a Gaussian process with an arc-cosine kernel, and its posterior is exact.
# `gp.from_model` reads that kernel off the model: what remains of the difference to the dropout fit is width and the
# approximation, and no longer the prior. Two versions: as the model says, and with its variances learned.
#
# Mind the axes. Weights N(0, 1) over 256 units a layer are a prior of functions that run away by a hundred thousand ppm,
# and exact inference honours it. Dropout is far more certain than the prior that it is trained with: its posterior has no
# other spread than its masks.

# %%
kernel = gp.from_model(relu.model, bias_scale=gp.bias_spread(relu.model))
exact = gp.GaussianProcess(co2.train, kernel, learn=False)
plots.prediction(exact, co2.train, co2.test, x_label="year", y_label="ppm")

# %%
learned = gp.GaussianProcess(co2.train, kernel)
plots.prediction(learned, co2.train, co2.test, x_label="year", y_label="ppm")

# %% [markdown]
# ## Who foretold it?
#
# Held-out log density judges them all alike: the mean, and how sure it was. ELBOs there are two,
# which leave out a constant for each weight, and the networks have different numbers of them: they do not compare.

# %%
table = pyrodrop.compare(
    {
        "dropout, ReLU": relu,
        "dropout, TanH": tanh,
        "GP, squared exponential": smooth,
        "GP, trend + season": strong,
        "GP, the network's prior": exact,
        "GP, its variances learned": learned,
    },
    co2.test,
)
print(table)

# %% [markdown]
# How far out is each still right? Running mean of the log density by year.

# %%
from pyrodrop.analysis import log_density

figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
runs = {"dropout, ReLU": relu, "dropout, TanH": tanh, "GP, squared exponential": smooth, "GP, trend + season": strong}
for name, run in runs.items():
    by_year = log_density(run, co2.test).unfold(0, 12, 12).mean(1)
    axes.plot(co2.test.x[:, 0].unfold(0, 12, 12).mean(1), by_year, ".-", label=name)
axes.set(xlabel="year", ylabel="log density (nats a month)", ylim=(-40, 2))
axes.legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# ## Where to go next
#
# - [Choosing a posterior, a prior, a rate](../../../docs/choosing.md).
# - `pyrodrop run co2` compares nine models of these data.
