"""What a user does with a reading: look at it, predict, train on, and get the network back."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods

SETTINGS: dict[str, Any] = {"likelihood": likelihoods.Categorical(), "weight_decay": 1e-2, "num_data": 50}


class Small(nn.Module):
    """Masks of input units, of output units, and of the tokens of an example; BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.stream, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.drop, self.last = nn.Dropout(0.25), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(self.first(x), 0.2, self.training).mean(1)
        h = self.norm(h)
        h = torch.tanh(h + self.drop(self.stream(h)))
        return self.head(self.last(h))  # type: ignore[no-any-return]


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(50, 5, 4), torch.randint(3, (50,))


@pytest.fixture
def net(data: tuple[Tensor, Tensor]) -> Small:
    torch.manual_seed(0)
    net = Small()
    net(data[0])  # statistics of BatchNorm
    return net


def by_hand(net: nn.Module, x: Tensor, passes: int) -> Tensor:
    """Passes in training mode, BatchNorm in evaluation mode: ``[passes, N, ...]``."""
    net = copy.deepcopy(net).train()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    with torch.no_grad():
        return torch.stack([net(x) for _ in range(passes)])


def largest_z(first: Tensor, second: Tensor) -> float:
    """The largest difference of means and variances between draws ``[S, ...]``, in standard errors."""

    def of(draws: Tensor) -> list[tuple[Tensor, Tensor]]:
        square = (draws - draws.mean(0)) ** 2
        return [(values.mean(0), values.var(0) / len(values)) for values in (draws.double(), square.double())]

    z = [(a - b) / (va + vb).sqrt() for (a, va), (b, vb) in zip(of(first), of(second), strict=True)]
    return float(torch.stack(z).abs().max())


def test_predictions_are_the_passes_by_hand(net: Small, data: tuple[Tensor, Tensor]) -> None:
    x = data[0][:6]
    reading = pyrodrop.read(net, data[0][:8], **SETTINGS)
    hand = by_hand(net, x, 2000)
    assert largest_z(hand, reading.predict(x, 2000).f) < 4
    assert largest_z(hand, reading.predict(x, 2000).f * 1.05) > 4  # it would be seen


def test_the_network_and_the_random_state_of_the_caller_stay(net: Small, data: tuple[Tensor, Tensor]) -> None:
    before, modes = copy.deepcopy(net.state_dict()), [module.training for module in net.modules()]
    state = torch.get_rng_state()
    reading = pyrodrop.read(net, data[0][:8], **SETTINGS)
    reading.predict(data[0], 3)
    reading.elbo(3, data)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in net.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_batch_norm_stays_as_it_was_trained(net: Small, data: tuple[Tensor, Tensor]) -> None:
    reading = pyrodrop.read(net, data[0][:8], **SETTINGS)
    run = pyrodrop.fit(reading.model, reading.guide, data, steps=3, engine="pyro")
    assert torch.equal(run.model.network.norm.running_mean, net.norm.running_mean)  # type: ignore[attr-defined]


def test_elbo_says_what_has_no_part_in_it(net: Small, data: tuple[Tensor, Tensor]) -> None:
    convention = pyrodrop.read(net, data[0][:8], **SETTINGS).elbo(5, data).convention
    assert convention.kind == "up_to_constant"
    assert "noise of the function has no part in it, as its prior is its own distribution: dropout forward" in str(
        convention
    )


def test_it_goes_through_arviz_and_comparison(net: Small, data: tuple[Tensor, Tensor]) -> None:
    reading = pyrodrop.read(net, data[0][:8], **SETTINGS)
    tree = pyrodrop.to_arviz(reading, data, data[0][:7], num_samples=20, weights=True)
    assert tree["posterior"]["head.weight"].shape == (1, 20, 3, 6)
    assert tree["predictions"]["f"].shape == (1, 20, 7, 3)
    plain = pyrodrop.fit(reading.model, reading.guide, data, steps=2)
    assert "trained on" in str(pyrodrop.compare({"read": reading, "trained on": plain}, data, num_samples=20))


def test_a_reading_is_trained_and_loads(net: Small, data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    reading = pyrodrop.read(net, data[0][:8], **SETTINGS)
    run = pyrodrop.fit(reading.model, reading.guide, data, steps=200, lr=0.02)
    assert largest_z(by_hand(net, data[0][:6], 2000), run.predict(data[0][:6], 2000).f) > 4
    path = run.save(tmp_path / "run.safetensors")
    fresh = pyrodrop.read(net, data[0][:8], **SETTINGS)
    loaded = pyrodrop.Fit.load(path, fresh.model, fresh.guide)
    torch.testing.assert_close(loaded.predict(data[0], 5).f, run.predict(data[0], 5).f)


@pytest.mark.parametrize("guide", [guides.MeanField, guides.BernoulliDropout, guides.ConcreteDropout])
def test_another_posterior_is_a_function_of_its_weights_alone(
    net: Small, data: tuple[Tensor, Tensor], guide: Any
) -> None:
    """On the model of a reading, masks of carried weights are those of the guide."""
    reading = pyrodrop.read(net, data[0][:8], **SETTINGS)
    other = guide(reading.model)
    run = pyrodrop.fit(reading.model, other, data, steps=2, lr=0.01, engine="pyro")
    x = data[0][:6]
    names = list(run.model.weight_sites())
    posteriors = {name: run.guide.posterior(name) for name in names}  # type: ignore[attr-defined]
    with torch.no_grad(), run.as_trained():
        whole = run.model.outputs({name: q.expand((3000,)).sample() for name, q in posteriors.items()}, x)  # type: ignore[attr-defined]
    assert largest_z(run.predict(x, 3000).f, whole) < 4.5


def test_nothing_to_read_is_said(net: Small, data: tuple[Tensor, Tensor]) -> None:
    x = data[0][:8]
    with pytest.raises(ValueError, match=r"drops nothing: .* Call net.train\(\) before pyrodrop.read"):
        pyrodrop.read(copy.deepcopy(net).eval(), x, **SETTINGS)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(20, 3))
    with pytest.raises(ValueError, match="drops nothing: no call drops units"):
        pyrodrop.read(plain, x, **SETTINGS)
    still = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(20, 3))
    nn.init.zeros_(still[2].weight)
    with pytest.raises(ValueError, match="its passes do not differ: no output depends on the masks of 1"):
        pyrodrop.read(still, x, **SETTINGS)
    off = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(20, 3))
    off[1].eval()
    with pytest.raises(ValueError, match="drops nothing: no call .* in the modes of its modules"):
        pyrodrop.read(off, x, **SETTINGS)


