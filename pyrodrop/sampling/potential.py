"""The posterior of a network's weights as a potential energy, for Pyro's samplers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pyrodrop import threads
from pyrodrop.arguments import shown
from pyrodrop.cards import Described
from pyrodrop.constraints import EngineName as Name
from pyrodrop.constraints import Seed, checked
from pyrodrop.data import Data
from pyrodrop.models import NetworkModel
from pyrodrop.sampling.compiled_density import NOT_FINITE, TRIES, CompiledDensity
from pyrodrop.sampling.density import density_of
from pyrodrop.surroundings import outside


class Potential(Described):
    """Minus the log joint density of a model's latent sites and all of the data; see `potential`, which makes it.

    Attributes:
        model: the model, a copy in evaluation mode with the standardisation of the data.
        engine: how the value and the gradient are computed: ``compiled``, ``traced`` or ``pyro``.
        sites: shape of the unconstrained value of every latent site.
        transforms: for every latent site, from its support to unconstrained values, as for `pyro.infer.MCMC`.
    """

    def __init__(self, compiled: CompiledDensity) -> None:
        self._compiled, self._density = compiled, compiled.density
        self.model: NetworkModel = self._density.model
        self.engine: Name = compiled.engine
        self.sites: dict[str, torch.Size] = {name: site.shape for name, site in self._density.sites.items()}
        self.transforms: dict[str, Any] = {n: site.to_support.inv for n, site in self._density.sites.items()}

    @threads.exclusive()
    def __call__(self, values: Mapping[str, Tensor]) -> Tensor:
        """The potential energy in nats, a scalar that can be differentiated once.

        Args:
            values: unconstrained value of every latent site, by name.

        Raises:
            TypeError: `values` is not a mapping of tensors.
            ValueError: names, shapes or dtypes are not those of the sites.
        """
        return _Energy.apply(self._compiled, *self._in_order(values))  # type: ignore[no-untyped-call, no-any-return]

    @threads.exclusive()
    def value_and_gradient(self, values: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The potential energy and its gradient by site, without autograd; arguments and errors are those of a call."""
        energy, gradients = _evaluated(self._compiled, self._in_order(values))
        return energy, dict(zip(self.sites, gradients, strict=True))

    def constrained(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert unconstrained values to values on the supports of the sites; leading dimensions are kept.

        `pyro.infer.MCMC` with ``transforms`` does this to its samples.

        Raises:
            TypeError: `values` is not a mapping of tensors.
            ValueError: a name is not that of a site.
        """
        self._check_mapping(values)
        extra = [name for name in values if name not in self.sites]
        if extra:
            raise ValueError(f"values must be those of the latent sites, {list(self.sites)}; got {extra}")
        return {name: self.transforms[name].inv(value) for name, value in values.items()}

    @checked
    @threads.exclusive()
    def initial_params(self, seed: Seed = 0) -> dict[str, Tensor]:
        """Unconstrained values to start a chain from.

        Unconstrained hyperparameters are uniform on [-2, 2], as in `pyro.infer.autoguide.init_to_uniform`, and weights are
        a draw from their prior given these. Draws without a finite energy and gradient are discarded.

        Args:
            seed: of the draw; the caller's random state does not change.

        Raises:
            TypeError: the seed is not a whole number.
            ValueError: the seed is negative, or none of 100 draws has a finite energy and gradient.
        """
        for attempt in range(TRIES):
            values = self._density.draw(seed + attempt * 1_000_003)
            energy, gradients = _evaluated(self._compiled, list(values.values()))
            if all(bool(result.isfinite().all()) for result in (energy, *gradients)):
                return values
        raise ValueError(NOT_FINITE)

    def describe(self) -> str:
        """One-line description."""
        count = sum(shape.numel() for shape in self.sites.values())
        return f"Potential({count} numbers at {len(self.sites)} sites, {self._density.dtype}, engine {self.engine!r})"

    def _in_order(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        """The values in the order of the sites."""
        self._check_mapping(values)
        missing = [name for name in self.sites if name not in values]
        if missing:
            raise ValueError(f"values must have an entry for every latent site; got a dict without {missing[0]!r}")
        if len(values) != len(self.sites):
            extra = sorted(values.keys() - self.sites.keys())
            raise ValueError(f"values must be those of the latent sites, {list(self.sites)}; got also {extra}")
        tensors = [values[name] for name in self.sites]
        for (name, shape), tensor in zip(self.sites.items(), tensors, strict=True):
            if tensor.shape != shape or tensor.dtype != self._density.dtype:
                raise ValueError(
                    f"values: the unconstrained value of {name!r} must have shape {tuple(shape)} and dtype "
                    f"{self._density.dtype}; got a dict with shape {tuple(tensor.shape)} and dtype {tensor.dtype}"
                )
        return tensors

    def _check_mapping(self, values: Any) -> None:
        if not isinstance(values, Mapping) or not all(isinstance(value, Tensor) for value in values.values()):
            got = shown(values) if not isinstance(values, Mapping) else "a dict with other values than tensors"
            raise TypeError(f"values must be a mapping from site to tensor; got {got}")


@torch.no_grad()
def _evaluated(compiled: CompiledDensity, values: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Energy and gradients at the values of all sites."""
    energy, *gradients = compiled(*(value.contiguous() for value in values))
    return energy, gradients


class _Energy(torch.autograd.Function):
    """The energy, whose gradients are computed together with it, as one differentiable operation."""

    @staticmethod
    def forward(ctx: Any, compiled: CompiledDensity, *values: Tensor) -> Tensor:
        energy, ctx.gradients = _evaluated(compiled, values)
        return energy

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        scale = float(factor)  # 1 in a sampler
        return (None, *(gradient if scale == 1 else scale * gradient for gradient in ctx.gradients))


@threads.exclusive()
@outside("potential")
@torch.inference_mode(False)
@torch.enable_grad()
@checked
def potential(model: NetworkModel, data: Data, *, dtype: torch.dtype | None = None, engine: Name = "auto") -> Potential:
    """The potential energy of a network's posterior and its gradient as one compiled function, for Pyro's samplers.

    The energy is minus the log joint density of all latent sites and all of the data, in unconstrained coordinates:

        U(u) = -ln p(y | x, w) - ln p(w) - ln |det dw / du|

    The latent sites are the weights and biases that have a prior, and the latent hyperparameters of those priors. Everything
    else keeps the value that it has in `model`: parameters without a prior (``prior=None``, or ``bias_prior=None``, the
    default), a learned noise precision, and running statistics. To sample weights or biases, give them a prior; to train the
    rest, train it first and pass ``Fit.model``. The network runs in evaluation mode, so BatchNorm normalises by its running
    statistics. The potential computes on the model's device with a copy of the model.

    When the potential is made, its value and gradient are compared with those that Pyro computes for the model.

    Args:
        model: a model of `pyrodrop.models`.
        data: a `Dataset` or a pair (x, y), in their own units. The model takes over the standardisation of a `Dataset`.
        dtype: ``torch.float32`` or ``torch.float64``, to which model and data are converted; None for that of the model.
            Acceptance depends on differences of energies, which float32 rounds: take float64 for all but small data.
        engine: ``compiled`` by TorchInductor, a ``traced`` graph, or ``pyro``, whose handlers run in every call, or ``auto``
            for the first of them that works. If a requested engine cannot be used, the logger `pyrodrop` says why.

    Returns:
        A `Potential`. Pass it as ``potential_fn`` to `pyro.infer.NUTS` or `pyro.infer.HMC`, and its ``transforms`` and
        ``initial_params(seed)`` to `pyro.infer.MCMC`. Samples by site are the weights that ``Potential.model.outputs``
        takes; its outputs are in standardised units.

    Raises:
        TypeError: `model` is not one of `pyrodrop.models`.
        ValueError: a prior has no density (ARD without a hyperprior), is improper (LogUniform) or has a gap around 0
            (TruncatedLogUniform); the network has dropout that no weight carries (`pyrodrop.read`) or draws random numbers
            itself; the data do not fit the model; `dtype` is neither float32 nor float64; or the result differs from
            Pyro's.
        RuntimeError: the call is inside a block that would change what it computes: see `pyrodrop.surroundings`.

    Example:
        >>> import torch, pyrodrop
        >>> from pyro.infer import MCMC, NUTS
        >>> _ = torch.manual_seed(0)
        >>> x = torch.linspace(-1, 1, 20)[:, None]
        >>> model = pyrodrop.models.MLP(
        ...     [1, 4, 1],
        ...     prior=pyrodrop.priors.Gaussian(),
        ...     bias_prior=pyrodrop.priors.Gaussian(),
        ...     likelihood=pyrodrop.likelihoods.Gaussian(precision=10.0),
        ... )
        >>> p = pyrodrop.potential(model, (x, x**2), dtype=torch.float64, engine="traced")
        >>> mcmc = MCMC(
        ...     NUTS(potential_fn=p, max_tree_depth=4),
        ...     num_samples=5,
        ...     warmup_steps=5,
        ...     initial_params=p.initial_params(seed=0),
        ...     transforms=p.transforms,
        ...     disable_progbar=True,
        ... )
        >>> mcmc.run()
        >>> p.model.outputs(mcmc.get_samples(), torch.zeros(3, 1)).shape
        torch.Size([5, 3, 1])
    """
    return Potential(CompiledDensity(density_of(model, data, dtype), 1, engine, None))
