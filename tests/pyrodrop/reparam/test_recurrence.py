"""Recurrent layers by elementary operations: PyTorch's own numbers, one mask per sequence, and no mask per step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.recurrence import elementary
from pyrodrop.reparam import STRATEGIES, PerExampleReparam, reparameterize
from pyrodrop.reparam.lazy import LazyDistribution, LazyWeight

KINDS: list[Any] = [
    (nn.LSTM, {}),
    (nn.LSTM, {"proj_size": 3}),
    (nn.GRU, {}),
    (nn.RNN, {}),
    (nn.RNN, {"nonlinearity": "relu"}),
]
NAMES = ["lstm", "lstm with projections", "gru", "rnn", "rnn with relu"]
LENGTHS = [3, 6, 4]


def layers(kind: Any, options: Any, dtype: torch.dtype) -> Iterator[nn.Module]:
    """Layers of every form."""
    for number, both, first, bias in itertools.product((1, 2), *(3 * [(False, True)])):
        settings = {"bias": bias, "batch_first": first, "bidirectional": both, "dtype": dtype}
        yield kind(4, 5, number, **settings, **options)


def results(layer: Any, x: Tensor, states: tuple[Tensor, ...] | None, form: str) -> list[Tensor]:
    """Outputs and last states of a layer at x ``[T, N, 4]``, and their gradients by all that it has been given."""
    initial = None if states is None else states[0] if len(states) == 1 else states
    input: Any = x.transpose(0, 1) if layer.batch_first else x
    if form == "packed":
        input = pack_padded_sequence(input, LENGTHS, layer.batch_first, enforce_sorted=False)
    output, ends = layer(input, initial)
    values = [output.data if form == "packed" else output, *(ends if isinstance(ends, tuple) else (ends,))]
    weights = [torch.linspace(-1, 2, value.numel(), dtype=x.dtype).reshape(value.shape) for value in values]
    total = sum((value * weight).sum() for value, weight in zip(values, weights, strict=True))
    gradients = torch.autograd.grad(total, [x, *layer.parameters(), *(states or ())])  # type: ignore[arg-type]
    return [*(value.detach() for value in values), *gradients]


@pytest.mark.few(3)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("form", ["padded", "packed"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize(("kind", "options"), KINDS, ids=NAMES)
def test_outputs_states_and_gradients_are_those_of_the_layer(
    kind: Any, options: Any, dtype: torch.dtype, tolerance: float, form: str
) -> None:
    for layer in layers(kind, options, dtype):
        x = torch.randn(6, 3, 4, dtype=dtype, requires_grad=True)
        count = len(layer.all_weights)  # type: ignore[arg-type]
        sizes = (options.get("proj_size", 5), 5) if kind is nn.LSTM else (5,)
        states = tuple(torch.randn(count, 3, size, dtype=dtype, requires_grad=True) for size in sizes)
        for start in (None, states):
            want = results(layer, x, start, form)
            with elementary():
                got = results(layer, x, start, form)
            for ours, other in zip(got, want, strict=True):
                scale = float(other.abs().max().clamp_min(1.0))
                torch.testing.assert_close(ours, other, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("form", ["padded", "packed"])
def test_dropout_between_layers_draws_the_masks_of_the_layer(form: str) -> None:
    layer, x = nn.GRU(4, 5, 3, dropout=0.5).double(), torch.randn(6, 3, 4, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    want = results(layer, x, None, form)
    torch.manual_seed(3)
    with elementary():
        got = results(layer, x, None, form)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch_first", [False, True])
def test_sequences_are_packed_and_padded_as_by_torch(batch_first: bool) -> None:
    x = torch.randn(3, 7, 2) if batch_first else torch.randn(7, 3, 2)

    def both() -> tuple[Any, Any]:
        packed = pack_padded_sequence(x, LENGTHS, batch_first, enforce_sorted=False)
        return packed, pad_packed_sequence(packed, batch_first, -1.5, 8)

    with elementary():
        packed, padded = both()
    for got, want in zip((*packed, *padded), (lambda a, b: (*a, *b))(*both()), strict=True):
        assert torch.equal(got, want)


def test_a_single_sequence_without_an_axis_of_examples() -> None:
    layer, x = nn.LSTM(4, 5).double(), torch.randn(6, 4, dtype=torch.float64)
    with elementary():
        got = layer(x)
    torch.testing.assert_close(got, layer(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("kind", "options"), KINDS, ids=NAMES)
def test_many_weights_at_once(kind: Any, options: Any, packed: bool) -> None:
    layer = kind(4, 5, 2, bidirectional=True, **options).double()
    x: Any = torch.randn(6, 3, 4, dtype=torch.float64)
    x = pack_padded_sequence(x, LENGTHS, enforce_sorted=False) if packed else x
    weights = {name: torch.randn(7, *value.shape, dtype=torch.float64) for name, value in layer.named_parameters()}

    def call(values: dict[str, Tensor]) -> Tensor:
        output = functional_call(layer, values, (x,))[0]
        return output.data if packed else output  # type: ignore[no-any-return]

    with elementary():
        together = torch.vmap(call)(weights)
    alone = torch.stack([call({name: value[i] for name, value in weights.items()}) for i in range(7)])
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-12)


class Sequences(nn.Module):
    """All outputs of a recurrent layer, for x ``[N, T, 2]``, also by a layer that has time first."""

    def __init__(self, kind: Any, *, batch_first: bool, packed: bool = False, **options: Any) -> None:
        super().__init__()
        self.layer, self.packed = kind(2, 3, batch_first=batch_first, **options), packed

    def forward(self, x: Tensor) -> Tensor:
        input: Any = x if self.layer.batch_first else x.transpose(0, 1)
        if self.packed:
            input = pack_padded_sequence(input, [input.shape[1]] * len(x), batch_first=True)
        y = self.layer(input)[0]
        y = pad_packed_sequence(y, batch_first=True)[0] if self.packed else y
        return y if self.layer.batch_first else y.transpose(0, 1)  # type: ignore[no-any-return]


def traced(model: models.NetworkModel, guide: Any, estimator: str, x: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """One pass with noise, and its lazy weights by name."""
    lazy_model, lazy_guide = reparameterize(model, guide, STRATEGIES[estimator])  # type: ignore[arg-type]
    with poutine.block():
        trace = poutine.trace(lazy_guide).get_trace(x)
        f = poutine.replay(lazy_model, trace=trace)(x)
    return f, {name: trace.nodes[name]["value"] for name in model.weight_sites()}


def model_of(net: nn.Module, **priors_of: Any) -> models.NetworkModel:
    settings: Any = {"prior": priors.Gaussian(), "likelihood": likelihoods.Gaussian(1.0)} | priors_of
    return models.from_module(net, **settings).double()


def _kept(weight: Any, count: int) -> Tensor:
    """The samples of a weight or bias, one per example; the same one for all if it has no noise."""
    kept = weight.distribution.kept
    loc = getattr(weight.distribution.base, "base_dist", weight.distribution.base).loc
    return next(iter(kept.values())) if kept else loc.expand(count, *loc.shape)  # type: ignore[no-any-return]


class Twice(nn.Module):
    """One layer, called with the examples in two orders."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(2, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0] + self.layer(x.flip(0))[0].flip(0)  # type: ignore[no-any-return]


