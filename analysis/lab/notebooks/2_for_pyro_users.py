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
# # For Pyro users
#
# How do these models and guides work with Pyro's own tools?
#
# Models and guides here are plain Pyro: sample sites, a data plate, parameters. `pyrodrop.fit` is a faster loop and no
# requirement. Everything below is Pyro's: `SVI`, ELBOs, `Predictive`, handlers, autoguides
# ([Pyro's documentation](https://docs.pyro.ai)). The page [For Pyro users](../../../docs/pyro-users.md) has the differences.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import pyro
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import nn

from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis import plots
from pyrodrop.reparam import LocalReparam, reparameterize

pyro.set_rng_seed(0)
x = torch.cat([torch.rand(50, 1) - 2, torch.rand(50, 1) + 0.5])
y = torch.sin(2 * x) + 0.2 * torch.randn(100, 1)

# %% [markdown]
# ## The sites
#
# A weight is a site with the parameter's name. Weights are drawn outside the data plate, once for all rows.

# %%
model = models.MLP(
    [1, 50, 1], activation="tanh", prior=priors.Gaussian(scale=3.0), likelihood=likelihoods.Gaussian(25.0)
)
guide = guides.BernoulliDropout(model, drop_rate=0.1, mask_input=False, theta=0.05)

print(poutine.trace(model).get_trace(x, y).format_shapes())

# %%
for name, site in poutine.trace(guide).get_trace(x, y).nodes.items():
    if site["type"] == "sample":
        print(f"{name:16} {type(site['fn']).__name__:16} log q {site['fn'].log_prob(site['value']).item():8.1f}")

# %% [markdown]
# ## SVI
#
# Any optimiser, any ELBO. Under `Trace_ELBO` the divergence is estimated by log q − log p; `TraceMeanField_ELBO` asks for
# the registered one. Parameters live in the modules, so fits never meet in the global store.

# %%
pyro.set_rng_seed(0)
svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.01}), TraceMeanField_ELBO())
shared = [svi.step(x, y) for _ in range(1500)]

# %% [markdown]
# ## The same with local reparameterisation
#
# `LocalReparam` is a strategy of `poutine.reparam`. On model and guide it samples activations instead of weights, an own
# noise for every row, and the weights' log p is the analytic −KL, so plain `Trace_ELBO` has it too. `reparameterize` is
# the two calls of `poutine.reparam` that you would write.

# %%
local_model = models.MLP(
    [1, 50, 1], activation="tanh", prior=priors.Gaussian(scale=3.0), likelihood=likelihoods.Gaussian(25.0)
)
local_guide = guides.BernoulliDropout(local_model, drop_rate=0.1, mask_input=False, theta=0.05)
strategy = dict.fromkeys(["layers.0.weight", "layers.1.weight"], LocalReparam())
model_r = poutine.reparam(local_model, config=strategy)
guide_r = poutine.reparam(local_guide, config=strategy)

pyro.set_rng_seed(0)
svi = SVI(model_r, guide_r, pyro.optim.ClippedAdam({"lr": 0.01}), Trace_ELBO())
local = [svi.step(x, y) for _ in range(1500)]

# %% [markdown]
# One model and guide, three estimates of one ELBO: fewer noises shared by the rows, less noise in the loss.

# %%
pairs = {
    "Trace_ELBO": (model, guide, Trace_ELBO()),
    "TraceMeanField_ELBO": (model, guide, TraceMeanField_ELBO()),
    "Trace_ELBO, LocalReparam": (*reparameterize(model, guide, LocalReparam()), Trace_ELBO()),
}
with torch.no_grad():
    losses = {name: torch.tensor([elbo.loss(m, g, x, y) for _ in range(300)]) for name, (m, g, elbo) in pairs.items()}

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
left.plot(shared, alpha=0.7, linewidth=0.7, label="shared draw, TraceMeanField_ELBO")
left.plot(local, alpha=0.7, linewidth=0.7, label="LocalReparam, Trace_ELBO")
left.set(yscale="log", xlabel="step", ylabel="loss (nats)", title="training")
left.legend(loc="upper right")
right.boxplot(list(losses.values()), tick_labels=["Trace", "TraceMeanField", "Trace,\nLocalReparam"], whis=(2.5, 97.5))
right.set(ylabel="loss (nats)", title="300 estimates, one guide, all rows")
for name, values in losses.items():
    print(f"{name:26} mean {values.mean():6.1f}   sd {values.std():5.1f}")

