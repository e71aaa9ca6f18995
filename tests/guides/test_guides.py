"""What every guide promises, and what each of them says of itself."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import nn

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors
from pyrodrop.divergences import NoDivergence
from pyrodrop.reparam import STRATEGIES
from pyrodrop.training.elbo import elbo_terms
from tests.small import Heavy, normal


def _quiet(make: Callable[[], priors.Prior]) -> priors.Prior:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", priors.ImproperPrior)
        return make()


def _exact(model: Any) -> guides.ExactLastLayer:
    guide = guides.ExactLastLayer(model, guides.MeanField)
    guide.condition_on(X, Y)
    return guide


GUIDES: dict[str, Callable[[Any], Any]] = {
    "BernoulliDropout": lambda m: guides.BernoulliDropout(m, 0.2),
    "BernoulliDropout(theta)": lambda m: guides.BernoulliDropout(m, 0.2, theta=0.05),
    "DropConnect": lambda m: guides.DropConnect(m, 0.2),
    "DropConnect(theta)": lambda m: guides.DropConnect(m, 0.2, theta=0.05),
    "GaussianDropout(A)": lambda m: guides.GaussianDropout(m, "A", drop_rate=0.2),
    "GaussianDropout(B)": lambda m: guides.GaussianDropout(m, "B", alpha=0.25),
    "VariationalDropout(A)": lambda m: guides.VariationalDropout(m, "A", "input"),
    "VariationalDropout(A2)": lambda m: guides.VariationalDropout(m, "A", "layer", kl_scale=1 / 3),
    "VariationalDropout(B)": lambda m: guides.VariationalDropout(m, "B", "input"),
    "VariationalDropout(weight)": lambda m: guides.VariationalDropout(m, "B", "weight", max_alpha=math.inf),
    "SparseDropout": guides.SparseDropout,
    "SparseDropout(cut)": lambda m: guides.SparseDropout(m, cut=3.0),
    "ARDDropout": guides.ARDDropout,
    "ConcreteDropout": guides.ConcreteDropout,
    "LogNormalDropout": lambda m: guides.LogNormalDropout(m, -2.0),
    "MeanField": guides.MeanField,
    "LowRank": guides.LowRank,
    "Point": guides.Point,
    "Ensemble": lambda m: guides.Ensemble(m, guides.MeanField, 2),
    "ExactLastLayer": _exact,
    "from_noise": guides.from_noise(
        lambda loc, noise: loc * noise,
        lambda loc: dist.Normal(1.0, 0.1).expand(loc.shape).to_event(loc.dim()),
        regularizer=lambda loc: 0.5 * loc.square().sum(),
    ),
}
NOT_PRIORS = {
    priors.Prior,
    priors.ImproperPrior,
    priors.FittedPriors,
}
PRIORS: dict[str, priors.Prior] = {
    "Gaussian": priors.Gaussian(0.7),
    "LogUniform": _quiet(priors.LogUniform),
    "ARD(weight)": priors.ARD(),
    "ARD(input)": priors.ARD("input"),
    "ARD(layer, InverseGamma)": priors.ARD("layer", dist.InverseGamma(1.0, 0.1)),
    "ARD(input, HalfCauchy)": priors.ARD("input", dist.HalfCauchy(0.5)),
    "of a user": Heavy(),
}
# Pairs without a divergence, and a word of the error that says so.
# With a divergence from the log-uniform prior only.
TYPE_A = ("GaussianDropout(A)", "VariationalDropout(A)", "VariationalDropout(A2)", "LogNormalDropout")
AT_ATOMS = (
    *(f"{g}{theta}" for g in ("BernoulliDropout", "DropConnect") for theta in ("", "(theta)")),
    "ConcreteDropout",
    "Point",
)
REFUSED: dict[tuple[str, str], str] = {
    **{(g, p): "exactly zero" for g in AT_ATOMS for p in ("LogUniform", "ARD(weight)", "ARD(input)")},
    **{(g, p): "no density over weights" for g in TYPE_A for p in PRIORS if p != "LogUniform"},
    **{("from_noise", p): "scales are latent" for p in ("ARD(layer, InverseGamma)", "ARD(input, HalfCauchy)")},
    **{("ExactLastLayer", p): "Gaussian prior of fixed scale" for p in PRIORS if p != "Gaussian"},
}
# Estimators that refuse a posterior, and how they say so.
REFUSED_ESTIMATORS: dict[tuple[str, str], str] = {
    ("from_noise", "local"): "the local estimator needs a posterior with a noise_form",
    **{("ExactLastLayer", e): "estimator must be 'shared'" for e in ("per_example", "local")},
}  # fmt: skip
# Pyro's own ELBOs need a log density of what the guide draws, or its divergence.
SVI_GUIDES = {g: make for g, make in GUIDES.items() if g not in (*TYPE_A, "from_noise", "Ensemble")}
PROPER = {g: make for g, make in GUIDES.items() if g not in TYPE_A}
X, Y = normal(20, 3, seed=1), torch.linspace(-1, 1, 20)[:, None]


def small_model(prior: priors.Prior | None = None, bias_prior: priors.Prior | None = None) -> models.NetworkModel:
    return models.MLP(
        [3, 6, 1],
        "tanh",
        prior=prior or priors.Gaussian(),
        bias_prior=bias_prior,
        likelihood=likelihoods.Gaussian(10.0),
    )


def convolutional_model(prior: priors.Prior) -> models.NetworkModel:
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 4))
    return models.from_module(net, prior=prior, likelihood=likelihoods.Categorical())


def test_every_guide_and_prior_is_in_the_lists_above() -> None:
    """What `pyrodrop.guides` and `pyrodrop.priors` export, but for base classes and what is made of a trained guide."""
    exported = {c for c in map(vars(guides).get, guides.__all__) if isinstance(c, type)}
    model = small_model()
    listed = {type(make(model)) for make in GUIDES.values()}
    assert exported - {guides.Guide, guides.RateKind} == listed
    made = {type(prior) for prior in PRIORS.values()} - {Heavy}
    assert {c for c in map(vars(priors).get, priors.__all__) if isinstance(c, type)} - NOT_PRIORS == made


@pytest.mark.few(3)
@pytest.mark.parametrize("network", ["MLP", pytest.param("convolution", marks=pytest.mark.slow)])
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("guide_name", GUIDES)
def test_contract(guide_name: str, prior: str, network: str) -> None:
    """Every guide with every prior, on an MLP and on a convolution: SVI runs 10 steps and the ELBO is finite, or the pair is
    refused by name. Latent sites of guide and model agree. A new guide or prior joins by being listed."""
    distribution = PRIORS[prior]
    images, labels = torch.randn(20, 1, 6, 6), torch.arange(20) % 4
    model, x, y = (
        (small_model(distribution, distribution), X, Y)
        if network == "MLP"
        else (convolutional_model(distribution), images, labels)
    )
    if (guide_name, network) == ("ExactLastLayer", "convolution"):
        with pytest.raises(ValueError, match="needs likelihoods.Gaussian"):
            GUIDES[guide_name](model)
        return
    if (guide_name, prior) in REFUSED:
        with pytest.raises(NoDivergence, match=REFUSED[guide_name, prior]):
            pyrodrop.fit(model, GUIDES[guide_name](model), (x, y), steps=1)
        return
    guide = GUIDES[guide_name](model)
    hyper = [site for sites in model.hyper_sites().values() for site in sites]
    drawn = poutine.trace(guide).get_trace(x, y).stochastic_nodes
    assert set(drawn) == {*model.weight_sites(), *hyper}
    if not prior.startswith(("LogUniform", "ARD(weight)", "ARD(input)")):  # these have no draws of their own
        latent = poutine.trace(model).get_trace(x, y).stochastic_nodes
        assert drawn == [n for n in latent if n != "data"]
    fit = pyrodrop.fit(model, guide, (x, y), steps=10, lr=0.01)
    elbo = fit.elbo(3)
    assert math.isfinite(elbo.value)
    assert math.isfinite(elbo.nll)
    assert {n: w.shape for n, w in fit.guide.mean().items()} == {n: w.shape for n, w in model.weight_sites().items()}  # type: ignore[attr-defined]
    assert fit.predict(x, 3).mean.shape[0] == len(x)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", PROPER)
def test_training_lowers_the_loss_and_rates_can_be_read(name: str) -> None:
    model = small_model()
    fit = pyrodrop.fit(model, PROPER[name](model), (X, Y), steps=200, lr=0.02)
    assert float(fit.losses[-20:].mean()) < float(fit.losses[:20].mean())
    rates = fit.guide.rates()  # type: ignore[attr-defined]
    assert bool(rates) == (name not in ("MeanField", "LowRank", "Point", "Ensemble", "ExactLastLayer", "from_noise"))
    assert all(bool((torch.as_tensor(r) > 0).all()) for r in rates.values())


@pytest.mark.few(1)
@pytest.mark.parametrize("loss", [Trace_ELBO, TraceMeanField_ELBO])
@pytest.mark.parametrize("make", SVI_GUIDES.values(), ids=list(SVI_GUIDES))
def test_unmodified_svi_trains(make: Callable[[Any], guides.Guide], loss: type) -> None:
    model = small_model()
    guide = make(model)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.01}), loss())
    before = {n: p.detach().clone() for n, p in [*guide.named_parameters(), *model.named_parameters()]}
    losses = [svi.step(X, Y) for _ in range(100)]
    assert sum(losses[-20:]) < sum(losses[:20])
    after = dict([*guide.named_parameters(), *model.named_parameters()])
    assert all(not torch.equal(before[n], after[n]) for n in before), "every parameter of guide and model moves"
    assert len(pyro.get_param_store()) == 0, "and none of them is in the global store"
    assert pyro.settings.get("module_local_params") is False


@pytest.mark.few(2)
@pytest.mark.parametrize("make", SVI_GUIDES.values(), ids=list(SVI_GUIDES))
def test_elbo_terms_are_pyros_mean_field_loss(make: Callable[[Any], guides.Guide]) -> None:
    """nll + kl and its gradient equal TraceMeanField_ELBO's on the same draw, in a minibatch."""
    model = small_model(bias_prior=priors.Gaussian(0.3))
    guide = make(model)
    parameters = [*guide.parameters(), *model.parameters()]
    torch.manual_seed(3)
    theirs = TraceMeanField_ELBO().differentiable_loss(model, guide, X[:8], Y[:8], num_data=20)
    want = torch.autograd.grad(theirs, parameters, allow_unused=True)
    torch.manual_seed(3)
    ours = sum(elbo_terms(model, guide, X[:8], Y[:8], num_data=20))
    got = torch.autograd.grad(ours, parameters, allow_unused=True)  # type: ignore[arg-type]
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(got, want)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", GUIDES)
def test_modules_list_the_parameters_that_pyro_sees(name: str) -> None:
    """Each once, at construction: what wraps the modules (DDP, an optimiser of torch) has no other way to find them."""
    prior = priors.Gaussian() if name in ("from_noise", "ExactLastLayer") else priors.ARD("input", dist.HalfCauchy(0.5))
    model = models.MLP([3, 4, 1], prior=prior, likelihood=likelihoods.Gaussian(learned=True))
    guide = GUIDES[name](model)
    listed = [*model.parameters(), *guide.parameters()]
    with poutine.trace(param_only=True) as seen:
        guide(torch.zeros(2, 3))
        model(torch.zeros(2, 3))
    values = [site["value"].unconstrained() for site in seen.trace.nodes.values()]
    assert {id(value) for value in values} == {id(parameter) for parameter in listed}
    assert len(listed) == len({id(parameter) for parameter in listed})


