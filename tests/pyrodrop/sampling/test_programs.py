"""Sampling any Pyro program: the density of Pyro's kernels, draws with known moments, and what is refused."""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.mcmc.util import initialize_model
from pyro.nn import PyroModule, PyroSample
from pyro.ops.integrator import potential_grad
from torch import Tensor, nn
from torch.distributions import constraints

import pyrodrop
from pyrodrop.sampling.compiled_density import CompiledDensity
from pyrodrop.sampling.density import Density, arguments_of

Y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
OPTIONS: dict[str, Any] = {"engine": "traced", "chains": 16, "draws": 40, "tune": 100, "progress": False}


def schools(y: Tensor | None, sigma: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 5.0))
    scale = pyro.sample("scale", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(sigma)):
        offset = pyro.sample("offset", dist.Normal(0.0, 1.0))
        effect = pyro.deterministic("effect", mean + scale * offset)
        pyro.sample("y", dist.Normal(effect, sigma), obs=y)


def supports() -> None:
    """A site of each kind of support."""
    pyro.sample("positive", dist.Gamma(2.0, 3.0))
    pyro.sample("unit", dist.Beta(2.0, 3.0).expand([2]).to_event(1))
    pyro.sample("interval", dist.Uniform(torch.tensor([-1.0, 2.0]), torch.tensor([1.0, 5.0])).to_event(1))
    pyro.sample("above", dist.Pareto(1.5, 3.0))
    shares = pyro.sample("shares", dist.Dirichlet(torch.tensor([1.0, 2.0, 4.0])))
    root = pyro.sample("root", dist.LKJCholesky(3, 2.0))
    cuts = dist.TransformedDistribution(
        dist.Normal(torch.zeros(3), 1.0).to_event(1), [dist.transforms.OrderedTransform()]
    )
    ordered = pyro.sample("ordered", cuts)
    with pyro.plate("rows", 3):
        pyro.sample("z", dist.Normal(ordered, shares).mask(torch.tensor(True)))
    covariance = root @ root.T + torch.eye(3)
    pyro.factor("also", -0.3 * covariance.logdet())
    with poutine.mask(mask=torch.tensor([True, False, True])), pyro.plate("three", 3):
        pyro.sample("y", dist.Normal(shares, 0.5), obs=torch.tensor([0.2, 9.0, 0.3]))


def mixture(y: Tensor) -> None:
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
    with pyro.plate("kinds", 2):
        loc = pyro.sample("loc", dist.Normal(0.0, 3.0))
    with pyro.plate("rows", len(y)):
        kind = pyro.sample("kind", dist.Categorical(weights))
        pyro.sample("y", dist.Normal(loc[kind], 1.0), obs=y)


def chain(y: Tensor) -> None:
    """A hidden Markov model, and a continuous site below a discrete one."""
    stay = pyro.sample("stay", dist.Beta(5.0, 2.0))
    state: Any = torch.tensor(0)
    for t in pyro.markov(range(len(y))):
        state = pyro.sample(f"state_{t}", dist.Bernoulli(torch.where(state == 1, stay, 1 - stay))).long()
        pyro.sample(f"y_{t}", dist.Normal(1.0 * state, 0.5), obs=y[t])
    kind = pyro.sample("kind", dist.Bernoulli(stay))
    pyro.sample("below", dist.Normal(1.0 * kind, 0.3))


