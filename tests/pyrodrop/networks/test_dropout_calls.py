"""Every call that drops units, against PyTorch: the same masks give the same output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from pyrodrop.networks.dropout_calls import DropoutCall, DropoutCalls


class Of(nn.Module):
    """A network of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: Tensor) -> Any:
        return self.function(*x)


def stochastic_depth(x: Tensor) -> Tensor:
    noise = x.new_empty(len(x), 1, 1).bernoulli_(0.8)
    return x * noise.div_(0.8)


def network(name: str) -> tuple[nn.Module, tuple[Tensor, ...], int]:
    """A network, its inputs, and the number of masks that it draws."""
    sequence, image = torch.randn(4, 6, 8), torch.randn(4, 3, 5, 5)
    lstm = nn.LSTM(8, 5, 3, dropout=0.4, bidirectional=True, batch_first=True)
    padding = torch.tensor([[False] * 4 + [True] * 2] * 4)
    attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    nowhere = causal.clone()
    nowhere[0] = False
    heads, pairs = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)
    sdpa = F.scaled_dot_product_attention
    return {
        "modules": (nn.Sequential(nn.Dropout(0.3), nn.Dropout(0.3, inplace=True)), (sequence.clone(),), 2),
        "channels": (nn.Sequential(nn.Dropout2d(0.3), nn.Dropout2d(0.2)), (image,), 2),
        "channels of three axes": (nn.Dropout2d(0.3), (sequence,), 1),
        "channels of a single example": (nn.Dropout1d(0.3), (sequence[0],), 1),
        "volumes": (nn.Dropout3d(0.3), (torch.randn(2, 3, 2, 2, 2),), 1),
        "functions": (Of(lambda x: torch.dropout(F.dropout(x, 0.2), 0.3, True)), (sequence,), 2),
        "off": (Of(lambda x: F.dropout(F.dropout(x, 0.0), 0.5, False)), (sequence,), 0),
        "lstm": (lstm, (sequence,), 2),
        "lstm, time first": (nn.LSTM(8, 5, 2, dropout=0.4), (sequence,), 1),
        "lstm, projected": (nn.LSTM(8, 5, 3, dropout=0.4, proj_size=3, batch_first=True), (sequence,), 2),
        "gru": (nn.GRU(8, 5, 3, dropout=0.4), (sequence,), 2),
        "rnn": (nn.RNN(8, 5, 2, dropout=0.4, nonlinearity="relu"), (sequence,), 1),
        "attention with its weights": (Of(lambda x: attention(x, x, x)[0]), (sequence,), 1),
        "attention without": (Of(lambda x: attention(x, x, x, padding, need_weights=False)[0]), (sequence,), 1),
        "encoder": (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True), (sequence,), 4),
        "sdpa": (Of(lambda q: sdpa(q, q, q, dropout_p=0.3)), (heads,), 1),
        "sdpa, causal": (Of(lambda q: sdpa(q, q, q, None, 0.3, True)), (heads,), 1),
        "sdpa, masked": (Of(lambda q: sdpa(q, q, q, nowhere, 0.3)), (heads,), 1),
        "sdpa, added": (Of(lambda q: sdpa(q, q, q, causal.log(), 0.3, scale=0.2)), (heads,), 1),
        "sdpa, groups": (Of(lambda q, k: sdpa(q, k, k, dropout_p=0.3, enable_gqa=True)), (heads, pairs), 1),
        "stochastic depth": (Of(stochastic_depth), (sequence,), 1),
        "by hand": (Of(lambda x: x * torch.bernoulli(torch.full((8,), 0.5)) * x.bernoulli(0.2)), (sequence,), 2),
    }[name]  # type: ignore[return-value]


NAMES = (
    *("modules", "channels", "channels of three axes", "channels of a single example", "volumes", "functions"),
    *("off", "lstm", "lstm, time first", "lstm, projected", "gru", "rnn"),
    *("attention with its weights", "attention without", "encoder", "sdpa", "sdpa, causal", "sdpa, masked"),
    *("sdpa, added", "sdpa, groups", "stochastic depth", "by hand"),
)


FUNCTIONS = ("functions", "off", "stochastic depth", "by hand", "sdpa")  # have no evaluation mode


@pytest.mark.few(3)
@pytest.mark.filterwarnings("ignore:LSTM with projections", "ignore:dropout2d:UserWarning")
@pytest.mark.parametrize("name", NAMES)
def test_the_masks_of_a_pass_give_its_output(name: str) -> None:
    torch.manual_seed(0)
    net, x, count = network(name)
    net.train()
    calls: list[DropoutCall] = []
    masks: list[Tensor] = []

    def answer(call: DropoutCall) -> Tensor:
        calls.append(call)
        masks.append(call.draw())
        return masks[-1]

    def output() -> Any:
        torch.manual_seed(1)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            return net(*(part.clone() for part in x))

    want = output()
    after = torch.get_rng_state()
    with DropoutCalls(answer):
        got = output()
    assert torch.equal(after, torch.get_rng_state())  # no mask was drawn elsewhere
    assert len(calls) == len(masks) == count
    for one, two in zip(_tensors(want), _tensors(got), strict=True):
        torch.testing.assert_close(one, two, equal_nan=True)
    for call, mask in zip(calls, masks, strict=True):  # the rate, in 5 standard errors
        assert abs(float(mask.float().mean()) - (1 - call.drop_rate)) <= 5 * (call.drop_rate / mask.numel()) ** 0.5


@pytest.mark.few(2)
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith(FUNCTIONS)])
@pytest.mark.filterwarnings("ignore:LSTM with projections", "ignore:dropout2d:UserWarning")
def test_without_masks_it_is_evaluation_mode(name: str) -> None:
    torch.manual_seed(0)
    net, x, _ = network(name)
    net.train()
    with torch.no_grad(), DropoutCalls(lambda _: None):
        got = net(*(part.clone() for part in x))
    net.eval()
    if isinstance(net, Of):
        assert net.function.__closure__ is not None
        for cell in net.function.__closure__:
            if isinstance(cell.cell_contents, nn.Module):
                cell.cell_contents.eval()
    with torch.no_grad():
        for one, two in zip(_tensors(net(*x)), _tensors(got), strict=True):
            torch.testing.assert_close(one, two, equal_nan=True)


def test_normalisation_is_by_running_statistics() -> None:
    x, mean, variance = torch.randn(4, 3, 5), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    for norm, training in ((F.batch_norm, {"training": True}), (F.instance_norm, {"use_input_stats": True})):
        with DropoutCalls(lambda _: None):
            got = norm(x, mean.clone(), variance.clone(), **training)  # type: ignore[arg-type, operator]
            own = norm(x, None, None, **training)  # type: ignore[operator]
        torch.testing.assert_close(got, (x - mean[:, None]) / (variance[:, None] + 1e-5).sqrt())
        assert abs(float(own.mean())) < 1e-5  # without running statistics, those of x


def test_rates_that_no_posterior_has_are_refused() -> None:
    with DropoutCalls(lambda _: None):
        with pytest.raises(ValueError, match="rates below 1; the network calls dropout with a rate of 1"):
            F.dropout(torch.ones(3), 1.0)
        with pytest.raises(ValueError, match="probabilities differ between entries"):
            torch.bernoulli(torch.tensor([0.2, 0.5]))
        assert torch.equal(torch.bernoulli(torch.tensor([1.0, 1.0])), torch.ones(2))


def _tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [leaf for part in value for leaf in _tensors(part)]
