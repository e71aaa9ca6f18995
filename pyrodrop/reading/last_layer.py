"""The exact posterior of the last layer of a trained network, without training.

    y_nd = w_d' phi_n + b_d + noise_d e_nd,     w_d ~ N(0, scale^2 I),   b_d ~ N(0, wide^2),   phi_n the inputs of the layer

The scale of the weights and the noise of each column maximise the evidence of the centred rows, whose b_d is integrated out
under a flat prior (Rasmussen & Williams, eq. 2.42-2.45). With Phi - mean = U diag(r) V', v_id = scale^2 r_i^2 + noise_d^2,

    ln p = - sum_d [ sum_i ln v_id + (u_i' y_d)^2 / v_id + (N - 1 - K) ln noise_d^2 + rest_d / noise_d^2 ] / 2,   i = 1 ... K

Of a layer without a bias the rows are not centred, and N stands for N - 1. Class labels have Laplace's approximation q of
the posterior (`pyrodrop.guides.laplace`), b_d ~ N(0, 10^2), and the scale with the largest ELBO, E_q[ln p(y, V) - ln q(V)].
Laplace's own estimate of the evidence has no maximum where a plane separates the classes: it grows with the scale, while q
becomes far wider than the posterior.
"""

from __future__ import annotations

import copy
import glob
import logging
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from pyrodrop.checks import all_finite, instance, shown
from pyrodrop.data import Data, Dataset
from pyrodrop.data.loader import read_for
from pyrodrop.guides import ExactLastLayer, Point
from pyrodrop.guides.laplace import LabelRows
from pyrodrop.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from pyrodrop.likelihoods.classes import check_classes, labels
from pyrodrop.models import from_module
from pyrodrop.networks.last_map import LastMap
from pyrodrop.priors import Gaussian as GaussianPrior
from pyrodrop.threads import outside
from pyrodrop.training.result import Fit

_log = logging.getLogger("pyrodrop")
_LEAST = 1e-3  # smallest noise, over the root mean square of y - mean
_WIDE = 10.0  # standard deviation of the bias, over the root mean square of y, or of logits
_ITERATIONS = 200
_POWERS = range(-4, 11)  # of 2: standard deviations of logits
_DRAWS = 32
_MOST = 4096  # weights and biases of a layer of class labels


