"""transformers' BERT of two layers in a tiny configuration, random weights: a mapping in, logits out."""

from __future__ import annotations

import torch
from torch import nn

from pyrodrop import likelihoods
from pyrodrop.analysis.lab.networks import Case, real


class Logits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        real.torchvision()
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            vocab_size=11, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
            max_position_embeddings=8, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.bert = BertForSequenceClassification(config)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).logits


CASE = Case(
    network=Logits,
    x=lambda: {
        "input_ids": torch.randint(0, 11, (6, 5)),
        "attention_mask": (torch.arange(5) <= torch.arange(6)[:, None]).long(),
    },
    likelihood=likelihoods.Categorical,
    drop_rate=0.2,
    rows=True,
    draws=0.1,
    needs=("transformers",),
)
