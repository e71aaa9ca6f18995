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
# # Images
#
# Which images is a convolutional network unsure of, do three posteriors over its weights agree on that, and does it know
# images that are no digits?
#
# The network is that of figure 1b of [Kingma, Salimans & Welling (2015)](https://arxiv.org/abs/1506.02557) at a quarter of
# its width, on 10,000 digits of MNIST. The paper has CIFAR-10.
#
# The same steps work for any network of images: see [Bring your own network](3_bring_your_own_network.ipynb), and
# [Your trained network](7_your_trained_network.ipynb) for one that was trained with dropout before.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt
import torch

import pyrodrop
from pyrodrop import guides, likelihoods, metrics, models, priors
from pyrodrop.analysis.lab.zoo.shifted import letters
from pyrodrop.data import mnist

torch.manual_seed(0)
digits = mnist(flat=False, progress=False)
train, test = digits.train.first(10_000), digits.test.first(2000)
print("x", tuple(train.x.shape), train.x.dtype, "  y", tuple(train.y.shape), train.y.dtype)

# %% [markdown]
# Images are `[N, channels, height, width]`, also those with one channel, and labels are whole numbers. An array without the
# channel is refused before the first step; `x[:, None]` adds it.

# %%
model = models.ConvNet((1, 28, 28), scale=0.25, prior=priors.Gaussian(scale=1.0), likelihood=likelihoods.Categorical())
for site, weight in model.weight_sites().items():
    print(f"{site:14}", tuple(weight.shape))
try:
    pyrodrop.fit(model, guides.Point(model), (train.x[:, 0], train.y), steps=1)
except ValueError as error:
    print("\nValueError:", error)

# %% [markdown]
# ## Three posteriors
#
# What a posterior drops or disturbs in a convolution: `BernoulliDropout` drops input *channels*, for all positions of an
# image alike, as `torch.nn.Dropout2d` does. The first layer keeps its only channel here. `MeanField` has noise on every
# weight of a kernel. `estimator="local"` ([Kingma et al., 2015](https://arxiv.org/abs/1506.02557)) samples that noise on the
# outputs instead: the gradient has less variance, but the noise at the positions of one image is then independent, which is
# another posterior, over activations. `predict` draws whole kernels.

# %%
posteriors = {
    "Point": guides.Point(model),
    "BernoulliDropout": guides.BernoulliDropout(model, drop_rate={"conv1.*": 0.0, "*": 0.1}),
    "MeanField": guides.MeanField(model, init_scale=0.02),
}
settings = {"steps": 600, "batch_size": 100, "lr": 3e-3, "estimator": "local", "progress": False}
runs, predicted = {}, {}
for name, guide in posteriors.items():
    runs[name] = pyrodrop.fit(model, guide, train, **settings)
    predicted[name] = runs[name].predict(test.x, 1 if name == "Point" else 100)
    scores = metrics.classification_scores(predicted[name], test.y)
    print(f"{name:17}", "   ".join(f"{score} {scores[score]:.3f}" for score in ("accuracy", "log_density", "ece")))

# %% [markdown]
# In this short training the point estimate has the best log density and the smallest calibration error: more draws do not
# make it better. What the posteriors add is below.
#
# ## Images that it is unsure of
#
# The entropy of the prediction has two parts. One is in every draw: the image itself is ambiguous. The other is the
# disagreement of the draws, the mutual information of label and weights
# ([Depeweg et al., 2018](https://arxiv.org/abs/1710.07283)); a point estimate has none. Above, the ten test images with the
# largest mutual information under `MeanField`; below, ten with the smallest.

# %%
prediction = predicted["MeanField"]
information = metrics.mutual_information(prediction)
order = information.argsort(descending=True)
guess = prediction.mean.argmax(-1)

figure, panels = plt.subplots(2, 10, figsize=(9, 2.6), layout="constrained")
for row, chosen in zip(panels, (order[:10], order[-10:]), strict=True):
    for axes, i in zip(row, chosen.tolist(), strict=True):
        right = bool(guess[i] == test.y[i])
        axes.imshow(test.x[i, 0], cmap="gray_r")
        axes.set_title(f"{guess[i]}" if right else f"{guess[i]} ({test.y[i]})", color="black" if right else "C3")
        axes.axis("off")
figure.supxlabel("class with the largest probability; in red where it is wrong, with the label")
plt.show()

# %%
for name, count in (("largest", order[:100]), ("smallest", order[-1000:])):
    wrong = (guess[count] != test.y[count]).float().mean()
    print(f"{len(count):4} images with the {name} mutual information: {wrong:.1%} of the classes are wrong")

# %% [markdown]
# Most of the first ten are hard to read, and several are classified wrongly. The last ten are zeros, all right. The order
# finds mistakes: about half of the hundred most uncertain images are classified wrongly, and hardly any of the most certain.
#
# ## Which images to leave to a person
#
# If the images with the largest entropy are not classified, the error of the others falls
# ([Geifman, Uziel & El-Yaniv, 2019](https://arxiv.org/abs/1805.08206)). A curve that is lower is better.

