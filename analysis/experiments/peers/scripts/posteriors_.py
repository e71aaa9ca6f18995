"""posteriors: diagonal variational inference, and SGHMC with the gradient of all rows, from a MAP estimate.

From random weights SGHMC diverges at every learning rate of 1e-3, 3e-4 and 1e-4 on yacht.
"""

from __future__ import annotations

from typing import Any

from peer import Problem, decay, descend, main, misfit, network, tensors

LR, SGHMC_LR, ALPHA = 0.01, 3e-4, 1.0
THIN = 20


def parts(problem: Problem) -> tuple[Any, Any, Any, Any]:
    """The batch, the points, the function of the parameters, and the log posterior, which is a sum over the rows."""
    import torch

    x, y, points = tensors(problem)
    net = network(problem)

    def log_posterior(parameters: Any, batch: Any) -> tuple[Any, Any]:
        outputs = torch.func.functional_call(net, parameters, batch[0])
        return -misfit(problem, outputs, batch[1]) - decay(problem, parameters), torch.tensor([])

    return net, (x, y), points, log_posterior


def vi(problem: Problem) -> tuple[Any, dict[str, Any]]:
    """A mean-field Gaussian."""
    import posteriors
    import torch
    import torchopt

    net, batch, points, log_posterior = parts(problem)
    lr = torchopt.schedule.polynomial_schedule(LR, 0.0, 1.0, problem.steps)
    transform = posteriors.vi.diag.build(log_posterior, torchopt.adam(lr=lr), temperature=1.0, init_log_sds=-3.0)
    state: Any = transform.init(dict(net.named_parameters()))
    for _ in range(problem.steps):
        state, _ = transform.update(state, batch, inplace=False)
    weights = posteriors.vi.diag.sample(state, (problem.draws,))
    f = torch.func.vmap(lambda own: torch.func.functional_call(net, own, points))(weights)
    return f.detach(), {"training": f"Adam, linear schedule, lr {LR:g}, {problem.steps} steps"}


def sghmc(problem: Problem) -> tuple[Any, dict[str, Any]]:
    """One chain."""
    import posteriors
    import torch

    net, batch, points, log_posterior = parts(problem)
    transform = posteriors.sgmcmc.sghmc.build(log_posterior, lr=SGHMC_LR, alpha=ALPHA)
    parameters = dict(net.named_parameters())
    descend(lambda: -log_posterior(parameters, batch)[0], net.parameters(), problem.steps, LR)
    state: Any = transform.init({name: value.detach() for name, value in parameters.items()})
    f = []
    for step in range(problem.steps + problem.draws * THIN):
        state, _ = transform.update(state, batch, inplace=False)
        if step >= problem.steps and (step - problem.steps) % THIN == THIN - 1:
            f.append(torch.func.functional_call(net, state.params, points).detach())
    return torch.stack(f), {"lr": SGHMC_LR, "alpha": ALPHA, "burn-in": problem.steps, "thin": THIN}


if __name__ == "__main__":
    main("posteriors", {"VI": vi, "SGHMC": sghmc})
