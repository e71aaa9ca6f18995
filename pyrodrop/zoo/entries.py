"""The entries of the zoo in one table: each with its data, network, posterior, training and published results.

`co2/...`: Mauna Loa CO2, Gal & Ghahramani (2016), https://arxiv.org/abs/1506.02142, figure 2, at a size for two cores: 2,000
Adam steps with a falling learning rate instead of a million of momentum SGD, and a learned precision; one hidden layer of
4,096 tanh units, or three of 256 ReLU units instead of the paper's four of 1024. The share of the 23 yearly cycles that a
layer can represent under dropout depends on its width and on where its units bend: the noise of a unit grows with its size,
and a wide layer averages it (`pyrodrop.analysis.lab.experiments.co2.learned.carried`). At drop rate .1 the share is .44 for
1,024 tanh units with gain 100 and .74 for 4,096, but .05 and .10 for layers of as many ReLU units. The ReLU network learns
the trend here; the paper's, after a million steps, has the seasons as well. The mean field has a narrower prior, 1 /
sqrt(width): with the prior of the dropout networks the noise of 130,000 weights dominates f.

`concrete/synthetic`: concrete dropout, Gal, Hron & Kendall (2017), https://arxiv.org/abs/1705.07832, released notebook. Mean
and log precision share a dropout mask here; the notebooks' two heads have separate masks. The published numbers are those of
the Keras notebook, which uses the same minibatches as here. It starts from Glorot's initial weights; here they are
PyTorch's, which are larger in the first layer. The PyTorch notebook trains on other minibatches, see
`pyrodrop.analysis.lab.experiments.concrete`.

`kingma/...`, `kingma-fig1a/...`: Kingma, Salimans & Welling (2015), https://arxiv.org/abs/1506.02557, section 5.1, table 1
(type B with one learned alpha per layer, minibatches of 1,000), and section 5.2, figure 1a (minibatches of 100):

    A   noise on the inputs of a layer          B   noise on its outputs, independent weights
    gaussian     alpha = rate / (1 - rate)      variational     one learned alpha per layer, initially 0.43
    variational-a2     A, with the KL divergence weighted by 1/3

Binary dropout and no dropout have a flat prior. The paper averages parameters over time and stops early on a validation set.
Here the learning rate falls to 0 over the second half of a fixed number of epochs, on all 60,000 digits.

`uci/...`: MC dropout, Gal & Ghahramani (2016), table 1: one hidden layer of ReLU units, y standardised with the training
rows, the noise precision tau in raw units of y; start and prior are those of the released code (`pyrodrop.zoo.networks`).

`rotated-digit/...`: the rotated digit of Gal & Ghahramani (2016), section 5.2 and figure 4, with dropout 0.5 after ip1, the
first dense layer of Caffe's LeNet; other posteriors of the same network have their own priors, and Adam, which the scales of
a posterior need. Caffe's solver with 10,000 iterations, as for Caffe's own LeNet; the paper used a million. Grey values are
x / 255 here and x / 256 there.

`sparse/...`, `ard/...`, `log-normal/...`: sparse networks on MNIST, LeNet-300-100 and LeNet-5.

                     molchanov2017                            deepbayes2019
    epochs           200                                      100
    learning rate    1e-3; LeNet-300-100: to 0 over the       1e-3, times 0.2 after 0.5, 0.6, 0.7, 0.8 of the run
                     second half; LeNet-5: to 0 from the start
    KL weight        0, then to 1 from epoch 5 to 20          0.02 more in every epoch, up to 1
    initial W        N(0, 0.01^2), biases 0                   N(0, 0.02^2), biases 0
    log alpha        within -8, 8                             within -10, 10
    in training      means with log alpha >= 3 set to 0       unchanged

Both: Adam, batches of 100, initial log variance -10, weights with log alpha >= 3 pruned. Molchanov, Ashukha & Vetrov (2017),
Variational Dropout Sparsifies Deep Neural Networks, https://arxiv.org/abs/1701.05369, table 1 and released code; the
exercise of the Deep|Bayes summer school (2019). The KL divergence is accurate to 1e-6 per weight here; theirs is an
approximation with an error of 0.0094. neklyudov2017: log-normal dropout by input unit, initial W ~ N(0, 0.02^2), initial ln
sigma -5, Adam with a learning rate of 1e-3 and of 5e-2 for the noise, both to 0 from the start, 150 epochs, KL weight 0,
then to 1 from epoch 1 to 5; units with a signal-to-noise ratio of at most 1 are removed. Neklyudov, Molchanov, Ashukha &
Vetrov (2017), https://arxiv.org/abs/1705.07283: dense 784-500-300-10. Released code, of LeNet-5: from a trained network,
noise after the convolutions, KL weight 1, 200 epochs, 1e-3 for all parameters, to 0 over the second half, batches of 128,
beta_1 = .95.

`toys/...`: problems with one input, whose uncertainty can be judged from a plot. A network 1-50-1 with tanh units, the exact
posterior of its last layer above a mean field of the first, and the priors and noise of `priors.from_gp` for the training
rows, which are written down here so that an entry is built without the data. Rows, network and training are those of
docs/measured.md. Of the six guides there, this one has the log densities that are nearest to those of the exact
posterior, by the sum of the differences over the three problems. It does not solve *in-between*: 38 % of the test rows, most
of which are in the gap, are in their 95 % intervals. The exact posterior under these priors has a smaller log density there,
and a mean field or dropout a far smaller one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from pyrodrop import guides, likelihoods, priors, schedules
from pyrodrop.data import Dataset
from pyrodrop.guides import BernoulliDropout, Guide
from pyrodrop.models import MLP, NetworkModel
from pyrodrop.priors import Prior
from pyrodrop.zoo import networks
from pyrodrop.zoo.entry import Entry
from pyrodrop.zoo.networks import DROPPED, KEEP, late, learning_rate, stairs, straight

STEPS, PAPER_STEPS = 10_000, 1_000_000  # of a LeNet here, and in the paper on the rotated digit
TABLE_1_BATCH, EPOCHS = 1000, 200  # of Kingma et al., table 1 and figure 1a
WIDTH, CONCRETE_WIDTH, SPARSE_BATCH = 250, 1024, 100
CONCRETE_EPOCHS = {10: 2000, 25: 1000, 50: 500, 100: 200, 1000: 20, 10_000: 2}  # by the number of rows


def _given(data: Dataset, **settings: Any) -> dict[str, Any]:
    """Settings of a training that depend on the number of rows as `Entry` says."""
    return settings


_local = partial(_given, estimator="local")
_masked = partial(BernoulliDropout, mask_input=True)
_unmasked = partial(BernoulliDropout, mask_input=False)

# --- Mauna Loa CO2 ---------------------------------------------------------------------------------------------------

SERIES = {"tanh": (1, 4096, 1), "relu": (1, 256, 256, 256, 1)}
_co2 = partial(Entry, data="mauna-loa", purpose="a series and what comes after it", draws=1000)
CO2 = [
    _co2(
        name=f"co2/mc-dropout-{name}",
        summary=f"MC dropout, {act}, drop rate {rate:g}, {len(SERIES[act]) - 2} x {SERIES[act][1]}",
        source="Gal & Ghahramani (2016), figure 2",
        model=partial(networks.series, widths=SERIES[act], activation=act, gain=gain, scale=1.0),
        guide=partial(_unmasked, drop_rate=rate),
        training=partial(_local, steps=2000, lr=2e-3, schedule=schedules.cosine),
    )
    for name, act, rate, gain in (
        ("relu", "relu", 0.1, 10.0), ("tanh-0.1", "tanh", 0.1, 100.0), ("tanh-0.2", "tanh", 0.2, 100.0)
    )
]  # fmt: skip
CO2.append(
    _co2(
        name="co2/mean-field",
        summary="mean-field Gaussian, relu, 3 x 256",
        source="Graves (2011); not in the figure, for comparison at its size",
        model=partial(networks.series, widths=SERIES["relu"], activation="relu", gain=3.0, scale=256**-0.5),
        guide=partial(guides.MeanField, init_scale=0.05),
        training=partial(_given, steps=2000, lr=6e-3, schedule=schedules.cosine),
    )
)

# --- concrete dropout ------------------------------------------------------------------------------------------------


def _concrete(data: Dataset) -> NetworkModel:
    prior = priors.Gaussian(length_scale=1e-4)
    widths, noise = [1, *3 * [CONCRETE_WIDTH], 2], likelihoods.HeteroscedasticGaussian()
    return MLP(widths, prior=prior, bias_prior=priors.Gaussian(length_scale=1e-4), likelihood=noise, seed=None)


def _concrete_training(data: Dataset) -> dict[str, Any]:
    epochs = CONCRETE_EPOCHS.get(len(data), max(2, 20_000 // len(data)))
    return _local(data, epochs=epochs, batch_size=20, lr=1e-3)


CONCRETE = Entry(
    name="concrete/synthetic",
    summary="concrete dropout, relu, learned rates, heteroscedastic, 3 x 1024",
    source="Gal, Hron & Kendall (2017), released Keras notebook, N = 1000",
    data="line-1000",
    model=_concrete,
    guide=partial(guides.ConcreteDropout, drop_rate=0.1, mask_input=True),
    training=_concrete_training,
    published={"rmse": 1.065, "epistemic_sd": 0.652},
    purpose="learned drop rates",
    draws=20,
)

# --- Kingma, Salimans & Welling --------------------------------------------------------------------------------------

PUBLISHED_WIDTHS = (100, 250, 500, 750, 1000, 1250)
# Test errors in percent at these widths, means of five runs. The paper does not print them: they were read off an image of
# the preprint's figure. An error bar is taken to be the standard error of the mean.
READ_OFF = "read off the figure, ± 0.01"
_FIXED = {"layers.0.*": 0.2, "*": 0.5}
_gaussian = partial(guides.GaussianDropout, drop_rate=_FIXED)
_learned = partial(guides.VariationalDropout, rates="layer", drop_rate=0.3)
_flat = partial(priors.Gaussian, scale=networks.FLAT)


class Method(NamedTuple):
    """A curve of the figure.

    Attributes:
        summary: the curve's name in the figure.
        guide: makes the posterior.
        prior: makes the prior of the weights.
        published: test errors in percent at `PUBLISHED_WIDTHS`, read off the figure.
        bar: the error bar at the width of the entries.
    """

    summary: str
    guide: Callable[[NetworkModel], Guide]
    prior: Callable[[], Prior]
    published: tuple[float, ...]
    bar: float


METHODS: Mapping[str, Method] = {
    "none": Method("no dropout", guides.Point, _flat, (1.44, 1.3, 1.22, 1.18, 1.18, 1.18), 0.04),
    "binary": Method(
        "binary dropout", partial(BernoulliDropout, drop_rate=_FIXED), _flat, (2.17, 1.39, 1.22, 1.1, 1.02, 1.065), 0.02,
    ),
    "gaussian-a": Method(
        "Gaussian dropout A", partial(_gaussian, kind="A"), priors.LogUniform, (2.4, 1.43, 1.18, 1.1, 1.03, 0.985), 0.03,
    ),
    "gaussian-b": Method(
        "Gaussian dropout B", partial(_gaussian, kind="B"), priors.LogUniform,
        (2.005, 1.457, 1.275, 1.26, 1.19, 1.265), 0.03,
    ),
    "variational-a": Method(
        "variational dropout A", partial(_learned, kind="A"), priors.LogUniform,
        (1.42, 1.265, 1.125, 1.06, 1.02, 1.0), 0.03,
    ),
    "variational-a2": Method(
        "variational dropout A2", partial(_learned, kind="A", kl_scale=1 / 3), priors.LogUniform,
        (1.51, 1.21, 1.065, 0.948, 0.945, 0.93), 0.03,
    ),
    "variational-b": Method(
        "variational dropout B", partial(_learned, kind="B"), priors.LogUniform,
        (1.583, 1.375, 1.29, 1.225, 1.165, 1.21), 0.03,
    ),
}  # fmt: skip
_digits = partial(Entry, data="mnist", purpose="classification of digits")
KINGMA = [
    _digits(
        name=f"kingma/{name}",
        summary=f"variational dropout B on MNIST, relu, 3 x {width}, 100 epochs",
        source="Kingma, Salimans & Welling (2015), table 1",
        model=partial(networks.digits, width=width, prior=priors.LogUniform),
        guide=partial(_learned, kind="B"),
        training=partial(_local, epochs=100, batch_size=TABLE_1_BATCH, lr=1e-3),
    )
    for name, width in (("variational-b-small", 200), ("variational-b", 1000))
] + [
    _digits(
        name=f"kingma-fig1a/{name}",
        summary=f"{method.summary} on MNIST, relu, 3 x {WIDTH}, {EPOCHS} epochs",
        source="Kingma, Salimans & Welling (2015), figure 1a",
        model=partial(networks.digits, width=WIDTH, prior=method.prior),
        guide=method.guide,
        training=partial(_local, epochs=EPOCHS, batch_size=100, lr=1e-3, schedule=networks.over(late)),
        published={"error_percent": method.published[PUBLISHED_WIDTHS.index(WIDTH)]},
        published_as=READ_OFF,
        published_errors={"error_percent": method.bar},
    )
    for name, method in METHODS.items()
]

# --- UCI -------------------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """Training settings of one data set.

    Attributes:
        precision, drop_rate, length_scale: tau in raw units of y, drop rate and prior length scale of the 2016 table.
        precisions: values of the grid search of 2018.
        rmse, log_density: published mean and standard error over the splits; rmse is of the mean of 10,000 passes.
        hidden: number of hidden units.
        epochs: number of epochs, in tens for 2016 and in hundreds for 2018.
    """

    precision: float
    drop_rate: float
    length_scale: float
    precisions: tuple[float, ...]
    rmse: tuple[float, float]
    log_density: tuple[float, float]
    hidden: int = 50
    epochs: int = 40


# The table of 2016 has here more digits; its standard errors divide by n - 1, those printed with it by n.
SETTINGS = {
    "boston": Setting(0.159707652696, 0.05, 1e-2, (0.1, 0.15, 0.2), (2.97351, 0.194859), (-2.46004, 0.0568416)),
    "concrete": Setting(0.0557319157756, 0.01, 1e-2, (0.025, 0.05, 0.075), (5.2299, 0.121099), (-3.03891, 0.0208758)),
    "energy": Setting(0.427114830213, 0.05, 1e-2, (0.25, 0.5, 0.75), (1.66341, 0.0443804), (-1.98527, 0.020281)),
    "kin8nm": Setting(192.482910156, 0.05, 1e-2, (150.0, 200.0, 250.0), (0.0964723, 0.000683555), (0.950895, 0.00589336)),
    "naval": Setting(42173.5152106, 0.05, 1.0, (30000.0, 40000.0, 50000.0), (0.00546727, 7.41195e-05), (3.80458, 0.011363)),
    "power": Setting(0.0871109017617, 0.005, 1e-2, (0.05, 0.1, 0.15), (4.02211, 0.0421529), (-2.79524, 0.0106531)),
    "protein": Setting(
        0.0644419184588, 0.005, 1e-2, (0.025, 0.05, 0.075), (4.35551, 0.0217656), (-2.8912, 0.00482675), 100, 20
    ),
    "wine": Setting(2.95833720839, 0.05, 1e-2, (2.5, 3.0, 3.5), (0.620159, 0.00897017), (-0.933418, 0.0145945)),
    "yacht": Setting(0.541869562034, 0.01, 0.1, (0.25, 0.5, 0.75), (1.10925, 0.0872114), (-1.55406, 0.0276105)),
}  # fmt: skip
UCI = [
    Entry(
        name=f"uci/{name}",
        summary=f"MC dropout on UCI {name}, relu, 1 x {of.hidden}, drop rate {of.drop_rate:g}, all splits",
        source="Gal & Ghahramani (2016), table 1",
        data=f"uci/{name}",
        model=partial(
            networks.keras_network, hidden=of.hidden, drop_rate=of.drop_rate, length_scale=of.length_scale,
            precision=of.precision,
        ),
        guide=partial(_masked, drop_rate=of.drop_rate),
        training=partial(_local, epochs=10 * of.epochs, batch_size=32, lr=1e-3),
        published={"rmse": of.rmse[0], "log_density": of.log_density[0]},
        published_errors={"rmse": of.rmse[1], "log_density": of.log_density[1]},
        purpose="regression of a table",
        draws=1000,
    )
    for name, of in SETTINGS.items()
]  # fmt: skip

# --- LeNet-5 on MNIST ------------------------------------------------------------------------------------------------

RATES = {"ip2.*": 1 - KEEP, "*": 0.0}
_SOFT = {"ip2.*": 1 - KEEP, "*": 0.02}  # for posteriors with noise in every weight
_rotated = partial(Entry, data="mnist/images", purpose="uncertainty at images unlike the data")
_adam = partial(_local, steps=STEPS, batch_size=64, lr=1e-3)
# A pruning posterior prunes everything under the full weight of the KL divergence from the start.
_warmed_up, _one_draw = partial(_adam, kl_weight=schedules.linear(5)), partial(_adam, estimator="shared")
_variational = partial(guides.VariationalDropout, drop_rate=0.1)
_by_input = "variational dropout {}, one rate per input"
_COMPARED: dict[str, tuple[str, Callable[..., Any], Callable[[], Prior] | None, Callable[..., dict[str, Any]]]] = {
    "drop-connect": ("DropConnect .5", partial(guides.DropConnect, drop_rate=RATES), None, _adam),
    "concrete": ("concrete dropout", partial(guides.ConcreteDropout, mask_input=False), None, _adam),
    **{
        f"gaussian-{kind.lower()}": (
            f"Gaussian dropout {kind}", partial(guides.GaussianDropout, kind=kind, drop_rate=_SOFT), priors.LogUniform,
            _adam,
        )
        for kind in ("A", "B")
    },
    "variational-a": (
        _by_input.format("A"), partial(_variational, kind="A", rates="input"), priors.LogUniform, _adam,
    ),
    "variational-a2": (
        _by_input.format("A2"), partial(_variational, kind="A", rates="input", kl_scale=1 / 3), priors.LogUniform, _adam,
    ),
    "variational-b": (
        "variational dropout B, one rate per weight", partial(_variational, kind="B", rates="weight"),
        priors.LogUniform, _adam,
    ),
    "sparse": ("sparse variational dropout", guides.SparseDropout, priors.LogUniform, _warmed_up),
    "ard": ("variational dropout with ARD", guides.ARDDropout, priors.ARD, _warmed_up),
    "mean-field": ("mean-field Gaussian", guides.MeanField, None, _adam),
    "low-rank": ("low-rank Gaussian", partial(guides.LowRank, seed=None), None, _one_draw),
    "ensemble": (
        "five networks in turn, maximum a posteriori,", partial(guides.Ensemble, guide=guides.Point, members=5, seed=None),
        None, _one_draw,
    ),
}  # fmt: skip


def _caffe(data: Dataset) -> dict[str, Any]:
    """Caffe's solver: momentum SGD with the policy ``inv``."""
    return {
        "steps": STEPS,
        "batch_size": 64,
        "lr": partial(learning_rate, scale=float(len(data)), lr=0.01, keep=KEEP, dropped=(DROPPED,)),
        "optimizer": partial(torch.optim.SGD, momentum=0.9),
        "estimator": "local",
        "lr_schedule": partial(networks.inverse_decay, gamma=1e-4, power=0.75),
    }


