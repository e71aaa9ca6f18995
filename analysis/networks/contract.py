"""The contract that every network must satisfy.

A cell is one network, one posterior and one check. Its result is

    right       agrees with the oracle within 4.5 standard errors, or up to rounding if there is no noise
    fallback    right, but with Pyro's engine instead of the requested one, as stated in the log
    other       another distribution of the activations, as documented: local weight noise on several rows of an example
    refused     a ValueError or TypeError of this package that is listed in the network's file or below
    wrong       anything else

Checks, by the cell's `what`:

    joint, pointwise, moments, analytic    predictions: mean, variance and covariance between points
    elbo          expectation of -ln p(y | f), and the KL divergence, in evaluation mode
    save          a loaded fit predicts bitwise the same
    checkpoint    an interrupted fit gives bitwise the same result
    plain         a point estimate is trained like by a plain PyTorch loop, including running statistics
    loss          -ln p(y | f), the KL divergence and the gradient of every parameter, averaged over the estimator's noise
    steps         parameters and buffers after some steps are those of Pyro's engine
    replicates    two replicates equal two separate fits
"""

from __future__ import annotations

import logging
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides, models
from pyrodrop.analysis.networks import agreement
from pyrodrop.analysis.networks.case import Case, Cell, Refused
from pyrodrop.analysis.networks.oracle import WARM_UP, Oracle, train_point, weight_names
from pyrodrop.analysis.networks.posteriors import POSTERIORS
from pyrodrop.inputs import num_rows
from pyrodrop.likelihoods import Categorical
from pyrodrop.training.settings import Estimator

# Cells that may be refused for any network.
GENERAL = (Refused("flipout needs deviations", guide="Bernoulli LowRank", estimator="flipout"),)


@dataclass(frozen=True)
class Draws:
    """Numbers of samples of the checks.

    Attributes:
        predict: samples per prediction.
        elbo: samples per ELBO.
        loss: training steps of the check ``loss``.
        oracle: samples of the oracle for each of ours.
    """

    predict: int = 10_000
    elbo: int = 500
    loss: int = 2_000
    oracle: int = 4

    def times(self, factor: float) -> Draws:
        """The numbers of samples multiplied by `factor`, at least 50 each."""
        predict, elbo, loss = (max(50, int(n * factor)) for n in (self.predict, self.elbo, self.loss))
        return Draws(predict, elbo, loss, self.oracle)


THIN = Draws(predict=2_000, elbo=100, loss=300)


class Result(NamedTuple):
    """The result of a check.

    Attributes:
        kind: ``right``, ``fallback``, ``other``, ``refused`` or ``wrong``.
        note: the reason, or the quantity that disagrees.
    """

    kind: str
    note: str = ""


def cells(case: Case) -> list[Cell]:
    """Every cell of a network."""
    found: list[Cell] = []
    for guide in POSTERIORS:
        found += [Cell(guide, what) for what in ("joint", "pointwise", "moments", "analytic", "elbo", "save")]
        found += [Cell(guide, "checkpoint", engine=engine) for engine in ("pyro", "traced")]
        if guide == "Point":
            found.append(Cell(guide, "plain"))
        for estimator in get_args(Estimator):
            found.append(Cell(guide, "loss", estimator, "traced"))
            for engine in ("traced", "compiled"):
                found += [Cell(guide, what, estimator, engine) for what in ("steps", "replicates")]
    return found


# Compilation takes most of the time, so these cover every posterior and every estimator once.
COMPILED = {("Point", "shared"), ("Bernoulli", "local"), ("MeanField", "shared"), ("LowRank", "per_example")}


def usual_cells(case: Case) -> list[Cell]:
    """The cells without most of the compiled ones, whose programs are compiled from the traces that other cells check."""
    return [
        cell
        for cell in cells(case)
        if cell.engine != "compiled" or ((cell.guide, cell.estimator) in COMPILED and cell.what == "steps")
        or (cell.guide, cell.estimator) == ("Bernoulli", "local")
    ]  # fmt: skip


_ESTIMATORS: tuple[Estimator, ...] = ("shared", "local", "per_example")


def few_cells(case: Case, number: int) -> list[Cell]:
    """A small selection: predictions with one posterior and training with another, which rotate with the case's number."""
    if case.draws < HEAVY:
        return [Cell("Bernoulli", "save")]
    names, estimators = list(POSTERIORS), _ESTIMATORS
    one, two = names[1 + number % 4], names[1 + (number + 1) % 4]
    estimator = estimators[number % 3]
    return [
        Cell("Point", "plain"),
        Cell(one, ("joint", "moments", "pointwise")[number % 3]),
        Cell(two, "loss", estimator, "traced"),
        Cell(two, ("steps", "replicates")[number % 2], estimator, "traced"),
    ]


