"""Priors."""

import pytest
import torch

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


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.9])
@pytest.mark.parametrize("decay", [1e-9, 1e-3, 40.0])
def test_weight_decay_and_length_scale_are_one_to_one(rate: float, decay: float) -> None:
    prior = Gaussian.from_weight_decay(decay, drop_rate=rate, num_data=272, precision=3.7)
    assert prior.weight_decay(drop_rate=rate, num_data=272, precision=3.7) == pytest.approx(decay, rel=1e-14)
    again = Gaussian(length_scale=prior.length_scale)
    assert again.scale == pytest.approx(prior.scale, rel=1e-14)


def test_weight_decay_is_the_papers() -> None:
    """lambda = p l^2 / (2 N tau) with p = .9, l = .01, N = 455, tau = .15: 3.3 * 10^-7 ... by hand."""
    assert Gaussian(length_scale=1e-2).weight_decay(drop_rate=0.1, num_data=455, precision=0.15) == pytest.approx(
        0.9 * 1e-4 / 136.5, rel=1e-12
    )


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"scale": -1.0}, {"length_scale": 0.0}, {"scale": float("nan")}])
def test_scales_must_be_positive(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be a finite number .*; got"):
        Gaussian(**options)


def test_scale_and_length_scale_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="not both"):
        Gaussian(1.0, length_scale=1.0)


def test_a_prior_of_ones_own_is_told_of_input_units() -> None:
    with pytest.raises(TypeError, match="Old.for_site takes no units: add the argument"):

        class Old(Gaussian):
            def for_site(self, name: str, like: torch.Tensor) -> object:  # type: ignore[override]
                return super().for_site(name, like)
