"""posteriors: diagonal variational inference with the gradient of all rows.

Its SGHMC is left out: from a MAP estimate, with friction 1, it diverges on yacht at learning rates of 1e-3 and 3e-4, and has
not mixed after 11,000 steps at 1e-4. A step moves parameters and momenta by the old ones (explicit Euler).
"""

from __future__ import annotations

from typing import Any

from peer import Problem, decay, main, misfit, network, tensors

LR = 0.01


def vi(problem: Problem) -> tuple[Any, dict[str, Any]]:
    """A mean-field Gaussian."""
    import posteriors
    import torch
    import torchopt

    x, y, points = tensors(problem)
    net = network(problem)

    def log_posterior(parameters: Any, batch: Any) -> tuple[Any, Any]:
        outputs = torch.func.functional_call(net, parameters, batch[0])
        return -misfit(problem, outputs, batch[1]) - decay(problem, parameters), torch.tensor([])

    lr = torchopt.schedule.polynomial_schedule(LR, 0.0, 1.0, problem.steps)
    transform = posteriors.vi.diag.build(log_posterior, torchopt.adam(lr=lr), temperature=1.0, init_log_sds=-3.0)
    state: Any = transform.init(dict(net.named_parameters()))
    for _ in range(problem.steps):
        state, _ = transform.update(state, (x, y), inplace=False)
    weights = posteriors.vi.diag.sample(state, (problem.draws,))
    f = torch.func.vmap(lambda draw: torch.func.functional_call(net, draw, points))(weights)
    return f.detach(), {"training": f"Adam, linear schedule, lr {LR:g}, {problem.steps} steps"}


if __name__ == "__main__":
    main("posteriors", {"VI": vi})
