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
# # Any Pyro program
#
# How much faster does a Pyro program of yours train here, and does it compute the same?
#
# `pyrodrop.fit` trains any Pyro model and guide, not only networks. It records what a step computes once and replays that,
# where `SVI.step` runs Pyro's handlers at every step. The programs below are from Pyro's own examples, a little shortened.

# %%
# %matplotlib inline
import time
from functools import partial

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from arviz_stats import summary
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDelta
from torch.distributions import constraints, transforms

import pyrodrop

# %% [markdown]
# ## Eight schools
#
# The [example of Pyro](https://github.com/pyro-ppl/pyro/tree/dev/examples/eight_schools): the effect of coaching in eight
# schools, each with a standard error, after Gelman et al., Bayesian Data Analysis, section 5.5.

# %%
y = torch.tensor([28.0, 8, -3, 7, -1, 1, 18, 12])
sigma = torch.tensor([15.0, 10, 16, 11, 9, 11, 10, 18])
schools, J = torch.stack([y, sigma], dim=1), 8


def model(data):
    y = data[:, 0]
    sigma = data[:, 1]
    with pyro.plate("data", J):
        eta = pyro.sample("eta", dist.Normal(torch.zeros(J), torch.ones(J)))
        mu = pyro.sample("mu", dist.Normal(torch.zeros(1), 10 * torch.ones(1)))
        tau = pyro.sample("tau", dist.HalfCauchy(scale=25 * torch.ones(1)))
        theta = mu + tau * eta
        pyro.sample("obs", dist.Normal(theta, sigma), obs=y)


def guide(data):
    m_eta = pyro.param("loc_eta", torch.randn(J))
    s_eta = pyro.param("scale_eta", 0.1 * torch.rand(J), constraint=constraints.positive)
    m_mu = pyro.param("loc_mu", torch.randn(1))
    s_mu = pyro.param("scale_mu", 0.1 * torch.rand(1), constraint=constraints.positive)
    m_logtau = pyro.param("loc_logtau", torch.randn(1))
    s_logtau = pyro.param("scale_logtau", 0.1 * torch.rand(1), constraint=constraints.positive)
    dist_tau = dist.TransformedDistribution(dist.Normal(m_logtau, s_logtau), transforms=transforms.ExpTransform())
    with pyro.plate("data", J):
        pyro.sample("eta", dist.Normal(m_eta, s_eta))
        pyro.sample("mu", dist.Normal(m_mu, s_mu))
        pyro.sample("tau", dist_tau)


def begin(seed=0):
    """Initial parameters in Pyro's store, the same for every training."""
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    guide(schools)


# %% [markdown]
# Pyro's loop. The guide draws random initial values in every call; `begin` makes them once, so that both trainings start
# alike.

# %%
begin()
pyro.set_rng_seed(1)
start = time.perf_counter()
svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
by_pyro = torch.tensor([svi.step(schools) for _ in range(2000)], dtype=torch.float64)
seconds_of_pyro = time.perf_counter() - start

# %% [markdown]
# The same in one line. `seed=1` draws what `pyro.set_rng_seed(1)` drew.

# %%
begin()
start = time.perf_counter()
run = pyrodrop.fit(model, guide, {"data": schools}, steps=2000, lr=0.01, objective=Trace_ELBO(), seed=1)
seconds = time.perf_counter() - start

print(f"largest difference of the 2000 losses  {(run.losses - by_pyro).abs().max():.1e} nats")
print(f"SVI.step      {seconds_of_pyro:5.1f} s")
print(f"pyrodrop.fit  {seconds:5.1f} s with the time for recording, engine {run.settings['engine']}")

# %% [markdown]
# The losses are equal up to the rounding of float32, and `fit` takes a fraction of the time. `predict` draws all sites from
# the posterior.

# %%
draws = run.predict(num_samples=4000)
effects = draws["mu"] + draws["tau"] * draws["eta"]
low, middle, high = effects.quantile(torch.tensor([0.05, 0.5, 0.95]), dim=0)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
left.plot(by_pyro, linewidth=2.5, color="C7", alpha=0.5, label="SVI.step")
left.plot(run.losses, linewidth=0.5, color="C0", label="pyrodrop.fit")
left.set(yscale="log", xlabel="step", ylabel="loss, nats", title="one loss")
left.legend()
place = torch.arange(J)
right.errorbar(place - 0.12, y, yerr=1.645 * sigma, fmt="o", color="C7", label="observed")
right.errorbar(place + 0.12, middle, yerr=torch.stack([middle - low, high - middle]), fmt="o", label="posterior")
right.set(xticks=place, xticklabels=list("ABCDEFGH"), xlabel="school", ylabel="effect, points", title="90% intervals")
right.legend(loc="upper center")
plt.show()