@outside("last_layer")
@torch.inference_mode(False)
def last_layer(net: nn.Module, data: Data | Iterable[Any]) -> Fit:
    """The last layer of a trained network as a Bayesian linear regression on its inputs, with the other layers as they are.

    It replaces the weight and bias of the last `torch.nn.Linear` by their exact posterior given all rows, or of class labels
    by Laplace's approximation of it; the noise and the scale of the prior are those with the largest evidence or ELBO. The
    mean of predictions is near the network's output where there are data, and the spread grows where the inputs of the last
    layer are unlike those of the data. Nothing is trained, in seconds. The result is a `Fit` that predicts, is saved,
    compared and converted like others.

    References:
        Rasmussen & Williams (2006), http://gaussianprocess.org/gpml, section 2.7.
        Snoek et al. (2015), Scalable Bayesian Optimization Using Deep Neural Networks, https://arxiv.org/abs/1502.05700.
        Kristiadi, Hein & Hennig (2020), Being Bayesian, Even Just a Bit, Fixes Overconfidence in ReLU Networks,
            https://arxiv.org/abs/2002.10118.

    Args:
        net: the network, which maps x ``[N, ...]`` to the output ``[N, D]`` of a linear layer; it is copied, and runs in
            evaluation mode.
        data: the rows that the posterior is conditioned on, x and real y ``[N]`` or ``[N, D]``, in the units of the
            network's output; those that the network was trained on, or others. A `Dataset` with a standardisation is for a
            network of standardised x and y. Or labels ``[N]`` of an integer dtype, whose logits the network returns: D
            classes, or 0 and 1 for D = 1. Their time grows with N (D K)^2, for K inputs of the layer. A `DataLoader` of
            real y is read once: neither memory nor a file of the fit has its rows.

    Raises:
        TypeError: `net` is no module; x is not one tensor.
        ValueError: the network does not return the output of a linear layer of one vector per row, or the vector is not
            finite; y have missing values, another shape, or do not vary; labels are out of range, from a loader, or there
            are more than 4,096 weights for them; fewer than 3 rows.

    Example:
        >>> import torch, pyrodrop
        >>> net = torch.nn.Sequential(torch.nn.Linear(1, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1))
        >>> x = torch.linspace(-1, 1, 50)[:, None]
        >>> run = pyrodrop.last_layer(net, (x, torch.sin(3 * x)))
        >>> run.predict(torch.tensor([[0.0], [9.0]]), 100).f.shape
        torch.Size([100, 2, 1])
    """
    instance(net, nn.Module, "net", "a torch.nn.Module")
    net, loader = copy.deepcopy(net).eval(), read_for(data)
    data = Dataset.of(data) if loader is None else loader.sample  # type: ignore[arg-type]
    device = next((parameter.device for parameter in net.parameters()), torch.device("cpu"))
    inputs, targets = (copy.deepcopy(each) for each in (data.inputs, data.targets))

    def at(x: Any) -> tuple[Tensor, str, str | None, Tensor]:
        x = x if inputs is None else inputs(x)
        phi, name, bias, outputs = _last(net, x.to(device) if isinstance(x, Tensor) else x)
        all_finite(phi, "the inputs of the last layer of net")
        return phi.detach().double().cpu(), name, bias, outputs.detach().cpu()

    phi, name, bias, outputs = at(data.x)
    if data.y.is_floating_point():
        if bool(((data.y == 0) | (data.y == 1)).all()):
            _log.warning("y has the values 0 and 1 as real numbers; class labels must have an integer dtype: y.long()")
        factor = torch.empty(0, 1 + phi.shape[1] + outputs.shape[1], dtype=torch.float64)
        for rows in [data] if loader is None else loader.epoch():
            factor = torch.linalg.qr(torch.cat([factor, _products(*at(rows.x), rows.y, targets)]), mode="r")[1]
        scale, wide, likelihood = _of_real(factor, outputs.shape[1], bias is not None, targets)
    elif loader is None:
        scale, wide, likelihood = _of_labels(phi, data.y.cpu(), outputs, bias is not None)
    else:
        raise ValueError(
            "last_layer needs tensors (x, labels) for class labels, which have no sums over rows for their posterior; got "
            f"{loader.source}"
        )
    model = from_module(
        net,
        {glob.escape(name): GaussianPrior(scale), "*": None},
        likelihood,
        bias_prior={glob.escape(bias): GaussianPrior(wide), "*": None} if bias else None,
    )
    model.standardize(data)
    model.check(data)
    guide = ExactLastLayer(model, Point)
    guide.condition_on(data.x, data.y)
    settings = {"steps": 0, "num_data": len(data), "data_fingerprint": data.fingerprint}
    if loader is not None:
        guide.rows.keep(factor[:, bias is None :].to(device), outputs.shape[1])
        settings = {"steps": 0, "num_data": round(float(factor[0, 0]) ** 2)}
    return Fit(model.eval(), guide.eval(), loader or data, torch.zeros(0, 3), settings, device)


def _products(phi: Tensor, name: str, bias: str | None, outputs: Tensor, y: Tensor, targets: Any) -> Tensor:
    """1, phi and y, standardised as the output, of some rows: ``[n, 1 + K + D]``."""
    values = y.double().cpu().reshape(len(y), -1)
    values = values if targets is None else targets.double()(values)
    if values.shape != outputs.shape:
        raise ValueError(f"y must be [N, {outputs.shape[-1]}] for this network; got shape {list(y.shape)}")
    return torch.cat([torch.ones_like(phi[:, :1]), phi, values], 1)


def _of_real(factor: Tensor, columns: int, bias: bool, targets: Any) -> tuple[float, float, Likelihood]:
    """The scales of the weights and of the bias, and the noise, from R of the QR decomposition of 1, phi and y."""
    y, rows = factor[:, -columns:], round(float(factor[0, 0]) ** 2)  # the product of their ones
    if rows < 3 or bool((y[1:].norm(dim=0) <= 1e-13 * y.norm(dim=0)).any()):
        raise ValueError(f"y must have at least 3 rows, and vary in each column; got {rows} rows")
    scale, noise = most_evident(factor, columns, bias)
    return scale, _WIDE * float(y.square().sum() / (rows * columns)) ** 0.5, Gaussian(_precision(noise, targets))