# %%
colors = {"Point": "C7", "BernoulliDropout": "C0", "MeanField": "C3"}
figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for name, prediction in predicted.items():
    wrong = (prediction.mean.argmax(-1) != test.y).double()
    risk = metrics.risk_coverage(-metrics.predictive_entropy(prediction), wrong)
    axes.plot(torch.arange(1, len(wrong) + 1) / len(wrong), 100 * risk, color=colors[name], label=name)
axes.set(xlabel="share of the images that are classified", ylabel="error among them, %", xlim=(0.5, 1), ylim=(0, None))
axes.legend()
plt.show()

# %% [markdown]
# The entropy of the point estimate orders these images as well as that of the posteriors does. For digits like those of the
# training, draws of the weights are not needed to find the doubtful ones.
#
# ## Covered images
#
# A square of random grey values covers more and more of 300 test images.

# %%
sides = list(range(0, 29, 4))
some, grey = test.x[:300], torch.rand(300, 1, 28, 28)


def covered(side):
    edge = (28 - side) // 2
    images = some.clone()
    images[..., edge : edge + side, edge : edge + side] = grey[..., edge : edge + side, edge : edge + side]
    return images


views = [covered(side) for side in sides]
figure, (above, below) = plt.subplots(2, 1, figsize=(7, 4.6), height_ratios=(1, 4), layout="constrained")
above.imshow(torch.cat([view[0, 0] for view in views], 1), cmap="gray_r")
above.axis("off")
for name, run in runs.items():
    drawn = [run.predict(view, 1 if name == "Point" else 50) for view in views]
    entropy = [metrics.predictive_entropy(each).mean() for each in drawn]
    below.plot(sides, entropy, "o-", color=colors[name], label=f"entropy, {name}")
    if name != "Point":
        shared = [metrics.mutual_information(each).mean() for each in drawn]
        below.plot(sides, shared, "^--", color=colors[name], label=f"mutual information, {name}")
    error = (drawn[-1].mean.argmax(-1) != test.y[:300]).float().mean()
    print(f"{name:17} all pixels covered: error {error:.0%}, entropy {entropy[-1]:.2f} of at most 2.30 nats")
below.set(
    xlabel="side of the covered square, pixels", ylabel="nats, mean over 300 images", xticks=sides, ylim=(0, None)
)
figure.legend(loc="outside lower center", ncols=2)
plt.show()

# %% [markdown]
# The posteriors are less sure of covered images than the point estimate is. None of the three knows that it sees no digit:
# where all pixels are covered the class is a guess, and the entropy stays below that of a guess, ln 10 = 2.30 nats. At a
# side of 20 pixels `BernoulliDropout` and the point estimate are surer than at 16, of digits that can no longer be read.
# The mutual information stays small: the draws mostly agree on these images, although no image like them was in the
# training.
#
# ## Images of something else
#
# 960 letters, A to Z and a to z without those that look like digits, in 20 fonts, prepared as the digits of MNIST were. No
# class is right for them. AUROC is the probability that the score of a letter is higher than that of a digit.

# %%
foreign = letters()
pictures = foreign[::73][:12]
figure, axes = plt.subplots(figsize=(9, 0.9), layout="constrained")
axes.imshow(torch.cat([picture[0] for picture in pictures], 1), cmap="gray_r")
axes.axis("off")
plt.show()
for name, run in runs.items():
    drawn = run.predict(foreign, 1 if name == "Point" else 100)
    of_digits, of_letters = (metrics.entropy_split(each) for each in (predicted[name], drawn))
    print(f"{name:17} AUROC of the entropy {metrics.auroc(of_digits.total, of_letters.total):.3f}", end="")
    if name != "Point":
        print(f", of the mutual information {metrics.auroc(of_digits.epistemic, of_letters.epistemic):.3f}", end="")
    print(f"; {(drawn.mean.amax(-1) > 0.9).float().mean():4.0%} of the letters are a digit with more than 90 %")

# %% [markdown]
# Here draws of the weights help: both posteriors separate letters from digits better than the point estimate, which takes
# almost half of the letters for a digit with more than 90 %. The mutual information separates better than the entropy,
# because a badly written digit is ambiguous in every draw. No score is a detector of letters: to the posteriors, too, a
# quarter of them or more are digits with more than 90 %. Of LeNets trained with all digits, on the cards
# `rotated-digit/*` and `cnn/*` of the zoo, MC dropout has an AUROC of .91 to .93 for the same letters, and .91 without
# dropout. On what uncertainty of weights is and is not, see [Is dropout Bayesian?](8_is_dropout_bayesian.ipynb).

# %% [markdown]
# ## Where to go next
#
# - [Your trained network](7_your_trained_network.ipynb) reads a network that was trained with dropout before.
# - [Symptoms](../../../docs/symptoms.md) has remedies for a network that is too sure of its labels.
