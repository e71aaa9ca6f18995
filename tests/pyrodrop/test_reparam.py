"""Estimators: unbiased, independent where they say so, and loud where noise by example would be wrong."""

from __future__ import annotations

import copy
import gc
import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.distributions import BernoulliMixture, CorrelatedNormal, LowRankNormal, MultiplicativeNormal
from pyrodrop.elbo import elbo_terms
from pyrodrop.reparam import FlipoutReparam, LazyWeight, LocalReparam, PerExampleReparam, reparameterize
from pyrodrop.reparam.lazy import LazyLaw

pytestmark = pytest.mark.usefixtures("float64")
STRATEGIES: dict[str, Any] = {
    "shared": None,
    "per_example": PerExampleReparam(),
    "local": LocalReparam(),
    "flipout": FlipoutReparam(),
}
N, TAU = 6, 2.0
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randn(N, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def linear(init_scale: float = 0.4) -> tuple[models.NetworkModel, guides.MeanField]:
    torch.manual_seed(5)
    net = nn.Linear(3, 1, bias=False)
    model = models.from_module(net, prior=priors.Gaussian(0.8), likelihood=likelihoods.Gaussian(TAU)).double()
    return model, guides.MeanField(model, init_scale=init_scale).double()


def wrap(model: Any, guide: Any, strategy: Any) -> tuple[Any, Any]:
    return (model, guide) if strategy is None else reparameterize(model, guide, strategy)


def exact(guide: guides.MeanField) -> tuple[Tensor, list[Tensor]]:
    """Loss and gradient in closed form: N/2 ln(2 pi / tau) + tau/2 sum [(y - x m)^2 + x^2 v], plus the divergence."""
    m, log_v = (p.detach().clone().requires_grad_() for p in guide.parameters())
    v = log_v.exp()
    nll = N / 2 * math.log(2 * math.pi / TAU) + TAU / 2 * ((Y - X @ m.T).square() + X.square() @ v.T).sum()
    kl = 0.5 * (math.log(0.64) - log_v + (v + m**2) / 0.64 - 1).sum()
    return nll + kl, list(torch.autograd.grad(nll + kl, [m, log_v]))


@pytest.mark.parametrize("subsample", [False, True], ids=["whole", "minibatch"])
@pytest.mark.parametrize("vectorize", [False, True], ids=["loop", "vectorised"])
@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO, TraceGraph_ELBO])
@pytest.mark.parametrize("name", STRATEGIES)
def test_unbiased(name: str, elbo: Any, vectorize: bool, subsample: bool) -> None:
    """Loss and every component of the gradient within 4 standard errors of the closed form."""
    model, guide = linear()
    wrapped = wrap(model, guide, STRATEGIES[name])
    options = {"num_particles": 20, "vectorize_particles": True, "max_plate_nesting": 1} if vectorize else {}
    objective = elbo(**options)
    loss, gradient = exact(guide)
    parameters, found = list(guide.parameters()), []
    for turn in range(60 if vectorize else 500):
        rows = torch.randperm(N)[:2] if subsample else slice(None)
        for p in parameters:
            p.grad = None
        value = objective.loss_and_grads(*wrapped, X[rows], Y[rows], num_data=N)
        found.append(torch.cat([torch.tensor([value]), *(p.grad.flatten() for p in parameters)]))  # type: ignore[union-attr]
        assert turn < 500
    draws = torch.stack(found)
    want = torch.cat([loss.detach()[None], *(g.flatten() for g in gradient)])
    z = (draws.mean(0) - want) / (draws.std(0) / math.sqrt(len(draws)))
    assert float(z.abs().max()) < 4, z