class Regression(PyroModule):  # type: ignore[misc]
    """A network of Pyro, with a parameter that has no prior."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = PyroModule[nn.Linear](2, 1)
        self.layer.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 2]).to_event(2))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        mean = self.layer(x)[:, 0]
        noise = pyro.sample("noise", dist.HalfNormal(1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(mean, noise), obs=y)
        return mean


def counts(n: Tensor) -> None:
    """Writes where the values of a site are 0, which are not at the same places in all chains."""
    with pyro.plate("groups", 2):
        shares = pyro.sample("shares", dist.Dirichlet(torch.tensor([0.5, 1.0, 2.0])))
        pyro.sample("n", dist.Multinomial(6, shares, validate_args=False), obs=n)


def views() -> None:
    """Writes that a view made before them, and a view to write through, share."""
    z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    whole, other = z.clone(), z.clone()
    first, last = whole[:2], other[2:]
    whole[z > 0.2] = 3.0
    last[last > 0] = -1.0
    pyro.factor("f", -(first.square().sum() + whole.sum() + other.square().sum()))


X = torch.linspace(-1, 1, 12).reshape(6, 2)
CASES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "schools": lambda: (schools, {"y": Y, "sigma": SIGMA}),
    "supports": lambda: (supports, ()),
    "mixture": lambda: (mixture, (Y / 5,)),
    "chain": lambda: (chain, (torch.tensor([0.1, 1.2, 0.7]),)),
    "module": lambda: (Regression(), (X, X[:, 0])),
    "counts": lambda: (counts, (torch.tensor([[3.0, 2.0, 1.0], [6.0, 0.0, 0.0]]),)),
}


@pytest.mark.parametrize("case", CASES)
def test_energy_and_gradient_are_pyros(case: str) -> None:
    """In float64, by a recording that is mapped over chains; values on their supports are those of Pyro's transforms."""
    torch.set_default_dtype(torch.float64)
    try:
        program, data = CASES[case]()
        args = data if isinstance(data, dict) else dict(enumerate(data))
        args = {name: value.double() for name, value in args.items()}
        arguments = arguments_of(args if isinstance(data, dict) else tuple(args.values()))
        compiled = CompiledDensity(density := Density(program, arguments), 3, "traced")
        assert (compiled.engine, compiled.block) == ("traced", 3)
        q = torch.stack([density.flat(density.draw(seed)) for seed in (5, 6, 7)])
        energies, gradients = compiled.energies(q)
        for number in range(3):
            values = {name: value.clone() for name, value in density.by_site(q[number]).items()}
            _, theirs, transforms, _ = initialize_model(
                program, arguments.args, arguments.kwargs, initial_params=values
            )
            gradient, energy = potential_grad(theirs, values)
            torch.testing.assert_close(energies[number], energy, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(gradients[number], density.flat(gradient), rtol=1e-8, atol=1e-8)
            for name, value in density.constrained(q).items():
                torch.testing.assert_close(value[number], transforms[name].inv(density.by_site(q[number])[name]))
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_write_that_a_view_shares_stays_as_it_is() -> None:
    compiled = CompiledDensity(density := Density(views, arguments_of(())), 3, "traced")
    q = torch.stack([density.flat(density.draw(seed)) for seed in (5, 6, 7)])
    assert ((q > 0.2).any(0) & (q < 0.2).any(0)).sum() > 1
    want = [density.energy(density.by_site(row)) for row in q]
    torch.testing.assert_close(compiled.energies(q)[0], torch.stack(want))


@pytest.mark.more
def test_moments_of_known_distributions() -> None:
    """Without observations the posterior is the prior: means of every support, in Monte Carlo errors."""

    def prior() -> None:
        pyro.sample("gamma", dist.Gamma(2.0, 4.0))
        pyro.sample("beta", dist.Beta(2.0, 6.0))
        pyro.sample("shares", dist.Dirichlet(torch.tensor([1.0, 2.0, 5.0])))
        pyro.sample("between", dist.Uniform(2.0, 4.0))
        pyro.sample("root", dist.LKJCholesky(2, 1.0))

    sampled = pyrodrop.sample(prior, (), **OPTIONS)
    wanted = {"gamma": [0.5], "beta": [0.25], "shares": [0.125, 0.25, 0.625], "between": [3.0]}
    effective = 0.5 * sampled.diagnostics().ess_f
    for name, means in wanted.items():
        values = sampled.samples[name].reshape(16 * 40, -1)
        errors = (values.mean(0) - torch.tensor(means)).abs() / (values.std(0) / effective**0.5)
        assert bool((errors < 4).all()), name
    correlation = sampled.samples["root"][..., 1, 0].flatten()  # uniform on (-1, 1)
    assert abs(float(correlation.mean())) < 4 * (1 / 3 / effective) ** 0.5
    assert float(correlation.square().mean()) == pytest.approx(1 / 3, abs=4 * (4 / 45 / effective) ** 0.5)


def test_schools_have_the_reference_means() -> None:
    """Of posteriordb's eight_schools_noncentered: mu 4.4, tau 3.6 (10,000 draws of Stan)."""
    sampled = pyrodrop.sample(schools, {"y": Y, "sigma": SIGMA}, **{**OPTIONS, "chains": 32, "draws": 60})
    for name, mean, sd in (("mean", 4.41, 3.32), ("scale", 3.60, 3.23)):
        assert abs(float(sampled.samples[name].mean()) - mean) < 4 * sd / 500**0.5
    assert (sampled.samples["scale"] > 0).all()
    assert sampled.diagnostics().e_bfmi > 0.5  # type: ignore[operator]
    draws = sampled.predict(num_samples=100)
    assert {name: tuple(value.shape) for name, value in draws.items()} == {
        "mean": (100,), "scale": (100,), "offset": (100, 8), "effect": (100, 8), "y": (100, 8)
    }  # fmt: skip
    rows = torch.arange(100) * (32 * 60) // 100
    torch.testing.assert_close(draws["mean"], sampled.samples["mean"].flatten()[rows])
    torch.testing.assert_close(draws["effect"], draws["mean"][:, None] + draws["scale"][:, None] * draws["offset"])
    assert 5 < float((draws["y"] - draws["effect"]).std()) < 20
    more = sampled.predict({"y": None, "sigma": SIGMA}, 40, sites=["effect"])
    assert more.keys() == {"effect"}


def test_discrete_sites_are_summed_out() -> None:
    """A coin of two biases: the share of the first, by enumeration on a grid."""

    def coin(y: Tensor) -> None:
        share = pyro.sample("share", dist.Uniform(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            kind = pyro.sample("kind", dist.Bernoulli(share))
            pyro.sample("y", dist.Bernoulli(0.2 + 0.7 * kind), obs=y)

    y = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0])
    sampled = pyrodrop.sample(coin, {"y": y}, **OPTIONS)
    assert list(sampled.samples) == ["share"]
    share = torch.linspace(0, 1, 2001)
    density = (0.2 + 0.7 * share) ** 4 * (0.8 - 0.7 * share)
    mean = float((share * density).sum() / density.sum())
    assert float(sampled.samples["share"].mean()) == pytest.approx(mean, abs=4 * 0.22 / 300**0.5)


def test_the_funnel_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Neal (2003): x_k ~ N(0, exp(v / 2)), v ~ N(0, 3), which no step size serves."""

    def funnel() -> None:
        v = pyro.sample("v", dist.Normal(0.0, 3.0))
        pyro.sample("x", dist.Normal(0.0, (v / 2).exp()).expand([9]).to_event(1))

    with caplog.at_level(logging.WARNING, logger="pyrodrop"):
        sampled = pyrodrop.sample(functools.partial(funnel), (), **{**OPTIONS, "max_steps": 50})
    diagnostics = sampled.diagnostics()
    assert not diagnostics.mixed
    assert diagnostics.diverging or diagnostics.e_bfmi < 0.3  # type: ignore[operator]
    assert "LocScaleReparam" in str(diagnostics)
    assert "the draws of funnel should not be used yet" in caplog.text


def test_a_matrix_without_a_factor_has_no_density_and_stops_no_chain() -> None:
    def covariance() -> None:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(2), (a + 3) * torch.eye(2)), obs=torch.ones(2))

    compiled = CompiledDensity(Density(covariance, arguments_of(())), 2, "traced")
    energy, gradient = compiled.energies(torch.tensor([[-4.5], [1.0]]))
    assert (compiled.engine, compiled.block) == ("traced", 2)
    assert energy.isfinite().tolist() == gradient.isfinite()[:, 0].tolist() == [False, True]


def dependent() -> None:
    low = pyro.sample("low", dist.Normal(0.0, 1.0))
    pyro.sample("x", dist.Uniform(low, low + 1))


def below_a_kind() -> None:
    kind = pyro.sample("kind", dist.Bernoulli(0.5))
    pyro.sample("x", dist.Uniform(0.0, 1.0 + kind))


class Counts:
    """Its scale depends on the number of calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        pyro.sample("x", dist.Normal(0.0, float(self.calls)))


def branches() -> None:
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    if x > 0:
        pyro.sample("other", dist.Normal(0.0, 1.0))


def with_noise() -> None:
    pyro.sample("x", dist.Normal(torch.randn(()), 1.0))


def with_pythons_noise() -> None:
    pyro.sample("x", dist.Normal(random.random(), 1.0))


def subsamples() -> None:
    with pyro.plate("rows", 10, subsample_size=5):
        pyro.sample("x", dist.Normal(0.0, 1.0))


def masked() -> None:
    with poutine.mask(mask=torch.tensor([True, False])), pyro.plate("rows", 2):
        pyro.sample("x", dist.Normal(0.0, 1.0))


def one(distribution: Any, **infer: Any) -> Callable[[], None]:
    def program() -> None:
        pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("x", distribution, infer=infer)

    return program


REFUSED = {
    "a support that depends on a site": (dependent, "support of 'x' depends on other latent sites"),
    "a support that depends on a discrete site": (below_a_kind, "support of 'x' depends on other latent sites"),
    "a counter": (Counts(), "calls"),
    "sites that depend on values": (branches, "same sites at all values"),
    "random numbers": (with_noise, "random numbers that are no sites"),
    "random numbers of Python": (with_pythons_noise, "random numbers that are no sites"),
    "a subsample": (subsamples, "'rows' takes other rows in every call"),
    "a masked site": (masked, "'x' is masked"),
    "counts": (one(dist.Poisson(3.0)), "'x' has a Poisson distribution, which is discrete"),
    "a point": (one(dist.Delta(torch.tensor(1.0))), "'x' is a point"),
    "sequential enumeration": (one(dist.Bernoulli(0.5), enumerate="sequential"), "random numbers that are no sites"),
    "an improper prior": (one(dist.ImproperUniform(constraints.real, (), ())), "'x' is improper"),
    "angles": (one(dist.VonMises(0.0, 1.0)), "'x' is periodic on the real line"),
    "angles in other units": (
        one(dist.TransformedDistribution(dist.VonMises(0.0, 1.0), [dist.transforms.AffineTransform(0.0, 57.3)])),
        "'x' is periodic on the real line",
    ),
    "a mixture": (
        one(dist.MixtureSameFamily(dist.Categorical(torch.ones(2)), dist.Normal(torch.zeros(2), 1.0))),
        "the support of 'x' has no transformation",
    ),
    "a covariance": (one(dist.Wishart(torch.tensor(5.0), torch.eye(2))), "the support of 'x' has no transformation"),
    "no site": (lambda: None, "must have a continuous site"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_density_is_refused(case: str) -> None:
    program, message = REFUSED[case]
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=message):
        pyrodrop.sample(program, (), **OPTIONS)
    assert torch.equal(state, torch.get_rng_state())


def test_arguments_that_are_not_of_programs_are_refused() -> None:
    for options in ({"start": "prior"}, {"dtype": torch.float64}):
        with pytest.raises(TypeError, match="are for models of pyrodrop.models"):
            pyrodrop.sample(schools, (Y, SIGMA), **options)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="must be a mapping of its keyword arguments, or a tuple"):
        pyrodrop.sample(schools, Y)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="can be called"):
        pyrodrop.sample("schools", (Y, SIGMA))  # type: ignore[call-overload]


