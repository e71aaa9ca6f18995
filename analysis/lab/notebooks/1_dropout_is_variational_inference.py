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
# # Dropout is variational inference
#
# Is training with `torch.nn.Dropout` and weight decay the same computation as variational inference?
#
# Dropping a hidden unit is dropping the weights that leave it
# ([Gal & Ghahramani 2016](https://arxiv.org/abs/1506.02142), section 3):
#
# $$ m_2^\top (\hat\epsilon \odot h) = (m_2 \odot \hat\epsilon)^\top h = \hat w_2^\top h . $$
#
# The noise moves from the units to the weights. A network with random weights is a Bayesian one, its dropout masks are
# draws from a posterior $q$, and its training loss ought to be an ELBO. Here both sides are computed: `torch.nn.Dropout`
# with weight decay on one, a Pyro model with a guide on the other.

# %%
# %matplotlib inline
import math

import matplotlib.pyplot as plt
import torch
from pyro import poutine
from pyro.infer import TraceMeanField_ELBO
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.analysis import plots

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

N, units, drop_rate, precision, length_scale = 40, 200, 0.1, 25.0, 0.3
keep = 1 - drop_rate
x = torch.cat([torch.rand(N // 2, 1) - 2, torch.rand(N // 2, 1) + 0.5])
y = torch.sin(3 * x) + 0.2 * torch.randn(N, 1)

# %% [markdown]
# ## One mask, two losses
#
# Left side: a network, `nn.Dropout`, squared error and a penalty. `nn.Dropout` divides what it keeps by `keep`, so the
# papers' weight is $M_2$ = `second.weight / keep`. With $\tau$ the precision of the observations and $l$ the prior's
# length-scale,
#
# $$ L = \frac1N \sum_n \tfrac12 |y_n - f(x_n)|^2 + \lambda_1 \|M_1\|^2 + \lambda_2 \|M_2\|^2,
# \qquad \lambda_i = \frac{\text{keep}_i \, l^2}{2 N \tau} . $$

# %%
first, second, dropout = nn.Linear(1, units), nn.Linear(units, 1), nn.Dropout(drop_rate)
decay_first, decay_second = length_scale**2 / (2 * N * precision), keep * length_scale**2 / (2 * N * precision)


def dropout_loss(mask):
    """Half the mean squared error of one pass plus weight decay."""
    f = second(torch.tanh(first(x)) * mask)
    penalty = decay_first * first.weight.square().sum() + decay_second * (second.weight / keep).square().sum()
    return (y - f).square().sum() / (2 * N) + penalty


# %% [markdown]
# Right side: the same network as a Pyro model, with priors $w \sim N(0, l^{-2})$ on its weights, and a guide of the same
# weights. Neither has a dropout layer; the guide draws $W = M\,\mathrm{diag}(z)$.

# %%
network = nn.Sequential(first, nn.Tanh(), second)
model = models.from_module(
    network, prior=priors.Gaussian(length_scale=length_scale), likelihood=likelihoods.Gaussian(precision=precision)
)
guide = guides.BernoulliDropout(model, drop_rate, mask_input=False)
with torch.no_grad():
    guide.loc["2.weight"].div_(keep)  # M, not the keep M that nn.Dropout works with

# %% [markdown]
# `nn.Dropout` tosses the coins; `poutine.replay` makes the guide draw the weights that they mean; Pyro's own
# `TraceMeanField_ELBO` does the rest.


# %%
def guide_loss(mask):
    """Minus the ELBO at the weights that a mask makes."""
    draw = poutine.trace(guide).get_trace(x, y)
    draw.nodes["2.weight"]["value"] = guide.loc["2.weight"] * (mask > 0)
    return TraceMeanField_ELBO().differentiable_loss(model, poutine.replay(guide, trace=draw), x, y)


entropy = -units * (keep * math.log(keep) + drop_rate * math.log(drop_rate))
weights = first.weight.numel() + second.weight.numel()
constant = N / 2 * math.log(2 * math.pi / precision) + weights / 2 * math.log(2 * math.pi / length_scale**2) - entropy

masks = [dropout(torch.ones(units)) for _ in range(200)]
ours = torch.stack([guide_loss(mask) for mask in masks])
theirs = torch.stack([N * precision * dropout_loss(mask) + constant for mask in masks])
print(f"largest relative difference of 200 losses: {((ours - theirs) / theirs).abs().max():.1e}")

# %% [markdown]
# The constant is the likelihood's normalisation, $\tfrac N2 \ln(2\pi/\tau)$, which the note leaves out, and the prior's,
# $\tfrac K2 \ln(2\pi/l^2)$ for $K$ weights, minus the entropy of the masks. None has a parameter in it, so the gradients
# agree too, whichever the mask. ($M_2$ = `second.weight / keep` gives the chain rule's factor.)

# %%
ours.mean().backward()
(theirs.mean() - constant).backward()
gradients = {
    "first weight": (guide.loc["0.weight"].grad, first.weight.grad),
    "second weight": (guide.loc["2.weight"].grad, second.weight.grad * keep),
    "first bias": (model.free["0.bias"].grad, first.bias.grad),
    "second bias": (model.free["2.bias"].grad, second.bias.grad),
}

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
left.plot(theirs.detach(), ours.detach(), ".", alpha=0.5)
left.axline((200, 200), slope=1, color="grey", linewidth=0.8)
left.set(xlabel="N τ L + constant, nn.Dropout", ylabel="-ELBO, guide", title="200 masks")
for name, (own, other) in gradients.items():
    print(f"{name:14} largest difference {(own - other).abs().max():.1e} of {other.abs().max():.1f}")
    right.plot(other.flatten(), own.flatten(), ".", alpha=0.6, label=name)
right.axline((0, 0), slope=1, color="grey", linewidth=0.8)
right.set(xlabel="gradient, nn.Dropout", ylabel="gradient, guide", title="every parameter")
right.legend(frameon=False)
plt.show()
# %% [markdown]
# ## So a trained dropout network is a Bayesian one
#
# Left: PyTorch alone. The prior is Adam's `weight_decay`, the posterior is the network left in training mode. Right: the
# same problem handed to `pyrodrop.fit`. `nn.Dropout` has a mask for every example (eq. 7 of the note, not eq. 2); that is
# `estimator="local"`.

# %%
plain = nn.Sequential(first, nn.Tanh(), nn.Dropout(drop_rate), second)  # both sides start from the same weights
groups = [
    {"params": [plain[0].weight], "weight_decay": 2 * decay_first},
    {"params": [plain[3].weight], "weight_decay": 2 * decay_second / keep**2},
    {"params": [plain[0].bias, plain[3].bias]},
]
optimiser = torch.optim.Adam(groups, lr=0.005)
for _ in range(4000):
    optimiser.zero_grad()
    ((y - plain(x)).square().sum() / (2 * N)).backward()
    optimiser.step()

run = pyrodrop.fit(model, guide, (x, y), steps=4000, lr=0.005, estimator="local")

# %%
grid = torch.linspace(-3.5, 3.5, 300)[:, None]
with torch.no_grad():
    passes = torch.stack([plain(grid) for _ in range(1000)])
drawn = run.predict(grid, num_samples=1000)

figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
for axes, title, mean, spread in [
    (panels[0], "torch: nn.Dropout, Adam, weight_decay", passes.mean(0), passes.std(0)),
    (panels[1], "pyrodrop: model, guide, ELBO", drawn.mean, drawn.spread),
]:
    plots.shades(axes, grid[:, 0], mean[:, 0], spread[:, 0])
    axes.plot(x, y, ".", color=plots.RED, markersize=4)
    axes.set(title=title, xlabel="x", ylim=(-3, 3))
panels[0].legend(frameon=False, loc="upper left", fontsize=8)
plt.show()
# %% [markdown]
# ## Other noise, other posteriors
#
# "Other stochastic regularization techniques can be recovered with different reparametrizations $g(\theta, \epsilon)$."
# Two weights that leave one input unit, as each guide draws them; the cross is their location $(1, 0.6)$. Bernoulli
# dropout keeps both or none, multiplicative Gaussian noise of kind A stretches both alike, the others treat every weight
# for itself.

# %%
pair = nn.Linear(1, 2, bias=False)
pair.weight.data = torch.tensor([[1.0], [0.6]])
pair = models.from_module(pair, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
posteriors = {
    "BernoulliDropout, θ = 0": guides.BernoulliDropout(pair, 0.3),
    "BernoulliDropout, θ = .08": guides.BernoulliDropout(pair, 0.3, theta=0.08),
    "DropConnect, θ = .08": guides.DropConnect(pair, 0.3, theta=0.08),
    "GaussianDropout A": guides.GaussianDropout(pair, kind="A", alpha=0.1),
    "GaussianDropout B": guides.GaussianDropout(pair, kind="B", alpha=0.1),
    "MeanField": guides.MeanField(pair, init_scale=0.2),
}
figure, panels = plt.subplots(2, 3, figsize=(9, 5), sharex=True, sharey=True, layout="constrained")
for axes, (title, posterior) in zip(panels.flat, posteriors.items(), strict=True):
    w = posterior.draw(1500)["weight"][..., 0]
    axes.plot(w[:, 0], w[:, 1], ".", alpha=0.2, markersize=4)
    axes.plot(1.0, 0.6, "x", color=plots.RED)
    axes.set_title(title)
figure.supxlabel("first weight")
figure.supylabel("second weight")
plt.show()

# %% [markdown]
# ## Where to go next
#
# - [Judging](../../../docs/judging.md) compares posteriors by ELBO and held-out density.
# - [Choosing](../../../docs/choosing.md) and [What an ELBO means](../../../docs/judging.md#what-an-elbo-means-here).
