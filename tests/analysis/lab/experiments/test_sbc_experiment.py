"""The experiment of simulation-based calibration, and the result that is stored of it."""

from __future__ import annotations

import torch

from pyrodrop.analysis.lab.experiments import sbc


def test_the_closed_form_is_the_posterior() -> None:
    """Moments of the draws against those of 200,000 prior draws that are weighted by the likelihood of a little data."""
    generator = torch.Generator().manual_seed(0)
    x, y = 0.2 * torch.randn(2, sbc.INPUTS, generator=generator), torch.tensor([[0.3], [-0.2]])
    prior = torch.randn(200_000, sbc.INPUTS, generator=generator) / sbc.INPUTS**0.5
    weights = torch.softmax(-0.5 * sbc.PRECISION * (y.T - prior @ x.T).square().sum(1), 0)[:, None]
    drawn = sbc.in_closed_form(1.0)(x, y, 200_000, 1)["weight"][:, 0].float()
    f, g = drawn @ x.T, prior @ x.T
    torch.testing.assert_close(f.mean(0), (weights * g).sum(0), atol=3e-3, rtol=0)
    torch.testing.assert_close(f.var(0), (weights * g**2).sum(0) - (weights * g).sum(0) ** 2, atol=0, rtol=0.03)


def test_the_linear_control_has_no_point_twice() -> None:
    """Of a linear f, any two points that are multiples of each other give one quantity."""
    _, points = sbc.inputs(linear=True)
    assert all(torch.linalg.matrix_rank(points[list(pair)]) == 2 for pair in ((0, 1), (0, 2), (1, 2)))
    _, networks = sbc.inputs(linear=False)
    assert torch.equal(networks[2], 3 * networks[1])
