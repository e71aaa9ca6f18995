"""Any `torch.nn.Module` as a Pyro model.

    w_j ~ prior_j                     one site per weight, named as the parameter: ``layers.0.weight``
    f   = network(x; w)               [N, outputs], in standardised units
    y   ~ likelihood(f)               [N, ...], site ``y``, in the units of y

Weights are drawn outside the data plate, once for the whole minibatch; the plate scales the minibatch's likelihood to
the data set. MacKay (1992), A Practical Bayesian Framework for Backpropagation Networks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import pyro
import torch
from torch import Tensor, nn
from torch.func import functional_call

from pyrodrop.data import Dataset
from pyrodrop.likelihoods import Likelihood
from pyrodrop.modules import LocalModule, ParameterTree
from pyrodrop.patterns import by_name
from pyrodrop.priors import Prior
from pyrodrop.reparam.lazy import LazyWeight
from pyrodrop.scaling import Standardize

_TRIED = 256  # rows that a network must need all its weights for

PriorSetting = Prior | Mapping[str, Prior]


class NetworkModel(LocalModule):
    """The Pyro model of a network: priors on its weights, a likelihood on its outputs.

    Args:
        network: maps ``[N, ...]`` to ``[N, outputs]``. It is copied; the original stays as it is. Many draws of its
            weights are computed at once, in a network with nn.LSTM, nn.GRU or nn.RNN one after the other.
        prior: prior of every weight (parameters with two or more dimensions), or a mapping from name patterns to
            priors, of which the first that fits decides.
        likelihood: law of y given the outputs.
        bias_prior: prior of the biases and other vectors, likewise. None makes them parameters of the model,
            fitted as points without a prior.
        in_features: width of x, or the shape of one image, where it can be told.

    A call is ``model(x, y=None, num_data=None)``, x and y in their own units; `num_data` is the size of the data set
    that a minibatch stands for. It returns f in the units of y.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        prior: PriorSetting,
        likelihood: Likelihood,
        bias_prior: PriorSetting | None,
        in_features: int | tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        _check_noiseless(network)
        network = copy.deepcopy(network)
        values = dict(network.named_parameters())
        weights = [n for n, v in values.items() if v.dim() > 1]
        if not weights:
            raise ValueError(f"a network model needs a network with weights; {type(network).__name__} has none")
        biases = [n for n in values if n not in weights]
        self.priors: dict[str, Prior] = by_name(prior, weights, "prior")
        if bias_prior is not None and biases:
            self.priors |= by_name(bias_prior, biases, "bias_prior")
        self.priors = {n: self.priors[n] for n in values if n in self.priors}
        self.free = ParameterTree({n: v for n, v in values.items() if n not in self.priors})
        _freeze(network)
        self.network = network
        self.likelihood = likelihood
        self.in_features = in_features
        self.inputs, self.targets = Standardize(), Standardize()

    @property
    def batches_weights(self) -> bool:
        """Whether `torch.vmap` can run the network for many weights at once: not with nn.LSTM, nn.GRU or nn.RNN."""
        network: nn.Module = self.network
        return not any(isinstance(module, nn.RNNBase) for module in network.modules())

    def weight_sites(self) -> dict[str, Tensor]:
        """Name and initial value of every weight that has a prior, in the order of the network."""
        buffers = dict(self.network.named_buffers())
        return {n: buffers[n] for n in self.priors}

    def hyper_sites(self) -> dict[str, dict[str, Tensor]]:
        """For every weight whose prior has latent hyperparameters: their names and where their factors should start."""
        found = {n: prior.hyper_sites(n, self.weight_sites()[n]) for n, prior in self.priors.items()}
        return {n: sites for n, sites in found.items() if sites}

    def standardize(self, data: Dataset) -> None:
        """Work in the standardised units of `data`; x and y of later calls stay in their own."""
        reference = next(iter(self.weight_sites().values()))
        if data.inputs is not None:
            self.inputs = copy.deepcopy(data.inputs).to(reference)
        if data.targets is not None:
            self.targets = copy.deepcopy(data.targets).to(reference)

    def describe(self) -> str:
        """One line for tables and saved files."""
        sizes = [w.numel() for w in self.weight_sites().values()]
        return f"{type(self).__name__}({sum(sizes)} weights at {len(sizes)} sites, {self.likelihood.describe()})"

    def check(self, data: Dataset) -> None:
        """Raise a ValueError, before anything is trained, if `data` do not fit this network and likelihood.

        Nor may the network compute without a weight that has a prior: its posterior would be learned from nothing.
        """
        y = self.likelihood.as_target(data.y)
        self._check_width(data.x)
        output, unused = self._try(data.x[:1])
        if unused:  # a network may choose its way by x: before it is refused it sees more
            _, unused = self._try(data.x[:_TRIED])
        if unused:
            raise ValueError(_unused(self.network, unused))
        if y.is_floating_point() and output.shape[-1] != self.likelihood.outputs(y.shape[-1]):
            raise ValueError(
                f"y has {y.shape[-1]} columns, for which {self.likelihood.describe()} needs a network with "
                f"{self.likelihood.outputs(y.shape[-1])} outputs; this one has {output.shape[-1]}"
            )
        if not y.is_floating_point() and not 0 <= int(y.min()) <= int(y.max()) < output.shape[-1]:
            raise ValueError(
                f"class labels must lie in 0 ... {output.shape[-1] - 1}, the network's outputs; "
                f"got {int(y.min())} to {int(y.max())}"
            )

    def forward(self, x: Tensor, y: Tensor | None = None, num_data: int | None = None) -> Tensor:
        self._check_width(x)
        initial = self.weight_sites()
        weights = {n: pyro.sample(n, prior.for_site(n, initial[n])) for n, prior in self.priors.items()}
        output = self._run(weights, x)
        if output.dim() > 2 and any(weights[n].dim() > initial[n].dim() for n in weights):
            output = output.squeeze(
                -3
            )  # weights of many particles keep a place for the data plate, which f fills itself
        law = self.likelihood(output, self.targets)
        f = self.likelihood.location(output, self.targets)
        target = None if y is None else self.likelihood.as_target(y)
        size = len(x) if num_data is None else num_data
        with pyro.plate("data", size, subsample=torch.arange(len(x), device=x.device)):
            pyro.sample("y", law, obs=target)
        return f

    def outputs(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The network's outputs for given weights, ``[..., N, outputs]``: batch dimensions are those of the weights."""
        self._check_width(x)
        return self._run(weights, x)

    def _try(self, x: Tensor) -> tuple[Tensor, list[str]]:
        """The network's outputs for its initial weights, and the weights that they do not depend on."""
        weights = {n: w.detach().clone().requires_grad_() for n, w in self.weight_sites().items()}
        with torch.enable_grad(), pyro.poutine.block():
            output = self._run(weights, x.to(next(iter(weights.values())).device))
        if not output.requires_grad:
            return output, list(weights)
        gradients = torch.autograd.grad(output.sum(), list(weights.values()), allow_unused=True)
        return output.detach(), [n for n, g in zip(weights, gradients, strict=True) if g is None]

    def _run(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        reference = next(iter(weights.values()))
        x = self.inputs(x).to(reference.dtype) if x.is_floating_point() else x
        free = {n: self.free[n] for n in self.free}
        initial = self.weight_sites()
        batch = torch.broadcast_shapes(*(weights[n].shape[: -initial[n].dim()] for n in weights))
        network: nn.Module = self.network
        if not batch:
            return functional_call(network, {**free, **weights}, (x,))
        lazy = {n: w.unbatched() for n, w in weights.items() if isinstance(w, LazyWeight)}
        if len(lazy) == len(weights):  # noise by example: further particles are further examples
            rows = x.expand(*batch, *x.shape).reshape(-1, *x.shape[1:])
            output = functional_call(network, {**free, **lazy}, (rows,))
            return output.reshape(*batch, len(x), *output.shape[1:])
        rows = math.prod(batch)
        flat = {n: w.expand(*batch, *initial[n].shape).reshape(rows, *initial[n].shape) for n, w in weights.items()}
        if not self.batches_weights:
            each = [functional_call(network, {**free, **{n: w[i] for n, w in flat.items()}}, (x,)) for i in range(rows)]
            output = torch.stack(each)
        else:
            output = torch.vmap(lambda w: functional_call(network, {**free, **w}, (x,)))(flat)
        return output.reshape(*batch, *output.shape[1:])

    def _check_width(self, x: Tensor) -> None:
        if isinstance(self.in_features, tuple):
            if x.dim() != 1 + len(self.in_features) or x.shape[1:] != self.in_features:
                sizes = ", ".join(map(str, self.in_features))
                raise ValueError(f"x must have shape [N, {sizes}], images of the network's size; got {tuple(x.shape)}")
        elif self.in_features is not None and (x.dim() < 2 or x.shape[-1] != self.in_features):
            raise ValueError(
                f"x must have shape [N, {self.in_features}], the width of the network's input; got {tuple(x.shape)}"
            )


def from_module(
    net: nn.Module,
    prior: PriorSetting,
    likelihood: Likelihood,
    *,
    bias_prior: PriorSetting | None = None,
) -> NetworkModel:
    """Any module as a Pyro model; see `NetworkModel` for the arguments. Biases have no prior unless one is given."""
    first = next((m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)), None)
    width = first.in_features if isinstance(first, nn.Linear) and isinstance(net, nn.Sequential | nn.Linear) else None
    return NetworkModel(net, prior=prior, likelihood=likelihood, bias_prior=bias_prior, in_features=width)


def _check_noiseless(network: nn.Module) -> None:
    """Dropout belongs to the guide; a network with dropout layers of its own would be dropped twice."""
    modules = dict(network.named_modules())
    own = [name for name, module in modules.items() if isinstance(module, nn.modules.dropout._DropoutNd)]
    inner = [name or type(network).__name__ for name, module in modules.items() if _drops(module)]
    if own or inner:
        layers = [f"dropout layers {', '.join(own)}: put nn.Identity() in their place"] if own else []
        layers += [f"layers {', '.join(inner)} that drop units: build them with dropout=0"] if inner else []
        raise ValueError(
            "the network of a model is deterministic, its noise is the guide's (guides.BernoulliDropout for dropout); got "
            f"a network with {'; and with '.join(layers)}"
        )


def _drops(module: nn.Module) -> bool:
    """Whether a layer has dropout inside, as nn.LSTM(dropout=0.1) or nn.MultiheadAttention(dropout=0.1)."""
    rate = getattr(module, "dropout", 0.0)
    return isinstance(rate, int | float) and rate > 0


def _unused(network: nn.Module, weights: list[str]) -> str:
    """What to say of weights that the network computes without."""
    text = (
        "every weight with a prior must have a part in the network's output; this network computes without "
        f"{', '.join(weights)}. A layer that is not called can be left out of it; a layer that keeps a copy of its "
        "weights does not see the ones that are drawn"
    )
    owners = {network.get_submodule(name.rpartition(".")[0]) for name in weights}
    recurrent = sorted({type(owner).__name__ for owner in owners if isinstance(owner, nn.RNNBase)})
    return text + "".join(f"; in place of nn.{name} call nn.{name}Cell step by step" for name in recurrent)


def _freeze(network: nn.Module) -> None:
    """Turn every parameter into a buffer of the same name: a call then gets all of them from outside."""
    for module in network.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                del module._parameters[name]
                module.register_buffer(name, parameter.detach().clone())
