"""Networks in which dropout is easily misread: the moments of 2,000 functions are those of 2,000 passes by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pyrodrop
from pyrodrop import likelihoods, priors
from pyrodrop.reading import Reading

Passes, Apart = Callable[..., Tensor], Callable[..., float]


def read(net: nn.Module, x: Any, **settings: Any) -> Reading:
    return pyrodrop.read(
        net.train(), x, likelihood=likelihoods.Categorical(), prior=priors.Gaussian(), num_data=1000, **settings
    )


class Net(nn.Module):
    """A forward of its own over named modules."""

    def __init__(self, forward: Callable[..., Tensor], **modules: Any) -> None:
        super().__init__()
        self.of = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        return self.of(self, *args, **kwargs)


def hidden(*drops: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), *drops, nn.Linear(8, 3))


def attended(net: Any, x: Tensor) -> Tensor:
    return net.o(net.a(x, x, x, need_weights=net.weights)[0].mean(1))  # type: ignore[no-any-return]


def causal(net: Any, ids: Tensor) -> Tensor:
    """One block of a language model whose table of words is also its last layer."""
    x = F.dropout(net.e(ids), 0.2)
    q, k, v = (projected.unflatten(-1, (2, 4)).transpose(1, 2) for projected in net.a(x).chunk(3, -1))
    x = x + net.d(F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.3).transpose(1, 2).flatten(2))
    return F.linear(x, net.e.weight)[:, -1]


def word_dropout(net: Any, ids: Tensor) -> Tensor:
    weight = net.e.weight
    mask = weight.new_empty((len(weight), 1)).bernoulli_(0.8).expand_as(weight) / 0.8
    return net.o(F.embedding(ids, mask * weight).mean(1))  # type: ignore[no-any-return]


def merged(net: Any, x: Tensor) -> Tensor:
    return net.o(F.dropout(net.a(x.reshape(-1, 8)).relu(), 0.4)).view(len(x), -1, 3).mean(1)  # type: ignore[no-any-return]


def merged_by_time(net: Any, x: Tensor) -> Tensor:
    y = net.o(F.dropout(net.a(x.transpose(0, 1).reshape(-1, 8)).relu(), 0.4))
    return y.view(-1, len(x), 3).mean(0)  # type: ignore[no-any-return]


def locked(net: Any, x: Tensor) -> Tensor:
    return net.o(net.a(x * x.new_empty(len(x), 1, 8).bernoulli_(0.7) / 0.7).relu()).mean(1)  # type: ignore[no-any-return]


def twice(net: Any, x: Tensor) -> Tensor:
    return net.o(net.d(net.b(net.d(net.a(x).relu())).relu()))  # type: ignore[no-any-return]


def two_heads(net: Any, x: Tensor) -> Tensor:
    inside = net.d(net.a(x).relu())
    return torch.cat([net.b(inside), net.c(inside)], 1)


def stochastic_depth(net: Any, x: Tensor) -> Tensor:
    x = x + net.a(x).div(0.7) * x.new_empty(len(x), 1).bernoulli_(0.7)
    return net.o(x + net.b(x).div(0.6) * torch.bernoulli(torch.full((len(x), 1), 0.6)))  # type: ignore[no-any-return]


def windows(net: Any, x: Tensor) -> Tensor:
    """Attention within each half of the rows."""
    halves = x.reshape(-1, 1, 3, 8)
    y = F.scaled_dot_product_attention(net.a(halves), halves, halves, dropout_p=0.4)
    return net.o(y.view(len(x), 6, 8).mean(1))  # type: ignore[no-any-return]


def frozen() -> nn.Module:
    net = nn.Sequential(hidden(nn.Dropout(0.5)), nn.ReLU(), nn.Dropout(0.2), nn.Linear(3, 3))
    net[0][3].requires_grad_(False)
    return net


def packed(net: Any, x: Tensor, lengths: Tensor) -> Tensor:
    sequences = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return net.o(net.a(sequences)[1][-1])  # type: ignore[no-any-return]


L = nn.Linear
VECTORS, ROWS, IMAGES = (lambda: torch.randn(4, 5)), (lambda: torch.randn(4, 6, 8)), (lambda: torch.randn(4, 2, 6, 6))
WORDS = lambda: torch.randint(0, 11, (4, 5))  # noqa: E731
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], list[str], int]] = {
    # network, x, the weights that carry masks, how many masks none carries
    "always on": (lambda: Net(lambda s, x: s.o(F.dropout(s.a(x), 0.5)), a=L(5, 8), o=L(8, 3)), VECTORS, ["o.weight"], 0),
    "one module twice": (
        lambda: Net(twice, a=L(5, 8), b=L(8, 8), o=L(8, 3), d=nn.Dropout(0.3)), VECTORS, ["b.weight", "o.weight"], 0,
    ),
    "attention with weights": (
        lambda: Net(attended, a=nn.MultiheadAttention(8, 2, 0.4, batch_first=True), o=L(8, 3), weights=True), ROWS, [], 1,
    ),
    "rows merged with examples": (lambda: Net(merged, a=L(8, 8), o=L(8, 3)), ROWS, [], 1),
    "rows merged by time": (lambda: Net(merged_by_time, a=L(8, 8), o=L(8, 3)), ROWS, [], 1),
    "language model": (lambda: Net(causal, e=nn.Embedding(11, 8), a=L(8, 24), d=nn.Dropout(0.3)), WORDS, [], 3),
    "stochastic depth": (lambda: Net(stochastic_depth, a=L(5, 5), b=L(5, 5), o=L(5, 3)), VECTORS, [], 2),
    "attention in windows": (lambda: Net(windows, a=L(8, 8), o=L(8, 3)), ROWS, [], 1),
    "words": (lambda: Net(word_dropout, e=nn.Embedding(11, 8), o=L(8, 3)), WORDS, [], 1),
    "single weights": (
        lambda: Net(lambda s, x: s.o(F.linear(x, F.dropout(s.a.weight, 0.3), s.a.bias).relu()), a=L(5, 8), o=L(8, 3)),
        VECTORS, [], 1,
    ),
    "the same for all rows": (lambda: Net(locked, a=L(8, 6), o=L(6, 3)), ROWS, ["a.weight"], 0),
    "residual stream": (
        lambda: Net(lambda s, x: s.o(x + s.d(s.a(x))), a=L(5, 5), o=L(5, 3), d=nn.Dropout(0.4)), VECTORS, [], 1,
    ),
    "frozen layer behind": (frozen, VECTORS, ["3.weight"], 1),
    "channels that are pooled": (
        lambda: nn.Sequential(nn.Dropout2d(0.3), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(2, 3, 3), nn.Flatten()),
        IMAGES, ["3.weight"], 0,
    ),
    "on the outputs": (lambda: nn.Sequential(hidden(), nn.Dropout(0.3)), VECTORS, [], 1),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES)
def test_moments_are_those_of_passes_by_hand(case: str, passes: Passes, apart: Apart) -> None:
    build, draw, of_weights, of_noise = CASES[case]
    net, x = build(), draw()
    reading = read(net, x)
    model: Any = reading.model
    assert (sorted(model.dropouts.carried), len(model.dropouts.noise)) == (sorted(of_weights), of_noise)
    f = reading.predict(x, 2000).f
    assert apart(f, passes(net, x)) < 4
    some = reading.predict(x[:1].repeat(3, *(1,) * (x.dim() - 1)), 40).f  # one function for all rows
    assert torch.allclose(some[:, 0], some[:, 2], atol=1e-5)
    assert torch.allclose(some[:, 0], reading.predict(x, 40).f[:, 0], atol=1e-5)


def test_the_table_names_the_units_of_a_weight_and_the_examples_of_a_mask() -> None:
    net = nn.Sequential(
        nn.ConvTranspose2d(2, 3, 2, bias=False), nn.Dropout2d(0.2), nn.Conv2d(3, 4, 2), nn.Dropout2d(0.2), nn.Flatten(),
        L(36, 5), nn.Dropout(0.1125), nn.Tanh(), nn.Softmax(1),
    )  # fmt: skip
    lines = str(read(net, torch.randn(4, 2, 3, 3))).splitlines()
    assert [" ".join(line.split()) for line in lines[1:4]] == [
        "2.weight 1 (dropout of channels, [N, 3, 1, 1]) 0.2 3 columns of 2.weight 1 yes",
        "5.weight 3 (dropout of channels, [N, 4, 1, 1]) 0.2 4 blocks of 9 columns of 5.weight 1 yes",
        "- 6 (dropout, [N, 5]) 0.1125 noise of the function yes",
    ]
    net = Net(merged, a=L(8, 8), o=L(8, 3))
    assert "forward (dropout, [N * 6, 8])" in str(read(net, torch.randn(4, 6, 8)))


def test_packed_sequences_and_alpha_dropout_are_refused() -> None:
    net = Net(packed, a=nn.GRU(8, 6, 2, dropout=0.6, batch_first=True), o=L(6, 3)).train()
    with pytest.raises(ValueError, match="pad the sequences"):
        read(net, (torch.randn(4, 6, 8), torch.tensor([6, 3, 6, 2])))
    with pytest.raises(ValueError, match="not masks of dropout"):
        read(hidden(nn.AlphaDropout(0.3)).train(), VECTORS())


def test_a_network_that_needs_all_examples_has_masks_for_all(passes: Passes, apart: Apart) -> None:
    net = Net(lambda s, x: s.o(F.dropout(s.a(x - x.mean(0)).relu(), 0.4)).cumsum(0), a=L(5, 8), o=L(8, 3))
    x = torch.randn(6, 5)
    reading = read(net, x)
    assert "forward (dropout, [6, 8])" in str(reading)
    assert apart(reading.predict(x, 2000).f, passes(net, x)) < 4


def noisy(net: Any, x: Tensor) -> Tensor:
    return x + torch.randn_like(x) if net.training else x


@pytest.mark.parametrize("drops", [[nn.Dropout(0.5)], []])
def test_noise_of_training_mode_that_is_no_dropout_is_refused(drops: list[nn.Module]) -> None:
    net = nn.Sequential(*hidden(*drops), Net(noisy))
    with pytest.raises(ValueError, match="random numbers that are not masks of dropout"):
        read(net, torch.randn(4, 5))


@pytest.mark.parametrize("mask", [lambda u: torch.floor(u + 0.7), lambda u: u < 0.7, lambda u: u * 2])
def test_masks_of_uniform_numbers_are_refused(mask: Callable[[Tensor], Tensor]) -> None:
    net = Net(lambda s, x: s.o(F.dropout(x * mask(torch.rand(4, 5))[: len(x)], 0.3)), o=L(5, 3))
    with pytest.raises(ValueError, match=r"not masks of dropout: .* draw masks by torch.bernoulli with one rate"):
        read(net, torch.randn(4, 5))


@pytest.mark.parametrize("rates", [(0.3, 0.5), (0.3, 0.0), (0.0, 0.3)])
def test_dropout_that_depends_on_x_is_refused(rates: tuple[float, float]) -> None:
    net = Net(lambda s, x: s.o(F.dropout(F.dropout(s.a(x), 0.2), rates[int(x.mean() < 0)])), a=L(5, 8), o=L(8, 3))
    reading = read(net, torch.rand(4, 5))
    with pytest.raises(ValueError, match="does not drop units as it did when it was read"):
        reading.predict(-torch.rand(4, 5), 3)


def test_masks_of_merged_rows_are_refused_where_their_order_is_unknown() -> None:
    net = Net(merged_by_time, a=L(8, 8), o=L(8, 3))
    reading = read(net, torch.randn(4, 1, 8), input_axes=None)
    with pytest.raises(ValueError, match="Read the network with inputs of this shape"):
        reading.predict(torch.randn(4, 6, 8), 10)


def test_a_graph_of_another_size_is_refused_in_words() -> None:
    graph = torch.eye(6) + torch.rand(6, 6)
    net = Net(lambda s, x: s.o(F.dropout(graph @ s.a(x), 0.4)), a=L(5, 8), o=L(8, 3))
    reading = read(net, torch.randn(6, 5))
    with pytest.raises(ValueError, match="predict at as many as it was trained on"):
        reading.predict(torch.randn(3, 5), 10)


def test_equal_rows_do_not_show_the_order_of_rows() -> None:
    net, x = Net(merged, a=L(8, 8), o=L(8, 3)).train(), torch.randn(4, 6, 8)
    assert "[N * 6, 8]" in str(read(net, x[:1]))
    reading = read(net, x[:1, :1].expand(1, 6, 8))
    assert "[all rows, 8]" in str(reading)
    with pytest.raises(ValueError, match="read the network with several examples that differ"):
        reading.predict(x, 10)


def test_examples_that_depend_on_each_other_must_be_read_with_examples_that_differ() -> None:
    x = torch.randn(6, 5)
    net = Net(lambda s, x: s.o(F.dropout(s.a(x), 0.4)) - x.mean(0)[:3], a=L(5, 8), o=L(8, 3))
    reading = read(net, x[:1].repeat(4, 1))
    with pytest.raises(ValueError, match="masks of dropout forward are not those of its passes: read it with several"):
        reading.predict(x, 10)
    assert read(net, x).predict(x, 10).f.shape == (10, 6, 3)
