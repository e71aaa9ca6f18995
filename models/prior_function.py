"""A network with a fixed random function added to it.

    f(x) = g(x; W) + scale g(x; W_0)      W is trained, W_0 is drawn once and stays

Osband, Aslanides & Cassirer (2018), Randomized Prior Functions for Deep Reinforcement Learning, arXiv:1806.03335, section 3:
an ensemble of such networks, each with its own W_0 and trained on data with added noise or on a bootstrap of the rows. Far
from the data, members differ as their prior functions do. If g is linear in W, with priors W ~ N(0, s^2) and scale W_0 ~
N(0, s^2), and noise of the likelihood's variance is added to y, the sum W + scale W_0 of a maximum a posteriori estimate is
a draw from the posterior (lemma 3 there). With the bootstrap instead of the noise it is not.
"""

from __future__ import annotations

import copy

from torch import Tensor, nn

from pyrodrop.checks import real
from pyrodrop.networks.checks import copied
from pyrodrop.networks.sites import new_values, parameters_of, starting_from


class WithPriorFunction(nn.Module):
    """A network plus a prior function: a copy of it with new weights, which are fixed.

    For `models.from_module`, where the weights of the network have the names ``net.NAME``. The prior function runs in
    evaluation mode. Its weights are drawn by the modules' ``reset_parameters()``, and again for every replicate of
    `pyrodrop.fit_replicates` with ``starts="new"``; files of fits contain them.

    Args:
        net: the network, of one argument, which returns a tensor; it is copied.
        scale: factor of the prior function, in the standardised units of y, positive.
        seed: seed of the prior function's weights. None draws them from torch's generator.

    Raises:
        TypeError: `net` is no module, or `scale` or `seed` is no number.
        ValueError: `scale` is not positive, `seed` is negative, or a module has parameters but no ``reset_parameters()``.
        RuntimeError: `seed` is a number and another thread is in one call for ten minutes: see `pyrodrop.threads`.

    Example:
        >>> import torch, pyrodrop
        >>> from pyrodrop import data, guides, likelihoods, models, priors
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> model = models.from_module(models.WithPriorFunction(net), priors.Gaussian(), likelihoods.Gaussian(100.0))
        >>> list(model.weight_sites())
        ['net.0.weight', 'net.2.weight']
        >>> sets = [(x, x**2 + 0.1 * torch.randn(x.shape)) for _ in range(3)]
        >>> many = pyrodrop.fit_replicates(model, guides.Point(model), sets, count=3, steps=5, starts="new")
        >>> many.predict(x, 3).f.shape
        torch.Size([3, 20, 1])
    """

    def __init__(self, net: nn.Module, scale: float = 1.0, *, seed: int | None = 0) -> None:
        super().__init__()
        self.scale: float = real(scale, "scale", "the factor of the prior function", above=0)
        parameters_of(net)  # raises for what is no network
        self.net: nn.Module = copied(net)
        prior = copy.deepcopy(self.net)
        with starting_from(seed):
            new = new_values(prior, parameters_of(prior).names)
        for name, value in prior.named_parameters():
            value.data.copy_(new[name])
        self.prior_function: nn.Module = prior.requires_grad_(False).eval()

    def forward(self, x: Tensor) -> Tensor:
        """The sum of network and prior function."""
        return self.net(x) + self.scale * self.prior_function(x)  # type: ignore[no-any-return]


def drawn_anew(network: nn.Module) -> set[str]:
    """Names of the fixed parameters that `NetworkModel.reset_parameters` redraws: those of prior functions."""
    return {
        f"{prefix}.prior_function.{name}".lstrip(".")
        for prefix, module in network.named_modules()
        if isinstance(module, WithPriorFunction)
        for name, _ in module.prior_function.named_parameters()
    }
