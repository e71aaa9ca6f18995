"""A brute-force reference of a posterior over a network's weights.

    f_t = functional_call(network, W_t, x),   W_t ~ q               one set of weights per sample, for all of x
    nll = -E_q[ln p(y | f)],   its gradient by autograd             every sample separately

The network is the user's module, unchanged; `pyrodrop.analysis.lab.networks.posteriors` defines the samples.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyrodrop.analysis.lab.networks.case import Case
from pyrodrop.analysis.lab.networks.posteriors import Posterior, Units
from pyrodrop.checks import Inputs
from pyrodrop.likelihoods import Categorical

WARM_UP = 8  # calls after which the outputs of a network that counts its calls must be constant
_NUMBERS = 2**23  # elements of sampled weights at once
_CHUNK = 500  # samples at once


def weight_names(network: nn.Module, case: Case) -> list[str]:
    """Names of the parameters with a prior: those that require a gradient, have two or more dimensions and a scale."""
    return [
        n for n, p in network.named_parameters() if p.requires_grad and p.dim() > 1 and case.scale_of(n) is not None
    ]


def units_of(network: nn.Module, case: Case) -> dict[str, Units]:
    """The input units of every weight, from the case or else from the type of its module."""
    units_by_name: dict[str, Units] = {}
    for prefix, module in network.named_modules():
        for leaf, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = f"{prefix}.{leaf}" if prefix else leaf
            units: Units = None
            if parameter.dim() < 2:
                units = None
            elif isinstance(module, nn.modules.conv._ConvNd) and leaf == "weight":
                transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
                units = (0, 1) if transposed else (1, module.groups)
            elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
                units = (0, 1)
            elif isinstance(module, nn.Linear | nn.RNNBase | nn.modules.rnn.RNNCellBase | nn.MultiheadAttention):
                units = (1, 1)
            units_by_name[name] = next(
                (axis_and_groups for pattern, axis_and_groups in case.units.items() if fnmatch(name, pattern)), units
            )
    return units_by_name


def rate_of(case: Case, name: str) -> float:
    """The drop rate of one weight."""
    if not isinstance(case.drop_rate, Mapping):
        return case.drop_rate
    return next(rate for pattern, rate in case.drop_rate.items() if fnmatch(name, pattern))


def nll_of(case: Case, f: Tensor, y: Tensor) -> Tensor:
    """-ln p(y | f), summed over all elements."""
    likelihood = case.likelihood()
    if isinstance(likelihood, Categorical):
        return F.cross_entropy(f, y, reduction="sum")
    precision: Any = likelihood.precision  # type: ignore[attr-defined]
    scale = torch.as_tensor(precision, dtype=f.dtype).rsqrt().expand_as(f)
    return -torch.distributions.Normal(f, scale, validate_args=False).log_prob(y.reshape(f.shape)).sum()


class Oracle:
    """A network with a posterior over its weights.

    Args:
        network: the user's network, which is copied with its training modes.
        leaves: unconstrained parameters of the posterior, by name (at least ``loc``) and then by weight.
        others: parameters without a prior, and buffers, by name.
    """

    def __init__(
        self,
        case: Case,
        posterior: Posterior,
        network: nn.Module,
        leaves: Mapping[str, Mapping[str, Tensor]],
        others: Mapping[str, Tensor],
    ) -> None:
        self.case: Case = case
        self.posterior: Posterior = posterior
        self.network: nn.Module = copy.deepcopy(network)
        self.leaves: dict[str, dict[str, Tensor]] = {
            tree: {n: v.detach().clone() for n, v in values.items()} for tree, values in leaves.items()
        }
        self.others: dict[str, Tensor] = {n: v.detach().clone() for n, v in others.items()}
        known = units_of(network, case)
        self.units: dict[str, Units] = {name: known[name] for name in self.leaves["loc"]}
        self.rates: dict[str, float] = {
            name: rate_of(case, name) if type(posterior).__name__ == "Bernoulli" else 0.0 for name in self.units
        }

    def noise(self, count: int) -> dict[str, dict[str, Tensor]]:
        """The noise of `count` samples, by weight."""
        return {
            name: self.posterior.noise(loc, count, self.rates[name], self.units[name])
            for name, loc in self.leaves["loc"].items()
        }

    def weights(self, leaves: Mapping[str, Mapping[str, Tensor]], noise: Mapping[str, Any]) -> dict[str, Tensor]:
        """One sample of every weight."""
        return {
            name: self.posterior.weight({t: leaves[t][name] for t in leaves}, noise[name], self.units[name])
            for name in self.units
        }

    def kl(self, leaves: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
        """The KL divergence from the priors."""
        parts = []
        for name in self.units:
            scale = self.case.scale_of(name)
            assert scale is not None
            parameters = {tree: leaves[tree][name] for tree in leaves}
            parts.append(self.posterior.kl(parameters, scale, self.rates[name], self.units[name]))
        return torch.stack(parts).sum()

    def functions(self, x: Inputs, count: int) -> Tensor:
        """f of `count` samples in evaluation mode, ``[count, N, ...]``."""
        network = copy.deepcopy(self.network).eval()

        def one(noise: Any) -> Tensor:
            return self.case.call(network, x, {**_copies(self.others, noise), **self.weights(self.leaves, noise)})

        with torch.no_grad():
            return torch.cat([_over_draws(one, self.noise(n)) for n in self._sizes(count)])

    def terms(self, x: Inputs, y: Tensor, count: int, *, training: bool) -> Tensor:
        """nll of `count` samples, ``[count]``, in evaluation mode or, with `training`, in the network's modes."""
        network = copy.deepcopy(self.network).train(False) if not training else copy.deepcopy(self.network)

        def one(noise: Any) -> Tensor:
            f = self.case.call(network, x, {**_copies(self.others, noise), **self.weights(self.leaves, noise)})
            return nll_of(self.case, f, y)

        with torch.no_grad():
            return torch.cat([_over_draws(one, self.noise(n)) for n in self._sizes(count)])

    def gradients(
        self, x: Inputs, y: Tensor, count: int, look: Callable[[dict[str, Tensor]], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """nll of `count` samples, ``[count]``, and `look` of each sample's gradient of nll + kl, ``[count, ...]``."""
        network = copy.deepcopy(self.network)
        with torch.no_grad():
            for _ in range(WARM_UP):
                self.case.call(network, x, {n: v.clone() for n, v in self.others.items()})
        flat = {f"{tree}.{n}": v for tree, values in self.leaves.items() for n, v in values.items()}
        free = {n: v for n, v in self.others.items() if n in dict(self.network.named_parameters())}
        fixed = {n: v for n, v in self.others.items() if n not in free}
        moved = {**flat, **{f"free.{n}": v for n, v in free.items()}}

        def loss(values: Mapping[str, Tensor], noise: Any) -> tuple[Tensor, Tensor]:
            leaves = {tree: {n: values[f"{tree}.{n}"] for n in self.units} for tree in self.leaves}
            others = {n: values[f"free.{n}"] for n in free}
            f = self.case.call(network, x, {**_copies(fixed, noise), **others, **self.weights(leaves, noise)})
            nll = nll_of(self.case, f, y)
            return nll + self.kl(leaves), nll

        def one(noise: Any) -> Tensor:
            values, nll = torch.func.grad(loss, has_aux=True)(moved, noise)
            return torch.cat([nll.detach()[None], look(values)])

        seen = torch.cat([_over_draws(one, self.noise(n)) for n in self._sizes(count)])
        return seen[:, 0], seen[:, 1:]

    def _sizes(self, count: int) -> list[int]:
        """Sizes of the blocks of samples, limited by the memory of their weights."""
        weights = sum(loc.numel() for loc in self.leaves["loc"].values())
        most = max(1, min(_CHUNK, _NUMBERS // weights))
        return [min(most, count - first) for first in range(0, count, most)]


def train_point(
    case: Case, network: nn.Module, x: Inputs, y: Tensor, steps: int, lr: float
) -> tuple[dict[str, Tensor], list[float]]:
    """Maximum a posteriori with Adam in a plain PyTorch loop, in place; returns all dense tensors and the losses."""
    scales = {n: case.scale_of(n) for n in weight_names(network, case)}
    parameters = dict(network.named_parameters())
    moved = [p for p in parameters.values() if p.requires_grad]
    optimizer = torch.optim.Adam(moved, lr)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        penalty = sum((parameters[n] ** 2).sum() / (2 * scale**2) for n, scale in scales.items() if scale is not None)
        nll = nll_of(case, case.call(network, x), y)
        (nll + penalty).backward()
        optimizer.step()
        losses.append(float(nll.detach()))
    state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return {n: v.detach().clone() for n, v in state.items() if v.layout == torch.strided}, losses


def _copies(tensors: Mapping[str, Tensor], noise: Any) -> dict[str, Tensor]:
    """Copies of parameters and buffers that one sample may change, such as running statistics in training mode."""
    zero = 0 * next(iter(next(iter(noise.values())).values())).sum()
    return {n: v + zero.to(v.dtype) if v.is_floating_point() else v.clone() for n, v in tensors.items()}


def _over_draws(function: Callable[[Any], Tensor], noise: Any) -> Tensor:
    """The stacked results of `function` for every sample, by vmap or, if it is not supported, by a loop."""
    with _plain_attention():
        try:
            return torch.vmap(function)(noise)
        except RuntimeError:
            return torch.stack([function(each) for each in _unbound(noise)])


def _unbound(noise: Mapping[str, Mapping[str, Tensor]]) -> Iterator[Any]:
    count = len(next(iter(next(iter(noise.values())).values())))
    for i in range(count):
        yield {name: {key: value[i] for key, value in each.items()} for name, each in noise.items()}


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Disable the fused attention kernels of evaluation mode, which vmap does not support."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
