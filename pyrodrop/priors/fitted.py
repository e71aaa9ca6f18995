"""Priors that maximise the evidence of the Gaussian process to which a network converges as its layers become wider.

    f_d ~ GP(0, K),   y_d = f_d(x) + noise_d e_d,   e_d ~ N(0, I)     d = 1 ... D columns of y
    K(x, x')  = `InfiniteWidth`, of an MLP whose activation has a kernel in closed form
              = c_L + v_L mean_sj phi_sj(x) phi_sj(x'),   phi_s [H] the inputs of the last layer at draw s of those below
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
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from pyrodrop import priors
from pyrodrop.checks import Flag, Seed, checked, instance, shown
from pyrodrop.data import Data, Dataset
from pyrodrop.likelihoods import Categorical, Gaussian
from pyrodrop.models import MLP, LeNet300100, NetworkModel
from pyrodrop.modules import ParameterTree
from pyrodrop.networks.call import for_each
from pyrodrop.networks.last_map import LastMap
from pyrodrop.networks.sites import new_values, starting_from
from pyrodrop.parts import Card, carded, number
from pyrodrop.priors.infinite_width import TANH_GAIN, InfiniteWidth
from pyrodrop.priors.labels import laplace
from pyrodrop.scaling import varies

ROWS, ROWS_OF_LABELS = 2000, 500  # most rows that are used; of larger data they are drawn at random
_FIRST = 125, 12  # rows and iterations of the search from every start
_STAGES = ((125, 25), (500, 12), (ROWS, 5))  # the same for the searches that continue from the best of these
_USUAL = {"erf": 2.5, "relu": 0.75, "": 1.5}  # scale of the inputs of the first hidden units, by activation
_STARTS = (0.3, 1.0, 3.0)  # multiples of the usual scale at which searches start
_WIDTH = 1.0  # width of the distribution of the logarithm of a scale, except of the output weights, as
# functions that are small differences of large units are hard to fit by SVI
_OUTPUT = {"erf": 0.25, "relu": 1.0, "": 0.25}
_NOISE, _LEAST = 0.3, 1e-3  # usual and smallest noise
_LOGIT = 3.0  # usual standard deviation of logits
_APART = 10.0  # largest ratio of the standard deviations of columns of y, in the units of the network
_ENOUGH = 1e-4  # nats, or change of the logarithm of a variance: a search ends at a smaller one
_FEATURES, _DRAWS = 2000, 20  # least numbers of features of a network, and of draws that they are of
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
            converges as its hidden layers become infinitely wide, or that of its last layer at draws of the layers below. It
            can be compared with ELBOs of `model` on the same rows.
        leave_one_out: log density of one row of y given all others under this process, in nats, the mean over rows; None for
            class labels.
        constant: the mean log density of y under the best Gaussian without x, or under the frequencies of the classes.
        noise_sd: standard deviation of the noise, in the units of y, one value per column ``[D]``; None for class labels.
        rows, of_rows: the number of rows that were used, and the number of rows of the data.
        kernel: a description of the activation, or of the draws, whose kernel is used.
    """

    model: NetworkModel
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
        facts = {}
        for name, prior in self.prior.items():
            bias = self.bias_prior.get(f"{name.removesuffix('weight')}bias")
            of_bias = "" if bias is None else f", biases {_listed(bias.scale)}"
            facts[f"sd in {name.removesuffix('.weight')}"] = f"weights {_listed(prior.scale)}{of_bias}"
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
        return Card("Priors by the evidence of the network's Gaussian process", facts)


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
        model: a network under a `likelihoods.Gaussian`, for one or several columns of y, each with its own noise; the time
            grows with the number of columns. Or under a `likelihoods.Categorical`: then the evidence is Laplace's
            approximation, whose time grows with the number of classes. The model's priors and noise have no influence: all
            trained weights and biases of nn.Linear and nn.Conv get priors, and other parameters stay as they are. For an
            MLP, the kernel is that of ReLU or erf; tanh is replaced by the erf with the same slope at 0, leaky ReLU, GELU,
            SiLU, ELU and softplus by ReLU. For other networks and activations it is that of the inputs of the last layer,
            at least 2,000 from at least 20 draws of the layers below, which stay the same while their scales change.
        data: x ``[N, Q]`` and y ``[N]`` or ``[N, D]``, as for `pyrodrop.fit`. If there are more than 2,000 rows, 2,000 are
            drawn at random; of class labels 500.
        learn_noise: whether fits of the model train the noise. The ELBO of a posterior that is wider than the exact one
            prefers too much noise.
        seed: seed of the choice of rows.

    Raises:
        TypeError: the model is no network of `pyrodrop.models`, x is not one tensor, or an argument is of the wrong kind.
        ValueError: the network does not return the output of a last nn.Linear unchanged, mixes rows, or has priors of other
            parameters, such as those of nn.LayerNorm; the likelihood is another, or has no noise to learn; x or y do not
            fit the model; y has missing values, does not vary, or has columns of very different standard deviations; or
            rounding makes every covariance matrix indefinite, as where y is very far from 0.

    Example:
        >>> import torch
        >>> from pyrodrop import data, likelihoods, models, priors
        >>> x = torch.linspace(-2.0, 2.0, 60)
        >>> model = models.MLP([1, 50, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian())
        >>> fitted = priors.from_gp(model, data.Dataset(x, torch.sin(3 * x)).standardized())
        >>> list(fitted.prior), fitted.model.likelihood.learned
        (['layers.0.weight', 'layers.1.weight'], False)
    """
    layers, data, network = _layers(model), Dataset.of(data), copy.deepcopy(model)
    network.standardize(data)
    network.check(data)
    of_labels = isinstance(network.likelihood, Categorical)
    if of_labels and learn_noise:
        raise ValueError("learn_noise must be False for class labels, which have no noise; got True")
    most = ROWS_OF_LABELS if of_labels else ROWS
    rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:most].sort().values
    x, y = instance(data.x, Tensor, "x", "one tensor, for from_gp")[rows.to(data.x.device)].cpu(), data.y[rows].cpu()
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
    kernels = _kernels(network, layers, x, seed)
    process = _search(lambda start: _Process(kernels, y, start), len(x), seed)
    try:
        with torch.no_grad():
            of_all, solution, of_rows = process.solved(slice(None))
    except torch.linalg.LinAlgError:
        raise ValueError(
            "data must leave a covariance matrix that is positive definite up to rounding, at all scales tried; got x and y "
            "with which there is none: standardise them, data.Dataset(x, y).standardized()"
        ) from None
    evidence, leave_one_out, noise_sd = float(of_all), None, None
    likelihood: Gaussian | Categorical = Categorical()
    if not of_labels:
        left_out = ((of_rows / (2 * math.pi)).log() - solution.square() / of_rows) / 2
        evidence, leave_one_out = evidence - len(y) * float(units.sum()), float((left_out - units).sum(1).mean())
        noise_sd = units.exp() * process.noise.detach()
        tau = noise_sd.pow(-2).tolist()
        likelihood = Gaussian(tau if len(tau) > 1 else tau[0], learned=learn_noise)
    chosen = _priors(_scales(process.kernel, layers, kernels.spread), list(layers)[-1], unit)
    prior, bias_prior = ({n: p for n, p in chosen.items() if n.endswith(kind)} for kind in ("weight", "bias"))
    _replace(network, prior, bias_prior, likelihood)
    return FittedPriors(
        model=network,
        prior=prior,
        bias_prior=bias_prior,
        likelihood=likelihood,
        evidence=evidence,
        leave_one_out=leave_one_out,
        constant=constant,
        noise_sd=noise_sd,
        rows=len(rows),
        of_rows=len(data),
        kernel=kernels.described,
    )


class _Kernels(NamedTuple):
    """The kernels of a network.

    Attributes:
        make: a kernel, from the variances of weights and of biases.
        of: name of the kernel in closed form, or empty.
        x: what it is a function of, ``[N, ...]``.
        spread: standard deviations of the columns of x, each with a scale in the first layer, or the absolute value of a
            constant one; ``[1]`` if they share the scale.
        far: mean square of the mean of x in units of `spread`.
        described: for the card.
    """

    make: Callable[[list[Any], list[float]], InfiniteWidth]
    of: str
    x: Tensor
    layers: dict[str, Any]
    spread: Tensor
    far: float
    described: str

    def usual(self, scale: float, offset: float) -> InfiniteWidth:
        """A kernel whose functions have a variance of about 1, and offsets as large as those of x, and of this mean square.

        Args:
            scale: of the inputs of the first hidden units.
        """
        inner, weights = [scale**2] * len(self.spread), [2.0] * (len(self.layers) - 1)
        biases = [scale**2 * (1 + self.far), *[1.0] * len(weights)]
        with torch.no_grad():
            kernel = self.make([inner, *weights], [*biases[:-1], 0.0])
            level = max(float(kernel.covariance(self.x, self.x, diagonal=True).mean()), 1e-6)
        if weights:
            weights[-1] /= level
        else:
            inner = [value / level for value in inner]
        return self.make([inner, *weights], [*biases[:-1], 0.25 + offset])


def _kernels(network: NetworkModel, layers: dict[str, Any], x: Tensor, seed: int) -> _Kernels:
    """The kernels in closed form if there is one, and else of the inputs of the last layer at draws of the layers below.

    Raises:
        ValueError: the network mixes rows, or does not return the output of its last layer.
    """
    network, (*below, last) = copy.deepcopy(network).cpu().double().eval(), layers
    x = x.double() if x.is_floating_point() or network.in_features is not None else x  # ids stay whole numbers
    of, gain, described = _KERNELS.get(getattr(network.network, "activation", None), ("", 1.0, ""))  # type: ignore[arg-type]
    closed = bool(of) and type(network) in (MLP, LeNet300100) and not network.fixed
    table = below and not network.fixed and x.dim() == 2 and x.is_floating_point()
    by_column = table and layers[below[0]].weight.shape[1:] == x.shape[1:]
    spread, far = torch.ones(1, dtype=torch.float64), 0.0
    if closed or by_column:
        inputs = network.inputs(x)
        sizes = inputs.abs().amax(0)  # of constant columns
        spread = torch.where(varies(inputs), inputs.std(0, correction=0), torch.where(sizes > 0, sizes, 1.0))
        far = float((inputs / spread).mean(0).square().mean())
    if closed:
        kernel = functools.partial(InfiniteWidth, of, gain=gain)
        return _Kernels(kernel, of, inputs / spread, layers, spread, far, described)
    if network.mixes_in_training(x) or network.noise_shapes(x):
        raise ValueError("from_gp needs a network in which the output of a row depends on no other row and no mask")
    width = layers[last].in_features
    count = max(_DRAWS, math.ceil(_FEATURES / width)) if below else 1
    values = {**network.weight_sites(), **{name: network.free[name].detach() for name in network.free}}
    weight, generator = values[f"{last}.weight".removeprefix(".")], torch.Generator().manual_seed(seed)
    draws = {
        name: torch.randn(count, *values[name].shape, generator=generator, dtype=torch.float64)
        for name in network.parameter_names
        if name.rpartition(".")[0] in below
    }

    def of_one(drawn: dict[str, Tensor], x: Tensor) -> Tensor:
        with LastMap([weight]) as seen:
            output = network._draw({**values, **drawn}, x)
        use = seen.last
        linear = use.linear() if use and use is seen.first and use.result is output else None
        if linear is None or linear[0].dim() != 2:
            raise ValueError(
                f"from_gp needs a network that uses '{last}.weight' in a torch.nn.Linear alone, and returns the output of "
                "that layer unchanged, [N, D]; this one does not"
            )
        return linear[0]

    def features(kernel: InfiniteWidth, x: Tensor) -> Tensor:
        if not draws:
            return of_one({}, x)
        scales = _scales(kernel, layers, spread)
        drawn = {name: scales[name] * draw for name, draw in draws.items()}
        phi = for_each(lambda each: of_one(each, x), drawn, mapped=network.batches_weights)
        return phi.transpose(0, 1).flatten(1)

    described = f"inputs of the last layer, {count * width:,} in {count:,} draws of the network"
    drawn = functools.partial(_Drawn, features, layers[last].bias is not None)
    return _Kernels(drawn, "", x, layers, spread, far, described)


class _Drawn(InfiniteWidth):
    """The kernel of ``features(kernel, x)``, ``[N, S H]``, which depend on its variances, and of a bias if `biased`."""

    def __init__(self, features: Callable[[InfiniteWidth, Tensor], Tensor], biased: bool, *variances: Any) -> None:
        super().__init__("", *variances)
        self.features, self.biased = features, biased

    def covariance(self, x1: Tensor, x2: Tensor, *, diagonal: bool = False) -> Tensor:
        first = self.features(self, x1)
        second = first if x2 is x1 else self.features(self, x2)
        product = (first * second).sum(1) if diagonal else first @ second.T
        return self.bias_variance[-1] * self.biased + self.weight_variance[-1] * product / first.shape[1]


class _Process(nn.Module):
    """The process of a network and its noise, for y ``[N, D]`` in units of its standard deviation; or of the logits of
    labels y ``[N]``, which are `_LOGIT` times those functions.

    Args:
        start: scale of the inputs of the first hidden units at which a search starts, in multiples of the usual one.
    """

    def __init__(self, kernels: _Kernels, y: Tensor, start: float) -> None:
        super().__init__()
        *below, last = kernels.layers
        self.x, self.y, self.of_labels, self.classes = kernels.x, y, y.dim() == 1, kernels.layers[last].out_features
        offset, noises = (0.0, 0) if self.of_labels else (float(y.mean(0).square().mean()), y.shape[1])
        self.kernel, usual = (kernels.usual(each * _USUAL[kernels.of], offset) for each in (start, 1.0))
        self.log_noise = nn.Parameter(torch.full((noises,), math.log(_NOISE), dtype=torch.float64))
        with torch.no_grad():
            self.usual = torch.cat([_log_scales(usual), self.log_noise])
        self.width = torch.full_like(self.usual, _WIDTH)
        if below and noises:
            self.width[len(kernels.spread) + len(below) - 1] = _OUTPUT[kernels.of]

    @property
    def noise(self) -> Tensor:
        """Standard deviations of the noise, ``[D]``."""
        return (_LEAST**2 + (2 * self.log_noise).exp()).sqrt()

    def solved(self, rows: Tensor | slice) -> tuple[Tensor, Tensor, Tensor]:
        """The evidence of some rows in nats, with its gradient, and for columns of y a and P, ``[N, D]``.

        Raises:
            torch.linalg.LinAlgError: a matrix is not positive definite up to rounding.
        """
        x, y = self.x[rows], self.y[rows]
        k = self.kernel.covariance(x, x)
        if self.of_labels:
            return laplace(_LOGIT**2 * k, y, self.classes).evidence, k, k
        columns = [
            _of_column(k + (noise**2) * torch.eye(len(k)).to(k), y_d)
            for noise, y_d in zip(self.noise, y.T, strict=True)
        ]
        evidences, solutions, precisions = (torch.stack(each) for each in zip(*columns, strict=True))
        return evidences.sum(), solutions.T, precisions.T

    def score(self, rows: Tensor) -> Tensor:
        """The evidence plus the log density of the scales; a constant where a matrix is not positive definite."""
        try:
            evidence = self.solved(rows)[0]
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


def _log_scales(kernel: InfiniteWidth) -> Tensor:
    return torch.cat([kernel.weight_variance, kernel.bias_variance]).log() / 2


def _scales(kernel: InfiniteWidth, layers: dict[str, Any], spread: Tensor) -> dict[str, Tensor]:
    """Standard deviations of weights and biases: v_l = fan-in scale_l^2, c_l = scale_l^2; of the first layer by `spread`."""
    inner, others = kernel.weight_variance.split([len(spread), len(layers) - 1])
    scales = {}
    for (name, layer), v, c in zip(layers.items(), (inner / spread**2, *others), kernel.bias_variance, strict=True):
        scales[f"{name}.weight".removeprefix(".")] = (v / layer.weight[0].numel()).sqrt()
        if layer.bias is not None:
            scales[f"{name}.bias".removeprefix(".")] = c.sqrt()
    return scales


@torch.no_grad()
def _priors(scales: dict[str, Tensor], last: str, unit: float) -> dict[str, priors.Gaussian]:
    """The priors of weights and biases; those of the last layer are in units of y."""
    made = {}
    for name, scale in scales.items():
        values = scale if (drawn := name.rpartition(".")[0] != last) else unit * scale
        made[name] = priors.Gaussian(values.tolist() if values.numel() > 1 else float(values), drawn=drawn)
    return made


def _layers(model: Any) -> dict[str, Any]:
    """The layers whose weights are trained, by name.

    Raises:
        TypeError, ValueError: from_gp has no kernel for the model.
    """
    instance(model, NetworkModel, "model", "a network of pyrodrop.models, for from_gp")
    if type(model.likelihood) not in (Gaussian, Categorical):
        raise ValueError(
            "model must have a likelihoods.Gaussian or likelihoods.Categorical for from_gp; got "
            f"{shown(model)} with {model.likelihood.describe()}: choose the scales, sqrt(2 / inputs) of every layer "
            "(docs/choosing.md, Which prior)"
        )
    layers = {}
    for name in model.parameter_names:
        prefix, _, kind = name.rpartition(".")
        module = model.network.get_submodule(prefix)
        trained = name not in model.fixed
        if trained and kind == "weight" and isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            layers[prefix] = module
        elif not trained if prefix in layers else name in model.priors:
            raise ValueError(
                "from_gp has scales for nn.Linear and nn.Conv whose weight and bias are both trained; got "
                f"{name!r} {'with a prior: other parameters have none and stay as they are' if trained else 'fixed'}"
            )
    return layers


def _replace(
    network: NetworkModel, prior: dict[str, priors.Gaussian], bias_prior: dict[str, priors.Gaussian], likelihood: Any
) -> None:
    """Give the network these priors and this likelihood. The layers below the last get initial values from their priors."""
    made = network.__dict__.get("_made_with", {})
    chosen, free = {**prior, **bias_prior}, {name: network.free[name] for name in network.free}
    network._set_initial(free)
    network.priors = {name: chosen[name] for name in network.parameter_names if name in chosen}
    network.free = ParameterTree({name: value for name, value in free.items() if name not in chosen})
    network.likelihood = likelihood
    with starting_from(made.get("seed", 0)):
        sites = {name: network.parameter_names[name] for name in network.priors}
        new = new_values(copy.deepcopy(network.network).cpu(), sites)
        network._set_initial(
            {name: each.initial(new[name]) for name, each in network.priors.items() if chosen[name].drawn}
        )
    for name, each in (("prior", prior), ("bias_prior", bias_prior)):
        made[name] = {"mapping": {site: of.made_with() for site, of in each.items()}} if each else None


def _listed(scale: float | Sequence[float]) -> str:
    """Scales with three digits; of more than eight, the first eight and the last."""
    values = [scale] if isinstance(scale, float) else list(scale)
    return ", ".join(f"{value:.3g}" for value in values[:8]) + (f" ... {values[-1]:.3g}" if len(values) > 8 else "")
