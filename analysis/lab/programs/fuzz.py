"""Random Pyro programs, to compare `pyrodrop.fit` with plain Pyro on.

    f_n = x_n w + sum_i c_i,   y_n ~ likelihood(f_n)           c_i a bounded function of latent variable i

A seed determines everything else: the latent variables, their plates and dependence, masks, scales and factors, the
likelihood, the guide and the loss. Every program runs in Pyro.
"""

from __future__ import annotations

import logging
import math
import random
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import constraints, transforms
from pyro.infer import ELBO, RenyiELBO, Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from pyro.infer import autoguide as auto
from pyro.infer.autoguide.guides import prototype_hide_fn
from pyro.infer.reparam import AutoReparam
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

import pyrodrop
from pyrodrop.analysis.lab.programs.program import Trained, parameters, set_up, svi

ROWS, GROUPS, LEVELS = 12, 3, 2
LR = 0.01

# Functions of a scale s, a tensor [] of float64.
POSITIVE: dict[str, Callable[[Tensor], Any]] = {
    "LogNormal": lambda s: dist.LogNormal(0 * s, 0.5 * s),
    "HalfNormal": dist.HalfNormal,
    "HalfCauchy": dist.HalfCauchy,
    "Gamma": lambda s: dist.Gamma(2 + 0 * s, 1 / s),
    "InverseGamma": lambda s: dist.InverseGamma(3 + 0 * s, s),
    "Exponential": lambda s: dist.Exponential(1 / s),
    "exp of Normal": lambda s: dist.TransformedDistribution(dist.Normal(0 * s, s), [transforms.ExpTransform()]),
}
FAMILIES: dict[str, Callable[[Tensor], Any]] = POSITIVE | {
    "Normal": lambda s: dist.Normal(0 * s, s),
    "StudentT": lambda s: dist.StudentT(4.0, 0 * s, s),
    "Laplace": lambda s: dist.Laplace(0 * s, s),
    "Beta": lambda s: dist.Beta(1 + s, 2 + 0 * s),
    "Uniform": lambda s: dist.Uniform(-s, 2 * s),
    "Dirichlet": lambda s: dist.Dirichlet(s.new_ones(3) + s),
    "vector": lambda s: dist.Normal(s.new_zeros(3), s).to_event(1),
    "matrix": lambda s: dist.Normal(s.new_zeros(2, 3), s).to_event(2),
    "MultivariateNormal": lambda s: dist.MultivariateNormal(s.new_zeros(2), scale_tril=_tril(s)),
    "LKJCholesky": lambda s: dist.LKJCholesky(3, 1 + s),
    "ordered": lambda s: dist.TransformedDistribution(
        dist.Normal(s.new_zeros(3), s).to_event(1), [transforms.OrderedTransform()]
    ),
    "simplex": lambda s: dist.TransformedDistribution(
        dist.Normal(s.new_zeros(2), s).to_event(1), [transforms.StickBreakingTransform()]
    ),
}
UNSCALED = ("Uniform",)  # families whose support must not depend on another latent variable
UNSUITED = ("Uniform", "LKJCholesky")  # for a guide: the support changes with the scale, or samples have no gradient

LIKELIHOODS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "Normal": dist.Normal,
    "StudentT": lambda f, noise: dist.StudentT(4.0, f, noise),
    "Bernoulli": lambda f, _: dist.Bernoulli(logits=f),
    "Poisson": lambda f, _: dist.Poisson(f.exp()),
    "Categorical": lambda f, _: dist.Categorical(logits=torch.stack([f, -f, 0 * f], -1)),
    "NegativeBinomial": lambda f, noise: dist.NegativeBinomial(1 + noise, logits=f),
    "Binomial": lambda f, _: dist.Binomial(3, logits=f),
    "ZeroInflatedPoisson": lambda f, _: dist.ZeroInflatedPoisson(f.exp(), gate=0.2 * torch.ones_like(f)),
    "mixture": lambda f, noise: dist.MixtureSameFamily(
        dist.Categorical(f.new_ones(2)), dist.Normal(torch.stack([f, -f], -1), noise.unsqueeze(-1))
    ),
}
CONTINUOUS = ("Normal", "StudentT")

