"""Networks with their own dropout, for `pyrodrop.read`: which dropouts become masks of weights, and which stay noise.

    resnet         blocks x + conv2(dropout2d(relu(conv1(x)))): columns of conv2.weight; dropout before the head: its columns
    transformer    an encoder of 14 tokens, the rows of an image: its dropouts differ by token and are noise of the function,
                   those of attention too; dropout before the head: columns of head.weight
    lstm           two layers with dropout between them, which differs by step and is noise; before the head: its columns

A network is read before it is trained: the posterior of `pyrodrop.read` is then the guide that training adapts, under the
prior of a weight decay of 1e-4. Its draws are forward passes in training mode of the module that
`guides.to_module(zoo.load("read/resnet"))` returns. Norms are of groups or layers, since BatchNorm does not train here. A
network is read at random inputs, so that an entry is built without its data. The noise of the forecast is fixed, at the size
of its errors in the last fifth of the training windows, by which its number of steps was chosen. Ridge regression predicts
the series better, with an RMSE of 0.456 against 0.498.

`rnn/...`: recurrent networks with one mask per sequence: Gal & Ghahramani (2016), https://arxiv.org/abs/1512.05287.

    characters    an embedding, an LSTM of 128 units and a softmax: the next of 68 characters at every step of a sequence
    solar         an LSTM of 16 units: the change of solar irradiance in 5 years from those of the last 22

A draw of the weights is one network for a whole sequence, so a mask drops the same units of the input, the state and the
output of the LSTM at all steps. A mask of the embedding drops characters wherever they occur. Data and sizes are not those
of the paper, so that training takes minutes on one core; sizes and rates were chosen on the last part of the training data.
Steps are traced: compiling those of a sequence would take as long as the training.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop import likelihoods, priors, schedules
from pyrodrop.data import Dataset
from pyrodrop.data.gospels import CHARACTERS
from pyrodrop.guides import BernoulliDropout, Point
from pyrodrop.likelihoods import Likelihood
from pyrodrop.models import NetworkModel, from_module
from pyrodrop.reading import read
from pyrodrop.zoo.entry import Check, Entry, settings

RATE, WIDTH, TOKENS, DECAY = 0.1, 16, 14, 1e-4


class Block(nn.Module):
    """x plus two convolutions of it, with dropout of the channels in between."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, WIDTH), nn.GroupNorm(4, WIDTH)
        self.conv1, self.conv2 = (nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(2))
        self.dropout = nn.Dropout2d(RATE)

    def forward(self, x: Tensor) -> Tensor:
        inside = self.conv1(self.norm1(x).relu())
        return x + self.conv2(self.dropout(self.norm2(inside).relu()))  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """Logits ``[N, 10]`` of images ``[N, 1, 14, 14]``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Conv2d(1, WIDTH, 3, padding=1), nn.Sequential(Block(), nn.MaxPool2d(2), Block())
        self.dropout, self.head = nn.Dropout(RATE), nn.Linear(WIDTH * 9, 10)

    def forward(self, x: Tensor) -> Tensor:
        pooled = nn.functional.max_pool2d(self.blocks(self.first(x)).relu(), 2)
        return self.head(self.dropout(pooled.flatten(1)))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Logits ``[N, 10]`` of images ``[N, 1, 14, 14]``, whose rows are tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(TOKENS, 2 * WIDTH), nn.Parameter(torch.randn(TOKENS, 2 * WIDTH) / 50)
        self.encoder = nn.TransformerEncoderLayer(2 * WIDTH, 4, 4 * WIDTH, RATE, batch_first=True)
        self.dropout, self.head = nn.Dropout(RATE), nn.Linear(2 * WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.encoder(self.embed(x[:, 0]) + self.place).mean(1)))  # type: ignore[no-any-return]


class Forecast(nn.Module):
    """One number ``[N, 1]`` from the last state of a sequence ``[N, T, 1]``."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, WIDTH, 2, batch_first=True, dropout=RATE)
        self.dropout, self.head = nn.Dropout(RATE), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.lstm(x)[0][:, -1]))  # type: ignore[no-any-return]


def _model(data: Dataset, *, network: Callable[[], nn.Module], likelihood: Callable[[], Likelihood]) -> NetworkModel:
    x = torch.randn(8, *data.x.shape[1:])
    return read(network(), x, likelihood=likelihood(), weight_decay=DECAY, num_data=len(data)).model  # type: ignore[return-value]


