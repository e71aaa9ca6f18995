"""scikit-learn: a Gaussian process with an RBF kernel with a length scale per input, fitted by marginal likelihood."""

from __future__ import annotations

from typing import Any

from peer import Problem, main

RESTARTS = 2


def draws(problem: Problem) -> tuple[Any, dict[str, Any]]:
    """Functions of the process."""
    import numpy as np
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    kernel = ConstantKernel() * RBF(np.ones(problem.x.shape[1]))
    process = GaussianProcessRegressor(
        kernel, alpha=1 / problem.precision, n_restarts_optimizer=RESTARTS, random_state=problem.seed
    )
    process.fit(problem.x, problem.y[:, 0])
    f = process.sample_y(problem.points, problem.draws, random_state=problem.seed)
    return f.T[..., None], {"kernel": str(process.kernel_), "restarts": RESTARTS}


if __name__ == "__main__":
    main("scikit-learn", {"Gaussian process": draws})
