"""Any `torch.nn.Module` as a Pyro model.

    w_j ~ prior_j                     one site per weight, named like the parameter: ``layers.0.weight``
    f   = network(x; w)               [N, ...], in standardised units
    y   ~ likelihood(f)               [N, ...], site ``y``, in the units of y

Weights are sampled outside the data plate, once for the whole minibatch; the plate scales the minibatch's log likelihood to
the data set. MacKay (1992), A Practical Bayesian Framework for Backpropagation Networks,
https://doi.org/10.1162/neco.1992.4.3.448.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Literal

import pyro
import torch
from torch import Tensor, nn

from pyrodrop.changes import STAYS, mode_changes, undisturbed
from pyrodrop.checks import Inputs, instance, mapped, named_parts, num_rows
from pyrodrop.data import Dataset
from pyrodrop.data.columns import Columns
from pyrodrop.distributions.units import InputUnits
from pyrodrop.likelihoods import Likelihood, aligned, per_row
from pyrodrop.modules import LocalModule, ParameterTree
from pyrodrop.networks.assignment import PriorSetting, assign_input_units, assign_priors, first_weights
from pyrodrop.networks.call import Output, batch_shape, call, check_function, for_each
from pyrodrop.networks.checks import (
    cannot_run,
    check_dropout_layers,
    check_labels,
    check_memory,
    check_resolution,
    check_width,
    copied,
    width_of,
)
from pyrodrop.networks.sites import SHORT, freeze, new_values, parameters_of
from pyrodrop.networks.trial import Properties, Trial, observe, signature
from pyrodrop.parts import Part
from pyrodrop.priors import Prior
from pyrodrop.reparam.lazy import LazyWeight
from pyrodrop.scaling import Standardize, check_spread
from pyrodrop.threads import exclusive


class NetworkModel(Part, LocalModule):
    """The Pyro model of a network: priors on its weights, a likelihood on its outputs.

    Args:
        network: maps x to ``[N, outputs]`` or ``[N, ..., outputs]``. The model works on a copy and leaves the original
            unchanged. Parameters with ``requires_grad=False`` are fixed: without a prior, not trained. A parameter with
            several names (tied weights) is one site under the first name. Submodules in training mode (BatchNorm) use the
            statistics of their minibatch and update their running statistics in `pyrodrop.fit`; all other submodules run in
            evaluation mode.
        prior: prior of every weight (trained parameters with two or more dimensions), or a mapping from name patterns to
            priors, where the first matching pattern applies. A weight whose prior is None is trained as a point estimate.
        likelihood: distribution of y given the outputs, see `pyrodrop.likelihoods`.
        bias_prior: prior of the biases and other vectors, or a mapping from name patterns to priors. With None they are
            trained as point estimates without a prior.
        in_features: width of x, or the shape of one image, if known; calls then check the shape of x.
        input_axes: mapping from name patterns to the axis of a weight that indexes its layer's input units, for parameters
            of modules that are not PyTorch's own (a weight ``[in, out]`` in ``x @ weight`` has axis 0). None for a
            parameter without input units, such as a class token.
        output: function from the value that the network returns to the tensor ``[N, ...]`` that the likelihood uses, such as
            ``lambda out: out["logits"]``. The rest of the value, such as auxiliary losses, is ignored. None for a network
            that returns the tensor itself.

    A call is ``model(x, y=None, num_data=None)`` with x and y in the units of the data. x is a tensor ``[N, ...]``, or a
    tuple or mapping of tensors that are the network's positional or keyword arguments. `num_data` is the size of the data
    set that the minibatch is taken from, N if None. The call returns f in the units of y, ``[N, ...]``.

    Attributes:
        parameter_names: all names of every parameter, by its first name; a tied parameter has several.

    Raises:
        TypeError: `network` is not a module, or is compiled, scripted or distributed over devices; a prior is no `Prior`,
            the likelihood no `Likelihood`, `input_axes` no mapping, or `output` no function.
        ValueError: no weight has a prior; the network has dropout layers in training mode, uninitialised (lazy) parameters,
            or weights that are computed from other parameters (weight norm, spectral norm); a pattern matches no parameter.
    """

    _randomness: Literal["error", "different"] = "error"  # of `torch.vmap` over weights

    def __init__(
        self,
        network: nn.Module,
        *,
        prior: PriorSetting,
        likelihood: Likelihood,
        bias_prior: PriorSetting | None,
        in_features: int | tuple[int, ...] | None = None,
        input_axes: Mapping[str, int | InputUnits | None] | None = None,
        output: Output | None = None,
    ) -> None:
        super().__init__()
        instance(likelihood, Likelihood, "likelihood", "a Likelihood, such as likelihoods.Gaussian()")
        parameters_of(network)  # raises for modules that cannot be copied
        check_memory(network)
        network = copied(network)
        self._check_network(network)
        parameters = parameters_of(network)
        self.priors: dict[str, Prior] = assign_priors(parameters, prior, bias_prior, type(network).__name__)
        self.fixed: tuple[str, ...] = parameters.fixed
        self.parameter_names: dict[str, tuple[str, ...]] = parameters.names
        self._units = assign_input_units(network, parameters, input_axes)
        self._in_training = tuple(name for name, module in network.named_modules() if mode_changes(module))
        self._moving = tuple(name for name, _ in network.named_buffers())
        self.free: ParameterTree = ParameterTree({n: v for n, v in parameters.trained.items() if n not in self.priors})
        freeze(network)
        self.network = network
        self._set_initial({n: self.priors[n].initial(value) for n, value in self.weight_sites().items()})
        self.likelihood = likelihood
        self.output: Output | None = None if output is None else check_function(output)
        self.in_features = in_features
        self.inputs: Standardize = Standardize()
        self.targets: Standardize = Standardize()
        self.columns: Columns | None = None  # of the data frame that it was trained on
        # A sentence about the Python attributes that forward changes; empty if there are none.
        self.changes_itself: str = ""
        self._properties: dict[Any, Properties] = {}

    def _check_network(self, network: nn.Module) -> None:
        """Raise a ValueError for a network that this class does not support."""
        check_dropout_layers(network)

    def train(self, mode: bool = True) -> NetworkModel:
        """Set the mode. Only submodules of the network that were in training mode at construction get training mode."""
        super().train(mode)
        network: nn.Module = self.network
        for name, module in network.named_modules():
            module.training = STAYS in module.__dict__ or (mode and name in self._in_training)
        return self

    @property
    def batches_weights(self) -> bool:
        """Whether the network runs for many sets of weights at once, by `torch.vmap`, if all examples share the weights.

        False for networks that failed under vmap in `properties`, such as those with nn.LSTM.
        """
        return all(properties.maps for properties in self._properties.values())

    def weight_sites(self) -> dict[str, Tensor]:
        """Name and initial value of every weight that has a prior, in the order of the network."""
        buffers = dict(self.network.named_buffers(remove_duplicate=False))
        return {n: buffers[n] for n in self.priors}

    def hyper_sites(self) -> dict[str, dict[str, Tensor]]:
        """Names and initial values of the latent hyperparameters, for every weight whose prior has them."""
        initial = self.weight_sites()
        sites_of = {n: prior.hyper_sites(n, initial[n], self._units[n]) for n, prior in self.priors.items()}
        return {n: sites for n, sites in sites_of.items() if sites}

    def input_units(self) -> dict[str, InputUnits]:
        """The axis of the input units of every weight that has a prior."""
        return {name: self._units[name] for name in self.priors}

    @exclusive()
    def first_weights(self) -> tuple[str, ...]:
        """Names of the weights of the first layers, those that are applied to x itself.

        Raises:
            ValueError: `torch.fx` cannot trace the network, or finds no such weight.
        """
        with_units = [name for name, units in self.input_units().items() if units.axis is not None]
        return first_weights(self.network, with_units)

    def moving_buffers(self) -> dict[str, Tensor]:
        """The network's own buffers, such as running statistics, which training may update."""
        buffers = dict(self.network.named_buffers(remove_duplicate=False))
        return {name: buffers[name] for name in self._moving}

    def reset_parameters(self) -> None:
        """Reinitialise all trained parameters: by the ``reset_parameters`` of their modules; and those of the likelihood,
        such as a learned noise.

        This also redraws what priors draw (`Prior.initial`).

        Uses torch's global generator; call `torch.manual_seed` before for reproducible values.

        Raises:
            ValueError: a module has parameters but no ``reset_parameters`` method; the message names it.
        """
        new = new_values(self.network, {n: names for n, names in self.parameter_names.items() if n not in self.fixed})
        self.likelihood = self.likelihood.anew()
        self._set_initial({n: self.priors[n].initial(v) if n in self.priors else v for n, v in new.items()})

    @torch.no_grad()
    def _set_initial(self, values: Mapping[str, Tensor]) -> None:
        """Set initial values of parameters, under all of their names."""
        buffers = dict(self.network.named_buffers(remove_duplicate=False))
        for first, value in values.items():
            for name in self.parameter_names[first]:
                buffers[name].copy_(value)
            if first in self.free:
                self.free[first].copy_(value)

    def standardize(self, data: Dataset) -> None:
        """Use the standardisation of `data`. Later calls still pass x and y in the units of the data.

        Also stores the columns of `data`, so that predictions find those of a data frame by name, and initialises the
        likelihood from y (`likelihoods.Gaussian`).
        """
        self.columns = data.columns
        reference = next(iter(self.weight_sites().values()))
        if data.inputs is not None:
            self.inputs = data.inputs.beside(reference)
        if data.targets is not None:
            self.targets = self.likelihood.units(data.targets).beside(reference)
        self.likelihood.start(data.y)

    def describe(self) -> str:
        """One-line description for tables and saved files."""
        sizes = [w.numel() for w in self.weight_sites().values()]
        return f"{type(self).__name__}({sum(sizes)} weights at {len(sizes)} sites, {self.likelihood.describe()})"

    def made_with(self) -> dict[str, Any]:
        made = super().made_with()
        if "part" in made:  # also where the likelihood was replaced
            made["arguments"] = {**made["arguments"], "likelihood": self.likelihood.made_with()}
        return made

    @exclusive()
    def check(self, data: Dataset, like: NetworkModel | None = None) -> None:
        """Check, before training, that `data` fit this network and likelihood. The model is not changed, except that it
        stores what it has found out about the network.

        Args:
            data: in their own units.
            like: a copy of this model that was checked. For examples of the same shapes, its results are used.

        Raises:
            ValueError: the network cannot be called on the inputs, draws random numbers itself, or does not use a weight
                that has a prior; the targets do not fit the likelihood; float32 rounds x or y too much.
        """
        for name, tensor in named_parts(data.x).items():
            check_spread(tensor, name, 1e-30)
        check_spread(data.y, "y", 1e-18)  # whose square is a variance
        known = None if like is None else like._properties.get(signature(data.x))
        if like is not None and known is not None and known.differed and known.mixes_in_training is not None:
            self.remember(data.x, known)
            self.changes_itself = like.changes_itself
            self.targets_check(data.x)(data)
        else:
            self._check_against(data, self._observe(data.x, training=True))
        dtype = next(iter(self.weight_sites().values())).dtype
        for name, tensor in named_parts(data.x).items():
            if tensor.is_floating_point() or self.in_features is not None:  # or they are ids
                check_resolution(tensor, name, self.inputs if isinstance(data.x, Tensor) else Standardize(), dtype)
        check_resolution(data.y, "y", self.targets, dtype)

    @exclusive()
    def targets_check(self, x: Inputs) -> Callable[[Dataset], None]:
        """A function that checks that observations of inputs like these are possible under the likelihood.

        The network is called here, in evaluation mode, and not by the function, which raises a ValueError if the targets do
        not fit the likelihood, or are numbered class labels of a data frame and the likelihood is one of real numbers.

        Raises:
            ValueError: the network cannot be called on the inputs.
        """
        trial, properties = self._trial(), self.properties(x)
        few = trial.rows(x, torch.arange(num_rows(x) if properties.whole else min(2, num_rows(x))))
        try:
            output = trial(few).output
        except (RuntimeError, IndexError) as error:
            raise ValueError(cannot_run(few, error, together=properties.mixes)) from error
        return lambda data: self._check_against(data, output)

    def _check_against(self, data: Dataset, output: Tensor) -> None:
        """Check that the observations are possible under the likelihood, and no labels that it would take for values."""
        self.likelihood.check(data.y.to(output.device), output, self.targets)
        if data.columns is not None:
            check_labels(data.columns, self.likelihood(output, self.targets), self.likelihood)

    @exclusive()
    def properties(self, x: Inputs) -> Properties:
        """Properties of the network found by running it on a few rows of x.

        The result is stored for each shape of an example, unless all rows so far were equal.

        Raises:
            ValueError: the network cannot be called on x, draws random numbers, changes its weights in place, or does not
                return a single tensor.
        """
        key = signature(x)
        known = self._properties.get(key)
        if known is None or not known.differed:
            check_width(x, self.in_features)
            self._observe(x)
        return self._properties[key]

    def remember(self, x: Inputs, properties: Properties) -> None:
        """Store the properties for inputs like x, so that the network is not run to find them."""
        self._properties[signature(x)] = properties

    def _observe(self, x: Inputs, *, training: bool = False) -> Tensor:
        """Find and store the properties, with `training` also those in training mode; the outputs at a few rows."""
        properties, output = observe(self._trial(), x, training=training)
        self.remember(x, properties)
        if training:
            self.changes_itself = properties.changes
        return output

    def mixes_examples(self, x: Inputs) -> bool:
        """Whether the output of one row depends on the other rows, as in a graph network, so that x cannot be split."""
        return self.properties(x).mixes

    def mixes_in_training(self, x: Inputs) -> bool:
        """As `mixes_examples`, in the modes used in training: True under BatchNorm, which normalises over the minibatch."""
        if self.properties(x).mixes_in_training is None:
            self._observe(x, training=True)
        return bool(self._properties[signature(x)].mixes_in_training)

    def noise_shapes(self, x: Inputs) -> dict[str, tuple[float, torch.Size | None]]:
        """Drop rate and shape of every mask that no weight carries, by name; empty unless it is a `TrainedNetwork`."""
        return {}

    def forward(self, x: Inputs, y: Tensor | None = None, num_data: int | None = None) -> Tensor:
        check_width(x, self.in_features)
        initial = self.weight_sites()
        weights = {n: pyro.sample(n, prior.for_site(n, initial[n], self._units[n])) for n, prior in self.priors.items()}
        output = self._run(weights, x) if self.training else self.outputs(weights, x)
        particles = len(batch_shape(weights, initial))
        if particles and output.shape[particles - 1] == 1:  # the dimension of the data plate, which f itself has
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
        """The network's outputs for given weights, in standardised units.

        Args:
            weights: value of every weight that has a prior, by site name; may have leading batch dimensions.
            x: inputs ``[N, ...]`` in the units of the data.

        Returns:
            ``[..., N, ...]``; leading dimensions are those of the weights. Attributes that the forward changes, such as a
            call counter, are restored.
        """
        check_width(x, self.in_features)
        with undisturbed(self.network) if self.changes_itself else nullcontext():
            return self._run(weights, x)

    def _run(self, weights: Mapping[str, Tensor], x: Inputs) -> Tensor:
        initial = self.weight_sites()
        batch = batch_shape(weights, initial)
        lazy = {n: w for n, w in weights.items() if isinstance(w, LazyWeight)}
        if lazy:
            properties = self._properties.get(signature(x)) or self.properties(x)
            if properties.differentiates:
                weights, lazy = {**weights, **{n: w.realise() for n, w in lazy.items()}}, {}
            for name, weight in lazy.items():
                weight.distribution.examples = properties.axes[name]
        if not batch:
            return self._draw(weights, x)
        rows = math.prod(batch)
        flat = {n: weights[n].expand(*batch, *w.shape).reshape(rows, *w.shape) for n, w in initial.items()}
        # not where a call updates running statistics
        by_vmap = self.batches_weights and not (self._moving and any(map(mode_changes, self.network.modules())))
        output = for_each(
            lambda one: self._draw({**weights, **one}, x), flat, mapped=by_vmap, randomness=self._randomness
        )
        return output.reshape(*batch, *output.shape[1:])

    def _draw(self, weights: Mapping[str, Tensor], x: Inputs) -> Tensor:
        """The outputs of one draw of the weights."""
        return self._call(weights, x)

    def _call(self, weights: Mapping[str, Tensor], x: Inputs) -> Tensor:
        """Standardise x and run the network."""
        dtype = next(iter(weights.values())).dtype
        if self.in_features is not None and isinstance(x, Tensor) and not x.is_floating_point():
            x = x.double()  # whole numbers in a linear layer are measurements; float64 has them exactly
        if isinstance(x, Tensor) and x.is_floating_point():
            x = self.inputs(x.float() if x.dtype in SHORT else x)
        x = mapped(lambda part: part.to(dtype) if part.is_floating_point() else part, x)
        values = {**{n: self.free[n] for n in self.free if n not in weights}, **weights}
        return call(self.network, values, self.parameter_names, x, self.output)

    def _trial(self) -> Trial:
        """Calls of the network with its present weights, which change nothing."""
        with torch.inference_mode(False):  # whose tensors do not count their changes
            weights = {name: value.detach().clone() for name, value in self.weight_sites().items()}

        def run(sampled: Mapping[str, Tensor], x: Inputs) -> Tensor:
            return self._call({**sampled, **{name: self.free[name].detach() for name in self.free}}, x)

        return Trial(self.network, run, weights, self._in_training)