_FOURTH = "Gal & Ghahramani (2016), section 5.2, figure 4"
LENET = [
    _rotated(
        name="rotated-digit/bernoulli",
        summary="MC dropout .5 behind the first dense layer on MNIST, LeNet-5, 10,000 SGD steps",
        source=_FOURTH,
        model=networks.caffe_lenet,
        guide=partial(BernoulliDropout, drop_rate=RATES),
        training=_caffe,
    ),
    *(
        _rotated(
            name=f"rotated-digit/{name}",
            summary=f"{what} on MNIST, LeNet-5, 10,000 Adam steps",
            source=f"{_FOURTH}; this posterior is not in the paper, for comparison",
            model=partial(networks.lenet, prior=prior),
            guide=guide,
            training=training,
        )
        for name, (what, guide, prior, training) in _COMPARED.items()
    ),
]

# --- sparse networks -------------------------------------------------------------------------------------------------


class Recipe(NamedTuple):
    """Training settings of sparse networks.

    Attributes:
        source: paper, and table.
        methods: the entries with these settings.
        epochs: length of the training.
        spread: standard deviation of the initial weights.
        reach, cut: upper bound of abs(log alpha), and the value from which means are set to 0 in training, or None.
        kl_weight: weight of the KL divergence as a function of completed epochs.
        decay: of the learning rate of LeNet-300-100 and of LeNet-5, by the completed share of the training.
        lr: the learning rate.
    """

    source: str
    methods: tuple[str, ...]
    epochs: int
    spread: float
    reach: float
    cut: float | None
    kl_weight: Callable[[float], float]
    decay: tuple[Callable[..., float], Callable[..., float]]
    lr: float | Callable[[str], float] = 1e-3