GUIDES: dict[str, Callable[[Callable[..., Any], Mapping[str, Any]], Any]] = {
    "AutoNormal": lambda model, _: auto.AutoNormal(model),
    "AutoDelta": lambda model, _: auto.AutoDelta(model),
    "AutoDiagonalNormal": lambda model, _: auto.AutoDiagonalNormal(model),
    "AutoMultivariateNormal": lambda model, _: auto.AutoMultivariateNormal(model),
    "AutoLowRankMultivariateNormal": lambda model, _: auto.AutoLowRankMultivariateNormal(model, rank=2),
    "AutoNormalizingFlow": lambda model, _: auto.AutoNormalizingFlow(model, _flow),
    "AutoGuideList": lambda model, _: _two_guides(model),
    "by hand": lambda model, data: ByHand(model, data),
    "own families": lambda model, data: ByHand(model, data, own_families=True),
}
LOCAL = ("AutoNormal", "AutoDelta", "by hand", "own families")  # guides that support subsampled plates

# Functions of the numbers of particles and of nested plates; if the latter is infinite, Pyro finds it by an extra call.
LOSSES: dict[str, Callable[[int, float], ELBO]] = {
    "Trace_ELBO": lambda particles, _: Trace_ELBO(num_particles=particles),
    "TraceMeanField_ELBO": lambda particles, _: TraceMeanField_ELBO(num_particles=particles),
    "TraceGraph_ELBO": lambda particles, _: TraceGraph_ELBO(num_particles=particles),
    "TraceEnum_ELBO": lambda particles, nesting: TraceEnum_ELBO(num_particles=particles, max_plate_nesting=nesting),
    "RenyiELBO": lambda particles, _: RenyiELBO(alpha=0.5, num_particles=particles + 1),
    "vectorised": lambda particles, nesting: Trace_ELBO(particles + 1, nesting, vectorize_particles=True),
}
NESTING = (2, math.inf)  # numbers of nested plates for even and for odd seeds


Noise = Literal["fixed", "param", "latent"]


@dataclass(frozen=True)
class Latent:
    """A latent variable in 0, 1 or 2 plates; its scale may depend on another latent variable."""

    name: str
    family: str
    plates: int = 0
    scaled_by: str | None = None


@dataclass(frozen=True)
class Shape:
    """The structure of a random program: its latent variables, and the names of its other parts."""

    latents: tuple[Latent, ...]
    likelihood: str
    guide: str
    loss: str
    particles: int
    noise: Noise
    subsample: bool
    features: frozenset[str]

    def contents(self) -> list[str]:
        """Names of everything that the program contains."""
        sites = [f"{latent.family}{' in plates' * (latent.plates > 0)}" for latent in self.latents]
        others = [f"{self.noise} noise", *["subsample"] * self.subsample, *sorted(self.features)]
        return [self.guide, self.loss, f"{self.likelihood} y", f"{self.particles} particles", *sites, *others]


@dataclass(frozen=True)
class Drawn:
    """A random program."""

    model: Callable[..., Any]
    guide: Callable[..., Any]
    data: dict[str, Any]
    loss: ELBO
    shape: Shape


FEATURES = {
    "factor": 0.2,
    "poutine.mask": 0.15,
    "mask": 0.1,
    "obs_mask": 0.1,
    "poutine.scale": 0.2,
    "deterministic": 0.3,
    "param": 0.2,
    "unused param": 0.05,
    "module": 0.15,
    "batch norm": 0.05,
    "dropout": 0.1,
    "torch.randn": 0.1,
    "PyroSample": 0.1,
    "local": 0.2,
    "chain": 0.1,
    "enumerated": 0.15,
    "hidden Markov": 0.05,
    "score function": 0.08,
    "explicit dims": 0.3,
    "rows as tensors": 0.1,
    "loop": 0.1,
    "AutoReparam": 0.08,
    "branch": 0.04,
}
"""What a program may contain, and with what probability."""


