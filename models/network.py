"""Any `torch.nn.Module` as a Pyro model.

    w_j ~ prior_j                     one site per weight, named as the parameter: ``layers.0.weight``
    f   = network(x; w)               [N, ...], in standardised units
    y   ~ likelihood(f)               [N, ...], site ``y``, in the units of y

Weights are drawn outside the data plate, once for the whole minibatch; the plate scales the minibatch's likelihood to
the data set. MacKay (1992), A Practical Bayesian Framework for Backpropagation Networks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from pyrodrop.data import Dataset
from pyrodrop.distributions.units import InputUnits
from pyrodrop.inputs import Inputs, mapped, num_rows
from pyrodrop.likelihoods import Likelihood, aligned, per_row
from pyrodrop.modules import LocalModule, ParameterTree
from pyrodrop.names import by_name
from pyrodrop.networks.attributes import changes
from pyrodrop.networks.call import call, of_traced_size
from pyrodrop.networks.checks import check_weights_kept, check_width, runs, say_unused, unused_weights
from pyrodrop.networks.examples import Examined, close, examine, few_rows, signature
from pyrodrop.networks.first import first_weights
from pyrodrop.networks.many import for_each
from pyrodrop.networks.modes import evaluating, undisturbed
from pyrodrop.networks.noise import check_dropout_layers, check_noiseless
from pyrodrop.networks.parametrised import check_parametrised
from pyrodrop.networks.sites import Parameters, freeze, parameters_of
from pyrodrop.networks.starts import new_values
from pyrodrop.networks.units import input_units
from pyrodrop.priors import Prior
from pyrodrop.reparam.lazy import LazyWeight
from pyrodrop.scaling import Standardize

_TRIED = 256  # rows that a network must need all its weights for

PriorSetting = Prior | Mapping[str, Prior | None]


class NetworkModel(LocalModule):
    """The Pyro model of a network: priors on its weights, a likelihood on its outputs.

    Args:
        network: maps x to ``[N, outputs]`` or ``[N, ..., outputs]``. It is copied; the original stays as it is. Parameters
            with ``requires_grad=False`` are fixed: they have no prior and are not trained. One parameter under several names
            (tied weights) is one site, called by the first. Submodules in training mode (BatchNorm) train on the statistics
            of their minibatch and move their running ones in `pyrodrop.fit`; everything else runs in evaluation mode.
        prior: prior of every weight (trained parameters with two or more dimensions), or a mapping from name patterns to
            priors, of which the first that fits decides. None for a weight: no prior, it is trained as a point.
        likelihood: distribution of y given the outputs.
        bias_prior: prior of the biases and other vectors, likewise. None makes them parameters of the model,
            fitted as points without a prior.
        in_features: width of x, or the shape of one image, where it is known.
        input_axes: by name patterns, the axis of a weight that counts the input units of its layer, for parameters of
            modules that are not PyTorch's own (``x @ weight`` with ``[in, out]`` has axis 0); None for what is no unit's
            weight, such as a class token.

    A call is ``model(x, y=None, num_data=None)``, x and y in their own units. x is a tensor ``[N, ...]``, or a tuple or
    mapping of tensors, the network's positional or named arguments. `num_data` is the size of the data set that a minibatch
    stands for. It returns f in the units of y.

    Raises:
        TypeError: no module, or one that was compiled, scripted or spread over devices.
        ValueError: a network without a weight that has a prior, with dropout layers of its own in training mode, or with
            parameters that have no shape yet, or that are not a layer's weight itself (weight norm, spectral norm); a
            pattern that fits no parameter.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        prior: PriorSetting,
        likelihood: Likelihood,
        bias_prior: PriorSetting | None,
        in_features: int | tuple[int, ...] | None = None,
        input_axes: Mapping[str, int | None] | None = None,
    ) -> None:
        super().__init__()
        parameters_of(network)  # says what cannot be copied
        check_parametrised(network)
        check_dropout_layers(network)
        network = copy.deepcopy(network)
        found = parameters_of(network)
        self.priors: dict[str, Prior] = _priors(found, prior, bias_prior, type(network).__name__)
        self.fixed = found.fixed
        self._names = found.names
        self._units = _input_units(network, found, input_axes)
        self._in_training = tuple(name for name, module in network.named_modules() if module.training)
        self._moving = tuple(name for name, _ in network.named_buffers())
        self._attends = any(isinstance(module, nn.MultiheadAttention) for module in network.modules())
        self.free = ParameterTree({n: v for n, v in found.trained.items() if n not in self.priors})
        freeze(network)
        self.network = network
        self.likelihood = likelihood
        self.in_features = in_features
        self.inputs, self.targets = Standardize(), Standardize()
        self.changes_itself = ""  # which Python attributes a forward changes, in words
        self._examined: dict[Any, Examined] = {}

    def train(self, mode: bool = True) -> NetworkModel:
        """Put those submodules of the network in training mode that were in it when the model was made; or none."""
        super().train(mode)
        network: nn.Module = self.network
        for name, module in network.named_modules():
            module.training = mode and name in self._in_training
        return self

    @property
    def batches_weights(self) -> bool:
        """Whether `torch.vmap` can run the network for many weights at once: not nn.LSTM, nn.GRU and nn.RNN, nor what was
        found not to be when the network was examined."""
        network: nn.Module = self.network
        if any(isinstance(module, nn.RNNBase) for module in network.modules()):
            return False
        return all(examined.maps for examined in self._examined.values())

    def weight_sites(self) -> dict[str, Tensor]:
        """Name and initial value of every weight that has a prior, in the order of the network."""
        buffers = dict(self.network.named_buffers(remove_duplicate=False))
        return {n: buffers[n] for n in self.priors}

    @property
    def parameter_names(self) -> dict[str, tuple[str, ...]]:
        """Of every parameter of the network one name for each place that it has there, by the first of them."""
        return self._names

    def hyper_sites(self) -> dict[str, dict[str, Tensor]]:
        """For every weight whose prior has latent hyperparameters: their names and where their factors should start."""
        initial = self.weight_sites()
        found = {n: prior.hyper_sites(n, initial[n], self._units[n]) for n, prior in self.priors.items()}
        return {n: sites for n, sites in found.items() if sites}

    def input_units(self) -> dict[str, InputUnits]:
        """Of every weight that has a prior, where its layer's input units are."""
        return {name: self._units[name] for name in self.priors}

    def first_weights(self) -> tuple[str, ...]:
        """Names of the weights that see x itself.

        Raises:
            ValueError: they cannot be found without running the network.
        """
        return first_weights(
            self.network, [name for name, units in self.input_units().items() if units.axis is not None]
        )

    def moving_buffers(self) -> dict[str, Tensor]:
        """The buffers that the network has beside its parameters, such as running statistics, which training may move."""
        buffers = dict(self.network.named_buffers(remove_duplicate=False))
        return {name: buffers[name] for name in self._moving}

    def reset_parameters(self) -> None:
        """Draw new initial values of all parameters that are not fixed, by their modules' own ``reset_parameters``.

        Random numbers are torch's, so a seed before the call decides them.

        Raises:
            ValueError: a module with parameters of its own has no such method; it is named.
        """
        new = new_values(self.network, {n: names for n, names in self._names.items() if n not in self.fixed})
        buffers = dict(self.network.named_buffers(remove_duplicate=False))
        with torch.no_grad():
            for first, value in new.items():
                for name in self._names[first]:
                    buffers[name].copy_(value)
                if first in self.free:
                    self.free[first].copy_(value)

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

        Nor may the network draw random numbers of its own, or compute without a weight that has a prior, whose posterior
        would be learned from nothing. Changes nothing of the model, but for what it has found out of the network.
        """
        self.examined(data.x)
        few = self._rows(data.x, 2)
        network: nn.Module = self.network
        with self._trying():
            weights = self.weight_sites()
            runs(lambda: check_noiseless(network, lambda: self._still(weights, few)), few, "be trained")
        with self._trying():
            self.changes_itself = changes(network, lambda: self._run(weights, few))
        with self._trying(), evaluating(self):
            output = self._run(weights, few)
            unused = unused_weights(lambda leaves: self._run(leaves, few), weights)
            if unused:  # a network may choose its way by x: before it is refused it sees more
                unused = unused_weights(lambda leaves: self._run(leaves, self._rows(data.x, _TRIED)), weights)
        if unused:
            raise ValueError(say_unused(network, unused))
        self.likelihood.check(data.y.to(output.device), output, self.targets)

    def examined(self, x: Inputs) -> Examined:
        """What running the network on a few rows of x showed.

        It is run once for every shape of an example, and again if the rows before were all alike.

        Raises:
            ValueError: the network cannot be called on x, draws random numbers, or returns something else than one tensor.
        """
        key = signature(x)
        known = self._examined.get(key)
        if known is None or not known.differed:
            check_width(x, self.in_features)
            weights = {n: w.detach().clone() for n, w in self.weight_sites().items()}
            with self._trying(), evaluating(self):
                found = examine(self._call, weights, self._rows(x, num_rows(x)), lambda: undisturbed(self.network))
                few = self._rows(x, num_rows(x) if found.whole else 2)
                check_noiseless(self.network, lambda: self._still(weights, few))
                check_weights_kept(lambda given: self._still(given, few), weights)
            self._examined[key] = found
        return self._examined[key]

    def mixes_examples(self, x: Inputs) -> bool:
        """Whether the output of one row depends on the others, as in a graph, so that x cannot be cut into parts."""
        return self.examined(x).mixes

    def mixes_in_training(self, x: Inputs) -> bool:
        """Whether it does in the modes that it is trained in, as under BatchNorm, which normalises over the minibatch."""
        if self.mixes_examples(x):
            return True
        device = next(iter(self.weight_sites().values())).device
        weights = self.weight_sites()
        with self._trying():
            two, three = (self._still(weights, mapped(lambda part: part.to(device), few)) for few in few_rows(x))
        return not close(three[:2], two)

    def takes_all_rows(self, x: Inputs) -> bool:
        """Whether the network can be called on all rows of x together alone, and on no minibatch."""
        return self.examined(x).whole

    def forward(self, x: Inputs, y: Tensor | None = None, num_data: int | None = None) -> Tensor:
        x = of_traced_size(x)
        check_width(x, self.in_features)
        initial = self.weight_sites()
        weights = {n: pyro.sample(n, prior.for_site(n, initial[n], self._units[n])) for n, prior in self.priors.items()}
        output = self._run(weights, x) if self.training else self.outputs(weights, x)
        particles = len(_batch_shape(weights, initial))
        if particles and output.shape[particles - 1] == 1:  # the place of the data plate, which f fills itself
            particles -= 1
            output = output.squeeze(particles)
        of_y = per_row(self.likelihood(output, self.targets), particles + 1)
        f = self.likelihood.location(output, self.targets)
        target = None if y is None else aligned(self.likelihood.as_target(y), of_y)
        rows = num_rows(x)
        size = rows if num_data is None else num_data
        with pyro.plate("data", size, subsample=torch.arange(rows, device=output.device)):
            pyro.sample("y", of_y, obs=target)
        return f

    def outputs(self, weights: Mapping[str, Tensor], x: Inputs) -> Tensor:
        """The network's outputs for given weights, ``[..., N, ...]``: leading dimensions are those of the weights.

        A forward that counts its calls does not count these.
        """
        check_width(x, self.in_features)
        with undisturbed(self.network) if self.changes_itself else nullcontext():
            return self._run(weights, x)

    def _run(self, weights: Mapping[str, Tensor], x: Inputs) -> Tensor:
        initial = self.weight_sites()
        batch = _batch_shape(weights, initial)
        lazy = {n: w.unbatched() if batch else w for n, w in weights.items() if isinstance(w, LazyWeight)}
        if lazy:
            axes = (self._examined.get(signature(x)) or self.examined(x)).axes
            for name, weight in lazy.items():
                weight.law.examples = axes[name]
        if not batch:
            return self._call(weights, x)
        if len(lazy) == len(weights):  # noise per example: further particles are further examples
            repeated = mapped(lambda part: part.expand(*batch, *part.shape).reshape(-1, *part.shape[1:]), x)
            output = self._call(lazy, repeated)
            return output.reshape(*batch, num_rows(x), *output.shape[1:])
        rows = math.prod(batch)
        flat = {n: w.expand(*batch, *initial[n].shape).reshape(rows, *initial[n].shape) for n, w in weights.items()}
        output = for_each(lambda one: self._call(one, x), flat, mapped=self.batches_weights and not self._moves())
        return output.reshape(*batch, *output.shape[1:])

    def _call(self, weights: Mapping[str, Tensor], x: Inputs) -> Tensor:
        """The network on standardised inputs."""
        dtype = next(iter(weights.values())).dtype
        if isinstance(x, Tensor) and x.is_floating_point():
            x = self.inputs(x)
        x = mapped(lambda part: part.to(dtype) if part.is_floating_point() else part, x)
        values = {**{n: self.free[n] for n in self.free}, **weights}
        return call(self.network, values, self._names, x, attends=self._attends)

    def _still(self, weights: Mapping[str, Tensor], x: Inputs) -> Tensor:
        """The same, leaving the network's attributes and buffers as they were."""
        with undisturbed(self.network):
            return self._call(weights, x)

    def _rows(self, x: Inputs, count: int) -> Any:
        """The first `count` rows of x, repeated if there are fewer, where the weights are; all rows where the network takes
        no part of them."""
        known = self._examined.get(signature(x))
        count = num_rows(x) if known is not None and known.whole else count
        rows = torch.arange(count) % num_rows(x)
        device = next(iter(self.weight_sites().values())).device
        return mapped(lambda part: part[rows.to(part.device)].to(device), x)

    def _moves(self) -> bool:
        """Whether a call moves running statistics."""
        network: nn.Module = self.network
        return bool(self._moving) and any(module.training for module in network.modules())

    @contextmanager
    def _trying(self) -> Iterator[None]:
        """In training mode as the network was made, without a trace or a gradient; afterwards everything is as it was."""
        modes = [(module, module.training) for module in self.modules()]
        with undisturbed(self.network), pyro.poutine.block(), torch.no_grad():
            self.train()
            try:
                yield
            finally:
                for module, mode in modes:
                    module.training = mode


