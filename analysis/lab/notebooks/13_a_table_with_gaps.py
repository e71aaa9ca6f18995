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
# # A table with gaps
#
# How many bicycles will be hired in this hour, and how sure is the answer, where the table has words, numbers, and sensors
# that failed?
#
# The table is [bike sharing](https://archive.ics.uci.edu/dataset/275/bike+sharing+dataset) in Washington.
# It has categories as codes, and two sensors that say 0 where they mean that they do not know.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from pyrodrop import data, likelihoods, metrics
from pyrodrop.sklearn import NetworkRegressor

bikes = data.uci("bikes")[0]
calendar = ["season", "year", "month", "hour", "holiday", "weekday", "working"]
names = [*calendar, "weather", "temp", "felt", "humidity", "wind"]


def frame(part):
    df = pd.DataFrame(part.x.numpy(), columns=names)
    df["season"] = df.season.map({1: "winter", 2: "spring", 3: "summer", 4: "autumn"})
    df["weather"] = df.weather.map({1: "clear", 2: "mist", 3: "rain", 4: "heavy rain"})
    df["weekday"] = df.weekday.map(dict(enumerate(["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"])))
    df["humidity"] = df.humidity.where(df.humidity > 0)  # a whole day of 0 %: the sensor failed
    df["wind"] = df.wind.where(df.wind > 0)  # nothing between 0 and .08: too little to measure, or not measured
    return df.astype({"holiday": bool, "working": bool})


rows = np.random.default_rng(0).permutation(len(bikes.train.y))[:3000]
table, counts = frame(bikes.train).iloc[rows].reset_index(drop=True), bikes.train.y[rows, 0].numpy()
new, new_counts = frame(bikes.test).iloc[:1500].reset_index(drop=True), bikes.test.y[:1500, 0].numpy()
print(table.isna().sum()[lambda gaps: gaps > 0].to_string(), "\nmissing of", len(table))
table.head(3)

# %% [markdown]
# ## Words become columns, gaps stay
#
# The estimators take what scikit-learn's take: a `OneHotEncoder` makes columns of the words. Missing numbers need nothing:
# they become the median of their column, and a column of its own says that they were missing.
#
# y is a count, so the noise is that of counts, negative binomial, whose size the network says for every hour. One regressor
# has a fifth of the rows less, for the intervals below.

# %%
words = make_column_transformer(
    (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["season", "weekday", "weather"]),
    remainder="passthrough",
    verbose_feature_names_out=False,
).set_output(transform="pandas")
network = NetworkRegressor(likelihood=likelihoods.NegativeBinomial("network"), random_state=0)
model = make_pipeline(words, network).fit(table[:2400], counts[:2400])
prediction = network.prediction(words.transform(new))
print({name: round(value, 2) for name, value in metrics.regression_scores(prediction, new_counts).items()})

# %% [markdown]
# Beside a random forest, which has a mean and no distribution, with the same rows and gaps:

# %%
forest = make_pipeline(words, RandomForestRegressor(300, random_state=0, n_jobs=1)).fit(table[:2400], counts[:2400])
for name, each in (("network", model), ("forest", forest)):
    print(f"{name:8} RMSE {np.sqrt(np.mean((each.predict(new) - new_counts) ** 2)):.1f} bicycles")

# %% [markdown]
# ## Are its intervals honest?
#
# Within 90 % intervals there should be nine of ten hours, also at night, when few bicycles are hired, and in the rush hours.
# `metrics.conformal` moves the ends by rows that were held out, so that they are right on average; with `groups` it is right
# for each part of the day.

# %%
parts = np.array(["night"] * 6 + ["morning"] * 4 + ["day"] * 6 + ["evening"] * 4 + ["night"] * 4)
held_out = table[2400:]
fair = metrics.conformal(
    network.prediction(words.transform(held_out)), counts[2400:], groups=parts[held_out.hour.astype(int)]
)
part = parts[new.hour.astype(int)]
shown = {"as predicted": prediction.interval(0.9), "conformal": fair.interval(prediction, 0.9, groups=part)}
rows = {}
for name, (low, high) in shown.items():
    inside = ((low[:, 0].numpy() <= new_counts) & (new_counts <= high[:, 0].numpy())).astype(float)
    rows[name] = {each: inside[part == each].mean() for each in ("night", "morning", "day", "evening")}
    rows[name] |= {"all": inside.mean(), "mean width": float((high - low).double().mean())}
pd.DataFrame(rows).T.round(2)

# %% [markdown]
# The network was nearly right by itself, and a little too sure by day; by the held-out rows all parts of the day are near
# nine of ten. Below, 200 of the new hours in the order of their prediction, in red those outside.

# %%
low, high = (end[:200, 0].numpy() for end in shown["conformal"])
order = np.argsort(prediction.mean[:200, 0].numpy())
seen = new_counts[:200]
outside = ((seen < low) | (seen > high))[order]
figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
axes.vlines(range(200), low[order], high[order], color="C0", alpha=0.4, label="90 % interval")
axes.plot(prediction.mean[:200, 0][order], color="C0", label="mean")
axes.plot(np.flatnonzero(~outside), seen[order][~outside], "k.", ms=4, label="count")
axes.plot(np.flatnonzero(outside), seen[order][outside], ".", color="C3", ms=6, label="count outside")
axes.set(xlabel="200 new hours, by their prediction", ylabel="bicycles per hour")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## What did the gaps cost?
#
# The same rows with all humidities, and with none: what the network knows of an hour whose sensor failed.

# %%
dry = new.assign(humidity=np.nan)
for name, each in (("as measured", new), ("no humidity", dry)):
    of = network.prediction(words.transform(each))
    density, sd = float(of.log_density(new_counts).mean()), float(of.sd.double().mean())
    print(f"{name:12} log density {density:.3f} nats per hour, mean standard deviation {sd:.0f} bicycles")

# %% [markdown]
# Without the humidity the intervals are wider, and the density is lower: of 2,400 hours that it learned from, only two or
# three had this gap. Wind, which is missing in one of eight hours, it knows to do without.
#
# ## Where to go next
#
# - [Your own data frame](9_your_own_data_frame.ipynb) makes a data set of a frame for a network of your own.
# - [In scikit-learn](../../../docs/recipes.md#in-scikit-learn) has all arguments of the estimators, and
#   [recipes](../../../docs/recipes.md) what they train.
# - [Symptoms](../../../docs/symptoms.md) has remedies where a network is too sure.