def test_one_dropout_layer_takes_six_calls_of_the_network() -> None:
    calls: list[int] = []
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    net.register_forward_pre_hook(lambda *_: calls.append(1))
    pyrodrop.read(net, torch.randn(8, 4), **SETTINGS)
    assert len(calls) <= 6


def test_a_mask_that_rarely_drops_is_read_of_a_few_rows() -> None:
    """At rate .001 three rows are kept in nearly every pass."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x + self.first(x) * x.new_empty(len(x), 1).bernoulli_(0.999) / 0.999)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    reading = pyrodrop.read(Deep(), torch.randn(3, 4), **SETTINGS)
    assert [call.drop_rate for call in reading.model.dropouts.calls] == [pytest.approx(0.001)]  # type: ignore[attr-defined]


def test_one_dropout_in_evaluation_mode_stays_off(net: Small, data: tuple[Tensor, Tensor]) -> None:
    net.drop.eval()
    reading = pyrodrop.read(net, data[0][:8], **SETTINGS)
    assert "stream.weight" not in [row[0] for row in reading.rows()[:2]]
    net.last.eval()
    assert len(pyrodrop.read(net, data[0][:8], **SETTINGS).model.dropouts) == 1  # type: ignore[attr-defined]


def test_inputs_of_another_shape_are_refused_where_a_weight_cannot_carry_the_mask() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.map(F.dropout(x, 0.5, self.training)).mean(1)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    reading = pyrodrop.read(Pooled(), torch.randn(8, 1, 4), **SETTINGS)  # one token: a mask of the weight
    assert reading.rows()[0][3] == "4 columns of map.weight"
    with pytest.raises(ValueError, match=r"was read with masks \(1, 1, 4\) of map.weight"):
        reading.predict(torch.randn(8, 2, 4), 5)
    more = pyrodrop.read(Pooled(), torch.randn(8, 2, 4), **SETTINGS)
    assert more.rows()[0][3] == "noise of the function"
    assert more.predict(torch.randn(8, 5, 4), 5).f.shape == (5, 8, 3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_network_on_a_gpu_is_read_there(net: Small, data: tuple[Tensor, Tensor]) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.small = nn.LSTM(4, 4, 2, dropout=0.3, batch_first=True), net

        def forward(self, x: Tensor) -> Tensor:
            return self.small(self.lstm(x)[0])  # type: ignore[no-any-return]

    both, x = Both().cuda(), data[0][:6].cuda()
    reading = pyrodrop.read(both, x, **SETTINGS)
    assert largest_z(by_hand(both, x, 2000), reading.predict(x, 2000).f) < 4
    run = pyrodrop.fit(reading.model, reading.guide, data, steps=20, device="cuda")
    assert next(run.model.parameters()).is_cuda  # type: ignore[attr-defined]


def _one_draw(model: Any, guide: Any, x: Tensor) -> Tensor:
    trace = poutine.trace(guide).get_trace(x)
    return poutine.replay(model, trace=trace)(x)  # type: ignore[no-any-return]


def test_each_kind_of_mask_differs_between_examples(data: tuple[Tensor, Tensor]) -> None:
    """Otherwise another kind could hide a mask that all examples share."""
    from pyrodrop.reparam import LocalReparam, reparameterize

    class Stream(nn.Module):
        def __init__(self, kind: int) -> None:
            super().__init__()
            self.kind, self.map, self.head = kind, nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            if self.kind == 0:  # noise of the function
                return self.head(F.dropout(x, 0.5, self.training).cos().mean(1))  # type: ignore[no-any-return]
            x = x.mean(1)
            h = F.dropout(self.map(x), 0.5, self.training)
            return self.head((x + h).cos() if self.kind == 1 else h)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    twice = data[0][:1].expand(2, -1, -1)
    kinds = ("noise of the function", "noise of the function", "4 columns of head.weight")
    for kind, read_as in enumerate(kinds):
        reading = pyrodrop.read(Stream(kind), data[0][:8], **SETTINGS)
        assert reading.rows()[0][3] == read_as
        model, guide = reparameterize(reading.model, reading.guide, LocalReparam())
        with torch.no_grad():
            f = torch.stack([_one_draw(model, guide, twice)[:, 0] for _ in range(40)])
        assert (f[:, 0] != f[:, 1]).any()
        joint = reading.predict(twice, 40).f
        assert torch.equal(joint[:, 0], joint[:, 1])
