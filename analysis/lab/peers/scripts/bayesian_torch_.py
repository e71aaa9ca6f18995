"""bayesian-torch: independent normal weights and biases by reparameterisation, one sample per step.

The package uses its argument ``prior_variance`` as a standard deviation, so a standard deviation is passed.
"""

from __future__ import annotations

from typing import Any

from peer import Problem, descend, main, misfit, network, tensors

LR = 0.01


def draws(problem: Problem) -> tuple[Any, dict[str, Any]]:
    """Functions of sampled weights."""
    import torch
    from bayesian_torch.layers import LinearReparameterization
    from bayesian_torch.models.dnn_to_bnn import get_kl_loss

    x, y, points = tensors(problem)
    net = network(
        problem, lambda inputs, outputs, scale: LinearReparameterization(inputs, outputs, prior_variance=scale)
    )
    for module in net:
        module.dnn_to_bnn_flag = True  # forward then returns only the outputs, as in networks of dnn_to_bnn
    descend(lambda: misfit(problem, net(x), y) + get_kl_loss(net), net.parameters(), problem.steps, LR)
    with torch.no_grad():
        f = torch.stack([net(points) for _ in range(problem.draws)])
    return f, {"training": f"Adam, cosine, lr {LR:g}, {problem.steps} steps"}


if __name__ == "__main__":
    main("bayesian-torch", {"VI": draws})