@pytest.mark.parametrize("name", ["per_example", "local", "flipout"])
def test_unbiased_for_a_nonlinear_network(name: str) -> None:
    """Against the mean of 4e5 weight-sampled losses and gradients, drawn by the thousand."""
    torch.manual_seed(3)
    model = models.MLP([2, 4, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(3.0)).double()
    guide = guides.GaussianDropout(model, "B", alpha=0.4).double()
    x, y = torch.randn(3, 2), torch.randn(3, 1)
    p = guide.loc["layers.0.weight"]

    def gradients(strategy: Any, rounds: int, particles: int) -> Tensor:
        wrapped = wrap(model, guide, strategy)
        objective = TraceMeanField_ELBO(num_particles=particles, vectorize_particles=True, max_plate_nesting=1)
        rows = []
        for _ in range(rounds):
            loss = objective.differentiable_loss(*wrapped, x, y)
            rows.append(torch.cat([loss.detach()[None], torch.autograd.grad(loss, p)[0].flatten()]))
        return torch.stack(rows)

    want, got = gradients(None, 80, 5000), gradients(STRATEGIES[name], 40, 2500)
    se = (want.var(0) / len(want) + got.var(0) / len(got)).sqrt()
    assert float(((want.mean(0) - got.mean(0)) / se).abs().max()) < 4


def outputs(name: str, guide: Any, model: Any, x: Tensor, draws: int) -> Tensor:
    """The network's outputs of many passes, ``[draws, N, out]``."""
    wrapped = wrap(model, guide, STRATEGIES[name])
    rows = []
    for _ in range(draws):
        trace = poutine.trace(wrapped[1]).get_trace(x)
        rows.append(poutine.replay(wrapped[0], trace=trace)(x).detach())
    return torch.stack(rows)


@pytest.mark.parametrize("name", STRATEGIES)
def test_equal_rows_get_noise_of_their_own(name: str) -> None:
    """Covariance of two examples' outputs: the variance under `shared`, none under `local` and `per_example`."""
    model, guide = linear()
    f = outputs(name, guide, model, X[:1].expand(2, 3), 3000)[..., 0]
    covariance, variance = f.T.cov()[0, 1], f.var()
    se = variance / math.sqrt(3000)
    if name == "shared":
        assert torch.equal(f[:, 0], f[:, 1])
    elif name == "flipout":
        assert abs(float(covariance)) < 0.5 * float(variance)
    else:
        assert abs(float(covariance)) < 4 * float(se)


def test_variance_falls_as_one_over_the_minibatch_under_local() -> None:
    """Slope of log Var[nll estimate] against log M is -1 +- .05 under local; shared keeps the covariance (Kingma, eq. 5)."""
    model, guide = linear()
    row = X[:1].expand(64, 3), Y[:1].expand(64, 1)

    def variance(name: str, size: int) -> float:
        wrapped = wrap(model, guide, STRATEGIES[name])
        with torch.no_grad():
            values = [float(elbo_terms(*wrapped, row[0][:size], row[1][:size], num_data=64).nll) for _ in range(4000)]
        return float(torch.tensor(values).var())

    sizes = torch.tensor([1.0, 8.0, 64.0])
    local = torch.tensor([variance("local", int(s)) for s in sizes]).log()
    slope = float(torch.stack([sizes.log(), local]).cov()[0, 1] / sizes.log().var())
    assert slope == pytest.approx(-1, abs=0.05)
    assert variance("shared", 64) > 0.8 * variance("shared", 1)


def test_bernoulli_under_local_is_nn_dropout() -> None:
    """Mean and covariance of all outputs of all rows, against `F.dropout` and the weight behind it; rows independent."""
    m, x, rate, draws = torch.randn(3, 5), torch.randn(2, 5), 0.3, 40_000
    lazy = LazyWeight(LazyLaw(BernoulliMixture(m, rate), LocalReparam(), "w"))
    ours = F.linear(x.repeat(draws, 1), lazy).reshape(draws, 6)
    theirs = (F.dropout(x.expand(draws, 2, 5), rate) @ (m * (1 - rate)).T).reshape(draws, 6)
    se = (theirs.var(0) * 2 / draws).sqrt()
    assert float(((ours.mean(0) - theirs.mean(0)) / se).abs().max()) < 4
    scale = theirs.var(0).max()
    torch.testing.assert_close(ours.T.cov() / scale, theirs.T.cov() / scale, atol=0.03, rtol=0)
    values = {round(float(v), 9) for v in ours[:, 0]}
    combinations = torch.tensor([[(k >> i) & 1 for i in range(5)] for k in range(32)]).double()
    assert values <= {round(float(v), 9) for v in (combinations * x[0]) @ m[0]}, "each output is that of some mask"


def test_gradients_are_kingmas_formulas(monkeypatch: pytest.MonkeyPatch) -> None:
    """dL/d sigma^2 = dL/db zeta a^2 / (2 sqrt(delta)) under local and dL/db eps a / (2 sigma) for weights, to 1e-10."""
    a, m = torch.randn(1, 4), torch.randn(2, 4)
    v = torch.rand(2, 4).requires_grad_()
    noise = {(1, 2): torch.randn(1, 2), (2, 4): torch.randn(2, 4)}
    monkeypatch.setattr(torch, "randn_like", lambda t: noise[tuple(t.shape)])
    monkeypatch.setattr("torch.distributions.normal._standard_normal", lambda shape, **_: noise[tuple(shape)])
    law = dist.Normal(m, v.sqrt()).to_event(2)
    loss_gradient = torch.tensor([[0.7, -1.3]])

    b = F.linear(a, LazyWeight(LazyLaw(law, LocalReparam(), "w")))
    (got,) = torch.autograd.grad((b * loss_gradient).sum(), v)
    delta = (a**2 @ v.detach().T).T
    want = loss_gradient.T * noise[1, 2].T * a**2 / (2 * delta.sqrt())
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)

    again = dist.Normal(m, v.sqrt()).to_event(2)
    (got,) = torch.autograd.grad((F.linear(a, again.rsample()) * loss_gradient).sum(), v)
    want = loss_gradient.T * noise[2, 4] * a / (2 * v.detach().sqrt())
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


