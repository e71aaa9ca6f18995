"""Interpret a network that was trained with dropout as a posterior, without further training."""

from __future__ import annotations

import copy
import glob
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop.changes import STAYS
from pyrodrop.checks import Inputs, by_name, count, instance, mapped, num_rows
from pyrodrop.data.dataset import check_inputs
from pyrodrop.distributions.units import InputUnits
from pyrodrop.guides import BernoulliDropout
from pyrodrop.likelihoods import Likelihood
from pyrodrop.models import TrainedNetwork
from pyrodrop.networks.assignment import PriorSetting, assign_input_units
from pyrodrop.networks.call import Output, check_function
from pyrodrop.networks.checks import copied
from pyrodrop.networks.dropouts import Dropout, Dropouts
from pyrodrop.networks.sites import Parameters, parameters_of
from pyrodrop.networks.trial import close
from pyrodrop.priors import Gaussian, Prior
from pyrodrop.reading.carriers import carriers
from pyrodrop.reading.decay import Loss, WeightDecay, decay_of, strength
from pyrodrop.reading.found import Passes
from pyrodrop.threads import exclusive, outside
from pyrodrop.training.result import Fit

_COLUMNS = ("layer", "dropout found", "rate", "read as", "prior sd", "joint?")
_OTHER = 0.9  # factor of all weights in a call that checks the reading


