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
# # Your own data frame
#
# How does a network train on a table with numbers and categories?
#
# `Dataset.from_frame` makes a data set of a pandas DataFrame: numbers are standardised, categories become columns of 0 and 1
# or codes for an embedding, and what is neither is refused by name. The frame here is the CO2 record of Mauna Loa, with the
# name of the month as a category.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import pandas as pd
import torch
from IPython.display import display

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors

torch.manual_seed(0)
co2 = data.mauna_loa()
years = torch.cat([co2.train.x, co2.test.x])[:, 0].numpy()
df = pd.DataFrame({"year": years, "co2": torch.cat([co2.train.y, co2.test.y])[:, 0].numpy()}).sort_values("year")
names = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
df["month"] = [names[int(year % 1 * 12)] for year in df.year]
known, later = df[df.year < 1980], df[df.year >= 1980]
df.head(3)

# %% [markdown]
# ## From a frame to a data set
#
# x and y stay in their units. The standardisation is kept beside them, and a model takes it over. The columns of the months
# are not standardised: every month has the same prior.

# %%
train = data.Dataset.from_frame(known, target="co2", categories=["month"])
display(train)

# %% [markdown]
# Whatever would be a wrong number later is refused now.

# %%
for wrong in (
    lambda: data.Dataset.from_frame(known, target="co2"),
    lambda: data.Dataset.from_frame(
        known.assign(month=known.month.mask(known.year < 1960)), "co2", categories=["month"]
    ),
    lambda: train.x_of(later.assign(month="Smarch")),
):
    try:
        wrong()
    except (TypeError, ValueError) as error:
        print(f"{type(error).__name__}: {error}\n")

# %% [markdown]
# ## A fit
#
# With x and y standardised, a prior of standard deviation 1 on every weight and a learned precision of the noise are a
# start. The precision is in units of y: 1 / ppm².

# %%
model = models.MLP(
    [train.x.shape[1], 50, 1], prior=priors.Gaussian(1.0), likelihood=likelihoods.Gaussian(0.1, learned=True)
)
guide = guides.BernoulliDropout(model, drop_rate=0.02, mask_input=False)
run = pyrodrop.fit(model, guide, train, steps=8000, lr=0.01)
display(run)

# %% [markdown]
# ## Intervals
#
# A fit to a frame predicts at frames, and finds their columns by name. `interval` is that of y, with the noise of the
# observations.

# %%
prediction = run.predict(later, 500)
low, high = prediction.interval(0.9)
inside = (later.co2.to_numpy() >= low[:, 0].numpy()) & (later.co2.to_numpy() <= high[:, 0].numpy())
for first, last in ((1980, 1983), (1983, 1990), (1990, 2002)):
    part = ((later.year >= first) & (later.year < last)).to_numpy()
    print(f"{first} to {last}: {inside[part].mean():.0%} of {part.sum()} months inside the 90 % interval")

# %% [markdown]
# An interval is as good as the model: what the table says of the years after the data is whether this network continues the
# trend, not whether the arithmetic is right.

# %%
everywhere = run.predict(df, 500)
low, high = everywhere.interval(0.9)
fig, axes = plt.subplots(figsize=(8, 3))
axes.fill_between(df.year, low[:, 0], high[:, 0], alpha=0.3, label="90 % interval")
axes.plot(df.year, everywhere.mean[:, 0], lw=1, label="mean")
axes.plot(known.year, known.co2, "k.", ms=2, label="seen")
axes.plot(later.year, later.co2, ".", color="0.6", ms=2, label="not seen")
axes.set(xlabel="year", ylabel="CO2 in ppm")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Months as an embedding
#
# With `encode="codes"` the network is called with two arguments, numbers and codes. Any module that takes them is a model.


# %%
class ByMonth(torch.nn.Module):
    """A trend in the year, and two numbers for each month."""

    def __init__(self) -> None:
        super().__init__()
        self.month = torch.nn.Embedding(12, 2)
        self.hidden, self.out = torch.nn.Linear(3, 50), torch.nn.Linear(50, 1)

    def forward(self, numbers, codes):
        both = torch.cat([numbers, self.month(codes[:, 0])], 1)
        return self.out(torch.relu(self.hidden(both)))


coded = data.Dataset.from_frame(known, target="co2", categories=["month"], encode="codes")
embedding = models.from_module(ByMonth(), priors.Gaussian(1.0), likelihoods.Gaussian(0.1, learned=True))
by_month = pyrodrop.fit(embedding, guides.MeanField(embedding), coded, steps=6000, lr=0.01)
print("sites:", {name: list(value.shape) for name, value in by_month.model.weight_sites().items()})

# %% [markdown]
# `like` reads another frame as a data set with the columns, categories and standardisation of the first one.

# %%
near = later[later.year < 1983]
for name, fit, columns in (("one-hot", run, train), ("embedding", by_month, coded)):
    held = columns.like(near)
    error = (fit.predict(held.x, 500).mean - held.y).square().mean().sqrt()
    density = fit.predict(held.x, 500).log_density(held.y).mean()
    print(f"{name:10} 1980 to 1983: RMSE {error:.2f} ppm, log density {density:.2f} nats per month")

# %% [markdown]
# ## Where to go next
#
# - [Your own data](../../../docs/recipes.md#your-own-data-frame) has the options of `from_frame`.
# - [Recipes](../../../docs/recipes.md) train a table with nothing to tune.
# - [Likelihoods](../../../docs/likelihoods.md): classes, counts, outliers, shares and others.