RECIPES = {
    "molchanov2017": Recipe(
        "Molchanov, Ashukha & Vetrov (2017), table 1", ("sparse", "ard"), 200, 0.01, 8.0, 3.0,
        schedules.linear(15, after=5), (late, straight),
    ),
    "deepbayes2019": Recipe(
        "Deep|Bayes (2019), exercise on sparse variational dropout", ("sparse", "ard"), 100, 0.02, 10.0, None,
        networks.weight_by_epoch, (stairs, stairs),
    ),
    "neklyudov2017": Recipe(
        "Neklyudov, Molchanov, Ashukha & Vetrov (2017), table 1", ("log-normal",), 150, 0.02, math.inf, None,
        schedules.linear(4, after=1), (straight, straight), networks.faster_noise,
    ),
}  # fmt: skip
# From table 1, the exercise's notebook, slides on ARD by Mittov, and the table of the released code of Neklyudov et al.
# (2017), whose dense LeNet-300-100 is 784-500-300-10. Kharitonov et al. (2018) train ARD with other settings.
_PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "sparse/lenet-300-100-molchanov2017": {"error_percent": 1.92, "compression": 68.0},
    "sparse/lenet-5-molchanov2017": {"error_percent": 0.75, "compression": 280.0},
    "sparse/lenet-300-100-deepbayes2019": {"error_percent": 1.6, "compression": 32.9},
    "ard/lenet-300-100-deepbayes2019": {"compression": 35.0},
    "log-normal/lenet-300-100-neklyudov2017": {"error_percent": 1.55},
    "log-normal/lenet-5-neklyudov2017": {"error_percent": 0.86},
}
_NETS = {"lenet-300-100": "mnist", "lenet-5": "mnist/images"}
_SPARSE = {
    "sparse": ("sparse variational dropout", guides.SparseDropout),
    "ard": ("ARD", guides.ARDDropout),
    "log-normal": ("log-normal dropout", guides.LogNormalDropout),
}
SPARSE = [
    Entry(
        name=name,
        summary=f"{what} on MNIST, {net}, {of.epochs} epochs",
        source=of.source,
        data=data,
        model=partial(networks.sparse_lenet, net=net, method=method, spread=of.spread),
        guide=(  # initial variances so small that training starts almost without noise
            guide
            if method == "log-normal"
            else partial(guide, log_variance=-10.0, cut=of.cut, log_alpha_range=(-of.reach, of.reach))
        ),
        training=partial(
            _local, epochs=of.epochs, batch_size=SPARSE_BATCH, lr=of.lr, schedule=networks.over(decay),
            kl_weight=of.kl_weight, engine="compiled",
        ),
        published=_PUBLISHED.get(name, {}),
        purpose="few weights",
    )
    for recipe, of in RECIPES.items()
    for (net, data), decay in zip(_NETS.items(), of.decay, strict=True)
    for method in of.methods
    for what, guide in [_SPARSE[method]]
    for name in [f"{method}/{net}-{recipe}"]
]  # fmt: skip

