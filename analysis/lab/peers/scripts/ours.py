"""pyrodrop by the same protocol: its posteriors, an ensemble, and draws of the exact posterior."""

from __future__ import annotations

from functools import partial
from typing import Any

from peer import Problem, main, tensors

LR = {"logit": 0.1, "log_variance": 0.03, "": 0.01}  # learning rates by substring of a parameter's name
MEMBERS = 5
CHAINS = 32


def model_of(problem: Problem) -> Any:
    """The network with its priors."""
    from pyrodrop import likelihoods, models, priors

    return models.MLP(
        problem.widths,
        problem.activation,
        prior={f"layers.{i}.*": priors.Gaussian(scale) for i, scale in enumerate(problem.scales)},
        bias_prior=priors.Gaussian(1.0),
        likelihood=likelihoods.Categorical() if problem.classes else likelihoods.Gaussian(problem.precision),
    )


def trained(problem: Problem, guide: str, members: int = 1, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Draws of one fit, or of an ensemble of them; a last layer of class labels has as few steps as it has by default."""
    import pyrodrop

    (x, y, points), model, exact = tensors(problem), model_of(problem), guide == "ExactLastLayer"
    steps = min(problem.steps, 200) if exact and problem.classes else problem.steps
    how: dict[str, Any] = {
        "steps": steps, "lr": lambda name: next(rate for part, rate in LR.items() if part in name),
        "lr_schedule": pyrodrop.schedules.cosine(steps), "estimator": "shared" if exact else "local", "device": "cpu",
        "seed": problem.seed, "progress": False,
    }  # fmt: skip
    train: Any = pyrodrop.fit if exact else partial(pyrodrop.fit_replicates, count=members, starts="new")
    fits = train(model, getattr(pyrodrop.guides, guide)(model, **options), (x, y), **how)
    settings = {"training": f"Adam, cosine, lr {LR['']:g}, {steps} steps, {how['estimator']}", **options}
    settings |= {"members": members} if members > 1 else {}
    return fits.predict(points, problem.draws, seed=problem.seed).f, settings


def sample(problem: Problem, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Draws of the exact posterior."""
    import pyrodrop

    x, y, points = tensors(problem)
    chains = min(CHAINS, problem.draws // 4)
    how = {"chains": chains, "tune": max(100, problem.steps // 30), "draws": problem.draws // chains, **options}
    sampled = pyrodrop.sample(model_of(problem), (x, y), device="cpu", seed=problem.seed, progress=False, **how)
    return sampled.predict(points, problem.draws).f, how


METHODS = {
    "point": partial(trained, guide="Point"),
    "MC dropout .05": partial(trained, guide="BernoulliDropout", drop_rate=0.05, mask_input=False),
    "mean field": partial(trained, guide="MeanField"),
    "low rank 4": partial(trained, guide="LowRank", rank=4),
    "exact last layer": partial(trained, guide="ExactLastLayer"),
    "ensemble of 5 points": partial(trained, guide="Point", members=MEMBERS),
    "sample": sample,
}

if __name__ == "__main__":
    main("pyrodrop", METHODS)
