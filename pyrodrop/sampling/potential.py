"""The posterior of a network's weights as a potential energy, for Pyro's samplers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyrodrop import threads
from pyrodrop.checks import Seed, checked, instance, shown
from pyrodrop.data import Data
from pyrodrop.models import NetworkModel
from pyrodrop.sampling.compiled_density import CompiledDensity, Name
from pyrodrop.sampling.density import network_density
from pyrodrop.threads import outside


class Potential:
    """Minus the log joint density of a model's latent sites and all of the data; see `potential`, which makes it.

    Attributes:
        model: the model, a copy in evaluation mode with the standardisation of the data.
        engine: how the value and the gradient are computed: ``compiled`` or ``traced``.
        sites: shape of the unconstrained value of every latent site.
        transforms: for every latent site, from its support to unconstrained values, as for `pyro.infer.MCMC`.
    """

    def __init__(self, compiled: CompiledDensity) -> None:
        self._compiled = compiled
        self.model: NetworkModel = compiled.density.model
        self.engine: Name = compiled.engine
        self.sites: dict[str, torch.Size] = {name: site.shape for name, site in compiled.density.sites.items()}
        self.transforms: dict[str, Any] = {n: site.to_support.inv for n, site in compiled.density.sites.items()}

    @threads.exclusive()
    def __call__(self, values: Mapping[str, Tensor]) -> Tensor:
        """The potential energy in nats, a scalar that can be differentiated once.

        Args:
            values: unconstrained value of every latent site, by name.

        Raises:
            TypeError: `values` is not a mapping.
            ValueError: names, shapes or dtypes are not those of the sites.
        """
        want = {name: (list(shape), self._compiled.density.dtype) for name, shape in self.sites.items()}
        got: dict[str, Any] = {
            name: (list(value.shape), value.dtype) if isinstance(value, Tensor) else shown(value)
            for name, value in instance(values, Mapping, "values", "a mapping from site to tensor").items()
        }
        if got != want:
            raise ValueError(f"values must be tensors of the latent sites, of shapes and dtypes {want}; got {got}")
        return _Energy.apply(self._compiled, *map(values.get, want))  # type: ignore[no-untyped-call, no-any-return]

    @checked
    @threads.exclusive()
    def initial_params(self, seed: Seed = 0) -> dict[str, Tensor]:
        """Unconstrained values to start a chain from, with a finite energy and gradient.

        Unconstrained hyperparameters are uniform on [-2, 2], as in `pyro.infer.autoguide.init_to_uniform`, and weights are
        a draw from their prior given these. The caller's random state does not change.

        Raises:
            TypeError, ValueError: the seed is not a whole number of at least 0; or none of 100 draws has a finite energy.
        """
        generator = torch.Generator(self._compiled.density.device).manual_seed(seed)
        return self._compiled.density.by_site(self._compiled.from_prior(generator)[0])


class _Energy(torch.autograd.Function):
    """The energy, whose gradients are computed together with it, as one differentiable operation."""

    @staticmethod
    def forward(ctx: Any, compiled: CompiledDensity, *values: Tensor) -> Tensor:
        energy, gradient = compiled.energies(torch.cat([value.reshape(-1) for value in values])[None])
        ctx.gradients = compiled.density.by_site(gradient[0]).values()
        return energy[0]

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, by_energy: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(by_energy * gradient for gradient in ctx.gradients)


@threads.exclusive()
@outside("potential")
@torch.inference_mode(False)
@torch.enable_grad()
@checked
def potential(model: NetworkModel, data: Data, *, dtype: torch.dtype | None = None, engine: Name = "auto") -> Potential:
    """The energy of a network's posterior and its gradient as one compiled function, for Pyro's samplers.

        U(u) = -ln p(y | x, w) - ln p(w) - ln |det dw / du|        in unconstrained coordinates u, on the model's device

    The latent sites are the weights and biases that have a prior, and the latent hyperparameters of those priors. Everything
    else keeps the value that it has in `model`, and the network runs in evaluation mode: to sample weights or biases, give
    them a prior; to train the rest, train it first and pass ``Fit.model``. Value and gradient are compared with Pyro's.

    Args:
        model, data, engine: as in `pyrodrop.sample`; `model` does not change.
        dtype: ``torch.float32`` or ``torch.float64``, to which model and data are converted; None for that of the model.
            Acceptance depends on differences of energies, which float32 rounds: take float64 for all but small data.

    Returns:
        A `Potential`, the ``potential_fn`` of `pyro.infer.NUTS` or `pyro.infer.HMC`. Samples by site are the weights that
        ``Potential.model.outputs`` takes; its outputs are in standardised units.

    Raises:
        TypeError, ValueError, RuntimeError: as `pyrodrop.sample`.

    Example:
        >>> import torch, pyrodrop
        >>> from pyro.infer import MCMC, NUTS
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> likelihood = pyrodrop.likelihoods.Gaussian(precision=10.0)
        >>> model = pyrodrop.models.MLP([1, 4, 1], prior=pyrodrop.priors.Gaussian(), likelihood=likelihood)
        >>> p = pyrodrop.potential(model, (x, x**2), dtype=torch.float64, engine="traced")
        >>> nuts = NUTS(potential_fn=p, max_tree_depth=4)
        >>> mcmc = MCMC(nuts, 5, 5, p.initial_params(seed=0), transforms=p.transforms, disable_progbar=True)
        >>> mcmc.run()
        >>> p.model.outputs(mcmc.get_samples(), torch.zeros(3, 1)).shape
        torch.Size([5, 3, 1])
    """
    instance(model, NetworkModel, "model", "a model of pyrodrop.models")
    return Potential(CompiledDensity(network_density(model, data, dtype), 1, engine))
