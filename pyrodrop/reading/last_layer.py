"""The exact posterior of the last layer of a trained network, without training.

    y_nd = w_d' phi_n + b_d + noise_d e_nd,     w_d ~ N(0, scale^2 I),   b_d ~ N(0, wide^2),   phi_n the inputs of the layer

The scale of the weights and the noise of each column maximise the evidence of the centred rows, whose b_d is integrated out
under a flat prior (Rasmussen & Williams, eq. 2.42-2.45). With Phi - mean = U diag(r) V', v_id = scale^2 r_i^2 + noise_d^2,

    ln p = - sum_d [ sum_i ln v_id + (u_i' y_d)^2 / v_id + (N - 1 - K) ln noise_d^2 + rest_d / noise_d^2 ] / 2,   i = 1 ... K

Of a layer without a bias the rows are not centred, and N stands for N - 1.
"""

from __future__ import annotations

import copy
import glob
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop.checks import instance, shown
from pyrodrop.data import Data, Dataset
from pyrodrop.guides import ExactLastLayer, Point
from pyrodrop.likelihoods import Gaussian
from pyrodrop.models import from_module
from pyrodrop.networks.last_map import LastMap
from pyrodrop.priors import Gaussian as GaussianPrior
from pyrodrop.threads import outside
from pyrodrop.training.result import Fit

_LEAST = 1e-3  # smallest noise, over the root mean square of y - mean
_WIDE = 10.0  # standard deviation of the bias, over the root mean square of y
_ITERATIONS = 200


@outside("last_layer")
@torch.inference_mode(False)
def last_layer(net: nn.Module, data: Data) -> Fit:
    """The last layer of a trained network as a Bayesian linear regression on its inputs, with the other layers as they are.

    It replaces the weight and bias of the last `torch.nn.Linear` by their exact posterior given all rows; the noise and the
    scale of the prior are those with the largest evidence. The mean of predictions is near the network's output where there
    are data, and the spread grows where the inputs of the last layer are unlike those of the data. Nothing is trained, in
    seconds. The result is a `Fit` that predicts, is saved, compared and converted like others.

    References:
        Rasmussen & Williams (2006), http://gaussianprocess.org/gpml, section 2.7.
        Snoek et al. (2015), Scalable Bayesian Optimization Using Deep Neural Networks, https://arxiv.org/abs/1502.05700.

    Args:
        net: the network, which maps x ``[N, ...]`` to the output ``[N, D]`` of a linear layer; it is copied, and runs in
            evaluation mode.
        data: the rows that the posterior is conditioned on, x and real y ``[N]`` or ``[N, D]``, in the units of the
            network's output; those that the network was trained on, or others. A `Dataset` with a standardisation is for a
            network of standardised x and y.

    Raises:
        TypeError: `net` is no module; x is not one tensor.
        ValueError: the network does not return the output of a linear layer of one vector per row; y are class labels, have
            missing values, another shape, or do not vary; fewer than 3 rows.

    Example:
        >>> import torch, pyrodrop
        >>> net = torch.nn.Sequential(torch.nn.Linear(1, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1))
        >>> x = torch.linspace(-1, 1, 50)[:, None]
        >>> run = pyrodrop.last_layer(net, (x, torch.sin(3 * x)))
        >>> run.predict(torch.tensor([[0.0], [9.0]]), 100).f.shape
        torch.Size([100, 2, 1])
    """
    instance(net, nn.Module, "net", "a torch.nn.Module")
    net, data = copy.deepcopy(net).eval(), Dataset.of(data)
    if not data.y.is_floating_point():
        raise ValueError(f"last_layer needs real y, whose last layer has a closed form; got {data.y.dtype}")
    device = next((parameter.device for parameter in net.parameters()), torch.device("cpu"))
    inputs, targets = (copy.deepcopy(each) for each in (data.inputs, data.targets))
    x = data.x if inputs is None else inputs(data.x)
    phi, name, bias, outputs = _last(net, x.to(device) if isinstance(x, Tensor) else x)
    y = data.y.double().cpu().reshape(len(data), -1)
    y = y if targets is None else targets.double()(y)
    if y.shape != outputs.shape or len(y) < 3 or bool((y == y[0]).all(0).any()):
        raise ValueError(
            f"y must be [N, {outputs.shape[-1]}] for this network, of at least 3 rows, and vary in each column; got shape "
            f"{list(data.y.shape)}"
        )
    scale, noise = most_evident(phi.detach().double().cpu(), y, bias is not None)
    wide = _WIDE * float(y.square().mean().sqrt())
    model = from_module(
        net,
        {glob.escape(name): GaussianPrior(scale), "*": None},
        Gaussian(_precision(noise, targets)),
        bias_prior={glob.escape(bias): GaussianPrior(wide), "*": None} if bias else None,
    )
    model.standardize(data)
    guide = ExactLastLayer(model, Point)
    guide.condition_on(data.x, data.y)
    settings = {"steps": 0, "num_data": len(data), "data_fingerprint": data.fingerprint}
    return Fit(model.eval(), guide.eval(), data, torch.zeros(0, 3), settings, device)