@exclusive()
@outside("read")
@torch.inference_mode(False)
@torch.enable_grad()
def read(
    net: nn.Module,
    x: Inputs,
    *,
    likelihood: Likelihood,
    num_data: int,
    weight_decay: WeightDecay | None = None,
    prior: PriorSetting | None = None,
    loss: Loss | None = None,
    input_axes: Mapping[str, int | InputUnits | None] | None = None,
    output: Output | None = None,
) -> Reading:
    """Read the dropout of a trained network as a posterior over its weights and functions. Nothing is trained.

    The network is run in training mode on a few examples, and every call that drops units is recorded, in modules and in
    functions (`pyrodrop.networks.dropout_calls`). If a weight carries its mask in its input units
    (`pyrodrop.reading.carriers`), the call is read as a Bernoulli mixture over these. Otherwise it is noise of the function,
    which is drawn in predictions but does not enter the KL divergence. Modules in evaluation mode drop nothing. Everything
    else, such as BatchNorm, runs in evaluation mode. Gal & Ghahramani (2016), Dropout as a Bayesian Approximation,
    https://arxiv.org/abs/1506.02142.

    Args:
        net: the trained network, in training mode (``net.train()``). It is copied.
            It maps x to ``[N, outputs]`` or ``[N, ..., outputs]``, such as logits.
        x: a few examples, ``[N, ...]``, or a tuple or mapping of tensors that are the network's arguments. Different
            examples are best, since equal ones cannot show whether one affects another.
        likelihood: distribution of y given the outputs; the network was trained with the corresponding loss.
        num_data: N, number of examples that the network was trained on.
        weight_decay: the weight decay of the training, which becomes the prior (`pyrodrop.reading.decay`): a number for all
            parameters, or a mapping from name patterns to numbers. A parameter without decay is a point estimate without a
            prior. The decoupled decay of AdamW and others is not part of a loss: pass `prior` instead.
        prior: prior of the weights instead of `weight_decay`, as in `models.from_module`. Biases and other vectors are then
            point estimates without a prior.
        loss: the loss of the training, with `weight_decay`: ``mean_nll``, the mean of minus the log likelihood over examples
            and over the terms of an example, such as tokens; ``sum_nll``, its sum over all data (for minibatches of B
            examples, pass ``weight_decay * N / B``); or ``mse``, that of `torch.nn.MSELoss`. If None, ``mse`` for
            `likelihoods.Gaussian`, otherwise ``mean_nll``. A loss with class weights or label smoothing is no likelihood.
        input_axes: the axis of the input units of weights of custom modules, as in `models.from_module`.
        output: function that selects the output of a network that returns a tuple or mapping, as in `models.from_module`.

    Returns:
        A `Reading`. Its table lists the dropout of the network. Like a `Fit` it has predictions and an ELBO, and `to_arviz`
        converts it. ``reading.model`` and ``reading.guide`` can be trained further with `pyrodrop.fit`.

    Raises:
        ValueError: the network has no dropout, or all of it is in evaluation mode; its passes do not differ, or differ by
            something that is not dropout; none or both of `weight_decay` and `prior` are given; the decay is
            0; `loss` does not belong to the likelihood.
        TypeError: `net` is not a module whose parameters can be replaced.
        RuntimeError: the call is inside a block that would change what it computes: see `pyrodrop.threads`.

    Example:
        >>> import torch, pyrodrop
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
        >>> x = torch.randn(8, 4)
        >>> reading = pyrodrop.read(
        ...     net, x, likelihood=pyrodrop.likelihoods.Categorical(), weight_decay=1e-4, num_data=1000
        ... )
        >>> reading.rows()[0][3]
        '16 columns of 3.weight'
        >>> reading.predict(x, num_samples=50).f.shape
        torch.Size([50, 8, 3])
    """
    x = check_inputs(x)
    instance(likelihood, Likelihood, "likelihood", "a Likelihood, such as likelihoods.Gaussian()")
    count(num_data, "num_data", "the number of examples that the network was trained on")
    _check_choice(weight_decay, prior, loss)
    output = None if output is None else check_function(output)
    parameters_of(net)  # raises for modules that cannot be copied
    network = copied(net)
    parameters = parameters_of(network)
    decays = None if weight_decay is None else decay_of(weight_decay, parameters.trained)
    if decays is not None and not any(decays[name] for name in parameters.weights):
        raise ValueError(
            "a network trained without weight decay has no prior and needs one, such as prior=priors.Gaussian(scale=...); "
            "got weight_decay 0 for all weights"
        )
    where = next(iter((*parameters.trained.values(), *net.parameters()))).device
    network, likelihood = network.to(where), copy.deepcopy(likelihood).to(where)
    x = mapped(lambda part: part.to(where), x)
    sites = _with_prior(parameters, decays, prior)
    values = {name: network.get_parameter(name).detach().clone() for name in parameters.names}
    dtype = next(iter(values.values())).dtype
    x = mapped(lambda part: part.to(dtype) if part.is_floating_point() else part, x)
    passes = Passes(network, values, parameters.names, sites, x, output)
    passes.find()
    if not passes.dropouts:
        raise ValueError(
            "the network drops nothing: no call drops units at a rate above 0 in the modes of its modules. Call net.train() "
            "before pyrodrop.read, which runs BatchNorm in evaluation mode all the same; a network without dropout gets a "
            "posterior of its own by models.from_module and a guide"
        )
    outputs, drawn = _check_passes(passes)
    units = assign_input_units(network, parameters, input_axes)
    units = {name: units[name] for name in parameters.weights if name in sites}
    try:
        planned = carriers(passes.in_double_precision(), units)
    except RuntimeError:  # the network creates tensors of a fixed dtype
        planned = carriers(passes, units)
    c = None if decays is None else strength(loss, likelihood, num_data, outputs)
    for module in network.modules():
        module.training = module in passes.stays
        if module.training:
            module.__dict__[STAYS] = True
    dropouts = Dropouts(planned)
    carried = dropouts.carried
    with torch.no_grad():
        for name, call in carried.items():  # the means M = W / p
            network.get_parameter(name).div_(1 - call.drop_rate)
    bias_prior: dict[str, Prior | None] | None = None
    if c is not None and decays is not None:
        prior, bias_prior = _priors(parameters, carried, c, decays)
    assert prior is not None
    axes: dict[str, Any] = {glob.escape(name): call.units for name, call in carried.items()}
    model = TrainedNetwork(
        network,
        dropouts,
        prior=prior,
        bias_prior=bias_prior,
        likelihood=likelihood,
        input_axes={**axes, **(input_axes or {})} or None,
        output=output,
    )
    rates: dict[str, float] = {glob.escape(name): call.drop_rate for name, call in carried.items()}
    guide = BernoulliDropout(model, drop_rate=rates | {"*": 0.0})
    model.to(where).eval()
    guide.to(where)
    _check_reading(model, guide, passes, planned, drawn)
    model.remember(x, replace(passes.found, maps=passes.maps))
    return Reading(
        model=model,
        guide=guide,
        data=None,
        history=torch.zeros(0, 3),
        settings={"steps": 0, "read": type(net).__name__, "num_data": num_data},
        device=where,
    )