# %% [markdown]
# ## Predictive
#
# With a guide it draws weights from the posterior, without one from the prior.

# %%
grid = torch.linspace(-4, 4, 200)[:, None]
before = Predictive(model, num_samples=300, return_sites=["_RETURN"])(grid)["_RETURN"]
after = Predictive(model, guide=guide, num_samples=300, return_sites=["_RETURN"])(grid)["_RETURN"]

figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
for axes, title, f in [(panels[0], "prior", before), (panels[1], "BernoulliDropout", after)]:
    axes.plot(grid[:, 0], f[:20, :, 0].T, color=plots.BLUE, alpha=0.3, linewidth=0.7)
    plots.shades(axes, grid[:, 0], f.mean(0)[:, 0], f.std(0)[:, 0])
    axes.plot(x, y, ".", color=plots.RED, markersize=3)
    axes.set(title=title, xlabel="x")
panels[1].set_ylim(-3, 3)
plt.show()

# %% [markdown]
# ## Their guides on our models, our guides under their handlers
#
# An autoguide is a guide like any other; `poutine.block`, `scale` and `condition` do what they always do. Below the first
# layer is held at the posterior mean and only the second is inferred, by Pyro's mean field.

# %%
fixed = poutine.condition(model, data={"layers.0.weight": guide.mean()["layers.0.weight"]})
pyro.clear_param_store()
autoguide = AutoNormal(fixed, init_scale=0.01)
svi = SVI(fixed, autoguide, pyro.optim.ClippedAdam({"lr": 0.01}), TraceMeanField_ELBO())
last = [svi.step(x, y) for _ in range(1000)]
f = Predictive(fixed, guide=autoguide, num_samples=300, return_sites=["_RETURN"])(grid)["_RETURN"]

figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
plots.shades(axes, grid[:, 0], f.mean(0)[:, 0], f.std(0)[:, 0])
axes.plot(x, y, ".", color=plots.RED, markersize=3)
axes.set(title="AutoNormal of the last layer", xlabel="x", ylim=(-3, 3))
plt.show()

# %% [markdown]
# ## A network of yours, written as a Pyro model
#
# Guides only ask a model for `weight_sites` and `hyper_sites`; `models.from_module` answers for any module. Without that,
# `poutine.reparam` works on a hand-written pair, site by site: the guide's distribution is the posterior.


# %%
class Line(pyro.nn.PyroModule):
    """y = W x with W ~ N(0, 1), and its mean field."""

    def __init__(self):
        super().__init__()
        self.loc, self.log_scale = nn.Parameter(torch.zeros(1, 1)), nn.Parameter(torch.full((1, 1), -2.0))

    def model(self, x, y):
        w = pyro.sample("w", pyro.distributions.Normal(torch.zeros(1, 1), 1.0).to_event(2))
        f = nn.functional.linear(x, w)
        with pyro.plate("data", len(x)):
            pyro.sample("y", pyro.distributions.Normal(f, 0.5).to_event(1), obs=y)

    def guide(self, x, y):
        pyro.module("line", self)
        pyro.sample("w", pyro.distributions.Normal(self.loc, self.log_scale.exp()).to_event(2))


line, config = Line(), {"w": LocalReparam()}
slope = -0.5 * x + 0.5 * torch.randn(100, 1)
svi = SVI(
    poutine.reparam(line.model, config=config),
    poutine.reparam(line.guide, config=config),
    pyro.optim.ClippedAdam({"lr": 0.02}),
    Trace_ELBO(),
)
for _ in range(1500):
    svi.step(x, slope)

precision = 1 + float((x**2).sum()) / 0.5**2
mean = float((x * slope).sum()) / 0.5**2 / precision
print(f"SVI    {line.loc.item():.3f} +- {line.log_scale.exp().item():.4f}")
print(f"exact  {mean:.3f} +- {precision**-0.5:.4f}")

# %% [markdown]
# ## Where to go next
#
# - [Any Pyro program](11_pyro_programs.ipynb) trains programs of your own by recorded steps.
# - [For Pyro users](../../../docs/pyro-users.md) lists what differs from Pyro.
