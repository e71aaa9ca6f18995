"""ivon-opt: the improved variational online Newton optimiser, a mean-field Gaussian (Shen et al. 2024).

The weight decay of parameters with the prior N(0, s^2) is 1 / (N s^2), as the loss is a mean over N rows and ``ess`` is N.
On yacht the learning rate of its page, 0.1, diverges with ``hess_init`` 1 and 100, and 0.03 with 10.
"""

from __future__ import annotations

from typing import Any

from peer import Problem, main, misfit, network, tensors, variances

LR, HESS_INIT, BETA2 = 0.01, 1.0, 0.9995


def draws(problem: Problem) -> tuple[Any, dict[str, Any]]:
    """Functions of sampled parameters."""
    import ivon
    import torch

    x, y, points = tensors(problem)
    net = network(problem)
    of = variances(problem, (name for name, _ in net.named_parameters()))
    groups = [{"params": [value], "weight_decay": 1 / (len(x) * of[name])} for name, value in net.named_parameters()]
    optimizer = ivon.IVON(groups, lr=LR, ess=len(x), hess_init=HESS_INIT, beta2=BETA2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, problem.steps)
    for _ in range(problem.steps):
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            (misfit(problem, net(x), y) / len(x)).backward()
        optimizer.step()
        schedule.step()
    f = []
    for _ in range(problem.draws):
        with optimizer.sampled_params(), torch.no_grad():
            f.append(net(points))
    return torch.stack(f), {"lr": LR, "hess_init": HESS_INIT, "beta2": BETA2, "steps": problem.steps}


if __name__ == "__main__":
    main("ivon-opt", {"IVON": draws})
