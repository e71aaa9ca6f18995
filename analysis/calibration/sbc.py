"""Simulation-based calibration: the rank of the truth among posterior draws, over data sets simulated from the prior.

    w* ~ p(w),   y ~ p(y | f(x; w*)),   q fitted to (x, y),   w_s ~ q,   s = 1 ... S
    rank of t(w*) among t(w_1) ... t(w_S)                                            uniform on 0 ... S if q is exact

The quantities t are the function at some points, f(x_p; w), and the log likelihood of the data, ln p(y | f(x; w)).
They are not weights: a network is the same function after a permutation of its hidden units and, for odd activations,
after a change of their signs. The exact posterior of a weight has all of these modes and the prior draw lies in any of
them, whereas a variational posterior covers only one. The ranks of weights would therefore fail without any problem in
the functions.

Talts, Betancourt, Simpson, Vehtari & Gelman (2018), Validating Bayesian Inference Algorithms with Simulation-Based
Calibration, https://arxiv.org/abs/1804.06788; for variational posteriors Yao, Vehtari, Simpson & Gelman (2018), Yes,
but Did It Work?, https://arxiv.org/abs/1802.02538, section 4; for the log likelihood as a quantity Modrak et al.
(2023), https://arxiv.org/abs/2211.02383.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyrodrop.analysis.calibration.fits import check_guide, each_posterior, problem_of
from pyrodrop.analysis.calibration.ranks import ranks_of
from pyrodrop.analysis.calibration.result import LOG_LIKELIHOOD, SBC
from pyrodrop.analysis.calibration.simulate import (
    Simulated,
    check_model,
    functions_of,
    log_likelihood,
    outputs_of,
    simulate,
)
from pyrodrop.analysis.calibration.starts import NewStarts
from pyrodrop.changes import evaluating
from pyrodrop.checks import Inputs, Progress, checked, mapped, named_parts, num_rows, parts, real, shown
from pyrodrop.checks import count as whole_number
from pyrodrop.checks import seed as checked_seed
from pyrodrop.data.dataset import check_inputs
from pyrodrop.models import NetworkModel
from pyrodrop.training.problem import describe
from pyrodrop.training.settings import Estimator, LearningRate, LearningRateSchedule, Settings, Starts

_POINTS = 5  # rows of x at which functions are ranked by default
_AT_ONCE = 2**22  # number of drawn weights that are collected before the network is run for them
_PRIOR, _POSTERIOR, _TIES = (
    1_000_000_007,
    2_000_000_011,
    3_000_000_019,
)  # added to seeds, for independent random numbers
Draw = Callable[[Inputs, Tensor, int, int], Mapping[str, Tensor]]


@checked
def sbc(
    model: NetworkModel,
    make_guide: Callable[[Any], Any],
    x: Inputs,
    *,
    points: Inputs | None = None,
    count: int = 1000,
    num_draws: int = 199,
    steps: int = 2000,
    lr: LearningRate = 1e-2,
    lr_schedule: LearningRateSchedule | None = None,
    batch_size: int | None = None,
    estimator: Estimator = "shared",
    starts: Starts = "new",
    memory: float | None = None,
    device: str | torch.device = "auto",
    seed: int = 0,
    progress: Progress = None,
) -> SBC:
    """Simulation-based calibration of a variational posterior: its guide together with its training.

    Parameters are drawn from the model's prior and data from its likelihood. A fit is trained on each data set, all fits as
    replicates, and the true values are ranked among draws from the fit. x and y are not standardised, since that would make
    the prior depend on the data. A standardisation that the model already has is the same for all data sets.

    Args:
        model: a model of `pyrodrop.models` in which everything that training changes has a proper prior: weights, biases and
            hyperparameters. The noise precision is fixed.
        make_guide: function of the model that returns its guide, such as `guides.MeanField`.
        x: inputs of every data set, ``[N, ...]``, or a tuple or mapping of tensors.
        points: points at which the function is ranked, in the form of x; five rows of x if None.
        count: number of data sets.
        num_draws: S, posterior draws per data set.
        steps, lr, lr_schedule, batch_size, estimator, device: as in `pyrodrop.fit`.
        starts: ``new`` to start fit r from ``guide.restart(model)`` of ``seed + r``, ``model`` to start all from the weights
            of the model, as in `pyrodrop.fit_replicates`. If training does not forget a common start, that shows as a bias
            of all fits.
        memory: as in `pyrodrop.fit_replicates`.
        seed: seed of the parameters and data, and of the first fit; fit r starts from ``seed + r``.
        progress: whether to show a progress bar; if None, only on a terminal.

    Returns:
        An `SBC`. Its quantities are ``f[p]``, or ``f[p, d]`` if the network has several outputs, and ``log_likelihood``.

    Raises:
        TypeError: the model is not one of `pyrodrop.models`, or the guide cannot be drawn from or restarted.
        ValueError: an argument is out of range; something that training changes has no proper prior; the network has no new
            initial weights; the model and guide cannot be trained as replicates.
        FloatingPointError: no fit has a finite loss.

    Example:
        >>> import torch
        >>> from pyrodrop import guides, likelihoods, models, priors
        >>> from pyrodrop.analysis import sbc
        >>> model = models.from_module(
        ...     torch.nn.Linear(2, 1, bias=False), prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(precision=1.0)
        ... )
        >>> result = sbc(model, guides.MeanField, torch.eye(2), count=20, steps=10, num_draws=9)
        >>> list(result.ranks), result.count
        (['f[0]', 'f[1]', 'log_likelihood'], 20)
    """
    settings = Settings(
        steps=whole_number(steps, "steps", "the number of gradient steps"),
        lr=lr,
        lr_schedule=lr_schedule,
        batch_size=batch_size,
        estimator=estimator,
        starts=starts,
        device=device,
        seed=seed,
    )
    x = _checked(model, x, count, num_draws)
    if not callable(make_guide):
        raise TypeError(
            "make_guide must be a function of the model that returns its guide, such as guides.MeanField; got "
            f"{shown(make_guide)}"
        )
    if memory is not None:
        memory = real(memory, "memory", "the number of bytes that all fits together may take", above=0)
    start, wall = time.process_time(), time.perf_counter()
    model = copy.deepcopy(model)
    guide = make_guide(model)
    check_guide(guide)
    new = NewStarts(model, guide) if starts == "new" else None
    model = model.to(settings.place)
    x = mapped(lambda tensor: tensor.to(settings.place), x)
    data = simulate(model, x, count, seed + _PRIOR)
    problem = problem_of(model, guide, x, data.y[0], settings)
    ranking = _Ranking(model, x, points, data, num_draws, seed)
    each_posterior(problem, data.y, settings, new, num_draws, seed + _POSTERIOR, ranking.add, memory, progress)
    about = {"guide": describe(guide), "model": describe(model), "count": count, "num_data": num_rows(x)}
    about |= {"steps": steps, "lr": lr if isinstance(lr, float) else str(lr), "batch_size": batch_size}
    about |= {"estimator": estimator, "starts": starts}
    about |= {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - start}
    return ranking.result(about)


def sbc_of_draws(
    model: NetworkModel,
    draw: Draw,
    x: Inputs,
    *,
    points: Inputs | None = None,
    count: int = 1000,
    num_draws: int = 199,
    seed: int = 0,
) -> SBC:
    """Simulation-based calibration of any method to draw from a posterior, such as a sampler or a closed form.

    Args:
        model: as in `sbc`.
        draw: called for each data set as ``draw(x, y, num_draws, seed)``; it returns the weights of the draws by site,
            ``[num_draws, ...]``. Draws of a Markov chain must be thinned until they are nearly independent.
        x, points, count, num_draws: as in `sbc`.
        seed: seed of all random numbers; `draw` gets ``seed + r`` for data set r.

    Returns:
        An `SBC`, as `sbc` does.

    Raises:
        TypeError, ValueError: as `sbc`; or `draw` returns other sites or shapes.
    """
    x = _checked(model, x, count, num_draws)
    if not callable(draw):
        raise TypeError(
            f"draw must be a function draw(x, y, num_draws, seed) that returns weights by site; got {shown(draw)}"
        )
    seed = checked_seed(seed)
    model = copy.deepcopy(model)
    data = simulate(model, x, count, seed + _PRIOR)
    ranking = _Ranking(model, x, points, data, num_draws, seed)
    for r in range(count):
        drawn = draw(x, data.y[r], num_draws, seed + r)
        if not isinstance(drawn, Mapping) or not all(isinstance(value, Tensor) for value in drawn.values()):
            got = shown(drawn) if not isinstance(drawn, Mapping) else "other values than tensors in it"
            raise TypeError(f"draw must return a mapping from site to tensor; got {got}")
        want = {name: (num_draws, *w.shape) for name, w in model.weight_sites().items()}
        shapes = {name: tuple(value.shape) for name, value in drawn.items()}
        if shapes != want:
            raise ValueError(f"draw must return the weights of every site with their shapes, {want}; got {shapes}")
        ranking.add(r, {name: value.to(data.weights[name]) for name, value in drawn.items()})
    return ranking.result({"model": describe(model), "count": count, "num_data": num_rows(x)})


def _checked(model: Any, x: Inputs, count: int, num_draws: int) -> Any:
    whole_number(count, "count", "the number of data sets", least=2)
    whole_number(num_draws, "num_draws", "the number of posterior draws per data set")
    x = check_inputs(x)
    check_model(model, x)
    return x


class _Ranking:
    """Collects the ranks of true values, one data set after another.

    Args:
        points: points at which functions are ranked, or None for some rows of x.
    """

    def __init__(
        self, model: NetworkModel, x: Inputs, points: Inputs | None, data: Simulated, num_draws: int, seed: int
    ) -> None:
        self.model, self.x, self.data, self.num_draws, self.seed = model, x, data, num_draws, seed
        like = next(iter(data.weights.values()))
        checked = None if points is None else check_inputs(points, "points")
        if checked is not None and _shape_of(checked) != _shape_of(x):
            raise ValueError(
                f"points must have the form of x, {_shape_of(x)}; got {_shape_of(checked)}, shape "
                f"{', '.join(str(list(tensor.shape)) for tensor in parts(checked))}"
            )
        self.points: Any = None if checked is None else mapped(lambda tensor: tensor.to(like.device), checked)
        rows = min(_POINTS, num_rows(x))
        self.rows = torch.linspace(0, num_rows(x) - 1, rows).round().long()
        self.generator = torch.Generator().manual_seed(seed + _TIES)
        self.waiting: list[tuple[int, dict[str, Tensor]]] = []
        self.most = max(1, _AT_ONCE // (num_draws * sum(w[0].numel() for w in data.weights.values())))
        self.ranks: list[Tensor] = []  # ranks of one data set each, [quantities]
        self.failed = 0
        with torch.no_grad(), evaluating(model):
            outputs, functions = self._run(data.weights)
            likelihoods = [log_likelihood(model, output[None], y) for output, y in zip(outputs, data.y, strict=True)]
        self.truth = _joined(functions, torch.cat(likelihoods))
        self.names = [*_names(functions), LOG_LIKELIHOOD]

    def add(self, r: int, weights: dict[str, Tensor] | None) -> None:
        """Rank the true values of data set r among draws ``[S, ...]``; None counts as a failed fit."""
        if weights is None:
            self.failed += 1
            return
        self.waiting.append((r, weights))
        if len(self.waiting) >= self.most:
            self._rank()

    def result(self, settings: Mapping[str, Any]) -> SBC:
        """The ranks of all data sets that were added.

        Raises:
            FloatingPointError: all fits failed.
        """
        self._rank()
        if not self.ranks:
            raise FloatingPointError(f"none of the {self.failed} fits has a finite loss: try a smaller learning rate")
        ranks = torch.stack(self.ranks, 1).cpu()
        named = dict(zip(self.names, ranks, strict=True))
        return SBC(named, self.num_draws, self.seed + _TIES, dict(settings), self.failed)

    def _rank(self) -> None:
        """Run the network once for the draws of all waiting data sets."""
        if not self.waiting:
            return
        numbers = [r for r, _ in self.waiting]
        weights = {name: torch.cat([weights_of[name] for _, weights_of in self.waiting]) for name in self.data.weights}
        self.waiting.clear()
        with torch.no_grad(), evaluating(self.model):
            outputs, functions = self._run(weights)
            parts = zip(numbers, outputs.split(self.num_draws), functions.split(self.num_draws), strict=True)
            for r, outputs, f in parts:
                draws = _joined(f, log_likelihood(self.model, outputs, self.data.y[r]))
                self.ranks.append(ranks_of(self.truth[r], draws, self.generator))

    def _run(self, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Outputs at x, ``[D, N, ...]``, and functions at the points, ``[D, P, ...]``."""
        outputs = outputs_of(self.model, weights, self.x)
        if self.points is None:
            return outputs, functions_of(self.model, outputs)[:, self.rows.to(outputs.device)]
        return outputs, functions_of(self.model, outputs_of(self.model, weights, self.points))


def _shape_of(x: Inputs) -> str:
    """A description of the shapes of one row of x."""
    return ", ".join(f"{name} [N, {', '.join(map(str, tensor.shape[1:]))}]" for name, tensor in named_parts(x).items())


def _joined(functions: Tensor, likelihoods: Tensor) -> Tensor:
    """All quantities of D draws, ``[D, quantities]`` in float64."""
    return torch.cat([functions.flatten(1).double(), likelihoods[:, None]], 1)


def _names(functions: Tensor) -> list[str]:
    """The names of functions ``[D, P, ...]``: by point, and by output if there are several."""
    shape = functions.shape[1:-1] if functions.shape[-1] == 1 else functions.shape[1:]
    places = itertools.product(*(range(size) for size in shape))
    return [f"f[{', '.join(map(str, place))}]" for place in places]