LAWS: dict[str, Any] = {
    "normal": lambda m: dist.Normal(m, 0.5).to_event(m.dim()),
    "type A": lambda m: CorrelatedNormal(m, -0.5),
    "type B": lambda m: MultiplicativeNormal(m, -0.5),
    "Bernoulli": lambda m: BernoulliMixture(m, 0.3),
    "Bernoulli, theta": lambda m: BernoulliMixture(m, 0.3, 0.2),
    "DropConnect": lambda m: BernoulliMixture(m, 0.3, 0.1, per="weight"),
    "low rank": lambda m: LowRankNormal(m, 0.2 * torch.ones(m.numel(), 1), torch.full((m.numel(),), 0.1)),
}


@pytest.mark.parametrize("strategy", ["local", "per_example"])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_marginal_moments_are_those_of_weight_draws(kind: str, law: str, strategy: str) -> None:
    """Mean of every output within 4.5 standard errors and its variance within 3 %, 1e5 examples; convolutions too."""
    torch.manual_seed(11)
    draws = 100_000
    if kind == "linear":
        m, x = torch.randn(2, 3), torch.randn(3)
        apply: Any = F.linear
    else:
        m, x = torch.randn(2, 3, 2), torch.randn(3, 4)
        apply = F.conv1d
    q = LAWS[law](m)
    batch = x.expand(draws, *x.shape)
    got = apply(batch, LazyWeight(LazyLaw(q, STRATEGIES[strategy], "w"))).detach()
    weights = q.expand((draws,)).sample()
    want = torch.vmap(lambda xi, w: apply(xi[None], w)[0])(batch, weights)
    se = ((got.var(0) + want.var(0)) / draws).sqrt()
    assert float(((got.mean(0) - want.mean(0)) / se).abs().max()) < 4.5
    torch.testing.assert_close(got.var(0), want.var(0), rtol=0.03, atol=0)


def test_local_convolutions_drop_the_correlation_between_positions() -> None:
    """One weight's noise moves all positions of an image together; `local` keeps each position's law and not that."""
    m, x, draws = torch.randn(1, 1, 2), torch.ones(1, 6), 20_000
    q = dist.Normal(m, 1.0).to_event(3)
    local = F.conv1d(x.expand(draws, 1, 6), LazyWeight(LazyLaw(q, LocalReparam(), "w")))[:, 0]
    weights = torch.vmap(lambda w: F.conv1d(x[None], w)[0, 0])(q.expand((draws,)).sample())
    assert float(weights.T.corrcoef()[0, 4]) > 0.99
    assert abs(float(local.T.corrcoef()[0, 4])) < 0.05


CONVOLUTIONS = [
    nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2),
    nn.Conv2d(4, 6, 3, dilation=2, padding="same", bias=False),
    nn.Conv2d(4, 4, 3, groups=4, padding=1, padding_mode="reflect"),
    nn.Conv3d(2, 3, 2, stride=(1, 2, 1), padding_mode="circular", padding=1),
    nn.Linear(4, 3, bias=False),
]