def _of_labels(phi: Tensor, y: Tensor, outputs: Tensor, bias: bool) -> tuple[float, float, Likelihood]:
    """The same for class labels, which have no noise."""
    columns = outputs.shape[1]
    likelihood = Categorical() if columns > 1 else Bernoulli()
    y = y[:, 0] if columns == 1 and y.dim() == 2 else y
    check_classes(labels(y), outputs.expand(-1, max(columns, 2)), max(columns, 2))
    if len(y) < 3 or bool((y == y[0]).all()):
        raise ValueError(f"y must be labels of at least 3 rows, and vary; got {len(y)} rows, {len(y.unique())} labels")
    if (weights := columns * (phi.shape[1] + bias)) > _MOST:
        raise ValueError(
            f"net must have a last layer of at most {_MOST:,} weights and biases for class labels, whose posterior has a "
            f"covariance of all of them; got {weights:,}"
        )
    one_hot = torch.nn.functional.one_hot(y.long(), columns) if columns > 1 else y[:, None]
    return scale_of_labels(phi, one_hot.to(phi), bias), _WIDE, likelihood


def scale_of_labels(phi: Tensor, y: Tensor, bias: bool = True) -> float:
    """The scale of the weights with the largest ELBO, by Laplace's approximation: of a grid of ratio 2, then of the
    parabola through its best three.

    Args:
        phi: ``[N, K]``, and y, one-hot or 0 and 1 ``[N, D]``, both in float64.
        bias: whether the layer has one.
    """
    design = torch.cat([torch.ones_like(phi[:, :1]), phi], 1) if bias else phi
    unit = float(phi.square().mean(0).sum().sqrt().clamp_min(1e-30))
    normal = torch.randn(_DRAWS, y.shape[1], design.shape[1], generator=torch.Generator().manual_seed(0)).double()
    elbos: list[float] = []
    for power in _POWERS:
        inverse = torch.full((y.shape[1], design.shape[1]), (2.0**power / unit) ** -2, dtype=torch.float64)
        if bias:
            inverse[:, 0] = _WIDE**-2
        zero = torch.zeros_like(inverse)
        rows = LabelRows(design, y, torch.ones_like(y[:, :1]), zero[:, 0], zero, inverse, y.shape[1] > 1)
        elbos.append(float(rows.elbo(normal)))
    best = min(max(range(len(_POWERS)), key=lambda i: elbos[i]), len(_POWERS) - 2)
    if not best:
        return 2.0 ** _POWERS[0] / unit
    low, middle, high = elbos[best - 1 : best + 2]
    bend = low - 2 * middle + high
    shift = (low - high) / (2 * bend) if bend < 0 else 0.0
    return 2.0 ** (_POWERS[best] + min(max(shift, -1.0), 1.0)) / unit


def most_evident(factor: Tensor, columns: int, bias: bool = True) -> tuple[float, Tensor]:
    """The scale of the weights and the noise of each column ``[D]`` with the largest evidence.

    Args:
        factor: R of the QR decomposition of 1, phi and y, ``[..., 1 + K + D]`` in float64. Without its first row and column
            it is that of centred phi and y.
        columns: D.
        bias: whether the layer has one; without, the rows are not centred, and N - 1 is N.
    """
    n, centred = round(float(factor[0, 0]) ** 2), factor[int(bias) :, 1:]
    phi, y = centred[:, :-columns], centred[:, -columns:]
    u, r, _ = torch.linalg.svd(phi, full_matrices=False)
    found = r > 1e-12 * r.max().clamp_min(1e-300)
    u, r = u[:, found], r[found]
    unit, sizes = float(y.square().sum() / (n * columns)) ** 0.5, factor[1:, -columns:].norm(dim=0) / (n - 1) ** 0.5
    inside = (u.T @ y / unit).square()
    rest = ((y / unit).square().sum(0) - inside.sum(0)).clamp_min(0)
    free = max(n - bias - len(r), 0)
    start = torch.cat([(r.square().sum(0, keepdim=True) / n).clamp_min(1e-30).log() / -2, (0.3 * sizes / unit).log()])
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
