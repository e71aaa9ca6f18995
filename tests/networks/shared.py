"""Networks that use a weight or a layer more than once."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop import likelihoods
from pyrodrop.analysis.lab.networks import Case


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.bias = nn.Linear(4, 3), nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.encoder(x)) @ self.encoder.weight + self.bias


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mix = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mix(self.embedding(ids).mean(1))))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


def network() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(4, 2))


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.around, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(len(x), 4)
        for step in x.unbind(1):
            h = torch.tanh(self.inward(step) + self.around(h))
        return self.head(h)


CASES = {
    "tied_autoencoder": Case(
        about="An autoencoder whose decoder is the encoder's weight, transposed.",
        network=Autoencoder,
        x=lambda: torch.randn(6, 4),
    ),
    "tied_layers": Case(
        about="Two layers that are one parameter under two names.",
        network=Tied,
        x=lambda: torch.randn(6, 4),
    ),
    "tied_language_model": Case(
        about="A language model whose head is its embedding.",
        network=LanguageModel,
        x=lambda: torch.randint(0, 7, (6, 5)),
        likelihood=likelihoods.Categorical,
    ),
    "used_twice": Case(
        about="A layer that is called twice in a row.",
        network=Twice,
        x=lambda: torch.randn(6, 4),
    ),
    "module_twice": Case(
        about="A module that is registered under two names.",
        network=network,
        x=lambda: torch.randn(6, 4),
    ),
    "shared_rnn_loop": Case(
        about="A recurrence written by hand, one weight for all steps.",
        network=Loop,
        x=lambda: torch.randn(6, 3, 3),
        rows=True,
    ),
}