def draw(seed: int) -> Shape:
    """The structure of the program of a seed."""
    chance = random.Random(seed)
    latents = list[Latent]()
    for i in range(chance.randint(1, 3)):
        family, plates = chance.choice(list(FAMILIES)), chance.choice([0, 0, 1, 2])
        scales = [latent.name for latent in latents if latent.family in POSITIVE and latent.plates == 0]
        scaled_by = chance.choice(scales) if scales and family not in UNSCALED and chance.random() < 0.5 else None
        latents.append(Latent(f"z{i}", family, plates, scaled_by))
    features = {name for name, share in FEATURES.items() if chance.random() < share}
    likelihood, guide, loss = (chance.choice(list(choices)) for choices in (LIKELIHOODS, GUIDES, LOSSES))
    particles, subsample = chance.choice([1, 1, 2, 3]), chance.random() < 0.3
    noise: Noise = chance.choice(["fixed", "param", "latent"])

    # Exclude combinations that Pyro does not support
    if "obs_mask" in features:
        likelihood = chance.choice(CONTINUOUS)
    if features & {"enumerated", "hidden Markov"}:
        loss, features = "TraceEnum_ELBO", features - {"score function", "branch"}
    if "enumerated" in features:
        features -= {"hidden Markov"}  # which has another scale
    if "score function" in features:
        guide, loss = chance.choice(["by hand", "own families"]), chance.choice(["Trace_ELBO", "TraceGraph_ELBO"])
    if "obs_mask" in features:
        features -= {"poutine.mask", "mask"}
    if loss == "TraceEnum_ELBO":
        features -= {"obs_mask", "AutoReparam"}  # not in double precision
    if loss == "vectorised":
        features -= {"branch", "obs_mask", "PyroSample", "loop"}
        latents = [Latent(latent.name, latent.family, latent.plates) for latent in latents]
    if subsample and features & {"local", "obs_mask"} and guide not in LOCAL:
        guide = chance.choice(LOCAL)
    return Shape(tuple(latents), likelihood, guide, loss, particles, noise, subsample, frozenset(features))


def program(seed: int) -> Drawn:
    """The program of a seed; every call builds the same one."""
    shape = draw(seed)
    data, model = _data(shape, seed), _model(shape, seed)
    guide = GUIDES[shape.guide](poutine.block(model, hide_fn=_enumerated), data)
    return Drawn(model, guide, data, LOSSES[shape.loss](shape.particles, NESTING[seed % 2]), shape)


def _enumerated(site: Any) -> bool:
    return site["type"] == "sample" and site["infer"].get("enumerate") is not None