@pytest.mark.usefixtures("float64")
def test_a_layer_that_is_called_twice_has_one_draw() -> None:
    net = Twice()
    model, x = model_of(net), torch.randn(5, 4, 2)
    f, lazy = traced(model, guides.BernoulliDropout(model, drop_rate=0.4, mask_input=True).double(), "local", x)
    others = {n: p.detach() for n, p in net.double().named_parameters() if n not in lazy}
    torch.testing.assert_close(f, functional_call(net, {**others, **{n: w.drawn[0] for n, w in lazy.items()}}, (x,)))


@pytest.mark.few(3)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("name", ["BernoulliDropout", "VariationalDropout"])
@pytest.mark.parametrize(("kind", "options"), KINDS, ids=NAMES)
def test_local_noise_is_one_mask_per_sequence(kind: Any, options: Any, name: str, batch_first: bool) -> None:
    """Output and gradient by the weights M diag(s_n) of every example n, with the layer itself and its own weight."""
    net = Sequences(kind, batch_first=batch_first, **({"proj_size": 2} if options.get("proj_size") else options))
    model = model_of(net)
    of_guide = {"drop_rate": 0.4} if name == "BernoulliDropout" else {"kind": "A"}
    guide = getattr(guides, name)(model, **of_guide).double()
    x = torch.randn(5, 4, 2)
    f, lazy = traced(model, guide, "local", x)
    scales = {n: w.distribution.kept["axis 1"] for n, w in lazy.items()}
    assert all(len(s) == 5 and len(s.unique(dim=0)) > 1 for s in scales.values())
    means = {n: w.distribution.base.loc for n, w in lazy.items()}
    others = {n: p.detach() for n, p in net.double().named_parameters() if n not in means}
    each = [
        functional_call(net, {**others, **{n: m * scales[n][i] for n, m in means.items()}}, (x[i : i + 1],))
        for i in range(5)
    ]
    torch.testing.assert_close(f, torch.cat(each), rtol=0, atol=1e-12)
    got = torch.autograd.grad(f.square().sum(), list(means.values()), retain_graph=True)
    want = torch.autograd.grad(torch.cat(each).square().sum(), list(means.values()))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("guide", ["BernoulliDropout", "MeanField"])
@pytest.mark.parametrize(("kind", "options"), KINDS, ids=NAMES)
def test_per_example_weights_are_one_per_sequence(kind: Any, options: Any, guide: str) -> None:
    """The same holds for biases that have a prior."""
    net = Sequences(kind, batch_first=True, **({"proj_size": 2} if options.get("proj_size") else options))
    model, x = model_of(net, bias_prior=priors.Gaussian()), torch.randn(5, 4, 2)
    f, lazy = traced(model, getattr(guides, guide)(model).double(), "per_example", x)
    others = {n: p.detach() for n, p in net.double().named_parameters() if n not in lazy}
    weights = {n: _kept(w, 5) for n, w in lazy.items()}
    each = [
        functional_call(net, {**others, **{n: w[i] for n, w in weights.items()}}, (x[i : i + 1],)) for i in range(5)
    ]
    torch.testing.assert_close(f, torch.cat(each), rtol=0, atol=1e-12)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("estimator", ["local", "per_example"])
