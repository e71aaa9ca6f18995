"""Recurrent networks with one mask per sequence: Gal & Ghahramani (2016), https://arxiv.org/abs/1512.05287.

    characters    an embedding, an LSTM of 128 units and a softmax: the next of 68 characters at every step of a sequence
    solar         an LSTM of 16 units: the change of solar irradiance in 5 years from those of the last 22

A draw of the weights is one network for a whole sequence, so a mask drops the same units of the input, the state and the
output of the LSTM at all steps. A mask of the embedding drops characters wherever they occur. Data and sizes are not those
of the paper, so that training takes minutes on one core; sizes and rates were chosen on the last part of the training data.
Steps are traced: compiling those of a sequence would take as long as the training.
"""

from __future__ import annotations

import functools

from torch import Tensor, nn

from pyrodrop import likelihoods, priors, schedules
from pyrodrop.data import Dataset
from pyrodrop.data.gospels import CHARACTERS
from pyrodrop.guides import BernoulliDropout, Point
from pyrodrop.models import NetworkModel, from_module
from pyrodrop.zoo.entry import Check, Entry, settings

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
_training = functools.partial(settings, schedule=schedules.cosine, engine="traced")
_text = functools.partial(
    Entry, source=f"{_SOURCE}; the text and the size are not in the paper", data="gospels", model=_characters, published={},
    purpose="text",
)  # fmt: skip
_LANGUAGE = functools.partial(_training, steps=STEPS["characters"], batch_size=32, lr=5e-3)

ENTRIES = (
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
        training=functools.partial(_training, steps=STEPS["solar"], batch_size=64, lr=1e-2, estimator="local"),
        published={},
        purpose="a forecast",
        check=Check(steps=100),
        draws=1000,
    ),
)
