"""The Bernoulli mixture: its draws, its density and its moments."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import MixtureSameFamily, MultivariateNormal

from pyrodrop.distributions import BernoulliMixture


def test_weight_draws_have_the_distribution_of_torch_dropout() -> None:
    """W x under q equals M dropout(x) (1 - rate) in mean and covariance."""
    m, x, rate = torch.randn(3, 5), torch.randn(5), 0.3
    draws = 200_000
    ours = BernoulliMixture(m, rate).expand((draws,)).sample() @ x
    theirs = (F.dropout(x.expand(draws, 5), rate) * (1 - rate)) @ m.T
    se = theirs.std(0) / math.sqrt(draws)
    assert bool(((ours.mean(0) - theirs.mean(0)).abs() < 4 * math.sqrt(2) * se).all())
    torch.testing.assert_close(ours.T.cov(), theirs.T.cov(), atol=0.05, rtol=0)


@pytest.mark.few(2)
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 5, 3, 3)])
@pytest.mark.parametrize("theta", [0.0, 0.4])
def test_moments_are_those_of_draws(shape: tuple[int, ...], theta: float, float64: None) -> None:
    q = BernoulliMixture(torch.randn(shape), torch.linspace(0.1, 0.6, 5), theta)
    draws = q.sample((100_000,))
    assert q.mean.shape == q.variance.shape == draws.shape[1:] == shape
    se = (q.variance / len(draws)).sqrt() + 1e-12
    assert float(((draws.mean(0) - q.mean) / se).abs().max()) < 5
    torch.testing.assert_close(draws.var(0), q.variance, rtol=0.05, atol=1e-12)


def test_density_is_that_of_torchs_mixture(float64: None) -> None:
    """Against MixtureSameFamily of multivariate normals, a column at a time."""
    m, keep, theta = torch.randn(3, 4), torch.tensor([0.9, 0.5, 0.2, 0.99]), 0.3
    q = BernoulliMixture(m, 1 - keep, theta)
    value = q.sample((7,))
    want = torch.zeros(7)
    for k in range(4):
        means = torch.stack([m[:, k], torch.zeros(3)])
        columns = MultivariateNormal(means, torch.eye(3) * theta**2)
        mixture = MixtureSameFamily(torch.distributions.Categorical(torch.stack([keep[k], 1 - keep[k]])), columns)
        want += mixture.log_prob(value[..., k])
    torch.testing.assert_close(q.log_prob(value), want, rtol=1e-12, atol=1e-12)


def test_atoms_have_the_probability_of_their_masks(float64: None) -> None:
    m = torch.tensor([[1.0, 0.0, 2.0], [3.0, 0.0, 4.0]])  # the middle column is 0 whether kept or not
    q = BernoulliMixture(m, torch.tensor([0.1, 0.2, 0.3]))
    draw = q.sample((50,))
    kept = draw.mask  # type: ignore[attr-defined]
    rates = torch.tensor([0.1, 0.2, 0.3])
    want = torch.where(kept > 0, (1 - rates).log(), rates.log()).sum(-1)
    torch.testing.assert_close(q.log_prob(draw), want)
    assert set(kept[:, 1].tolist()) == {0.0, 1.0}, "the mask remembers what the values cannot show"
    # a value without a mask: the middle column is certain, and what is no atom is impossible
    torch.testing.assert_close(q.log_prob(m.clone()), torch.tensor(math.log(0.9) + math.log(0.7)))
    assert float(q.log_prob(m + 0.5)) == -math.inf


def test_gradients_reach_loc_through_the_draw() -> None:
    m = torch.randn(3, 4, requires_grad=True)
    w = BernoulliMixture(m, 0.5).rsample()
    w.sum().backward()
    torch.testing.assert_close(m.grad, w.mask.expand(3, 4))  # type: ignore[attr-defined]


def test_a_draw_at_rate_0_does_not_leave_its_mask_on_the_parameter() -> None:
    m = torch.nn.Parameter(torch.randn(3, 4))
    draw = BernoulliMixture(m, 0.0).rsample()
    assert torch.equal(draw, m)
    assert not hasattr(m, "mask")


def test_a_learned_rate_is_refused_where_its_gradient_would_be_lost() -> None:
    rate = torch.tensor(0.5, requires_grad=True)
    with pytest.raises(ValueError, match="relaxed mask"):
        BernoulliMixture(torch.ones(2, 2), rate).rsample()


def test_a_batch_has_its_own_rates_also_where_those_of_one_weight_were_read() -> None:
    q = BernoulliMixture(torch.randn(3, 5), 0.3)
    assert q.keep_rate.shape == (5,)
    batch = q.expand((4,))
    assert (batch.keep_rate.shape, batch.batch_shape, q.batch_shape) == ((4, 5), (4,), ())
    assert batch.log_prob(batch.sample()).shape == (4,)