def test_a_branch_on_a_value_is_refused() -> None:
    """x has a density with a kink, which a recording could not repeat: scale 1 above 0 and 3 below."""

    def kinked() -> None:
        x = pyro.sample("x", dist.Uniform(-10.0, 10.0))
        pyro.factor("f", -x.square() / 2 if x > 0 else -x.square() / 18)

    with pytest.raises(ValueError, match=r"can be recorded, .*pyro\.infer\.NUTS"):
        pyrodrop.sample(kinked, (), **OPTIONS)


def test_a_program_is_as_it_was_and_predicts_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(3)
    program = Regression()
    program.train()
    bias = program.layer.bias.detach().clone()
    with caplog.at_level(logging.WARNING, logger="pyrodrop"):
        sampled = pyrodrop.sample(program, (X, X[:, 0]), max_steps=10, **OPTIONS)
    assert "parameters are not sampled" in caplog.text
    assert "bias" in caplog.text
    assert program.training
    before = sampled.predict((X, None), 50, seed=1)
    with torch.no_grad():
        program.layer.bias.add_(100.0)
    after = sampled.predict((X, None), 50, seed=1)
    torch.testing.assert_close(after, before)
    torch.testing.assert_close(program.layer.bias, bias + 100)
    mean = X @ before["layer.weight"][:, 0].T + bias
    assert abs(float((before["y"].T - mean).mean())) < 0.5
    with pytest.raises(TypeError, match="torch.save"):
        sampled.save("nowhere")