def test_predictive_and_autonormal_of_pyro() -> None:
    model = small_model()
    draws = Predictive(model, guide=guides.BernoulliDropout(model, 0.2), num_samples=5)(X)
    assert draws["y"].shape == (5, 20, 1)
    assert draws["layers.0.weight"].shape == (5, 1, 6, 3)  # Pyro keeps a place for the data plate
    parallel = Predictive(model, guide=guides.MeanField(model), num_samples=5, parallel=True)(X)
    assert parallel["y"].shape == (5, 20, 1)
    auto = AutoNormal(model)
    svi = SVI(model, auto, pyro.optim.Adam({"lr": 0.02}), Trace_ELBO())
    losses = [svi.step(X, Y) for _ in range(80)]
    assert sum(losses[-20:]) < sum(losses[:20])
    fit = pyrodrop.fit(model, AutoNormal(model), (X, Y), steps=30)
    assert fit.predict(X, 4).f.shape == (4, 20, 1)


def test_rates_by_layer() -> None:
    model = small_model()
    guide = guides.BernoulliDropout(model, {"layers.0.*": 0.05, "*": 0.4})
    assert guide.rates() == {"layers.0.weight": 0.05, "layers.1.weight": 0.4}
    assert guides.BernoulliDropout(model, 0.4, mask_input=False).rates() == {"layers.1.weight": 0.4}
    drawn = poutine.trace(guides.BernoulliDropout(model, 0.9, mask_input=False)).get_trace()
    assert bool((drawn.nodes["layers.0.weight"]["value"] != 0).all())
    with pytest.raises(ValueError, match=r"got 1.3 for layer 'layers.1.weight'"):
        guides.BernoulliDropout(model, {"layers.1.*": 1.3, "*": 0.2})