_CONVOLUTIONS = ("blocks.0.conv2.weight", "blocks.2.conv2.weight")
_FEW, _NOISE = Check(steps=30, train=500, test=200), functools.partial(likelihoods.Gaussian, 10.0)
# network, summary, source, data, weights that carry masks, likelihood, training, check
NETWORKS: dict[str, tuple[Any, ...]] = {
    "resnet": (
        ResNet, "a residual network on small digits",
        "Zagoruyko & Komodakis (2016), Wide residual networks; the block, with norms of groups",
        "mnist/small", (*_CONVOLUTIONS, "head.weight"), likelihoods.Categorical, {"steps": 1500, "lr": 3e-3}, _FEW,
    ),
    "transformer": (
        Transformer, "a transformer encoder on small digits",
        "Vaswani, Shazeer, Parmar, Uszkoreit, Jones, Gomez, Kaiser & Polosukhin (2017), Attention is all you need",
        "mnist/small", ("head.weight",), likelihoods.Categorical, {"steps": 2500, "lr": 3e-3}, _FEW,
    ),
    "lstm": (
        Forecast, "an LSTM forecast of solar irradiance in 5 years",
        "Gal & Ghahramani (2016), A theoretically grounded application of dropout in recurrent neural networks",
        "solar/plain", ("head.weight",), _NOISE, {"steps": 300, "lr": 1e-2}, Check(steps=30),
    ),
}  # fmt: skip

_FIRST = tuple(
    Entry(
        name=f"read/{name}",
        summary=f"{what} with its own dropout, rate {RATE:g}, read by pyrodrop.read",
        source=source,
        data=data,
        model=functools.partial(_model, network=network, likelihood=likelihood),
        guide=functools.partial(BernoulliDropout, drop_rate=dict.fromkeys(carriers, RATE) | {"*": 0.0}),
        training=functools.partial(settings, batch_size=64, schedule=schedules.cosine, engine="traced", **training),
        published={},
        purpose="a network with dropout of its own",
        check=check,
        draws=100,
    )
    for name, (network, what, source, data, carriers, likelihood, training, check) in NETWORKS.items()
)


STEPS = {"characters": 4000, "solar": 1000}
_SOURCE = "Gal & Ghahramani (2016), A theoretically grounded application of dropout in recurrent neural networks"


class _LanguageModel(nn.Module):
    """Logits of the next character at every step, ``[N, T, characters]``."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(CHARACTERS), 32)
        self.lstm, self.head = nn.LSTM(32, 128, batch_first=True), nn.Linear(128, len(CHARACTERS))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(ids))[0])  # type: ignore[no-any-return]


class _Forecast(nn.Module):
    """One number from the last state of a sequence ``[N, T, 1]``."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]


def _characters(data: Dataset) -> NetworkModel:
    return from_module(_LanguageModel(), priors.Gaussian(), likelihoods.Categorical())


def _solar(data: Dataset) -> NetworkModel:
    return from_module(_Forecast(), priors.Gaussian(), likelihoods.Gaussian())


CHARACTERS_RATES = {"embedding.*": 0.01, "*": 0.05}
SOLAR_RATES = {"lstm.weight_ih*": 0.0, "*": 0.1}  # x has one input, whose mask would drop the whole series
_sequences = functools.partial(settings, schedule=schedules.cosine, engine="traced")
_text = functools.partial(
    Entry, source=f"{_SOURCE}; the text and the size are not in the paper", data="gospels", model=_characters, published={},
    purpose="text",
)  # fmt: skip
_LANGUAGE = functools.partial(_sequences, steps=STEPS["characters"], batch_size=32, lr=5e-3)

_SECOND = (
    _text(
        name="rnn/characters",
        summary="variational dropout .05 of an LSTM on characters of Mark and Luke, 1 x 128, 4,000 steps",
        guide=functools.partial(BernoulliDropout, drop_rate=CHARACTERS_RATES),
        training=functools.partial(_LANGUAGE, estimator="local"),
        check=Check(steps=30, train=500, test=20, draws=5),
        draws=50,
    ),
    _text(
        name="rnn/characters-none",
        summary="the LSTM of rnn/characters without dropout, maximum a posteriori",
        guide=Point,
        training=functools.partial(_LANGUAGE, estimator="shared"),
        check=Check(steps=30, train=500, test=20, draws=1),
        draws=1,
    ),
    Entry(
        name="rnn/solar",
        summary="variational dropout .1 of an LSTM forecast of solar irradiance in 5 years, 1 x 16",
        source=f"{_SOURCE}; this series is not in the paper",
        data="solar",
        model=_solar,
        guide=functools.partial(BernoulliDropout, drop_rate=SOLAR_RATES),
        training=functools.partial(_sequences, steps=STEPS["solar"], batch_size=64, lr=1e-2, estimator="local"),
        published={},
        purpose="a forecast",
        check=Check(steps=100),
        draws=1000,
    ),
)

ENTRIES = (*_FIRST, *_SECOND)
