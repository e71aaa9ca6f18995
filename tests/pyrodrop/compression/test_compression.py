"""Compression: the small network is the cut one, to rounding, and plain PyTorch."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import data, guides, likelihoods, models, priors
from pyrodrop.divergences import NoDivergence

CLASSES: dict[str, Any] = {"prior": priors.ARD(), "likelihood": likelihoods.Categorical()}
PIXELS, DIGITS = (12, 784), (12, 1, 28, 28)


NETWORKS: dict[str, tuple[Callable[[], models.NetworkModel], tuple[int, ...]]] = {
    "lenet-300-100": (lambda: models.LeNet300100(**CLASSES), PIXELS),
    "lenet-5": (lambda: models.LeNet5(**CLASSES), DIGITS),
    "lenet-5-rectified": (lambda: models.LeNet5(rectified=True, **CLASSES), DIGITS),
    "biases-with-prior": (lambda: models.MLP([784, 30, 10], bias_prior=priors.ARD(), **CLASSES), PIXELS),
}


def cut(model: models.NetworkModel, share: float = 0.9, dead: float = 0.5, seed: int = 0) -> pyrodrop.Fit:
    """A fit with biases, and a posterior of which `share` of the weights and `dead` of the units are cut, in and out."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for bias in model.free.parameters():
            bias.normal_()
    guide = guides.ARDDropout(model)
    with torch.no_grad():
        for name in guide.sites:
            gone = torch.rand_like(guide.loc[name]) < share
            for axis in (0, 1)[: guide.loc[name].dim()]:
                some = torch.rand(guide.loc[name].shape[axis]) < dead / 2
                gone |= some.reshape(-1, *(1,) * (gone.dim() - 1 - axis))
            guide.log_variance[name].unconstrained().copy_(  # type: ignore[attr-defined]
                guide.loc[name].square().log() + torch.where(gone, 5.0, -5.0)
            )
    return pyrodrop.Fit(model, guide, None, torch.tensor([[1.0, 1.0, 1.0]]), {})


def masked(fit: pyrodrop.Fit, x: Tensor) -> Tensor:
    """The dense twin: f of the posterior means with those of ln alpha >= 3 set to 0 by hand."""
    guide: Any = fit.guide
    model: Any = fit.model
    weights = {n: guide.loc[n].detach() * (guide.log_alpha(n).detach() < 3) for n in guide.sites}
    with torch.no_grad():
        return model.likelihood.location(model.outputs(weights, x), model.targets)  # type: ignore[no-any-return]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_are_the_masked_networks(name: str) -> None:
    build, shape = NETWORKS[name]
    fit = cut(build())
    x = torch.randn(shape)
    torch.testing.assert_close(fit.compress(x=x)(x), masked(fit, x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(fit.compress(structured=False, x=x)(x), masked(fit, x), atol=1e-5, rtol=1e-5)


def layers(network: nn.Module) -> list[Any]:
    return [module for module in network.modules() if isinstance(module, nn.Linear | nn.Conv2d)]


def test_no_unit_without_weights_is_left() -> None:
    fit = cut(NETWORKS["lenet-300-100"][0](), share=0.98)
    of_network = layers(fit.compress())
    for layer, following in itertools.pairwise(of_network):
        assert layer.weight.any(1).all()
        assert following.weight.any(0).all()
    assert of_network[0].in_features < 784
    assert of_network[0].out_features < 300
    assert of_network[-1].out_features == 10


def test_a_constant_unit_goes_into_the_next_bias() -> None:
    """One unit by hand: b2 + w2 tanh(b1)."""
    model = models.MLP([2, 3, 1], "tanh", prior=priors.ARD(), likelihood=likelihoods.Gaussian(1.0))
    fit = cut(model, share=0.0, dead=0.0)
    guide: Any = fit.guide
    with torch.no_grad():
        guide.log_variance["layers.0.weight"].unconstrained()[1] = 10.0
    small = fit.compress()
    b1, b2 = (model.free[f"layers.{i}.bias"].detach() for i in (0, 1))
    last = layers(small)[-1]
    torch.testing.assert_close(last.bias, b2 + guide.loc["layers.1.weight"][:, 1].detach() * torch.tanh(b1[1]))
    assert last.weight.shape == (1, 2)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "pool", [nn.Identity(), nn.AvgPool2d(3, stride=1, padding=1), nn.MaxPool2d(3, stride=1, padding=1)]
)
def test_a_constant_map_stays_where_padding_meets_it(pool: nn.Module) -> None:
    """At the border a padded convolution, or an average over padding, sees zeros in its place."""
    convolutions = (
        nn.Conv2d(1, 5, 3),
        nn.Softplus(),
        nn.Conv2d(5, 4, 3),
        nn.Softplus(),
        pool,
        nn.Conv2d(4, 3, 3, padding=1),
    )
    net = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(3 * 16, 2))
    fit = cut(models.from_module(net, **CLASSES), share=0.0, dead=0.0)
    guide: Any = fit.guide
    with torch.no_grad():
        guide.log_variance["2.weight"].unconstrained()[:] = 20.0
    x = torch.randn(5, 1, 8, 8)
    small = fit.compress(x=x)
    torch.testing.assert_close(small(x), masked(fit, x), atol=1e-5, rtol=1e-5)
    sizes = [m.out_channels for m in small.modules() if isinstance(m, nn.Conv2d)]
    assert sizes == [1, 4, 3], "no later layer uses the first one, but PyTorch has no convolution with 0 channels"