def _check_choice(weight_decay: Any, prior: Any, loss: Any) -> None:
    if (weight_decay is None) == (prior is None):
        raise ValueError(
            "read needs the weight decay of the training, which is a prior, or a prior: one of weight_decay and prior; got "
            f"{'neither' if prior is None else 'both'}"
        )
    if loss is not None and prior is not None:
        raise ValueError("loss belongs to weight_decay, which is not given")


@dataclass(frozen=True)
class _Drawn:
    """A draw of all masks: as the reading has them, as the calls have them with the weights of a run, and its output."""

    masks: list[Tensor]
    run: tuple[list[Tensor], dict[str, Tensor]]
    output: Tensor


def _check_passes(passes: Passes) -> tuple[Tensor, _Drawn]:
    """Compare a pass in training mode with one under the masks that PyTorch drew in it; a ValueError if they differ.

    Returns:
        The output of that pass; and masks for all examples, or for each where none for all exists, with other weights, by
        which `_check_reading` checks the reading.
    """
    want, masks = passes.of_torch()
    dropouts = passes.dropouts
    generator, rows = torch.Generator().manual_seed(1), num_rows(passes.x)
    joint, spread = [], []
    for call, mask in zip(dropouts, masks, strict=True):
        if call.layout.joint:
            joint.append((torch.rand(call.shape, generator=generator) < 1 - call.drop_rate).to(mask))
            full = call.layout.of_examples(call.shape, rows)
            spread.append(call.layout.spread(joint[-1], full, rows).expand(full).reshape(mask.shape))
        else:
            joint.append(mask)
            spread.append(mask)
    others = {name: _OTHER * value for name, value in passes.weights.items()}
    sets = [(masks, {}), ([1 - mask for mask in masks], {}), (spread, others)]
    got, opposite, output = passes.masked(sets)
    if passes.maps and not close(got, want):  # torch.vmap may give other outputs than separate calls
        passes.maps = False
        got, opposite, output = passes.masked(sets)
    if not close(got, want, largest=1e-3):
        raise ValueError(
            "with the same masks, the network as it was read does not give the output of its own pass in training mode "
            f"(masks {[tuple(mask.shape) for mask in masks]}; outputs differ by up to "
            f"{float((want - got).abs().max()):.2g}). It may change a tensor in place that it uses again, or draw masks "
            "inside of an operation that is not known as dropout"
        )
    if torch.equal(got, opposite):
        raise ValueError(
            "the network has dropout, but its passes do not differ: no output depends on the masks of "
            f"{', '.join(call.name.removeprefix('dropout ') for call in dropouts)}"
        )
    return want, _Drawn(joint, sets[2], output)


def _with_prior(parameters: Parameters, decays: Mapping[str, float] | None, prior: PriorSetting | None) -> list[str]:
    """The parameters that have a prior."""
    if decays is not None:
        return [name for name, decay in decays.items() if decay > 0]
    chosen: dict[str, Any] = by_name(prior, parameters.weights, "prior")
    return [name for name in parameters.weights if chosen[name] is not None]


def _priors(
    parameters: Parameters, carried: Mapping[str, Dropout], c: float, decays: Mapping[str, float]
) -> tuple[dict[str, Prior | None], dict[str, Prior | None] | None]:
    """The priors of weights and of vectors that the weight decay is, by patterns; None where there are no vectors."""

    def of(names: list[str]) -> dict[str, Prior | None]:
        keep = {name: 1 - carried[name].drop_rate if name in carried else 1.0 for name in names}
        sds = {name: 1 / math.sqrt(c * decays[name] * keep[name]) for name in names if decays[name] > 0}
        return {glob.escape(name): Gaussian(sds[name]) if name in sds else None for name in names}

    return of(parameters.weights), of(parameters.vectors) or None