def mixes_examples(model: Any, x: Inputs) -> bool:
    """Whether outputs at some rows of x depend on other rows, as in a graph network; False for other classes of models."""
    return isinstance(model, NetworkModel) and model.mixes_examples(x)


def from_module(
    net: nn.Module,
    prior: PriorSetting,
    likelihood: Likelihood,
    *,
    bias_prior: PriorSetting | None = None,
    input_axes: Mapping[str, int | None] | None = None,
    output: Output | None = None,
) -> NetworkModel:
    """Turn any `torch.nn.Module` into a Pyro model.

    Args:
        net: the network, from x ``[N, ...]`` to ``[N, outputs]`` or ``[N, ..., outputs]``; it is copied.
        prior: prior of the weights, or a mapping from name patterns to priors or None (a point estimate). Last-layer
            inference is ``prior={"head.*": priors.Gaussian(), "*": None}``.
        likelihood: distribution of y given the outputs.
        bias_prior: prior of the biases and other vectors; None trains them as point estimates.
        input_axes: see `NetworkModel`.
        output: function from the value that `net` returns (a tuple, mapping or other object) to the input of the likelihood:
            ``output=lambda out: out["logits"]``. The rest of the value is ignored.

    Raises:
        TypeError, ValueError: as `NetworkModel`.

    Example:
        >>> import torch, pyrodrop
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> model = pyrodrop.models.from_module(
        ...     net, pyrodrop.priors.Gaussian(), pyrodrop.likelihoods.Gaussian(precision=1.0)
        ... )
        >>> list(model.weight_sites())
        ['0.weight', '2.weight']
        >>> model(torch.zeros(4, 3)).shape
        torch.Size([4, 1])
    """
    return NetworkModel(
        net,
        prior=prior,
        likelihood=likelihood,
        bias_prior=bias_prior,
        in_features=width_of(net),
        input_axes=input_axes,
        output=output,
    )
