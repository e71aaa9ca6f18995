"""Priors that maximise the evidence of the Gaussian process to which a network converges as its layers become wider.

    f_d ~ GP(0, K),   y_d = f_d(x) + noise_d e_d,   e_d ~ N(0, I)     d = 1 ... D columns of y, K of `InfiniteWidth`
    evidence  = sum_d ln N(y_d; 0, S_d),   S_d = K + noise_d^2 I
    maximised : evidence + ln p(scales),   ln scale ~ N(ln of a usual value, width^2)

    gradient      d evidence / dS_d = (a_d a_d' - S_d^-1) / 2,   a_d = S_d^-1 y_d
    leave-one-out y_nd | others ~ N(y_nd - a_nd / P_nd, 1 / P_nd),   P_nd = (S_d^-1)_nn

A scale is the standard deviation of the weights of a column of x, of the weights or the biases of a layer, or of the noise
of a column of y. Its units are those in which columns of x and y have standard deviation 1. For class labels, f are the
logits and the evidence is that of `pyrodrop.priors.labels`. The distribution p(scales)
selects between scales with nearly the same evidence: a ReLU network computes the same functions if the weights of one layer
are multiplied and those of the next divided, and erf units with small inputs and large outputs are nearly polynomials.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from pyrodrop import priors
from pyrodrop.checks import Flag, Seed, checked, shown
from pyrodrop.data import Data, Dataset
from pyrodrop.likelihoods import Categorical, Gaussian
from pyrodrop.models import MLP, NetworkModel
from pyrodrop.models.mlp import ACTIVATIONS
from pyrodrop.parts import Card, carded, number
from pyrodrop.priors.infinite_width import TANH_GAIN, InfiniteWidth
from pyrodrop.priors.labels import laplace
from pyrodrop.scaling import varies

ROWS, ROWS_OF_LABELS = 2000, 500  # most rows that are used; of larger data they are drawn at random
_FIRST = 125, 12  # rows and iterations of the search from every start
_STAGES = ((125, 25), (500, 12), (ROWS, 5))  # the same for the searches that continue from the best of these
_USUAL = {"erf": 2.5, "relu": 0.75}  # scale of the inputs of the first hidden units, by activation
_STARTS = (0.3, 1.0, 3.0)  # multiples of the usual scale at which searches start
_WIDTH = 1.0  # width of the distribution of the logarithm of a scale, except of the output weights:
_OUTPUT = {"erf": 0.25, "relu": 1.0}  # functions that are small differences of large units are hard to fit by SVI
_NOISE, _LEAST = 0.3, 1e-3  # usual and smallest noise
_LOGIT = 3.0  # usual standard deviation of logits
_APART = 10.0  # largest ratio of the standard deviations of columns of y, in the units of the network
_ENOUGH = 1e-4  # nats, or change of the logarithm of a variance: a search ends at a smaller one
_IMPOSSIBLE = 1e10  # nats: minus the evidence where rounding makes the covariance matrix indefinite
_KERNELS: dict[Callable[[Tensor], Tensor], tuple[str, float, str]] = {  # kernel, gain, what the card says
    torch.relu: ("relu", 1.0, "ReLU"),
    nn.functional.relu: ("relu", 1.0, "ReLU"),
    torch.erf: ("erf", 1.0, "erf"),
    torch.special.erf: ("erf", 1.0, "erf"),
    torch.tanh: ("erf", TANH_GAIN, "erf(sqrt(pi) u / 2) for tanh"),
    nn.functional.tanh: ("erf", TANH_GAIN, "erf(sqrt(pi) u / 2) for tanh"),
    nn.functional.leaky_relu: ("relu", 1.0, "ReLU for leaky ReLU"),
    nn.functional.gelu: ("relu", 1.0, "ReLU for GELU"),
    nn.functional.silu: ("relu", 1.0, "ReLU for SiLU"),
    nn.functional.elu: ("relu", 1.0, "ReLU for ELU"),
    nn.functional.softplus: ("relu", 1.0, "ReLU for softplus"),
}


@carded
@dataclass(frozen=True, repr=False)
class FittedPriors:
    """The priors and the noise of `priors.from_gp`. Printing it shows a short table.

    Attributes:
        model: the same network under these priors and this noise. The initial values of its hidden layers are draws from
            their priors, so that units start where functions under the prior vary; those of the last layer are kept.
        prior: priors of the weights by name; that of the first layer has one scale per column of x.
        bias_prior: priors of the biases by name.
        likelihood: the likelihood with the noise.
        evidence: log marginal likelihood of y, in its units and in nats, under the Gaussian process to which the network
            converges as its hidden layers become infinitely wide. It can be compared with ELBOs of `model` on the same rows.
        leave_one_out: log density of one row of y given all others under this process, in nats, the mean over rows; None for
            class labels.
        constant: the mean log density of y under the best Gaussian without x, or under the frequencies of the classes.
        noise_sd: standard deviation of the noise, in the units of y, one value per column ``[D]``; None for class labels.
        rows, of_rows: the number of rows that were used, and the number of rows of the data.
        kernel: a description of the activation whose kernel is used.
    """

    model: MLP
    prior: dict[str, priors.Gaussian]
    bias_prior: dict[str, priors.Gaussian]
    likelihood: Gaussian | Categorical
    evidence: float
    leave_one_out: float | None
    constant: float
    noise_sd: Tensor | None
    rows: int
    of_rows: int
    kernel: str

    def card(self) -> Card:
        """The summary that is printed and shown in notebooks."""
        layers = zip(self.prior.items(), self.bias_prior.values(), strict=True)
        facts = {
            f"sd in {name.removesuffix('.weight')}": f"weights {_listed(prior.scale)}, biases {_listed(bias.scale)}"
            for (name, prior), bias in layers
        }
        drawn = "" if self.rows == self.of_rows else f", drawn at random of {self.of_rows:,}"
        if self.noise_sd is not None and isinstance(self.likelihood, Gaussian):
            learned = ", learned from there" if self.likelihood.learned else ""
            facts["sd of noise"] = _listed(self.noise_sd.tolist()) + learned
        facts["evidence"] = f"{number(self.evidence)} nats of {self.rows:,} rows{drawn}"
        beside = f"a constant has {self.constant:.3g}"
        if self.leave_one_out is None:
            facts["per row"] = f"{self.evidence / self.rows:.3g} nats; {beside}"
        else:
            facts["leave-one-out"] = f"{self.leave_one_out:.3g} nats per row; {beside}"
        facts["kernel"] = self.kernel
        return Card("Priors by the evidence of the network of infinite width", facts)


@checked
def from_gp(
    model: NetworkModel,
    data: Data,
    *,
    learn_noise: Annotated[bool, Flag("whether fits of the model train the noise, from the value found,")] = False,
    seed: Seed = 0,
) -> FittedPriors:
    """Gaussian priors for a network's layers, and its noise, by maximising the evidence of its Gaussian process.

    References:
        Rasmussen & Williams (2006), http://gaussianprocess.org/gpml, eq. 2.30, 5.9 and 5.12; of class labels, section 3.5.

    Args:
        model: an MLP of any depth under a `likelihoods.Gaussian`, for one or several columns of y, each with its own noise;
            the time grows with the number of columns. Or under a `likelihoods.Categorical`: then the evidence is Laplace's
            approximation, whose time grows with the number of classes. The model's priors and noise have no influence. The
            kernel is that of ReLU or erf; tanh is replaced by the erf with the same slope at 0, leaky ReLU, GELU, SiLU, ELU
            and softplus by ReLU.
        data: x ``[N, Q]`` and y ``[N]`` or ``[N, D]``, as for `pyrodrop.fit`. If there are more than 2,000 rows, 2,000 are
            drawn at random; of class labels 500.
        learn_noise: whether fits of the model train the noise. The ELBO of a posterior that is wider than the exact one
            prefers too much noise.
        seed: seed of the choice of rows.

    Raises:
        TypeError: the model is no `models.MLP`, or an argument is of the wrong kind.
        ValueError: the activation has no kernel; the likelihood is another, or has no noise to learn; x or y do not fit the
            model; y has missing values, does not vary, or has columns of very different standard deviations; or rounding
            makes every covariance matrix indefinite, as where y is very far from 0.

    Example:
        >>> import torch
        >>> from pyrodrop import data, likelihoods, models, priors
        >>> x = torch.linspace(-2.0, 2.0, 60)
        >>> model = models.MLP([1, 50, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
        >>> fitted = priors.from_gp(model, data.Dataset(x, torch.sin(3 * x)).standardized())
        >>> list(fitted.prior), fitted.model.likelihood.learned
        (['layers.0.weight', 'layers.1.weight'], False)
    """
    network = _checked(model)
    kernel = _KERNELS[network.network.activation][2]  # type: ignore[index, union-attr]
    data = Dataset.of(data)
    network = copy.deepcopy(network)
    network.standardize(data)
    network.check(data)
    of_labels = isinstance(network.likelihood, Categorical)
    if of_labels and learn_noise:
        raise ValueError("learn_noise must be False for class labels, which have no noise; got True")
    most = ROWS_OF_LABELS if of_labels else ROWS
    rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:most].sort().values
    x, y = copy.deepcopy(network.inputs).cpu().double()(data.x.double()[rows].cpu()), data.y[rows].cpu()
    spread, layers = _spread(x), list(network.network.layers)  # type: ignore[arg-type, union-attr]
    if bool((y == y[0]).all()):
        raise ValueError(f"y must vary for from_gp; got {len(y)} equal {'labels' if of_labels else 'rows'}")
    if of_labels:
        unit, constant = _LOGIT, float(torch.special.entr(torch.bincount(y) / len(y)).sum().neg())
    else:
        of_y = copy.deepcopy(network.targets).cpu().double()
        y = of_y(y.double().reshape(len(x), -1))
        variances = y.var(0, correction=0)
        sizes = variances[varies(y)].sqrt()
        if float(sizes.max()) > _APART * float(sizes.min()):
            raise ValueError(
                "y must have columns of similar standard deviations, as the last layer's weights have one scale: "
                f"standardise them, data.Dataset(x, y).standardized(); got {_listed(sizes.tolist())}"
            )
        unit = float(variances.mean().sqrt())
        constant = -float(((2 * math.pi * math.e * variances).clamp_min(1e-36).log() / 2 + of_y.scale.log()).sum())
        y, units = y / unit, (unit * of_y.scale.expand(y.shape[1])).log()  # of the columns of y
    process = _search(lambda start: _Process(network, x / spread, y, start), len(x), seed)
    try:
        with torch.no_grad():
            solved = process.solved(slice(None))
    except torch.linalg.LinAlgError:
        raise ValueError(
            "data must leave a covariance matrix that is positive definite up to rounding, at all scales tried; got x and y "
            "with which there is none: standardise them, data.Dataset(x, y).standardized()"
        ) from None
    evidence, leave_one_out, noise_sd = float(solved.evidence), None, None
    likelihood: Gaussian | Categorical = Categorical()
    if not of_labels:
        left_out = ((solved.precision / (2 * math.pi)).log() - solved.solution.square() / solved.precision) / 2
        evidence, leave_one_out = evidence - len(y) * float(units.sum()), float((left_out - units).sum(1).mean())
        noise_sd = units.exp() * process.noise.detach()
        tau = noise_sd.pow(-2).tolist()
        likelihood = Gaussian(tau if len(tau) > 1 else tau[0], learned=learn_noise)
    prior, bias_prior = _priors(process.kernel, spread, unit, [layer.in_features for layer in layers])
    return FittedPriors(
        model=_rebuilt(network, prior=prior, bias_prior=bias_prior, likelihood=likelihood),
        prior=prior,
        bias_prior=bias_prior,
        likelihood=likelihood,
        evidence=evidence,
        leave_one_out=leave_one_out,
        constant=constant,
        noise_sd=noise_sd,
        rows=len(rows),
        of_rows=len(data),
        kernel=kernel,
    )


class _Solved(NamedTuple):
    """The evidence of some rows in nats, with its gradient; for columns of y a and P, ``[N, D]``."""

    evidence: Tensor
    solution: Tensor
    precision: Tensor


class _Process(nn.Module):
    """The process of a network and its noise, for x ``[N, Q]`` and y ``[N, D]`` in units of their standard deviation; or of
    the logits of labels y ``[N]``, which are `_LOGIT` times those functions.

    Args:
        start: scale of the inputs of the first hidden units at which a search starts, in multiples of the usual one.
    """

    def __init__(self, network: MLP, x: Tensor, y: Tensor, start: float) -> None:
        super().__init__()
        self.x, self.y, self.of_labels = x, y, isinstance(network.likelihood, Categorical)
        activation, gain, _ = _KERNELS[network.network.activation]  # type: ignore[index, union-attr]
        *hidden, last = network.network.layers  # type: ignore[union-attr, misc]
        self.classes: int = last.out_features  # type: ignore[assignment]
        offset, noises = (0.0, 0) if self.of_labels else (float(y.mean(0).square().mean()), y.shape[1])
        self.kernel, usual = (
            _kernel(activation, gain, len(hidden), x, offset, each * _USUAL[activation]) for each in (start, 1.0)
        )
        self.log_noise = nn.Parameter(torch.full((noises,), math.log(_NOISE), dtype=torch.float64))
        with torch.no_grad():
            self.usual = torch.cat([_log_scales(usual), self.log_noise])
        self.width = torch.full_like(self.usual, _WIDTH)
        if hidden and noises:
            self.width[x.shape[1] + len(hidden) - 1] = _OUTPUT[activation]

    @property
    def noise(self) -> Tensor:
        """Standard deviations of the noise, ``[D]``."""
        return (_LEAST**2 + (2 * self.log_noise).exp()).sqrt()

    def solved(self, rows: Tensor | slice) -> _Solved:
        """The evidence of some rows and, of columns of y, the terms of leave-one-out.

        Raises:
            torch.linalg.LinAlgError: a matrix is not positive definite up to rounding.
        """
        k, y = self.kernel.covariance(self.x[rows], self.x[rows]), self.y[rows]
        if self.of_labels:
            return _Solved(laplace(_LOGIT**2 * k, y, self.classes).evidence, k, k)
        columns = [
            _of_column(k + (noise**2) * torch.eye(len(k)).to(k), y_d)
            for noise, y_d in zip(self.noise, y.T, strict=True)
        ]
        evidences, solutions, precisions = (torch.stack(each) for each in zip(*columns, strict=True))
        return _Solved(evidences.sum(), solutions.T, precisions.T)

    def score(self, rows: Tensor) -> Tensor:
        """The evidence plus the log density of the scales; a constant where a matrix is not positive definite."""
        try:
            evidence = self.solved(rows).evidence
        except torch.linalg.LinAlgError:
            return torch.tensor(-_IMPOSSIBLE)
        logs = torch.cat([_log_scales(self.kernel), self.log_noise])
        return evidence - ((logs - self.usual) / self.width).square().sum() / 2

    def search(self, rows: Tensor, iterations: int) -> None:
        """Maximise the score of some rows by L-BFGS."""
        parameters = list(self.parameters())
        best = math.inf, [p.detach().clone() for p in parameters]

        def closure() -> float:
            nonlocal best
            search.zero_grad()
            loss = -self.score(rows)
            if loss.requires_grad:  # or the step was too long
                loss.backward()  # type: ignore[no-untyped-call]
                if float(loss.detach()) < best[0]:
                    best = float(loss.detach()), [p.detach().clone() for p in parameters]
            return float(loss.detach())

        evaluations = iterations * 5 // 4
        search = torch.optim.LBFGS(
            parameters,
            max_iter=iterations,
            max_eval=evaluations,
            tolerance_change=_ENOUGH,
            line_search_fn="strong_wolfe",
        )
        search.step(closure)  # type: ignore[arg-type]
        with torch.no_grad():
            for parameter, value in zip(parameters, best[1], strict=True):
                parameter.copy_(value)


def _of_column(s: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ln N(y; 0, S), with the gradient by S in closed form, S^-1 y and the diagonal of S^-1."""
    with torch.no_grad():
        root = torch.linalg.cholesky(s)
        inverse = torch.cholesky_inverse(root)
        solution = inverse @ y
        evidence = -(y @ solution + 2 * root.diagonal().log().sum() + len(y) * math.log(2 * math.pi)) / 2
        slope = (torch.outer(solution, solution) - inverse) / 2
    return evidence + (slope * (s - s.detach())).sum(), solution, inverse.diagonal()


def _search(make: Callable[[float], _Process], size: int, seed: int) -> _Process:
    """The process with the largest score: from several starts on a few rows, then from the best of them on more."""
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    few, iterations = _FIRST
    processes = [make(start) for start in _STARTS]
    for process in processes:
        process.search(order[:few], iterations)
    best = max(processes, key=lambda process: float(process.score(order[: 4 * few]).detach()))
    for rows, iterations in _STAGES:
        best.search(order[:rows], iterations)
        if rows >= size:
            break
    return best


def _kernel(activation: str, gain: float, hidden: int, x: Tensor, offset: float, scale: float) -> InfiniteWidth:
    """A kernel whose functions have a variance of about 1 and offsets as large as those of x, and of this mean square."""
    far = 1 + float(x.mean(0).square().mean())
    inner, weights, biases = [scale**2] * x.shape[1], [2.0] * hidden, [scale**2 * far, *[1.0] * hidden]
    with torch.no_grad():
        kernel = InfiniteWidth(activation, [inner, *weights], [*biases[:-1], 0.0], gain=gain)
        level = max(float(kernel.covariance(x, x, diagonal=True).mean()), 1e-6)
    if hidden:
        weights[-1] /= level
    else:
        inner = [value / level for value in inner]
    return InfiniteWidth(activation, [inner, *weights], [*biases[:-1], 0.25 + offset], gain=gain)


def _log_scales(kernel: InfiniteWidth) -> Tensor:
    return torch.cat([kernel.weight_variance, kernel.bias_variance]).log() / 2


def _spread(x: Tensor) -> Tensor:
    """The standard deviation of every column; for a constant column its absolute value, or 1 if it is 0."""
    sizes = x.abs().amax(0)
    return torch.where(varies(x), x.std(0, correction=0), torch.where(sizes > 0, sizes, 1.0))


@torch.no_grad()
def _priors(
    kernel: InfiniteWidth, spread: Tensor, unit: float, fan_in: list[int]
) -> tuple[dict[str, priors.Gaussian], dict[str, priors.Gaussian]]:
    """The priors of weights and biases in the units of x and y: v_l = fan-in scale_l^2, c_l = bias scale_l^2."""
    columns, variances = len(spread), kernel.weight_variance
    weights = [(variances[:columns] / columns).sqrt() / spread]
    weights += (variances[columns:] / torch.tensor(fan_in[1:])).sqrt()
    biases = list(kernel.bias_variance.sqrt())
    weights[-1], biases[-1] = unit * weights[-1], unit * biases[-1]
    return tuple(  # type: ignore[return-value]
        {
            f"layers.{i}.{kind}": priors.Gaussian(v.tolist() if v.numel() > 1 else float(v), drawn=i < len(values) - 1)
            for i, v in enumerate(values)
        }
        for kind, values in (("weight", weights), ("bias", biases))
    )


def _checked(model: NetworkModel) -> MLP:
    """The model; an error unless from_gp has a kernel for it."""
    if type(model) is not MLP:
        raise TypeError(f"from_gp needs a model that is a models.MLP; got {shown(model)}")
    if type(model.likelihood) not in (Gaussian, Categorical):
        raise ValueError(
            "model must have a likelihoods.Gaussian or likelihoods.Categorical for from_gp; got "
            f"{shown(model)} with {model.likelihood.describe()}: choose the scales, sqrt(2 / inputs) of every layer "
            "(docs/choosing.md, Which prior)"
        )
    if model.fixed:
        raise ValueError(
            f"from_gp needs a network whose parameters are all trained; got {', '.join(model.fixed)} fixed"
        )
    function = model.network.activation
    if function not in _KERNELS:
        names = ", ".join(dict.fromkeys(each.__name__ for each in _KERNELS))
        raise ValueError(
            f"activation must be one of {names} for from_gp; got {getattr(function, '__name__', function)}"
        )
    return model


def _rebuilt(network: MLP, **parts: Any) -> MLP:
    """The model with the priors and the likelihood in `parts`; the last layer keeps its initial values."""
    layers: list[nn.Linear] = list(network.network.layers)  # type: ignore[arg-type, union-attr]
    function = network.network.activation
    made = MLP(
        [layers[0].in_features, *(layer.out_features for layer in layers)],
        next((name for name, each in ACTIVATIONS.items() if each is function), function),  # type: ignore[arg-type]
        seed=network.made_with()["arguments"].get("seed", 0),
        **parts,
    )
    last = f"layers.{len(layers) - 1}"
    kept = {**network.weight_sites(), **{name: network.free[name] for name in network.free}}
    made.to(next(iter(kept.values())))
    made._set_initial({name: value for name, value in kept.items() if name.startswith(last)})
    made.inputs, made.targets, made.columns = network.inputs, network.targets, network.columns
    return made


def _listed(scale: float | Sequence[float]) -> str:
    """Scales with three digits; of more than eight, the first eight and the last."""
    values = [scale] if isinstance(scale, float) else list(scale)
    return ", ".join(f"{value:.3g}" for value in values[:8]) + (f" ... {values[-1]:.3g}" if len(values) > 8 else "")
