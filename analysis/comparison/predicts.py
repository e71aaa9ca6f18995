"""What predicts: fits, replicates, draws and Gaussian processes."""

from __future__ import annotations

from typing import Any, Protocol

from pyrodrop.prediction.prediction import Prediction


class Predicts(Protocol):
    """Objects with a method ``predict``: fits and Gaussian processes."""

    def predict(self, x: Any, num_samples: int = ..., *, seed: int = ...) -> Prediction: ...


def prediction_of(run: Predicts, x: Any, num_samples: int, *, seed: int, needed_by: str) -> Prediction:
    """The prediction of a run at x, for the function `needed_by`.

    Raises:
        TypeError: the run is a fit of a Pyro program other than a network, which draws sites.
    """
    prediction: Any = run.predict(x, num_samples, seed=seed)
    if isinstance(prediction, dict):
        raise TypeError(
            f"run must have predictions with a density of y for {needed_by}, as networks and Gaussian processes do; got a "
            f"fit of a Pyro program, whose predict(...) draws the sites {', '.join(prediction)}"
        )
    return prediction  # type: ignore[no-any-return]