@pytest.mark.parametrize(
    "strategy", [LocalReparam(), PerExampleReparam(), FlipoutReparam()], ids=["local", "per", "flip"]
)
@pytest.mark.parametrize("layer", CONVOLUTIONS, ids=lambda layer: str(layer)[:24])
def test_layers_are_unmodified(layer: nn.Module, strategy: Any) -> None:
    """Without noise every layer's output is its own, whatever its settings."""
    layer = copy.deepcopy(layer).double()
    channels = layer.weight.shape[1] * getattr(layer, "groups", 1)  # type: ignore[union-attr, operator, index]
    x = torch.randn(2, channels, *(5,) * (layer.weight.dim() - 2))  # type: ignore[operator, union-attr]
    loc = layer.weight.detach()  # type: ignore[union-attr, operator]
    want = layer(x)
    law = dist.Normal(loc, 1e-13).to_event(loc.dim())
    del layer._parameters["weight"]
    layer.weight = LazyWeight(LazyLaw(law, strategy, "w"))
    torch.testing.assert_close(layer(x), want)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: F.linear(x, w),
        lambda x, w: F.linear(input=x, weight=w),
        lambda x, w: F.linear(x, weight=w, bias=torch.zeros(2)),
        lambda x, w: x @ w.T,
        lambda x, w: torch.matmul(x, w.t()),
        lambda x, w: torch.mm(x, w.transpose(0, 1)),
        lambda x, w: torch.addmm(torch.zeros(2), x, w.mT),
        lambda x, w: (w @ x.T).T,
    ],
)
def test_every_way_to_write_a_linear_map_has_noise_by_example(call: Any) -> None:
    """Equal rows get different outputs, with the mean of the plain map: nothing is silently left out."""
    m, x = torch.randn(2, 3), torch.randn(3).expand(4000, 3)
    y = call(x, LazyWeight(LazyLaw(dist.Normal(m, 0.3).to_event(2), LocalReparam(), "w")))
    assert y.shape == (4000, 2)
    assert len(torch.unique(y[:, 0])) == 4000
    assert float(((y.mean(0) - m @ x[0]) / (y.std(0) / math.sqrt(4000))).abs().max()) < 4.5


def test_other_operations_realise_one_draw_and_keep_it() -> None:
    m = torch.randn(2, 3, 3)
    lazy = LazyWeight(LazyLaw(dist.Normal(m, 1.0).to_event(3), LocalReparam(), "w"))
    assert "LazyWeight('w', shape=(2, 3, 3)" in repr(lazy)
    one, two = lazy * 1, lazy + 0
    assert torch.equal(one, two)
    y = F.bilinear(torch.ones(5, 3), torch.ones(5, 3), lazy)
    assert torch.equal(y[0], y[1])
    flat = LazyWeight(LazyLaw(dist.Normal(m[0], 1.0).to_event(2), LocalReparam(), "v"))
    realised = flat.sum()
    assert torch.equal(torch.einsum("ni,oi->no", torch.ones(1, 3), flat).sum(), (torch.ones(1, 3) @ flat.T).sum())
    torch.testing.assert_close(torch.einsum("ni,oi->no", torch.ones(1, 3), flat).sum(), realised)


def test_a_weight_used_twice_is_refused() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(torch.tanh(self.inner(x)))[:, :1]

    model = models.from_module(Tied(), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian()).double()
    guide = guides.MeanField(model).double()
    pyrodrop.fit(model, guide, (X, Y), steps=2)
    with pytest.raises(RuntimeError, match=r"weight 'inner.weight' is used a second time.*estimator='shared'"):
        pyrodrop.fit(model, guide, (X, Y), steps=2, estimator="local")


