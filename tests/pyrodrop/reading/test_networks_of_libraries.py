"""Networks of torchvision, timm and transformers are read with all of their dropouts.

The moments of 2,000 functions are those of 2,000 passes in training mode by hand, with BatchNorm in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import likelihoods, priors
from pyrodrop.analysis.lab.networks import real
from pyrodrop.reading import Reading

Passes, Apart = Callable[..., Tensor], Callable[..., float]


def read(net: nn.Module, x: Any) -> Reading:
    return pyrodrop.read(net.train(), x, likelihood=likelihoods.Categorical(), prior=priors.Gaussian(), num_data=1000)


def noise(reading: Reading) -> list[str]:
    model: Any = reading.model
    return list(model.dropouts.noise)


def carried(reading: Reading) -> list[str]:
    model: Any = reading.model
    return list(model.dropouts.carried)


@pytest.fixture
def torchvision() -> Any:
    real.torchvision()
    return pytest.importorskip("torchvision")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "of_noise", "of_weights"),
    [
        ("alexnet", 0, ["classifier.1.weight", "classifier.4.weight"]),
        ("mobilenet_v3_small", 0, ["classifier.3.weight"]),
        ("efficientnet_b0", 9, ["classifier.1.weight"]),
    ],
)
def test_a_network_of_torchvision(
    name: str, of_noise: int, of_weights: list[str], torchvision: Any, passes: Passes, apart: Apart
) -> None:
    net = getattr(torchvision.models, name)(num_classes=3).train()
    with torch.no_grad():  # running statistics with which activations keep their size through all layers
        net(torch.randn(16, 3, 64, 64))
    x = torch.randn(2, 3, 64, 64)
    reading = read(net, x)
    assert (len(noise(reading)), carried(reading)) == (of_noise, of_weights)
    assert apart(reading.predict(x, 2000).f, passes(net, x)) < 4


@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.slow)])
def test_a_bert_with_its_own_dropouts(attention: str, passes: Passes, apart: Apart) -> None:
    real.torchvision()
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=8, num_labels=3, initializer_range=0.3, attn_implementation=attention,
    )  # fmt: skip

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.BertForSequenceClassification(config)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return self.bert(input_ids=input_ids, attention_mask=attention_mask).logits  # type: ignore[no-any-return]

    net = Logits()
    x = {"input_ids": torch.randint(0, 11, (4, 5)), "attention_mask": torch.ones(4, 5, dtype=torch.long)}
    x["attention_mask"][1, 3:] = 0
    reading = read(net, x)
    assert carried(reading) == ["bert.classifier.weight"]
    assert len(noise(reading)) == 7  # of the embeddings, and of attention, its output and the output of each layer
    assert sum("attention.self" in name for name in noise(reading)) == 2
    assert apart(reading.predict(x, 2000).f, passes(net, x)) < 4


def test_a_vision_transformer_of_timm(passes: Passes, apart: Apart) -> None:
    real.torchvision()
    timm = pytest.importorskip("timm")
    net = timm.models.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=4, num_classes=3,
        drop_rate=0.1, attn_drop_rate=0.1, drop_path_rate=0.2,
    )  # fmt: skip
    x = torch.randn(3, 3, 32, 32)
    reading = read(net, x)
    assert carried(reading) == ["head.weight"]
    assert noise(reading) == [
        "dropout blocks.0.attn",
        "dropout blocks.1.attn",
        "dropout blocks.1.drop_path1",
        "dropout blocks.1.drop_path2",
        "dropout blocks.2.attn",
        "dropout blocks.2.drop_path1",
        "dropout blocks.2.drop_path2",
    ]
    assert apart(reading.predict(x, 2000).f, passes(net, x)) < 4
