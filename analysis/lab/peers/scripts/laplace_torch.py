"""laplace-torch: Laplace approximations around a MAP estimate, with its linearised predictive (GLM, its default).

In a regression the functions are joint over all points; the functions of logits are drawn independently at every point.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from peer import Problem, decay, descend, main, misfit, network, tensors, variances

LR = 0.01


def draws(problem: Problem, subset: str, structure: str) -> tuple[Any, dict[str, Any]]:
    """Functions of the linearised network."""
    import torch
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    x, y, points = tensors(problem)
    net = network(problem)
    parameters = dict(net.named_parameters())
    descend(lambda: misfit(problem, net(x), y) + decay(problem, parameters), net.parameters(), problem.steps, LR)
    of, last = variances(problem, parameters), 2 * len(problem.scales) - 2
    chosen = [name for name in parameters if subset == "all" or name.startswith(f"{last}.")]
    precision = [torch.full((1 if structure == "kron" else parameters[n].numel(),), 1 / of[n]) for n in chosen]
    noise = {} if problem.classes else {"sigma_noise": problem.precision**-0.5}
    kind = "classification" if problem.classes else "regression"
    la = Laplace(net, kind, subset, structure, prior_precision=torch.cat(precision), **noise)
    la.fit(DataLoader(TensorDataset(x, y), batch_size=len(x)))
    settings = {
        "MAP": f"Adam, cosine, lr {LR:g}, {problem.steps} steps",
        "hessian_structure": structure,
        "pred_type": "glm",
    }
    if problem.classes:
        return la.functional_samples(points, pred_type="glm", n_samples=problem.draws).detach(), settings
    mean, covariance = (moments.detach().double() for moments in la(points, pred_type="glm", joint=True))
    root = torch.linalg.eigh((covariance + covariance.T) / 2)  # of low rank if there are more points than weights
    root = root.eigenvectors * root.eigenvalues.clamp(min=0).sqrt()
    normal = torch.randn(problem.draws, len(root), dtype=torch.float64)
    return (mean.flatten() + normal @ root.T)[..., None], settings


METHODS = {
    "full": partial(draws, subset="all", structure="full"),
    "KFAC": partial(draws, subset="all", structure="kron"),
    "last layer": partial(draws, subset="last_layer", structure="full"),
}

if __name__ == "__main__":
    main("laplace-torch", METHODS, joint=lambda problem: not problem.classes)
