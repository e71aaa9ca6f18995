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
# # Your trained network is a posterior
#
# How sure is a network that was trained with dropout, when nothing is trained again?
#
# A network that was trained with dropout and weight decay is an approximate posterior (Gal & Ghahramani, 2016).
# `pyrodrop.read` finds its dropout, and the network predicts with uncertainty, has an ELBO and can be trained further. This
# notebook reads a network for MNIST that `pyrodrop` has not seen before.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import torch
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, metrics
from pyrodrop.analysis.lab.zoo.shifted import turned
from pyrodrop.data import mnist

torch.manual_seed(0)
digits = mnist(flat=False, progress=False)
x, y = digits.train.x, digits.train.y
test = digits.test.first(2000)

# %% [markdown]
# ## A training loop without pyrodrop
#
# Two convolutions with BatchNorm, dropout of channels after the first, dropout of units before the last layer.


# %%
def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Dropout2d(0.1),
        nn.Conv2d(16, 32, 5, stride=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )


net = network()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-4)
net.train()
for epoch in range(2):
    for rows in torch.randperm(len(x)).split(128):
        loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: loss of the last minibatch {loss.item():.3f}")

# %% [markdown]
# ## Read
#
# `read` runs the network in training mode on a few examples and finds the weight that carries each mask. The weight
# decay is a Gaussian prior. Nothing is trained, and `net` does not change. BatchNorm uses its
# running statistics from here on.

# %%
reading = pyrodrop.read(net, x[:8], likelihood=likelihoods.Categorical(), weight_decay=1e-4, num_data=len(x))
print(reading)

# %% [markdown]
# The mask of `Dropout2d` drops input channels of the second convolution, that of `Dropout` input units of the last layer.
# Each is a mixture over the columns of that weight. All other parameters are point estimates.

# %% [markdown]
# ## Predict
#
# Every draw is one function for all x, with one mask for all images. For each image, mean and variance of the output are
# those of passes in training mode with BatchNorm in evaluation mode.

# %%
net.eval()
with torch.no_grad():
    plain = net(test.x).softmax(-1)
for name, predicted in {"evaluation mode": plain, "100 draws": reading.predict(test.x, 100)}.items():
    scores = metrics.classification_scores(predicted, test.y)
    print(f"{name:16}", "   ".join(f"{score} {scores[score]:.4f}" for score in ("accuracy", "log_density", "ece")))

# %% [markdown]
# On upright digits the draws do not improve this network: their mean has a lower log density and a larger calibration error
# than the network in evaluation mode. What they add is how much the prediction depends on what the data left open.
#
# ## Turned digits
#
# The network was trained on upright digits. As a 1 is turned, the entropy of its prediction should rise, and fall again near
# 180 degrees, where it is a 1 again. The mutual information of label and function is the part of the entropy that comes from
# the disagreement of the draws. A network in evaluation mode has no such part.

# %%
degrees = torch.linspace(0, 180, 13)
ones = test.x[test.y == 1][:100]
views = turned(ones, degrees)
drawn = [reading.predict(view, 100) for view in views]
with torch.no_grad():
    single = [metrics.predictive_entropy(net(view).softmax(-1)).mean() for view in views]
mixed = [metrics.predictive_entropy(prediction).mean() for prediction in drawn]
information = [metrics.mutual_information(prediction).mean() for prediction in drawn]

figure, (above, below) = plt.subplots(2, 1, figsize=(7, 4.6), height_ratios=(1, 4), layout="constrained")
above.imshow(torch.cat([view[0, 0] for view in views], 1), cmap="gray_r")
above.axis("off")
below.plot(degrees, mixed, "o-", color="C0", label="entropy, 100 draws")
below.plot(degrees, single, "s-", color="C7", label="entropy, evaluation mode")
below.plot(degrees, information, "^--", color="C3", label="mutual information, 100 draws")
below.set(xlabel="angle (degrees)", ylabel="nats, mean over 100 ones", xticks=range(0, 181, 30), ylim=(0, None))
figure.legend(loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# ## The ELBO, before and after more training
#
# The reading is a model and a guide, and `fit` goes on from there: 500 steps of standard dropout, `estimator="local"`, on
# the ELBO. The convention says which constant is left out; it is the same for both numbers.

# %%
run = pyrodrop.fit(reading.model, reading.guide, (x, y), steps=500, batch_size=128, estimator="local")
print("before:", reading.elbo(10, data=(x, y)))
print("after: ", run.elbo(10))

# %% [markdown]
# ## Back to a network
#
# `guides.to_module` gives a network of the same class with the trained weights. Its `state_dict` loads into a new network,
# which needs nothing of `pyrodrop`. Its passes in training mode, with BatchNorm in evaluation mode, are draws again.

# %%
trained = guides.to_module(run)
fresh = network()
fresh.load_state_dict(trained.state_dict())
fresh.eval()
with torch.no_grad():
    print("same outputs:", torch.equal(fresh(test.x), trained(test.x)))

fresh.train()
for module in fresh.modules():
    if isinstance(module, nn.BatchNorm2d):
        module.eval()
with torch.no_grad():
    passes = torch.stack([fresh(test.x).softmax(-1) for _ in range(100)])
for name, predicted in {"draws of the run": run.predict(test.x, 100), "passes of the network": passes}.items():
    scores = metrics.classification_scores(predicted, test.y)
    print(f"{name:22}", "   ".join(f"{score} {scores[score]:.4f}" for score in ("accuracy", "log_density", "ece")))

# %% [markdown]
# ## Where to go next
#
# - [Is dropout Bayesian?](8_is_dropout_bayesian.ipynb) says how far such a posterior is from the exact one.
# - [Your trained network](../../../docs/what-mc-dropout-needs.md) has the details of reading a network.
# - [Saving](../../../docs/saving.md) and [Serving](../../../docs/saving.md#serving).
