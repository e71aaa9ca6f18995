"""TyXe: mean field with local reparameterisation, by its `fit`.

Its guide reads parameters by a function that Pyro 1.9 no longer has; here it reads them by their path.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from peer import Problem, main, network, tensors, variances

LR = 0.01


def draws(problem: Problem) -> tuple[Any, dict[str, Any]]:
    """Functions of sampled weights."""
    import pyro
    import torch
    import tyxe
    from torch.utils.data import DataLoader, TensorDataset

    class AutoNormal(tyxe.guides.AutoNormal):  # type: ignore[misc,name-defined]
        def get_loc(self, site_name: str) -> Any:
            return attrgetter(f"{site_name}.loc")(self)

        def get_scale(self, site_name: str) -> Any:
            return attrgetter(f"{site_name}.scale")(self)

    x, y, points = tensors(problem)
    net = network(problem)
    of = variances(problem, (name for name, _ in net.named_parameters()))
    prior = tyxe.priors.DictPrior(
        {name: pyro.distributions.Normal(torch.zeros(()), torch.tensor(value**0.5)) for name, value in of.items()}
    )
    likelihood = (
        tyxe.likelihoods.Categorical(len(x))
        if problem.classes
        else tyxe.likelihoods.HomoskedasticGaussian(len(x), precision=problem.precision)
    )
    bnn = tyxe.VariationalBNN(net, prior, likelihood, AutoNormal)
    optimizer = pyro.optim.Adam({"lr": LR})  # type: ignore[attr-defined]
    data = DataLoader(TensorDataset(x, y), batch_size=len(x))
    with tyxe.poutine.local_reparameterization():
        bnn.fit(data, optimizer, problem.steps)
    with torch.no_grad():
        f = bnn.predict(points, num_predictions=problem.draws, aggregate=False)
    return f, {"training": f"Adam, lr {LR:g}, {problem.steps} steps"}


if __name__ == "__main__":
    main("tyxe", {"mean field": draws})