HEAVY = 0.02  # a case with a smaller share of samples has one cell in `few_cells`


class Bench:
    """Runs the cells of one network, with shared fits.

    Args:
        case: the kind of network.
        draws: numbers of samples.
        seed: seed of all samples.
    """

    def __init__(self, case: Case, draws: Draws = THIN, seed: int = 0) -> None:
        self.case, self.draws, self.seed = case, draws.times(case.draws), seed
        self._posteriors: dict[str, _OfOne] = {}

    def check(self, cell: Cell) -> Result:
        """The result of a cell; a statistical disagreement counts only if it recurs with another seed."""
        result = self._once(cell, self.seed)
        if result.kind == "wrong" and "standard errors" in result.note:
            again = Bench(self.case, self.draws.times(1 / self.case.draws), self.seed + 1)._once(cell, self.seed + 1)
            result = result if again.kind == "wrong" else again
        return result

    def _once(self, cell: Cell, seed: int) -> Result:
        own = [r.reason for r in self.case.refused if r.means(cell)]
        stated = [*own, *(r.reason for r in GENERAL if r.means(cell))]
        if cell.what == "analytic" and not has_closed_form(self.case, cell):
            stated.append("method='analytic'")
        with torch.random.fork_rng():
            torch.manual_seed(1000 + seed)
            try:
                if cell.guide not in self._posteriors:
                    self._posteriors[cell.guide] = _OfOne(self.case, cell.guide, self.draws, seed)
                result = getattr(self._posteriors[cell.guide], cell.what)(cell)
            except Exception as error:  # of any type, as a user would see it
                return _judged(error, stated)
        if own and result.kind != "wrong":
            return Result("wrong", f"should be refused with {own[0]!r}, and is {result.kind}")
        return result


def has_closed_form(case: Case, cell: Cell) -> bool:
    """Whether there are closed-form moments: dropout on a fully connected last layer only, and Gaussian y."""
    return cell.guide == "Bernoulli" and case.last is not None and not isinstance(case.likelihood(), Categorical)


