"""The checks of one posterior of one network; `contract` describes them."""

from __future__ import annotations

import logging
import tempfile
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pyrodrop
from pyrodrop import guides
from pyrodrop.analysis.lab.networks import agreement
from pyrodrop.analysis.lab.networks.agreement import RIGHT, Result, agree, same_state
from pyrodrop.analysis.lab.networks.alone import drawn_as_alone
from pyrodrop.analysis.lab.networks.case import Case, Cell
from pyrodrop.analysis.lab.networks.oracle import WARM_UP, Oracle, train_point, weight_names
from pyrodrop.analysis.lab.networks.plan import Draws
from pyrodrop.analysis.lab.networks.posteriors import POSTERIORS, Posterior
from pyrodrop.checks import arguments, num_rows
from pyrodrop.compression.units import NotFollowed
from pyrodrop.likelihoods import Categorical
from pyrodrop.networks.trial import close
from pyrodrop.training.checkpoint import Checkpoint


class Checks:
    """The checks of one posterior of one network: one method for every possible value of a cell's `what`."""

    def __init__(self, case: Case, guide: str, draws: Draws, seed: int) -> None:
        self.case: Case = case
        self.draws: Draws = draws
        self.seed: int = seed
        self.posterior: Posterior = POSTERIORS[guide]
        self.x: Any
        self.y: Tensor
        self.x, self.y = case.data()
        self._fits: dict[tuple[Any, ...], Any] = {}

    @cached_property
    def parts(self) -> tuple[Any, Any]:
        """Our model and guide, untrained: fits train copies of them."""
        model = self.case.model(self.case.build())
        return model, self.posterior.guide(model, self.case)

    # training ----------------------------------------------------------------------------------------------------------

    def fit(self, **settings: Any) -> Any:
        """A short fit with these settings of `pyrodrop.fit`, cached."""
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
            train = pyrodrop.fit_replicates if "count" in settings else pyrodrop.fit
            self._fits[key] = train(*self.parts, (self.x, self.y), **{**usual, **settings})
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

        logged = Logged()
        with logged:
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
        return agree(
            self._reached(cell, run, logged),
            nll=agreement.same_mean(history[:, :1].double(), nll[:, None]),
            gradient=agreement.same_mean(ours, gradients),
        )

    def steps(self, cell: Cell) -> Result:
        logged = Logged()
        base = self.fit(estimator=cell.estimator)
        with logged:
            run = self.fit(estimator=cell.estimator, engine=cell.engine)
        return same_state(self._reached(cell, run, logged), run, base)

    def replicates(self, cell: Cell) -> Result:
        logged = Logged()
        alone = [self.fit(estimator=cell.estimator, seed=self.seed + r) for r in range(2)]
        with logged, drawn_as_alone(self.seed, self.seed + 1):
            runs = self.fit(estimator=cell.estimator, engine=cell.engine, count=2)
        reached = self._reached(cell, runs[0], logged)
        results = [same_state(reached, run, fit) for run, fit in zip(runs, alone, strict=True)]
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
        return RIGHT if worst < 1e-5 else Result("wrong", f"losses differ by {worst:.3g}")

    # prediction --------------------------------------------------------------------------------------------------------

    def joint(self, cell: Cell) -> Result:
        prediction = self.fit().predict(self.x, self.draws.predict, seed=self.seed)
        want = self.functions
        if prediction.f.shape[1:] != want.shape[1:]:
            return Result("wrong", f"f has shape {tuple(prediction.f.shape)}, expected [S, {tuple(want.shape[1:])}]")
        return agree(
            mean=agreement.same_mean(prediction.f, want),
            variance=agreement.same_variance(prediction.f, want),
            covariance=agreement.same_covariance(prediction.f, want),
        )

    def module(self, cell: Cell) -> Result:
        """Functions of the module, and predictions, at the weights that the module holds."""
        run = self.fit()
        oracle = self.oracle(run.model, run.guide, self.case.build())
        network = oracle.network.eval()
        for count in (1, 3):
            module = run.module(count, keep="draws", seed=self.seed, x=self.x)
            drawn, same = ({name: tree[name] for name in tree} for tree in (module.weights[0], module.same[0]))
            sets = [{**oracle.others, **same, **{n: w[t] for n, w in drawn.items()}} for t in range(count)]
            with torch.no_grad():
                want = torch.stack([self.case.call(network, self.x, weights) for weights in sets])
                got = {"the module": module(self.x), "predict": run.predict(self.x, count, seed=self.seed).f}
            for name, f in got.items():
                if f.shape != want.shape or not close(f, want):
                    return Result("wrong", f"{name} differs from the network at these weights")
        return RIGHT

    def compress(self, cell: Cell) -> Result:
        """The compressed networks, with all units and without those that are unused, at the weights that are kept."""
        fit = self.fit()
        sparse = guides.SparseDropout(fit.model)
        with torch.no_grad():
            for value in (sparse.log_variance[name] for name in sparse.sites):
                value[torch.rand(value.shape) < 0.4] = 9.0
                value[torch.rand(len(value)) < 0.4] = 9.0  # output units of most layers
        kept = {n: torch.where(sparse.keep_mask()[n], mean, 0.0) for n, mean in sparse.mean().items()}
        oracle = self.oracle(fit.model, fit.guide, self.case.build())
        run = pyrodrop.Fit(fit.model, sparse, None, torch.zeros(1, 3), {})
        networks = {"the whole network": run.compress(structured=False, x=self.x)}
        with suppress(NotFollowed):
            networks["the small network"] = run.compress(x=self.x)
        with torch.no_grad():
            want = self.case.call(oracle.network.eval(), self.x, {**oracle.others, **kept})
            for name, network in networks.items():
                args, kwargs = arguments(self.x)
                f = network(*args, **kwargs)
                if f.shape != want.shape or not close(f, want):
                    return Result("wrong", f"{name} differs from the network at the weights that are kept")
        return RIGHT

    def moments(self, cell: Cell) -> Result:
        moments = self.fit().predict(self.x, self.draws.predict, seed=self.seed)
        return self._same_moments(moments, self.functions)

    def elbo(self, cell: Cell) -> Result:
        run = self.fit()
        estimate = run.elbo(self.draws.elbo, seed=self.seed)
        oracle = self.oracle(run.model, run.guide, self.case.build())
        nll = oracle.terms(self.x, self.y, self._oracle_draws(self.draws.elbo), training=False)
        kl = float(oracle.kl(oracle.leaves))
        if abs(estimate.kl - kl) > 1e-5 * (abs(kl) + 1):
            return Result("wrong", f"divergence {estimate.kl:.6g}, expected {kl:.6g}")
        se = torch.tensor([estimate.se])
        return agree(nll=agreement.distance(torch.tensor([estimate.nll]), se, *agreement.mean(nll[:, None])))

    # files -------------------------------------------------------------------------------------------------------------

    def save(self, cell: Cell) -> Result:
        run = self.fit()
        with tempfile.TemporaryDirectory() as folder:
            path = run.save(Path(folder) / "fit.safetensors")
            model = self.case.model(self.case.build(seed=99))
            loaded = pyrodrop.Fit.load(path, model, self.posterior.guide(model, self.case), device="cpu")
        pairs = [
            (fit.predict(self.x, 20, seed=3).f, fit.elbo(3, (self.x, self.y)).nll) for fit in (run, loaded)
        ]  # fmt: skip
        same = torch.equal(pairs[0][0], pairs[1][0]) and pairs[0][1] == pairs[1][1]
        return RIGHT if same else Result("wrong", "a loaded fit predicts other numbers")

    def checkpoint(self, cell: Cell) -> Result:
        logged = Logged()
        with tempfile.TemporaryDirectory() as folder, logged:
            path = Path(folder) / "checkpoint.safetensors"
            whole = self.fit(engine=cell.engine)
            self.fit(engine=cell.engine, steps=3, checkpoint=Checkpoint(path, every=3))
            run = self.fit(engine=cell.engine, checkpoint=Checkpoint(path, every=3))
        return same_state(self._reached(cell, run, logged), run, whole, exact=True)

    # helpers -----------------------------------------------------------------------------------------------------------

    @cached_property
    def functions(self) -> Tensor:
        """The oracle's samples of f for the short fit, in evaluation mode."""
        run = self.fit()
        oracle = self.oracle(run.model, run.guide, self.case.build())
        return oracle.functions(self.x, self._oracle_draws(self.draws.predict))

    def oracle(self, model: Any, guide: Any, network: nn.Module) -> Oracle:
        """The oracle with copies of the current tensors of our model and guide."""
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
        """All tensors of the trained network by their names in the user's network; with a guide, also the weights."""
        values = dict(model.network.named_buffers())
        suffix = "_unconstrained"
        values |= {n.removesuffix(suffix): p.detach() for n, p in model.free.named_parameters()}
        if guide is not None:
            values |= {n[4:].removesuffix(suffix): p.detach() for n, p in guide.named_parameters() if n[:4] == "loc."}
        return values

    def _oracle_draws(self, ours: int) -> int:
        return 2 if type(self.posterior).__name__ == "Point" else ours * self.draws.oracle

    def _same_moments(self, moments: Any, draws: Tensor) -> Result:
        """Compare mean and variance of y and the spread of f."""
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
        share = (len(f) / self.draws.predict) ** 0.5  # our standard error relative to the oracle's
        m, se_m = agreement.mean(y)
        v, se_v = agreement.variance(f)
        return agree(
            mean=agreement.distance(moments.mean, share * se_m, m, se_m),
            variance=agreement.distance(moments.variance, share * se_variance, variance, se_variance),
            spread=agreement.distance(moments.spread**2, share * se_v, v, se_v),
        )

    def _reached(self, cell: Cell, run: Any, logged: Logged) -> Result:
        """Right if the engine is the requested one, fallback if the log states why it is not, otherwise wrong."""
        engine = run.settings["engine"]
        if engine == cell.engine:
            return RIGHT
        reasons = [line for line in logged.lines if "instead of" in line]
        if not reasons:
            return Result("wrong", f"engine {engine} in place of {cell.engine}, and the log does not say why")
        return Result("fallback", reasons[0])


class Logged:
    """The lines that this package logs within the context."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._handler = logging.Handler(logging.INFO)
        self._handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]

    def __enter__(self) -> Logged:
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