def from_module(
    net: nn.Module,
    prior: PriorSetting,
    likelihood: Likelihood,
    *,
    bias_prior: PriorSetting | None = None,
    input_axes: Mapping[str, int | None] | None = None,
) -> NetworkModel:
    """Any module as a Pyro model; see `NetworkModel` for the arguments. Biases have no prior unless one is given.

    Last-layer inference is ``prior={"head.*": priors.Gaussian(), "*": None}``: all other weights are trained as points.
    """
    return NetworkModel(
        net, prior=prior, likelihood=likelihood, bias_prior=bias_prior, in_features=_width(net), input_axes=input_axes
    )


def _width(net: nn.Module) -> int | None:
    """The width of x, where the first layer says it."""
    while isinstance(net, nn.Sequential) and len(net):
        net = net[0]
    return net.in_features if type(net) is nn.Linear else None


def _priors(found: Parameters, prior: PriorSetting, bias_prior: PriorSetting | None, network: str) -> dict[str, Prior]:
    """The priors of those parameters that have one, in the order of the network."""
    if not found.weights:
        fixed = f"; {len(found.fixed)} of its parameters are fixed (requires_grad=False)" if found.fixed else ""
        raise ValueError(f"a network model needs a network with weights to infer; {network} has none{fixed}")
    chosen: dict[str, Any] = by_name(prior, found.weights, "prior")
    if bias_prior is not None and found.vectors:
        of_vectors: dict[str, Any] = by_name(bias_prior, found.vectors, "bias_prior")
        chosen |= of_vectors
    kept = {n: own for n in found.trained if (own := chosen.get(n)) is not None}
    if not kept:
        raise ValueError("a network model needs a prior for at least one weight; got None for all of them")
    return kept


def _input_units(
    network: nn.Module, found: Parameters, input_axes: Mapping[str, int | None] | None
) -> dict[str, InputUnits]:
    """Where the input units of every parameter are: as its module has it, or as the user says."""
    units = input_units(network)
    if input_axes is None:
        return units
    patterns: dict[str, Any] = dict(input_axes)
    patterns.setdefault("*", _AS_ITS_MODULE)  # the last, which decides where no other fits
    said: dict[str, Any] = by_name(patterns, found.trained, "input_axes")
    for name, axis in said.items():
        dims = found.trained[name].dim()
        if axis is not None and axis is not _AS_ITS_MODULE and not 0 <= axis < dims:
            raise ValueError(f"input_axes names an axis of a weight, 0 ... {dims - 1} for {name!r}; got {axis}")
    return units | {name: InputUnits(axis) for name, axis in said.items() if axis is not _AS_ITS_MODULE}


_AS_ITS_MODULE: Any = object()


def _batch_shape(weights: Mapping[str, Tensor], initial: Mapping[str, Tensor]) -> torch.Size:
    return torch.broadcast_shapes(*(w.shape[: w.dim() - initial[n].dim()] for n, w in weights.items()))
