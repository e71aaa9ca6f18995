"""Networks of tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pyrodrop.analysis.lab.networks import Case


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 2)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head(seen.mean(1))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen, _ = self.attention(x, x, x, need_weights=False)
        return self.head(seen.mean(1))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[:, 0])


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(1, 3, 4))
        self.each, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        return self.head(torch.tanh(self.each(h)).mean(1))


class Merged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.each(x.reshape(-1, x.shape[-1])))
        return self.head(h.reshape(*x.shape[:-1], -1).mean(1))


CASES = {
    "attention": Case(
        about="Scaled dot-product attention over the tokens of an example.",
        network=Attention,
        x=lambda: torch.randn(6, 3, 4),
        rows=True,
    ),
    "multihead_attention": Case(
        about="nn.MultiheadAttention of tokens with themselves.",
        network=Attending,
        x=lambda: torch.randn(6, 3, 4),
        rows=True,
    ),
    "transformer_layer": Case(
        about="nn.TransformerEncoderLayer without dropout.",
        network=Transformer,
        x=lambda: torch.randn(6, 3, 4),
        rows=True,
    ),
    "class_token": Case(
        about="A class token and position embeddings, which are no units' weights.",
        network=Tokens,
        x=lambda: torch.randn(6, 2, 4),
        drop_rate={"token": 0.0, "position": 0.0, "*": 0.3},
        rows=True,
    ),
    "tokens_merged": Case(
        about="Rows of all examples merged into one axis and taken apart again.",
        network=Merged,
        x=lambda: torch.randn(6, 4, 3),
        rows=True,
    ),
}
