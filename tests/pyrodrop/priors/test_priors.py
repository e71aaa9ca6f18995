"""Priors."""

import pytest
import torch
from torch import nn

from pyrodrop import likelihoods, models
from pyrodrop.distributions.units import InputUnits
from pyrodrop.priors import Gaussian

pytestmark = pytest.mark.usefixtures("float64")


def test_gaussian_density_is_torchs() -> None:
    w = torch.randn(4, 3)
    want = torch.distributions.Normal(0.0, 0.5).log_prob(w).sum()
    for prior in (Gaussian(0.5), Gaussian(length_scale=2.0)):
        torch.testing.assert_close(prior.expand(4, 3).log_prob(w), want)
        torch.testing.assert_close(prior.for_site("w", w).log_prob(w), want)
        assert prior.length_scale == 2.0
    assert Gaussian(0.5).expand(3, like=torch.ones(1, dtype=torch.float16)).sample().dtype == torch.float16


def test_weight_decay_is_the_papers() -> None:
    """lambda = p l^2 / (2 N tau) with p = .9, l = .01, N = 455, tau = .15: 3.3 * 10^-7 ... by hand."""
    assert Gaussian(length_scale=1e-2).weight_decay(drop_rate=0.1, num_data=455, precision=0.15) == pytest.approx(
        0.9 * 1e-4 / 136.5, rel=1e-12
    )


def test_a_scale_for_every_input_unit() -> None:
    scales = (0.5, 1.0, 3.0)
    prior, w = Gaussian(scales), torch.randn(4, 3)
    want = torch.distributions.Normal(0.0, torch.tensor(scales)).log_prob(w).sum()
    torch.testing.assert_close(prior.expand(4, 3).log_prob(w), want)
    torch.testing.assert_close(prior.for_site("w", w, InputUnits()).log_prob(w), want)
    torch.testing.assert_close(prior.for_site("w", w.T, InputUnits(0)).log_prob(w.T), want)  # as of nn.ConvTranspose1d
    torch.testing.assert_close(
        prior.for_site("w", w.repeat_interleave(2, 1), InputUnits(size=2)).mean, torch.zeros(4, 6)
    )
    assert (prior.scale, Gaussian(length_scale=[2.0, 1.0, 0.25]).scale) == (scales, (0.5, 1.0, 4.0))
    assert prior.length_scale == (2.0, 1.0, 1 / 3)
    assert prior.describe() == "Gaussian(scale=[0.5, 1, 3])"


def test_a_scale_for_every_input_unit_of_a_convolution() -> None:
    model = models.from_module(
        nn.Conv1d(2, 3, 5), {"weight": Gaussian([0.1, 10.0])}, likelihoods.Gaussian(1.0), bias_prior=Gaussian()
    )
    w = model.priors["weight"].for_site("weight", model.weight_sites()["weight"], model.input_units()["weight"])
    torch.testing.assert_close(w.base_dist.scale[:, :, 0], torch.tensor([0.1, 10.0]).expand(3, 2))  # type: ignore[attr-defined]


@pytest.mark.parametrize("shape", [(4, 2), (4, 6), (3,)])
def test_another_number_of_input_units_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"scale must be a number, or have one value for every input unit; 'w' of shape"
    ):
        Gaussian([0.5, 1.0, 3.0]).for_site("w", torch.zeros(shape))
    with pytest.raises(ValueError, match="got 3 scales"):
        Gaussian([0.5, 1.0, 3.0]).weight_decay(drop_rate=0.1, num_data=10)


def test_initial_weights_drawn_from_the_prior() -> None:
    prior = {"layers.0.weight": Gaussian([0.1, 20.0], drawn=True), "*": Gaussian()}
    model, plain = (
        models.MLP([2, 2000, 1], prior=p, likelihood=likelihoods.Gaussian(1.0), seed=1) for p in (prior, Gaussian())
    )
    drawn = model.weight_sites()["layers.0.weight"].clone()
    torch.testing.assert_close(drawn.std(0), torch.tensor([0.1, 20.0]), rtol=0.1, atol=0)  # six standard errors
    assert torch.equal(model.weight_sites()["layers.1.weight"], plain.weight_sites()["layers.1.weight"])
    model.reset_parameters()
    assert not torch.equal(model.weight_sites()["layers.0.weight"], drawn)
