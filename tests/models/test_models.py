"""Networks as Pyro models."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import poutine
from torch import nn

from pyrodrop import data, likelihoods, models, priors
from pyrodrop.scaling import Standardize

X, Y = torch.randn(12, 2, generator=torch.Generator().manual_seed(2)), torch.arange(12.0)[:, None]


def mlp(**changes: object) -> models.MLP:
    options = {"activation": "relu", "prior": priors.Gaussian(2.0), "likelihood": likelihoods.Gaussian(4.0)} | changes
    return models.MLP([2, 5, 1], **options)  # type: ignore[arg-type]


def test_sites_are_parameter_names_with_their_priors() -> None:
    trace = poutine.trace(mlp(bias_prior=priors.Gaussian(3.0))).get_trace(X, Y)
    want = ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]
    assert [n for n in trace.stochastic_nodes if n != "data"] == want
    assert trace.observation_nodes == ["y"]
    scales = [float(trace.nodes[n]["fn"].base_dist.scale.flatten()[0]) for n in want]
    assert scales == [2.0, 3.0, 2.0, 3.0]


def test_biases_without_a_prior_are_parameters_of_the_model() -> None:
    model = mlp()
    assert [n for n, _ in model.free.named_parameters()] == [f"layers.{i}.bias_unconstrained" for i in (0, 1)]
    assert "layers.0.bias" not in poutine.trace(model).get_trace(X, Y).stochastic_nodes


def test_the_model_is_the_network_it_was_made_of() -> None:
    net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1))
    model = models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
    torch.testing.assert_close(model.outputs(model.weight_sites(), X), net(X))
    assert len(list(net.parameters())) == 4, "the module itself is left as it was"


def test_a_minibatch_stands_for_the_data_set() -> None:
    model = mlp()
    conditioned = pyro.condition(model, data=model.weight_sites())
    whole = poutine.trace(conditioned).get_trace(X, Y).log_prob_sum(lambda n, _: n == "y")
    halves = [
        poutine.trace(conditioned).get_trace(X[rows], Y[rows], num_data=12).log_prob_sum(lambda n, _: n == "y")
        for rows in (slice(0, 6), slice(6, 12))
    ]
    torch.testing.assert_close(whole, sum(halves) / 2)


def test_standardisation_is_an_affine_map_around_the_network() -> None:
    """f = loc_y + scale_y net((x - loc_x) / scale_x), and the precision stays in the units of y."""
    model = mlp()
    raw = model.outputs(model.weight_sites(), (X - 3.0) / 2.0)
    model.standardize(
        data.Dataset(X, Y, inputs=Standardize(torch.tensor([3.0]), torch.tensor([2.0])), targets=Standardize(10.0, 5.0))
    )
    trace = poutine.trace(pyro.condition(model, data=model.weight_sites())).get_trace(X, Y)
    distribution = trace.nodes["y"]["fn"].base_dist
    torch.testing.assert_close(distribution.loc, 10 + 5 * raw)
    torch.testing.assert_close(distribution.scale, torch.full((12, 1), 0.5))
    torch.testing.assert_close(trace.nodes["_RETURN"]["value"], 10 + 5 * raw)


def test_weights_with_leading_dimensions_are_many_networks() -> None:
    model = mlp()
    weights = {n: torch.randn(3, 2, *w.shape) for n, w in model.weight_sites().items()}
    many = model.outputs(weights, X)
    assert many.shape == (3, 2, 12, 1)
    torch.testing.assert_close(many[2, 1], model.outputs({n: w[2, 1] for n, w in weights.items()}, X))


def test_a_prior_by_layer() -> None:
    model = mlp(prior={"layers.0.*": priors.Gaussian(0.1), "*": priors.Gaussian(9.0)})
    assert model.priors["layers.0.weight"].describe() == "Gaussian(scale=0.1)"
    assert model.priors["layers.1.weight"].describe() == "Gaussian(scale=9)"
    with pytest.raises(ValueError, match="no pattern fits 'layers.1.weight'"):
        mlp(prior={"layers.0.*": priors.Gaussian(0.1)})


def test_a_network_with_its_own_dropout_is_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 5), nn.Dropout(0.1), nn.Linear(5, 1))
    with pytest.raises(ValueError, match=r"layers 1 that drop units: put nn.Identity\(\)"):
        models.from_module(net, prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))


def test_a_wide_and_deep_network_is_a_line_and_a_perceptron() -> None:
    """Against the formula with the weights of the model; the outputs for the noise have no line."""
    model = models.WideAndDeep(
        [2, 5, 2], prior=priors.Gaussian(), likelihood=likelihoods.HeteroscedasticGaussian("softplus")
    )
    slopes, intercept, scale = torch.tensor([[1.0], [-3.0]]), torch.tensor([0.5]), torch.tensor([0.01])
    model.set_line(slopes, intercept, scale)
    w = model.weight_sites()
    biases = [model.free[f"deep.layers.{layer}.bias"] for layer in (0, 1)]
    deep = (X @ w["deep.layers.0.weight"].T + biases[0]).relu() @ w["deep.layers.1.weight"].T + biases[1]
    want = torch.cat([X @ slopes + intercept + scale * deep[:, :1], deep[:, 1:]], 1)
    torch.testing.assert_close(model.outputs(w, X), want)
    model.set_line(slopes, intercept, scale, alone=True)
    torch.testing.assert_close(model.outputs(w, X), torch.cat([X @ slopes + intercept, torch.zeros(12, 1)], 1))
    model.set_line(slopes, intercept, scale)
    model.set_range(torch.tensor([-0.5, -1.0]), torch.tensor([0.5, 0.25]))
    inside = torch.stack([X[:, 0].clamp(-0.5, 0.5), X[:, 1].clamp(-1.0, 0.25)], 1)
    deep = model.outputs(w, inside) - torch.cat([inside @ slopes, torch.zeros(12, 1)], 1)
    torch.testing.assert_close(model.outputs(w, X), deep + torch.cat([X @ slopes, torch.zeros(12, 1)], 1))
    model.set_range(torch.tensor([-0.5, -1.0]), torch.tensor([0.5, 0.25]), of_line=True)
    torch.testing.assert_close(model.outputs(w, X), model.outputs(w, inside))
    with pytest.raises(ValueError, match=r"shape \[2, T\], intercept and scale \[T\]; got \[1, 2\], \[1\] and \[1\]"):
        model.set_line(slopes.T, intercept, scale)