def _check_reading(
    model: TrainedNetwork, guide: BernoulliDropout, passes: Passes, planned: Sequence[Dropout], drawn: _Drawn
) -> None:
    """Compare a draw of the reading with the network's output under the same masks."""
    weights = {name: _OTHER * guide.loc[name].detach() for name in guide.sites}
    noise: dict[str, Tensor] = {}
    for call, mask in zip(planned, drawn.masks, strict=True):
        if call.weight is None:
            noise[call.name] = mask
        else:
            weights[call.weight] = weights[call.weight] * call.units.over(mask.flatten(), weights[call.weight].shape)
            weights[call.weight].mask = mask.flatten()  # type: ignore[attr-defined]
    with torch.no_grad():
        got, want = model.masked(weights, noise, passes.x), drawn.output
    if passes.maps and not close(want, got):
        passes.maps = False
        (want,) = passes.masked([drawn.run])
    if not close(got, want, largest=1e-3):
        raise ValueError(
            "the reading of the network does not give the output of its own pass under the same masks (outputs differ by up "
            f"to {float((want - got).abs().max()):.2g}); please report this network"
        )


class Reading(Fit):
    """A network that was trained with dropout, as a posterior.

    It is a `Fit` without training: it predicts, has an ELBO on data that are passed, and can be used in comparisons and
    `to_arviz`. Its ``model`` and ``guide`` can be trained further with `pyrodrop.fit`. Printing it shows its table.
    """

    def rows(self) -> list[tuple[str, str, float | None, str, float | None, str]]:
        """The rows of the table: every dropout call, in order, then every parameter that carries no mask."""
        model = self.model
        assert isinstance(model, TrainedNetwork)
        scales = {
            name: prior.scale if isinstance(prior, Gaussian) and isinstance(prior.scale, float) else None
            for name, prior in model.priors.items()
        }
        calls, carried = model.dropouts.calls, model.dropouts.carried
        of_calls = [(call, scales.get(call.weight or ""), "yes" if call.layout.joint else "no") for call in calls]
        return [
            *(
                (call.weight or "-", _where(call), call.drop_rate, _read_as(call), sd, joint)
                for call, sd, joint in of_calls
            ),
            *((n, "none", None, "point estimate", sd, "yes") for n, sd in scales.items() if n not in carried),
            *((name, "none", None, "point estimate without prior", None, "yes") for name in model.free),
        ]

    def __repr__(self) -> str:
        rows = self.rows()
        dropped = [row for row in rows if row[2] is not None]
        rest = [row for row in rows if row[2] is None]
        lines = _aligned([_COLUMNS, *(tuple(map(_text, row)) for row in dropped)])
        if rest:
            sds = sorted({row[4] for row in rest if row[4] is not None})
            spread = f", prior sd {_text(sds[0])}" + (f" ... {_text(sds[-1])}" if len(sds) > 1 else "") if sds else ""
            lines.append(f"{len(rest)} parameters without dropout: point estimates{spread}")
        return "\n".join(lines)


def _where(call: Dropout) -> str:
    return f"{call.name.removeprefix('dropout ')} ({call.kind}, {_size(call)})"


def _read_as(call: Dropout) -> str:
    if call.weight is None:
        return "noise of the function"
    units = "rows" if call.units.axis == 0 else "columns"
    blocks = f"blocks of {call.units.size} " if call.units.size > 1 else ""
    return f"{call.shape.numel()} {blocks}{units} of {call.weight}"


def _size(call: Dropout) -> str:
    """The shape of a mask, with N for the number of examples: ``[N, 16]``, or ``[N * 6, 16]`` with 6 rows per example."""
    sizes = [str(size) for size in call.shape]
    axis, order = call.layout.axis, call.layout.order
    if axis is not None and order is None:
        sizes[axis] = "all rows"
    elif axis is not None:
        rows = call.shape[axis]
        sizes[axis] = "N" if rows == 1 else f"N * {rows}" if order == "examples" else f"{rows} * N"
    return f"[{', '.join(sizes)}]"


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