def test_mean_weights_are_those_of_torch_dropout_in_eval_mode() -> None:
    model = small_model()
    guide = guides.BernoulliDropout(model, 0.25, mask_input=True)
    means = guide.mean()
    plain = nn.Sequential(nn.Dropout(0.25), nn.Linear(3, 6), nn.Tanh(), nn.Dropout(0.25), nn.Linear(6, 1)).eval()
    with torch.no_grad():
        for index, layer in ((1, "layers.0"), (4, "layers.1")):
            plain[index].weight.copy_(guide.loc[f"{layer}.weight"] * 0.75)  # the weight behind nn.Dropout
            plain[index].bias.copy_(model.free[f"{layer}.bias"])
        torch.testing.assert_close(model.outputs(means, X), plain(X))


@pytest.mark.few(2)
@pytest.mark.parametrize("estimator", STRATEGIES)
@pytest.mark.parametrize("name", GUIDES)
def test_a_replayed_trace_is_pyro_step_by_step(name: str, estimator: str) -> None:
    """100 steps from one seed, for `shared` and `local`; the others' traces are checked against Pyro where they are made."""
    prior = PRIORS["LogUniform"] if name in TYPE_A else PRIORS["Gaussian"]
    model = models.MLP([3, 5, 1], prior=prior, likelihood=likelihoods.Gaussian(4.0, learned=True))
    guide = GUIDES[name](model)
    settings: dict[str, Any] = {"steps": 100 if estimator in ("shared", "local") else 2, "batch_size": 8, "lr": 1e-2}
    if (name, estimator) in REFUSED_ESTIMATORS:
        for engine in ("pyro", "traced"):
            with pytest.raises(ValueError, match=REFUSED_ESTIMATORS[name, estimator]):
                pyrodrop.fit(model, guide, (X, Y), engine=engine, estimator=estimator, progress=False, steps=1)
        return
    fits = [
        pyrodrop.fit(model, guide, (X, Y), engine=engine, estimator=estimator, progress=False, **settings)
        for engine in ("pyro", "traced")
    ]
    assert fits[1].settings["engine"] == ("pyro" if name == "Ensemble" else "traced")
    eager, traced = ({n: p.detach() for n, p in fit.guide.named_parameters()} for fit in fits)  # type: ignore[attr-defined]
    for n in eager:
        torch.testing.assert_close(traced[n], eager[n], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(fits[1].history, fits[0].history, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [guides.BernoulliDropout, guides.ConcreteDropout])
def test_few_inputs_are_dropped_where_it_is_said(make: Any) -> None:
    """Of 3 columns none, of 20 all; as said or named; and of a network with one weight, its only units."""

    def masked(columns: int, *widths: int, **options: Any) -> set[str]:
        model = models.MLP([columns, *widths], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
        return set(make(model, **options).rates())

    assert masked(3, 8, 1) == masked(20, 8, 1, mask_input=False) == {"layers.1.weight"}
    both = {"layers.0.weight", "layers.1.weight"}
    assert masked(20, 8, 1) == masked(3, 8, 1, mask_input=True) == masked(3, 8, 1, drop_rate={"*": 0.2}) == both
    assert masked(3, 1) == {"layers.0.weight"}
    assert guides.BernoulliDropout(small_model()).rates() == {"layers.1.weight": 0.1}