def test_an_average_over_padding_is_not_folded() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Softplus(), nn.AvgPool2d(2, padding=1), nn.Flatten(), nn.Linear(4 * 9, 2)
    )
    fit = cut(models.from_module(net, **CLASSES), share=0.0, dead=0.0)
    guide: Any = fit.guide
    with torch.no_grad():
        guide.log_variance["0.weight"].unconstrained()[1:3] = 20.0
    x = torch.randn(5, 1, 6, 6)
    torch.testing.assert_close(fit.compress(x=x)(x), masked(fit, x), atol=1e-5, rtol=1e-5)


def test_standardisation_of_inputs_and_outputs_is_part_of_the_network() -> None:
    """x around 2000 and y around 300, in their original units, with constant and with predicted noise."""
    x, y = 2000 + 5 * torch.randn(40, 3), 300 + 20 * torch.randn(40, 1)
    for likelihood, width in ((likelihoods.Gaussian(1.0), 1), (likelihoods.HeteroscedasticGaussian(), 2)):
        model = models.MLP([3, 20, width], prior=priors.ARD(), likelihood=likelihood)
        model.standardize(data.Dataset(x, y).standardized())
        fit = cut(model, share=0.6)
        f = fit.compress()(x)
        torch.testing.assert_close((f - 300) / 20, (masked(fit, x) - 300) / 20, atol=1e-5, rtol=0)


def test_the_network_needs_nothing_of_this_package(tmp_path: Path) -> None:
    """It is unpickled and run in a process in which importing pyrodrop raises an error."""
    fit = cut(NETWORKS["lenet-5"][0]())
    file, x = tmp_path / "net.pt", torch.ones(2, 1, 28, 28)
    small = fit.compress()
    torch.save(small, file)
    code = (
        "import sys; sys.modules['pyrodrop'] = None; import torch; torch.set_num_threads(1)\n"
        f"net = torch.load({str(file)!r}, weights_only=False); print(net(torch.ones(2, 1, 28, 28)).sum().item())"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(float(small(x).sum()), rel=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["lenet-300-100", "lenet-5"])
def test_export(name: str) -> None:
    build, shape = NETWORKS[name]
    fit = cut(build())
    x = torch.randn(shape)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(fit.compress(), (x,), dynamic_shapes=({0: rows},))
    torch.testing.assert_close(program.module()(x[:5]), masked(fit, x[:5]), atol=1e-5, rtol=1e-5)


def test_a_pruned_fit_draws_what_is_left() -> None:
    fit = cut(models.MLP([3, 40, 2], **CLASSES))
    pruned: Any = fit.pruned()
    guide: Any = fit.guide
    keep = guide.keep_mask()
    drawn = pruned.guide.draw(2000)
    for name, w in drawn.items():
        assert not w[:, ~keep[name]].any()
        torch.testing.assert_close(w.mean(0), guide.mean()[name] * keep[name], atol=0.01, rtol=0)
        sd = guide.posterior(name).stddev.detach() * keep[name]
        torch.testing.assert_close(w.std(0), sd, atol=0.003, rtol=0.12)
    x = torch.randn(5, 3)
    assert pruned.predict(x, 20).f.shape == (20, 5, 2)
    torch.testing.assert_close(pruned.compress()(x), fit.compress()(x))
    with pytest.raises(NoDivergence, match="pruned weights are atoms at 0; use the ELBO of the fit before pruning"):
        pruned.elbo(1, (x, torch.zeros(5, dtype=torch.long)))
