"""Weight averaging: standard dropout at test time for a network trained with dropout."""

from __future__ import annotations

from pyrodrop.guides import Guide, Point
from pyrodrop.models import NetworkModel
from pyrodrop.prediction.prediction import Predicts
from pyrodrop.training.fitted import Fit


def averaged(run: Predicts) -> Fit:
    """The trained network with its mean weights, as a fit without weight uncertainty."""
    assert isinstance(run, Fit)
    assert isinstance(run.model, NetworkModel)
    guide = run.guide
    assert isinstance(guide, Guide)
    point = Point.average(run.model, guide)
    return Fit(run.model, point.to(run.device), run.data, run.history, run.settings, run.device)