def most_evident(phi: Tensor, y: Tensor, bias: bool = True) -> tuple[float, Tensor]:
    """The scale of the weights and the noise of each column ``[D]`` with the largest evidence.

    Args:
        phi: ``[N, K]``, and y ``[N, D]``, both in float64.
        bias: whether the layer has one; without, the rows are not centred, and N - 1 is N.
    """
    if bias:
        phi, y = phi - phi.mean(0), y - y.mean(0)
    u, r, _ = torch.linalg.svd(phi, full_matrices=False)
    found = r > 1e-12 * r.max().clamp_min(1e-300)
    u, r = u[:, found], r[found]
    unit, sizes = float(y.square().mean().sqrt()), y.std(0)
    inside = (u.T @ y / unit).square()
    rest = ((y / unit).square().sum(0) - inside.sum(0)).clamp_min(0)
    free = max(len(y) - bias - len(r), 0)
    start = torch.cat(
        [(r.square().sum(0, keepdim=True) / len(y)).clamp_min(1e-30).log() / -2, (0.3 * sizes / unit).log()]
    )
    logs = start.requires_grad_()
    search = torch.optim.LBFGS([logs], max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        noise = _LEAST**2 + (2 * logs[1:]).exp()
        v = (2 * logs[0]).exp() * r.square()[:, None] + noise
        value = (v.log() + inside / v).sum() + (free * noise.log() + rest / noise).sum()
        (value / 2).backward()
        return value / 2

    search.step(loss)  # type: ignore[arg-type]
    scale, noise = logs[0].detach().exp(), (_LEAST**2 + (2 * logs[1:].detach()).exp()).sqrt()
    return unit * float(scale), unit * noise


def _precision(noise: Tensor, targets: Any) -> Any:
    """The precisions in the units of y."""
    units = noise if targets is None else noise * targets.scale.cpu()
    tau = units.pow(-2).expand(len(noise)).tolist()
    return tau if len(tau) > 1 else tau[0]


def _last(net: nn.Module, x: Any) -> tuple[Tensor, str, str | None, Tensor]:
    """Inputs ``[N, K]`` of the last linear layer, the names of its weight and bias, and its output."""
    with torch.no_grad(), LastMap() as seen:
        output = net(x)
    linear = seen.last.linear() if seen.last else None
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    trained = linear is not None and all(id(used) in names for used in linear[1:] if used is not None)
    if linear is None or not trained or linear[0].dim() != 2 or seen.last.result is not output:  # type: ignore[union-attr]
        raise ValueError(
            "last_layer needs a network that returns the output of a torch.nn.Linear, called on one vector per row; got "
            f"{shown(net)}"
        )
    return linear[0], names[id(linear[1])], names.get(id(linear[2])), output