def test_a_recurrent_cell_never_resamples_in_silence() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.GRUCell(1, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = x.new_zeros(len(x), 4)
            for t in range(x.shape[1]):
                h = self.cell(x[:, t : t + 1], h)
            return self.out(h)

    model = models.from_module(Recurrent(), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian()).double()
    guide = guides.MeanField(model, init_scale=0.5).double()
    wrapped = reparameterize(model, guide, LocalReparam())
    x = X[:1].expand(2, 3)
    with poutine.block():
        trace = poutine.trace(wrapped[1]).get_trace(x)
        f = poutine.replay(wrapped[0], trace=trace)(x)
    assert f.shape == (2, 1)
    drawn = trace.nodes["cell.weight_hh"]["value"].drawn
    assert len(drawn) == 1, "the recurrent weight is one draw for all times"


def test_the_divergence_is_computed_once_and_no_weight_sized_noise_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.MLP([30, 40, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian()).double()
    guide = guides.MeanField(model).double()
    wrapped = reparameterize(model, guide, LocalReparam())
    counted: list[Any] = []
    import pyrodrop.reparam.lazy as lazy

    plain = lazy.divergence
    monkeypatch.setattr(lazy, "divergence", lambda *a: (counted.append(a), plain(*a))[1])
    sizes: list[int] = []
    randn_like, standard = torch.randn_like, torch.distributions.normal._standard_normal
    monkeypatch.setattr(torch, "randn_like", lambda t, **k: (sizes.append(t.numel()), randn_like(t, **k))[1])
    monkeypatch.setattr(
        "torch.distributions.normal._standard_normal", lambda s, **k: (sizes.append(s.numel()), standard(s, **k))[1]
    )
    x, y = torch.randn(7, 30), torch.randn(7, 1)
    for objective in (Trace_ELBO(), TraceMeanField_ELBO(), TraceGraph_ELBO()):
        counted.clear()
        objective.loss_and_grads(*wrapped, x, y)
        assert len(counted) == 2, "one divergence a weight"
    counted.clear()
    elbo_terms(*wrapped, x, y)
    assert len(counted) == 2
    assert max(sizes) <= 7 * 40


def test_reparameterised_in_the_guide_alone_is_refused() -> None:
    model, guide = linear()
    half = poutine.reparam(guide, config={"weight": LocalReparam()})
    for objective in (Trace_ELBO(), TraceMeanField_ELBO()):
        with pytest.raises(
            RuntimeError, match="reparameterised in the guide and not in the model|wrap model and guide both"
        ):
            objective.loss(model, half, X, Y)


def test_a_posterior_that_cannot_go_through_is_named() -> None:
    model, _ = linear()
    own = guides.from_noise(
        lambda m, e: m + e,
        lambda m: dist.Normal(0.0, 1.0).expand(m.shape).to_event(2),
        regularizer=lambda m: m.square().sum(),
    )(model).double()
    with pytest.raises(ValueError, match="does not know how Pushforward goes through"):
        pyrodrop.fit(model, own, (X, Y), steps=1, estimator="local")
    pyrodrop.fit(model, own, (X, Y), steps=1, estimator="per_example")
    with pytest.raises(ValueError, match="flipout needs deviations.*got BernoulliMixture"):
        pyrodrop.fit(model, guides.BernoulliDropout(model, 0.1).double(), (X, Y), steps=1, estimator="flipout")
    with pytest.raises(ValueError, match="no estimator is called 'locl'.*did you mean 'local'"):
        pyrodrop.fit(model, own, (X, Y), steps=1, estimator="locl")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="weight_sites"):
        reparameterize(lambda: None, own, LocalReparam())


def test_nothing_goes_quiet_when_the_law_is_collected() -> None:
    m = torch.randn(2, 3)
    lazy = LazyWeight(LazyLaw(dist.Normal(m, 0.3).to_event(2), LocalReparam(), "w"))
    gc.collect()
    y = F.linear(torch.ones(5, 3), lazy)
    assert len(torch.unique(y[:, 0])) == 5


@pytest.mark.parametrize("name", ["per_example", "local", "flipout"])
def test_composes_with_pyro(name: str) -> None:
    """By site name and by callable in poutine.reparam; scale, mask, Predictive, SVI, autocast, biases with priors."""
    model = models.MLP(
        [3, 5, 1], "tanh", prior=priors.Gaussian(), bias_prior=priors.Gaussian(), likelihood=likelihoods.Gaussian()
    )
    guide = guides.MeanField(model)
    x, y = X.float(), Y.float()
    strategy = STRATEGIES[name]
    sites = model.weight_sites()
    for config in (dict.fromkeys(sites, strategy), lambda msg: strategy if msg["name"] in sites else None):
        wrapped = poutine.reparam(model, config=config), poutine.reparam(guide, config=config)
        svi = SVI(*wrapped, pyro.optim.Adam({"lr": 0.02}), Trace_ELBO())
        losses = [svi.step(x, y) for _ in range(150)]
        assert sum(losses[-30:]) < sum(losses[:30])
        scaled = TraceMeanField_ELBO().loss(*(poutine.scale(part, scale=0.5) for part in wrapped), x, y)
        assert math.isfinite(scaled)
        masked = Trace_ELBO().loss(*(poutine.mask(part, mask=False) for part in wrapped), x, y)
        assert masked == 0
        draws = Predictive(wrapped[0], guide=wrapped[1], num_samples=4, return_sites=["y"])(x)["y"]
        assert draws.shape == (4, N, 1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert math.isfinite(Trace_ELBO().loss(*wrapped, x, y))


def test_local_has_less_variance_and_the_same_answer() -> None:
    """fit(estimator=...) changes the noise of training and not what is trained."""
    model = models.MLP([3, 20, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(5.0))
    guide = guides.MeanField(model, init_scale=0.2)
    x = torch.randn(200, 3, dtype=torch.float32)
    data = x, x.sum(1, keepdim=True).tanh()
    fits = {
        e: pyrodrop.fit(model, guide, data, steps=600, lr=0.01, estimator=e) for e in ("shared", "local", "per_example")
    }
    noise = {e: float(fit.history[-200:, 0].std()) for e, fit in fits.items()}
    assert noise["local"] < 0.5 * noise["shared"]
    values = {e: fit.elbo(100).value for e, fit in fits.items()}
    assert abs(values["local"] - values["per_example"]) < 10
    assert values["local"] > values["shared"] - 5
    assert fits["local"].settings["estimator"] == "local"