# %% [markdown]
# In ArviZ: `to_arviz` makes the tree of a program, with its sites by name.

# %%
tree = pyrodrop.to_arviz(run, num_samples=2000, log_likelihood=False)
summary(tree, var_names=["eta"], kind="stats", ci_prob=0.89, ci_kind="eti", round_to=2)

# %% [markdown]
# ## A mixture whose assignments are summed out
#
# Pyro's tutorial [Gaussian Mixture Model](https://pyro.ai/examples/gmm.html): five points, two components, a point estimate
# of their parameters, and `TraceEnum_ELBO`, which sums over the assignments.

# %%
points, K = torch.tensor([0.0, 1.0, 10.0, 11.0, 12.0]), 2


@config_enumerate
def mixture(data):
    weights = pyro.sample("weights", dist.Dirichlet(0.5 * torch.ones(K)))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 2.0))
    with pyro.plate("components", K):
        locs = pyro.sample("locs", dist.Normal(0.0, 10.0))
    with pyro.plate("data", len(data)):
        assignment = pyro.sample("assignment", dist.Categorical(weights))
        pyro.sample("obs", dist.Normal(locs[assignment], scale), obs=data)


def init_loc_fn(site):
    if site["name"] == "weights":
        return torch.ones(K) / K
    if site["name"] == "scale":
        return (points.var() / 2).sqrt()
    return points[torch.multinomial(torch.ones(len(points)) / len(points), K)]


def initialize(seed):
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    exposed = poutine.block(mixture, expose=["weights", "locs", "scale"])
    autoguide = AutoDelta(exposed, init_loc_fn=init_loc_fn)
    autoguide(points)
    return autoguide


# %% [markdown]
# Mixtures have local optima, and the two centres start at two of the points, so the tutorial chooses among several starts.
# Here five are trained to the end, and find the same centres.

# %%
elbo = TraceEnum_ELBO(max_plate_nesting=1)
adam = partial(torch.optim.Adam, betas=(0.8, 0.99))
fits = {}
for seed in range(1, 6):
    autoguide = initialize(seed)
    fits[seed] = pyrodrop.fit(mixture, autoguide, {"data": points}, steps=200, lr=0.1, optimizer=adam, objective=elbo)
    found = autoguide(points)
    centres, weights = found["locs"].tolist(), found["weights"].tolist()
    print(f"seed {seed}  loss {fits[seed].losses[-1]:6.2f}  ", end="")
    print(f"centres {centres[0]:5.2f} {centres[1]:5.2f}   weights {weights[0]:.2f} {weights[1]:.2f}")

# %%
figure, axes = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
for seed, each in fits.items():
    axes.plot(each.losses, label=f"seed {seed}")
axes.set(xlabel="step", ylabel="loss, nats", title="five starts")
axes.legend(ncols=2)
plt.show()

# %% [markdown]
# ## In a loop of your own
#
# `pyrodrop.compile_svi` takes the place of `SVI(...)`: the same store, the same optimiser, faster steps. Between them the
# loop is yours. Here it notes where the centres are.


# %%
def trained(svi_of):
    autoguide = initialize(1)
    svi = svi_of(mixture, autoguide, pyro.optim.Adam({"lr": 0.1, "betas": (0.8, 0.99)}), elbo)
    losses, path, begun = [], [], time.perf_counter()
    for _ in range(200):
        losses.append(svi.step(points))
        path.append(autoguide.locs.detach().clone())
    return torch.tensor(losses), torch.stack(path), time.perf_counter() - begun


losses_of_pyro, _, seconds_of_pyro = trained(SVI)
losses, path, seconds = trained(pyrodrop.compile_svi)
print(f"largest difference of the 200 losses  {(losses - losses_of_pyro).abs().max():.1e} nats")
print(f"SVI          {seconds_of_pyro:5.2f} s")
print(f"compile_svi  {seconds:5.2f} s with the time for recording")

# %%
figure, axes = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
axes.hlines(points, 0, 200, color="C7", linewidth=0.7, label="points")
for k in range(K):
    axes.plot(path[:, k], color=f"C{k}", label=f"centre {k}")
axes.set(xlabel="step", ylabel="location", title="the centres during training")
axes.legend(loc="center right")
plt.show()

# %% [markdown]
# ## Where to go next
#
# - [For Pyro users](../../../docs/pyro-users.md) says what is recorded, what is not, and why.
# - [For Pyro users, the notebook](2_for_pyro_users.ipynb) uses this package's models with Pyro's tools.