# --- toys -------------------------------------------------------------------------------------------------------------

_TOYS: dict[str, tuple[str, str, tuple[float, ...]]] = {
    "motorcycle": (
        "head acceleration after an impact",
        "Silverman (1985), Some aspects of the spline smoothing approach to regression curve fitting; the data",
        (7.196, 3.097, 0.2041, 0.4541, 0.00191),
    ),
    "snelson": (
        "Snelson's example",
        "Snelson & Ghahramani (2006), Sparse Gaussian processes using pseudo-inputs; the data",
        (6.597, 7.948, 0.2648, 0.4461, 12.24),
    ),
    "in-between": (
        "a cosine with a gap in its data",
        "Foong, Li, Hernández-Lobato & Turner (2019), In-between uncertainty in Bayesian neural networks; the data",
        (11.85, 12.32, 0.2976, 0.4803, 70.11),
    ),
}
TOYS = [
    Entry(
        name=f"toys/{name}",
        summary=f"{what}, exact last layer above a mean field, tanh, 1 x 50",
        source=source,
        data=f"toys/{name}",
        model=partial(networks.toy, scales=scales),
        guide=guides.ExactLastLayer,  # type: ignore[arg-type]
        training=partial(_given, steps=3000, lr=1e-2),
        purpose="uncertainty one can see",
        draws=1000,
    )
    for name, (what, source, scales) in _TOYS.items()
]

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in (*CO2, CONCRETE, *KINGMA, *UCI, *LENET, *SPARSE, *TOYS)}