def test_sites_of_two_dtypes_are_refused() -> None:
    with pytest.raises(ValueError, match="all sites must have one dtype"):
        pyrodrop.sample(one(dist.Normal(torch.zeros(2).double(), 1.0).to_event(1)), (), **OPTIONS)


def test_a_tree_has_the_chains_and_all_groups() -> None:
    sampled = pyrodrop.sample(
        schools, {"y": Y, "sigma": SIGMA}, **{**OPTIONS, "chains": 4, "draws": 20, "max_steps": 8}
    )
    tree = pyrodrop.to_arviz(sampled, num_samples=10)
    assert {"posterior", "posterior_predictive", "log_likelihood", "observed_data", "sample_stats"} <= set(
        tree.children
    )
    posterior = tree["posterior"]
    assert dict(posterior["effect"].sizes) == {"chain": 4, "draw": 10, "schools": 8}
    rows = torch.arange(10) * 2
    torch.testing.assert_close(torch.as_tensor(posterior["mean"].values), sampled.samples["mean"][:, rows])
    effect = torch.as_tensor(posterior["effect"].values)
    want = dist.Normal(effect, SIGMA).log_prob(Y)
    torch.testing.assert_close(torch.as_tensor(tree["log_likelihood"]["y"].values), want)
    assert float(tree["sample_stats"]["lp"][2, 3]) == pytest.approx(float(sampled.stats["lp"][2, 6]))