def test_outputs_are_those_of_all_masks_with_their_probabilities(estimator: str) -> None:
    """20,000 equal sequences: each has the output of one of 2^5 masks, as often as the mask is probable."""
    torch.manual_seed(1)
    net, rate = Sequences(nn.RNN, batch_first=True), 0.3
    model = model_of(net)
    guide = guides.BernoulliDropout(model, drop_rate=rate, mask_input=True).double()
    means = {n: guide.posterior(n).loc.detach() for n in model.weight_sites()}
    others = {n: p.detach() for n, p in net.double().named_parameters() if n not in means}
    count, x = 20_000, torch.randn(1, 6, 2)
    outputs, probabilities = [], []
    for mask in itertools.product((0.0, 1.0), repeat=5):
        parts = dict(zip(("layer.weight_ih_l0", "layer.weight_hh_l0"), torch.tensor(mask).split([2, 3]), strict=True))
        weights = {n: m * parts[n] for n, m in means.items()}
        outputs.append(functional_call(net, {**others, **weights}, (x,)).detach().flatten())
        probabilities.append((1 - rate) ** sum(mask) * rate ** (5 - sum(mask)))
    model.properties(torch.randn(3, 6, 2))  # rows that differ
    with torch.no_grad():
        f, _ = traced(model, guide, estimator, x.expand(count, -1, -1))
    gap, which = torch.cdist(f.flatten(1), torch.stack(outputs)).min(1)
    assert float(gap.max()) < 1e-6, "with another mask at every step there were 2^30 outputs"
    expected = count * torch.tensor(probabilities)
    chi2 = ((which.bincount(minlength=32) - expected) ** 2 / expected).sum()
    assert float(chi2) < 31 + 4 * 62**0.5


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("estimator", ["local", "per_example"])
def test_a_packed_sequence_has_one_draw_for_all(estimator: str) -> None:
    net = Sequences(nn.GRU, batch_first=True, packed=True)
    model, x = model_of(net), torch.randn(5, 4, 2)
    f, lazy = traced(model, guides.BernoulliDropout(model, drop_rate=0.4, mask_input=True).double(), estimator, x)
    assert [len(w.drawn) for w in lazy.values()] == [1, 1]
    others = {n: p.detach() for n, p in net.double().named_parameters() if n not in lazy}
    torch.testing.assert_close(f, functional_call(net, {**others, **{n: w.drawn[0] for n, w in lazy.items()}}, (x,)))


class OverOthers(Sequences):
    """A layer whose sequences run over the examples, or over examples and features together."""

    def __init__(self, *, merged: bool) -> None:
        super().__init__(nn.GRU, batch_first=merged)
        self.merged = merged

    def forward(self, x: Tensor) -> Tensor:
        if self.merged:  # [2 N, T, 2]
            return self.layer(x.repeat_interleave(2, 0))[0].unflatten(0, (-1, 2)).sum(1)  # type: ignore[no-any-return]
        return self.layer(x)[0]  # type: ignore[no-any-return]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("merged", [True, False])
def test_a_layer_whose_batch_are_not_the_examples_has_one_draw_around(merged: bool) -> None:
    model, x = model_of(OverOthers(merged=merged)), torch.randn(5, 4, 2)
    _, lazy = traced(model, guides.BernoulliDropout(model, drop_rate=0.4, mask_input=True).double(), "local", x)
    assert len(lazy["layer.weight_hh_l0"].drawn) == 1
    assert len(lazy["layer.weight_ih_l0"].drawn) == int(merged)


@pytest.mark.parametrize("by_mode", [False, True])
def test_a_weight_whose_examples_are_unknown_has_one_draw(by_mode: bool) -> None:
    """As in a Pyro program with a recurrent layer, where it is unknown whether the first axis of x is time."""
    sizes, per_example = [(3, 2), (3, 3), (3,), (3,)], PerExampleReparam()
    posteriors = [dist.Normal(torch.zeros(size), 1.0).to_event(len(size)) for size in sizes]
    lazy = [LazyWeight(LazyDistribution(q, per_example, str(n))) for n, q in enumerate(posteriors)]
    x, start = torch.randn(4, 5, 2), torch.zeros(1, 4, 3)
    settings: Any = (True, 1, 0.0, False, False, True)
    with elementary() if by_mode else nullcontext():
        got = torch.rnn_tanh(x, start, lazy, *settings)
    assert all(len(weight.drawn) == 1 for weight in lazy)
    torch.testing.assert_close(got, torch.rnn_tanh(x, start, [weight.drawn[0] for weight in lazy], *settings))