def _data(shape: Shape, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, 2, generator=generator, dtype=torch.float64)
    counts = torch.randint(0, 2 if shape.likelihood == "Bernoulli" else 3, (ROWS,), generator=generator)
    real = shape.likelihood in (*CONTINUOUS, "mixture")
    y = x[:, 0] + 0.3 * torch.randn(ROWS, generator=generator, dtype=torch.float64) if real else counts.double()
    data: dict[str, Any] = {"x": x, "y": y, "group": torch.arange(ROWS) % GROUPS, "level": torch.arange(ROWS) % LEVELS}
    data["keep"] = torch.rand(ROWS, generator=generator) < 0.8
    data["power"] = 0.5 if "poutine.scale" in shape.features else None
    if "rows as tensors" in shape.features and shape.subsample:
        data["rows"] = torch.randperm(ROWS, generator=generator)[: ROWS // 2]
    return data


def _model(shape: Shape, seed: int) -> Callable[..., None]:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        norm = nn.BatchNorm1d(3) if "batch norm" in shape.features else nn.Identity()
        dropout = nn.Dropout(0.2) if "dropout" in shape.features else nn.Identity()
        # before BatchNorm a bias has no effect, so its gradient would be only rounding error
        first = nn.Linear(2, 3, bias="batch norm" not in shape.features)
        network = nn.Sequential(first, norm, nn.Tanh(), dropout, nn.Linear(3, 1)).double()
        bayesian: Any = PyroModule[nn.Linear](2, 1).double()  # type: ignore
    bayesian.weight = PyroSample(dist.Normal(torch.zeros(1, 2, dtype=torch.float64), 1.0).to_event(2))
    has = shape.features.__contains__

    def plate(name: str, size: int, dim: int, **parts: Any) -> pyro.plate:
        return pyro.plate(name, size, dim=dim if has("explicit dims") else None, **parts)

    def model(
        x: Tensor,
        y: Tensor,
        group: Tensor,
        level: Tensor,
        keep: Any,
        power: float | None,
        rows: Tensor | None = None,
    ) -> None:
        one, values, plates = x.new_ones(()), dict[str, Tensor](), list[pyro.plate]()
        for name, size, dim in [("groups", GROUPS, -1), ("levels", LEVELS, -2)]:
            plates += [plate(name, size, dim)] * any(latent.plates >= -dim for latent in shape.latents)
        f = x @ x.new_tensor([0.5, -0.5])
        for latent in shape.latents:
            scale = one if latent.scaled_by is None else 0.2 + torch.tanh(values[latent.scaled_by])
            with ExitStack() as stack:
                for one_of in plates[: latent.plates]:
                    stack.enter_context(one_of)
                if power is not None:
                    stack.enter_context(poutine.scale(scale=power))
                fn = FAMILIES[latent.family](scale)
                value = values[latent.name] = pyro.sample(latent.name, fn, infer={"family": latent.family})  # type: ignore
            effect = torch.tanh(value).sum(list(range(-fn.event_dim, 0))) if fn.event_dim else torch.tanh(value)
            if latent.plates == 1:
                effect = effect[..., group]
            if latent.plates == 2:
                effect = effect[..., level, group].unsqueeze(-2)
            if has("deterministic"):
                effect = pyro.deterministic(f"effect of {latent.name}", effect)
            f = f + effect
            if has("branch") and bool(effect.sum() > 0):
                f = 2 * f
        if has("param"):
            f = f + pyro.param("shift", lambda: x.new_zeros(()))
        if has("unused param"):
            pyro.param("unused", lambda: x.new_ones(2))
        if has("torch.randn"):
            f = f + 0.1 * torch.randn_like(x[:, 0])
        if has("module") or has("batch norm") or has("dropout"):
            f = f + pyro.module("network", network)(x).squeeze(-1)
        if has("PyroSample"):
            f = f + bayesian(x).squeeze(-1)
        if has("factor"):
            pyro.factor("penalty", -0.1 * torch.tanh(f).square().sum((-1,), keepdim=f.dim() > 2))
        if has("chain"):
            state = one
            for t in pyro.markov(range(3)):
                state = pyro.sample(f"state{t}", dist.Normal(0.5 * state, 0.5))
            f = f + torch.tanh(state)
        if has("hidden Markov"):
            k = torch.tensor(0)
            for t in pyro.markov(range(3)):
                moves = x.new_tensor([[0.8, 0.2], [0.3, 0.7]])[k]
                k = pyro.sample(f"k{t}", dist.Categorical(moves), infer={"enumerate": "parallel"})
                pyro.sample(f"seen{t}", dist.Normal(f[..., :1].sum() * x.new_tensor([-1.0, 1.0])[k], 1.0), obs=y[t])
        noise = one
        if shape.noise == "param":
            noise = pyro.param("noise", lambda: x.new_ones(()), constraint=constraints.positive)
        elif shape.noise == "latent":
            noise = 0.1 + pyro.sample("noise", dist.LogNormal(0 * one, 0.3))
        if has("loop"):
            indices: Any = pyro.plate("loop", 3, subsample_size=2 if shape.subsample else None)
            for i in indices:
                pyro.sample(f"y{i}", dist.Normal(f[..., i], 1.0), obs=y[i])
        shares = x.new_tensor([0.2, 0.8])
        if has("score function"):
            f = f + pyro.sample("b", dist.Bernoulli(0.3 * one))

        number = ROWS // 2 if shape.subsample and rows is None else None
        with ExitStack() as stack:
            shown = stack.enter_context(plate("rows", ROWS, -1, subsample_size=number, subsample=rows))
            f = f[..., shown]
            if has("local"):
                f = f + pyro.sample("local", dist.Normal(0 * one, noise))
            if has("enumerated"):
                k = pyro.sample("k", dist.Categorical(shares), infer={"enumerate": "parallel"})
                f = f + x.new_tensor([-1.0, 1.0])[k]
            if has("poutine.mask"):
                stack.enter_context(poutine.mask(mask=keep[shown]))
            if has("deterministic") and shape.loss != "TraceEnum_ELBO":  # which does not support it in double precision
                f = pyro.deterministic("predictor", f)
            fn = LIKELIHOODS[shape.likelihood](f, noise)
            fn = fn.mask(keep[shown]) if has("mask") else fn
            pyro.sample("y", fn, obs=y[shown], obs_mask=keep[shown] if has("obs_mask") else None)

    strategy: Any = AutoReparam()
    return poutine.reparam(model, strategy) if has("AutoReparam") else model


def _tril(scale: Tensor) -> Tensor:
    return scale * torch.tensor([[1.0, 0.0], [0.5, 1.0]], dtype=scale.dtype)


def _two_guides(model: Callable[..., Any]) -> auto.AutoGuideList:
    """Normal for the first latent variable, a point for the others."""
    guides = auto.AutoGuideList(model)
    guides.append(auto.AutoNormal(poutine.block(model, expose=["z0"])))
    guides.append(auto.AutoDelta(poutine.block(model, hide=["z0"])))
    return guides


def _flow(dim: int) -> nn.Module:
    """The transform of `AutoIAFNormal`, in double precision."""
    flow: nn.Module = transforms.affine_autoregressive(dim, hidden_dims=[2 * dim]).double()
    return flow


class ByHand:
    """A handwritten guide: a normal distribution that is mapped to the support, or Bernoulli for a binary latent variable.

    With `own_families`, those of `FAMILIES` but not of `UNSUITED` have their family in the model, with a learned scale.
    """

    def __init__(self, model: Callable[..., Any], data: Mapping[str, Any], own_families: bool = False) -> None:
        self.own_families = own_families
        with poutine.block(), torch.random.fork_rng([]), torch.no_grad():
            torch.manual_seed(0)
            trace = poutine.trace(poutine.block(model, prototype_hide_fn)).get_trace(**data)
        self.sites: dict[str, Any] = {name: trace.nodes[name] for name in trace.stochastic_nodes}

    def __call__(self, **data: Any) -> None:
        plates = dict[str, pyro.plate]()
        for name, site in self.sites.items():
            frames = sorted(site["cond_indep_stack"], key=lambda frame: frame.dim)
            with ExitStack() as stack:
                for frame in frames:
                    if frame.name not in plates:
                        size, rows = frame.full_size or frame.size, data.get("rows") if frame.name == "rows" else None
                        subsample = None if rows is not None else frame.size
                        plates[frame.name] = pyro.plate(frame.name, size, subsample, rows, dim=frame.dim)
                    stack.enter_context(plates[frame.name])
                family = site["infer"].get("family") if self.own_families else None
                self._sample(name, family, site["fn"], site["value"].detach(), frames)

    def _sample(self, name: str, family: str | None, fn: Any, value: Tensor, frames: list[Any]) -> None:
        if fn.support is constraints.boolean:
            logits = pyro.param(f"{name}_logits", lambda: torch.zeros(value.shape, dtype=value.dtype))
            pyro.sample(name, dist.Bernoulli(logits=logits))
            return
        if family not in (None, *UNSUITED):
            width = pyro.param(f"{name}_scale", lambda: value.new_full((), 1.2), constraints.positive)
            pyro.sample(name, FAMILIES[family](width))
            return
        transform = torch.distributions.biject_to(fn.support)
        start = transform.inv(value)
        event_dim = transform.domain.event_dim
        shape = list(start.shape)
        for frame in frames:
            shape[frame.dim - event_dim] = frame.full_size or frame.size
        loc = pyro.param(f"{name}_loc", lambda: start.new_full(shape, 0.1), event_dim=event_dim)
        scale = pyro.param(f"{name}_scale", lambda: start.new_full(shape, 0.2), constraints.positive, event_dim)
        normal = dist.Normal(loc, scale).to_event(event_dim)
        real = fn.support is constraints.real
        pyro.sample(name, normal if real else dist.TransformedDistribution(normal, [transform]))


@dataclass(frozen=True)
class Verdict:
    """The result of comparing `pyrodrop.fit` with Pyro on a program.

    Attributes:
        verdict: ``right``, with the requested engine; ``trained by pyro``, right but with another engine; ``refused``,
            with an error of this package; or ``wrong``, with numbers that differ from Pyro's or with another error.
        reason: the error, the message of the log, or what differs.
    """

    seed: int
    verdict: Literal["right", "trained by pyro", "refused", "wrong"]
    reason: str = ""
    contents: list[str] = field(default_factory=list)


def by_pyro(seed: int, steps: int) -> Trained:
    """Train the program of a seed with Pyro alone."""
    pyro.clear_param_store()
    drawn = program(seed)
    return svi(drawn.model, drawn.guide, drawn.data, drawn.loss, steps, seed, lr=LR)


def compare(seed: int, engine: Any = "traced", steps: int = 5, tolerance: float = 1e-10) -> Verdict:
    """Train the program of a seed with Pyro and with `pyrodrop.fit`, and compare losses and parameters."""
    expected = by_pyro(seed, steps)
    pyro.clear_param_store()
    drawn = program(seed)
    verdict = partial(Verdict, seed, contents=drawn.shape.contents())
    set_up(drawn.guide, drawn.data)
    with _Log() as log:
        try:
            trained, used = fitted(drawn.model, drawn.guide, drawn.data, drawn.loss, steps, seed, engine=engine, lr=LR)
        except Exception as error:
            return verdict("refused" if _of_this_package(error) else "wrong", f"{type(error).__name__}: {error}")
    if difference := differs(trained, expected, tolerance):
        return verdict("wrong", difference)
    return verdict("right") if used == engine else verdict("trained by pyro", " ".join(log.messages))


def fitted(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    data: Mapping[str, Any],
    loss: ELBO,
    steps: int,
    seed: int,
    *,
    engine: Any,
    lr: float,
) -> tuple[Trained, str]:
    """The result of `pyrodrop.fit`, and the name of the engine that it used."""
    options: Any = {"steps": steps, "objective": loss, "engine": engine, "lr": lr, "seed": seed}
    fit = pyrodrop.fit(model, guide, data, optimizer=torch.optim.Adam, progress=False, device="cpu", **options)
    trained = parameters(fit.model, fit.guide, data)
    return Trained(fit.losses.double(), *trained, fit.settings["seconds"] / steps), fit.settings["engine"]


def differs(trained: Trained, expected: Trained, tolerance: float) -> str:
    """A description of the first difference above a relative and absolute tolerance; empty if there is none."""
    close = partial(torch.isclose, rtol=tolerance, atol=tolerance, equal_nan=True)
    if len(trained.losses) != len(expected.losses):
        return f"{len(trained.losses)} losses instead of {len(expected.losses)}"
    if not (equal := close(trained.losses, expected.losses)).all():
        step = int(equal.logical_not().nonzero()[0])
        return f"loss of step {step}: {trained.losses[step]} instead of {expected.losses[step]}"
    if trained.constrained.keys() != expected.constrained.keys():
        return f"parameters {sorted(trained.constrained.keys() ^ expected.constrained.keys())} are only in one of them"
    for kind in ("unconstrained", "constrained"):
        ours, theirs = getattr(trained, kind), getattr(expected, kind)
        for name, value in theirs.items():
            if not close(ours[name], value).all():
                return f"{kind} {name}: differs by {(ours[name] - value).abs().max()}"
    return ""


def _of_this_package(error: BaseException) -> bool:
    """Whether an error was raised by a statement of this package, as a refusal is."""
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    return isinstance(error, ValueError | TypeError | RuntimeError) and Path(last).is_relative_to(
        Path(pyrodrop.__file__).parent
    )


class _Log(logging.Handler):
    """The messages of the logger ``pyrodrop`` inside a ``with`` statement."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def __enter__(self) -> _Log:
        logging.getLogger("pyrodrop").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("pyrodrop").removeHandler(self)