class _OfOne:
    """The checks of one posterior of one network."""

    def __init__(self, case: Case, guide: str, draws: Draws, seed: int) -> None:
        self.case, self.draws, self.seed = case, draws, seed
        self.posterior = POSTERIORS[guide]
        self.x: Any
        self.x, self.y = case.data()
        self._fits: dict[tuple[Any, ...], Any] = {}

    @cached_property
    def parts(self) -> tuple[Any, Any]:
        """Our model and guide, new."""
        model = self.case.model(self.case.build())
        return model, self.posterior.guide(model, self.case)

    # training ----------------------------------------------------------------------------------------------------------

    def fit(self, **settings: Any) -> Any:
        """A short fit with the given settings, cached."""
        key = tuple(sorted((k, str(v)) for k, v in settings.items()))
        if key not in self._fits:
            rows = num_rows(self.x)
            usual = {
                "steps": 6,
                "lr": 1e-2,
                "batch_size": None if self.case.whole else max(1, rows // 2),
                "engine": "pyro",
                "estimator": "shared",
                "seed": self.seed,
                "progress": False,
                "device": "cpu",
            }
            self._fits[key] = pyrodrop.fit(*self.parts, (self.x, self.y), **{**usual, **settings})
        return self._fits[key]

    def loss(self, cell: Cell) -> Result:
        model, guide = self.parts
        network = self.case.build()
        names: list[str] = []
        kept: list[Tensor] = []
        oracle = self.oracle(model, guide, network)
        shapes = {f"{t}.{n}": v.shape for t, values in oracle.leaves.items() for n, v in values.items()}
        free = {n: p.shape for n, p in network.named_parameters() if n in oracle.others and p.requires_grad}
        look = agreement.Look({**shapes, **{f"free.{n}": s for n, s in free.items()}})

        class Recorder(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:  # type: ignore[override]
                parameters = [group["params"][0] for group in self.param_groups]
                kept.append(look(dict(zip(names, [p.grad for p in parameters], strict=True))))
                super().step()

        def rate(name: str) -> float:
            names.append(name)
            return 0.0 if name.startswith("loc.") and len(self.posterior.parameters) > 1 else 1e-13

        said = _Said()
        with said:
            run = pyrodrop.fit(
                model, guide, (self.x, self.y), steps=self.draws.loss + WARM_UP, lr=rate, optimizer=Recorder,
                engine=cell.engine, estimator=cell.estimator, seed=self.seed, progress=False, device="cpu",
            )  # fmt: skip
        if set(names) != set(look.signs):
            return Result("wrong", f"training moves {sorted(names)}, expected {sorted(look.signs)}")
        ours, history = torch.stack(kept)[WARM_UP:], run.history[WARM_UP:]
        if not bool(torch.isfinite(ours).all() & torch.isfinite(history).all()):
            return Result("wrong", "loss or gradient not finite")
        kl = float(oracle.kl(oracle.leaves))
        first = float(run.history[0, 1])
        if abs(first - kl) > 1e-5 * (abs(kl) + 1):
            return Result("wrong", f"divergence {first:.6g}, expected {kl:.6g}")
        by_row = run.settings["noise_by_row"]
        if by_row:
            if cell.estimator == "local" and self.case.rows and self.posterior.weight_noise:
                return Result("other", f"noise by row of {', '.join(by_row)}, as the fit's settings say")
            return Result("wrong", f"the settings state noise by row of {', '.join(by_row)}, and there is none")
        nll, gradients = oracle.gradients(self.x, self.y, self._oracle_draws(self.draws.loss), look)
        return _agree(
            self._reached(cell, run, said),
            nll=agreement.same_mean(history[:, :1].double(), nll[:, None]),
            gradient=agreement.same_mean(ours, gradients),
        )

    def steps(self, cell: Cell) -> Result:
        said = _Said()
        base = self.fit(estimator=cell.estimator)
        with said:
            run = self.fit(estimator=cell.estimator, engine=cell.engine)
        return _same_state(self._reached(cell, run, said), run, base)

    def replicates(self, cell: Cell) -> Result:
        said = _Said()
        alone = [self.fit(estimator=cell.estimator, seed=self.seed + r) for r in range(2)]
        with said:
            runs = self.fit(estimator=cell.estimator, engine=cell.engine, replicates=2)
        reached = self._reached(cell, runs[0], said)
        results = [_same_state(reached, run, one) for run, one in zip(runs, alone, strict=True)]
        return next((result for result in results if result.kind == "wrong"), results[0])

    def plain(self, cell: Cell) -> Result:
        """A point estimate against a plain PyTorch loop."""
        run = self.fit(batch_size=None)
        network = self.case.build()
        state, losses = train_point(self.case, network, self.x, self.y, 6, 1e-2)
        ours = self._tensors(run.model, run.guide)
        for name, value in state.items():
            difference = float((ours[name].double() - value.double()).abs().max()) if value.numel() else 0.0
            if not difference <= 1e-6 * (1 + float(value.abs().max())):
                return Result("wrong", f"{name} differs from a plain loop's by {difference:.3g}")
        worst = max(abs(a - float(b)) / (1 + abs(a)) for a, b in zip(losses, run.history[:, 0], strict=True))
        return Result("right") if worst < 1e-5 else Result("wrong", f"losses differ by {worst:.3g}")

    # prediction --------------------------------------------------------------------------------------------------------

    def joint(self, cell: Cell) -> Result:
        prediction = self.fit().predict(self.x, self.draws.predict, seed=self.seed)
        want = self.functions
        if prediction.f.shape[1:] != want.shape[1:]:
            return Result("wrong", f"f has shape {tuple(prediction.f.shape)}, expected [S, {tuple(want.shape[1:])}]")
        return _agree(
            mean=agreement.same_mean(prediction.f, want),
            variance=agreement.same_variance(prediction.f, want),
            covariance=agreement.same_covariance(prediction.f, want),
        )

    def pointwise(self, cell: Cell) -> Result:
        prediction = self.fit().predict(self.x, self.draws.predict, seed=self.seed, joint=False)
        if prediction.joint or not bool(torch.isfinite(prediction.f).all()):
            return Result("wrong", "not finite, or marked as joint")
        if self.case.rows and self.posterior.weight_noise:
            return Result("other", "noise by row in predictions of points alone, as their documentation says")
        want = self.functions
        return _agree(
            mean=agreement.same_mean(prediction.f, want), variance=agreement.same_variance(prediction.f, want)
        )

    def moments(self, cell: Cell) -> Result:
        moments = self.fit().predict(self.x, self.draws.predict, seed=self.seed, keep="moments")
        return self._same_moments(moments, self.functions, self.draws.predict)

    def analytic(self, cell: Cell) -> Result:
        """Closed-form moments with dropout on the input of the last layer, if the case has one."""
        model, guide = self.parts
        if self.case.last is not None and cell.guide == "Bernoulli":
            guide = guides.BernoulliDropout(model, {self.case.last: 0.3, "*": 0.0})
        run = pyrodrop.fit(
            model, guide, (self.x, self.y), steps=2, lr=1e-2, engine="pyro", progress=False, device="cpu"
        )
        moments = run.predict(self.x, method="analytic")
        oracle = self.oracle(run.model, run.guide, self.case.build())
        oracle.rates = {name: 0.3 if name == self.case.last else 0.0 for name in oracle.rates}
        count = self._oracle_draws(self.draws.predict)
        return self._same_moments(moments, oracle.functions(self.x, count), None)

    def elbo(self, cell: Cell) -> Result:
        run = self.fit()
        found = run.elbo(self.draws.elbo, seed=self.seed)
        oracle = self.oracle(run.model, run.guide, self.case.build())
        nll = oracle.terms(self.x, self.y, self._oracle_draws(self.draws.elbo), training=False)
        kl = float(oracle.kl(oracle.leaves))
        if abs(found.kl - kl) > 1e-5 * (abs(kl) + 1):
            return Result("wrong", f"divergence {found.kl:.6g}, expected {kl:.6g}")
        se = torch.tensor([found.se])
        return _agree(nll=agreement.distance(torch.tensor([found.nll]), se, *agreement.mean(nll[:, None])))

    # files -------------------------------------------------------------------------------------------------------------

    def save(self, cell: Cell) -> Result:
        run = self.fit()
        with tempfile.TemporaryDirectory() as folder:
            path = run.save(Path(folder) / "fit.safetensors")
            model = self.case.model(self.case.build(seed=99))
            loaded = pyrodrop.Fit.load(path, model, self.posterior.guide(model, self.case), device="cpu")
        pairs = [
            (one.predict(self.x, 20, seed=3).f, one.elbo(3, (self.x, self.y)).nll) for one in (run, loaded)
        ]  # fmt: skip
        same = torch.equal(pairs[0][0], pairs[1][0]) and pairs[0][1] == pairs[1][1]
        return Result("right") if same else Result("wrong", "a loaded fit predicts other numbers")

    def checkpoint(self, cell: Cell) -> Result:
        said = _Said()
        with tempfile.TemporaryDirectory() as folder, said:
            path = Path(folder) / "checkpoint.safetensors"
            whole = self.fit(engine=cell.engine)
            self.fit(engine=cell.engine, steps=3, checkpoint=path, checkpoint_every=3)
            run = self.fit(engine=cell.engine, checkpoint=path, checkpoint_every=3)
        return _same_state(self._reached(cell, run, said), run, whole, exact=True)

    # helpers -----------------------------------------------------------------------------------------------------------

    @cached_property
    def functions(self) -> Tensor:
        """The oracle's samples of f for the short fit, in evaluation mode."""
        run = self.fit()
        oracle = self.oracle(run.model, run.guide, self.case.build())
        return oracle.functions(self.x, self._oracle_draws(self.draws.predict))

    def oracle(self, model: Any, guide: Any, network: nn.Module) -> Oracle:
        """The oracle with the current tensors of our model and guide; nothing else is taken from them."""
        names = weight_names(network, self.case)
        ours = dict(guide.named_parameters())
        leaves = {tree: {n: ours[f"{tree}.{n}_unconstrained"] for n in names} for tree in self.posterior.parameters}
        sites = {n for n in ours if n.startswith("loc.")}
        if sites != {f"loc.{n}_unconstrained" for n in names}:
            raise AssertionError(f"weights with a prior are {sorted(sites)}, expected {sorted(names)}")
        others = {n: v for n, v in self._tensors(model, None).items() if n not in names}
        known = {*dict(network.named_parameters()), *dict(network.named_buffers())}
        return Oracle(self.case, self.posterior, network, leaves, {n: v for n, v in others.items() if n in known})

    def _tensors(self, model: Any, guide: Any) -> dict[str, Tensor]:
        """All tensors of the trained network by their names in the user's network, with a guide also the weights."""
        found = dict(model.network.named_buffers())
        suffix = "_unconstrained"
        found |= {n.removesuffix(suffix): p.detach() for n, p in model.free.named_parameters()}
        if guide is not None:
            found |= {n[4:].removesuffix(suffix): p.detach() for n, p in guide.named_parameters() if n[:4] == "loc."}
        return found

    def _oracle_draws(self, ours: int) -> int:
        return 2 if type(self.posterior).__name__ == "Point" else ours * self.draws.oracle

    def _same_moments(self, moments: Any, draws: Tensor, count: int | None) -> Result:
        """Compare mean and variance of y and the spread of f, with the errors of `count` samples; None for no error."""
        f = draws
        if isinstance(self.case.likelihood(), Categorical):
            probabilities = torch.softmax(f, -1)
            noise = torch.zeros(())
            y = probabilities
            variance = (probabilities * (1 - probabilities)).mean(0) + probabilities.var(0, correction=0)
            se_variance = probabilities.std(0) * len(f) ** -0.5
        else:
            precision: Any = self.case.likelihood().precision  # type: ignore[attr-defined]
            noise, y = 1 / precision, f
            variance, se_variance = agreement.variance(f)
            variance = variance + noise
        share = 0.0 if count is None else (len(f) / count) ** 0.5  # our error, in the oracle's
        m, se_m = agreement.mean(y)
        v, se_v = agreement.variance(f)
        return _agree(
            mean=agreement.distance(moments.mean, share * se_m, m, se_m),
            variance=agreement.distance(moments.variance, share * se_variance, variance, se_variance),
            spread=agreement.distance(moments.spread**2, share * se_v, v, se_v),
        )

    def _reached(self, cell: Cell, run: Any, said: _Said) -> Result:
        """Whether the engine is the requested one, or the log states why it is not."""
        engine = run.settings["engine"]
        if engine == cell.engine:
            return Result("right")
        reasons = [line for line in said.lines if "instead of" in line or "without compiling" in line]
        if not reasons:
            return Result("wrong", f"engine {engine} in place of {cell.engine}, and the log does not say why")
        return Result("fallback", reasons[0])


class _Said:
    """Collects the lines that this package logs within the block."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._handler = logging.Handler(logging.INFO)
        self._handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]

    def __enter__(self) -> _Said:
        self._log = logging.getLogger("pyrodrop")
        self._before = self._log.level, self._log.propagate
        self._log.setLevel(logging.INFO)
        self._log.propagate = False
        self._log.addHandler(self._handler)
        return self

    def __exit__(self, *_: object) -> None:
        self._log.removeHandler(self._handler)
        self._log.setLevel(self._before[0])
        self._log.propagate = self._before[1]


def _agree(reached: Result = Result("right"), **distances: float) -> Result:  # noqa: B008
    if reached.kind == "wrong":
        return reached
    worst = max(distances, key=lambda name: distances[name])
    if distances[worst] <= agreement.LIMIT:
        return reached
    return Result("wrong", f"{worst} is {distances[worst]:.3g} standard errors off")


def _same_state(reached: Result, run: Any, base: Any, *, exact: bool = False) -> Result:
    """Whether all parameters, buffers and losses of two fits are equal, up to rounding or bitwise."""
    if reached.kind == "wrong":
        return reached
    for part in ("model", "guide"):
        ours, theirs = getattr(run, part).state_dict(), getattr(base, part).state_dict()
        if ours.keys() != theirs.keys():
            return Result("wrong", f"{part}: {sorted(ours.keys() ^ theirs.keys())} only in one of two fits")
        for name in ours:
            if not _close(ours[name], theirs[name], exact):
                gap = float((ours[name].double() - theirs[name].double()).abs().max())
                return Result("wrong", f"{name} of the {part} differs by {gap:.3g}")
    if not _close(run.history, base.history, exact):
        return Result("wrong", "losses differ")
    return reached


def _close(a: Tensor, b: Tensor, exact: bool) -> bool:
    if exact:
        return torch.equal(a, b)
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-6)


def _judged(error: Exception, stated: Sequence[str]) -> Result:
    """Whether an error is an expected refusal; anything else is a defect."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    if not isinstance(error, ValueError | TypeError) or not _is_ours(error):
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return Result("wrong", f"{text} [{Path(frame.filename).name}:{frame.lineno}]")
    if not stated:
        return Result("wrong", f"refused, which its file does not list: {text}")
    if not any(reason in str(error) for reason in stated):
        return Result("wrong", f"refused for another reason than {' or '.join(map(repr, stated))}: {text}")
    return Result("refused", str(error).strip().splitlines()[0])


def _is_ours(error: Exception) -> bool:
    """Whether the error was raised in this package, not in a library that it calls."""
    file = Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve()
    roots = [Path(str(package.__file__)).resolve().parent for package in (pyrodrop, models, guides)]
    return any(file.is_relative_to(root) for root in roots)
