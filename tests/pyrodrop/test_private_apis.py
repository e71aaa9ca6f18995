"""Without a private API of PyTorch or Pyro everything still gives the same numbers by another way, and says so."""

from __future__ import annotations

import ast
import logging
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyro.infer.util
import pyro.optim
import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree  # by its name, so that a test can take it away
from pyro.infer import SVI, JitTrace_ELBO, Trace_ELBO, TraceEnum_ELBO
from torch import Tensor

import pyrodrop
from pyrodrop import guides, likelihoods, models, priors, private_apis
from pyrodrop.distributions import BernoulliMixture
from pyrodrop.distributions.coins import coins
from pyrodrop.engines import writes
from pyrodrop.engines.graph import make_flat
from pyrodrop.private_apis import MissingApi

ROOT = Path(__file__).resolve().parents[2]
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
Y = X[:, :1].sin() + 0.1 * X[:, 1:2]
SETTINGS: Mapping[str, Any] = {"steps": 8, "batch_size": 20, "lr": 1e-2, "progress": False}


@pytest.fixture(autouse=True)
def _every_warning_is_news() -> None:
    private_apis._warn_once.cache_clear()


def parts() -> tuple[models.NetworkModel, guides.Guide]:
    torch.manual_seed(0)
    model = models.MLP([3, 8, 1], "tanh", prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(4.0))
    return model, guides.BernoulliDropout(model, 0.2)


def fitted(engine: str, **settings: Any) -> pyrodrop.Fit:
    train = pyrodrop.fit_replicates if "count" in settings else pyrodrop.fit
    return train(*parts(), (X, Y), engine=engine, **{**SETTINGS, **settings})


def weights(fit: pyrodrop.Fit) -> Tensor:
    return torch.cat([p.detach().flatten() for p in fit.guide.parameters()])


def said(caplog: pytest.LogCaptureFixture) -> str:
    """The only line that was logged."""
    (line,) = [record.getMessage() for record in caplog.records if record.name == "pyrodrop"]
    return line


def _other_arguments(*, of_a_later_release: Any) -> Any:
    raise AssertionError(f"called with {of_a_later_release}")


@pytest.mark.parametrize("failing", [None, lambda: 1 / 0], ids=["gone", "fails"])
def test_without_the_interpreter_stack_masks_come_from_torch_bernoulli(
    failing: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """W x has the moments of F.dropout, and all engines make the same steps with the same masks."""
    stack = SimpleNamespace() if failing is None else SimpleNamespace(peek_interpreter_stack=failing)
    monkeypatch.setattr(private_apis, "_functorch", stack)
    torch.manual_seed(0)
    m, x, rate, draws = torch.randn(3, 5), torch.randn(5), 0.3, 100_000
    ours = BernoulliMixture(m, rate).expand((draws,)).sample() @ x
    theirs = (F.dropout(x.expand(draws, 5), rate) * (1 - rate)) @ m.T
    se = theirs.std(0) / math.sqrt(draws)
    assert bool(((ours.mean(0) - theirs.mean(0)).abs() < 4 * math.sqrt(2) * se).all())
    torch.testing.assert_close(ours.T.cov(), theirs.T.cov(), atol=0.05, rtol=0)
    draws_of = torch.vmap(lambda z: z + coins(torch.tensor(0.5), (100,)), randomness="different")
    first, second = draws_of(torch.zeros(2))
    assert not torch.equal(first, second)
    by_pyro, traced = fitted("pyro"), fitted("traced")
    assert traced.settings["engine"] == "traced"
    torch.testing.assert_close(weights(traced), weights(by_pyro), rtol=1e-5, atol=1e-6)
    prediction = pyrodrop.predict(by_pyro, X[:4], num_samples=20)
    assert bool(torch.isfinite(prediction.mean).all())
    line = said(caplog)
    assert "peek_interpreter_stack" in line
    assert "masks are drawn by torch.bernoulli" in line


def _other_dice(*args: Any) -> Any:
    """The same sums by something that is no class with the known methods."""
    return pyro.infer.util.Dice(*args)


@pytest.mark.parametrize(
    ("place", "replacement"),
    [("pyro.infer.traceenum_elbo.Dice", _other_dice), ("torch.distributions.Distribution._validate_sample", None)],
)
def test_without_what_a_recording_leaves_out_pyro_trains(
    place: str, replacement: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def model(y: Tensor) -> None:
        m = pyro.sample("m", pyro.distributions.Normal(0.0, 1.0))
        with pyro.plate("rows", 40):
            pyro.sample("y", pyro.distributions.Normal(m, 1.0), obs=y)

    def guide(y: Tensor) -> None:
        pyro.sample("m", pyro.distributions.Normal(pyro.param("loc", torch.tensor(0.1)), 1.0))

    losses = []
    for engine in ("traced", "pyro"):
        pyro.clear_param_store()
        with pyro.validation_enabled(False), monkeypatch.context() as patch:
            patch.setattr(place, replacement) if replacement else patch.delattr(place)
            fit = pyrodrop.fit(
                model, guide, {"y": Y[:, 0]}, steps=3, engine=engine, objective=TraceEnum_ELBO(max_plate_nesting=1)
            )
        losses.append(fit.losses)
        assert fit.settings["engine"] == "pyro"
    assert torch.equal(*losses)
    assert place.rpartition(".")[2] in said(caplog)


@pytest.mark.few(2)
@pytest.mark.parametrize("replacement", [None, _other_arguments], ids=["gone", "other arguments"])
@pytest.mark.parametrize(
    ("place", "asked", "takes"),
    [
        ("torch.utils._python_dispatch.TorchDispatchMode", "traced", "pyro"),
        ("torch.fx.experimental.proxy_tensor.make_fx", "compiled", "traced"),
        ("torch._decomp.get_decompositions", "compiled", "traced"),
        ("torch._inductor.compile_fx.compile_fx", "compiled", "traced"),
    ],
)
def test_without_a_tracer_or_compiler_another_engine_trains(
    place: str,
    asked: str,
    takes: str,
    replacement: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    want = fitted(takes)
    if replacement is None:
        monkeypatch.delattr(place)
    else:
        monkeypatch.setattr(place, replacement)
    got = fitted(asked)
    assert got.settings["engine"] == takes
    assert torch.equal(weights(got), weights(want))
    line = said(caplog)
    assert f"training with engine '{takes}' instead of '{asked}'" in line
    assert place in line or "the compiler failed: TypeError" in line


def test_without_signatures_of_operations_pyro_trains(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    want = fitted("pyro")
    writes._written_places.cache_clear()
    monkeypatch.setattr("pyrodrop.engines.writes.arguments_of", lambda _: private_apis.arguments_of(object()))
    got = fitted("traced")
    assert got.settings["engine"] == "pyro"
    assert torch.equal(weights(got), weights(want))
    assert "_schema.arguments" in said(caplog)


def test_replicates_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.utils._python_dispatch.TorchDispatchMode")
    with pytest.raises(ValueError, match=r"replicates are .*one traced step.*TorchDispatchMode.*Fit one by one"):
        fitted("traced", count=2)


def test_a_flat_copy_of_a_graph_computes_the_same() -> None:
    graph = private_apis.record(lambda *a: [a[0] @ a[1], {"sum": a[0].sum()}], [X, X.T])
    want = graph(X, X.T)
    make_flat(graph)
    assert [node.op for node in graph.graph.nodes][:2] == ["placeholder"] * 2
    product, total = graph(X, X.T) if isinstance(want, tuple) else torch.utils._pytree.tree_leaves(graph(X, X.T))
    assert torch.equal(product, X @ X.T)
    assert torch.equal(total, X.sum())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("_overrides_off", "DisableTorchFunctionSubclass"),
        ("_wrapper", "_make_wrapper_subclass"),
        ("_pytree", "torch.utils._pytree"),
    ],
)
def test_lazy_weights_without_private_tensors(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The local estimator and a prediction without joint draws, whose weights are lazy, to the last bit."""

    def numbers() -> list[Tensor]:
        fit = fitted("pyro", estimator="local")
        prediction = pyrodrop.predict(fit, X[:4], num_samples=20, joint=False)
        return [weights(fit), fit.history, prediction.mean]

    want = numbers()
    monkeypatch.setattr(private_apis, name, None)
    for got, expected in zip(numbers(), want, strict=True):
        assert torch.equal(got, expected)
    assert words in said(caplog)


class Point(NamedTuple):
    """A kind of tuple whose constructor takes its entries one by one."""

    x: int
    y: int


def test_trees_without_pytorchs() -> None:
    tree = (1, [2, {"a": 3}], {"b": (4,)})
    assert private_apis._mapped(lambda leaf: -leaf, tree) == (-1, [-2, {"a": -3}], {"b": (-4,)})
    assert private_apis._mapped(lambda leaf: -leaf, Point(1, 2)) == Point(-1, -2)


def stepped(elbo: Any) -> Tensor:
    """Weights after four steps of Pyro's own SVI."""
    model, guide = parts()
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), elbo)
    torch.manual_seed(3)
    for _ in range(4):
        svi.step(X, Y)
    return torch.cat([p.detach().flatten() for p in guide.parameters()])


@pytest.mark.parametrize(
    ("break_", "words"),
    [
        (lambda patch: patch.setattr(private_apis, "runtime", SimpleNamespace()), "_PYRO_STACK"),
        (
            lambda patch: patch.setattr(
                "pyrodrop.modules.name_in_store",
                lambda store, key, name: private_apis.name_in_store(SimpleNamespace(), key, name),
            ),
            "_param_to_name",
        ),
    ],
    ids=["stack", "names"],
)
def test_svi_trains_without_names_of_parameters(
    break_: Callable[[pytest.MonkeyPatch], None],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    want = stepped(Trace_ELBO())
    break_(monkeypatch)
    assert torch.equal(stepped(Trace_ELBO()), want)
    line = said(caplog)
    assert words in line
    assert "Pyro's optimisers do not see the names of parameters" in line


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.*deprecated")
def test_a_jitted_elbo_is_refused_where_the_store_cannot_be_lent_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pyrodrop.modules.lend_to_store",
        lambda store, *rest: private_apis.lend_to_store(SimpleNamespace(), *rest),
    )
    with pytest.raises(MissingApi, match="ParamStoreDict._params.*Trace_ELBO"):
        stepped(JitTrace_ELBO(ignore_jit_warnings=True))


def test_a_comfort_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(private_apis, "_functorch", SimpleNamespace())
    private_apis.silence_slow_vmap()
    assert "warnings about slow operations under vmap stay on" in caplog.text


def test_one_warning_a_process(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_apis, "_functorch", SimpleNamespace())
    with caplog.at_level(logging.WARNING, "pyrodrop"):
        assert private_apis.in_function_transform()
        assert private_apis.in_function_transform()
    said(caplog)


def private_names(text: str) -> list[str]:
    """Names of torch and Pyro in a file that begin with an underscore, and Pyro's private attributes by any other name."""
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            chain = ast.unparse(node)
            found += [chain] if re.fullmatch(r"[\w.]+", chain) else []
    theirs = [name for name in found if name.split(".")[0] in ("torch", "pyro", "fx", "poutine", "Tensor", "store")]
    elsewhere = ("_schema", "_codegen", "_param_to_name", "_PYRO_STACK")
    return [
        name
        for name in {*theirs, *(n for n in found if n.endswith(elsewhere))}
        if not name.startswith("torch.ops.")
        and (any(part.startswith("_") and part[:2] != "__" for part in name.split(".")) or "fx.experimental" in name)
    ]


def test_private_apis_are_used_in_one_file_alone() -> None:
    every = (f for top in ("pyrodrop", "models", "guides", "analysis") for f in (ROOT / top).rglob("*.py"))
    files = {f.resolve() for f in every}  # pyrodrop/ has links to the others
    used = {str(f.relative_to(ROOT)): names for f in files if (names := private_names(f.read_text()))}
    assert set(used) == {"pyrodrop/private_apis.py"}
    assert "torch.fx.experimental.proxy_tensor.make_fx" in used["pyrodrop/private_apis.py"]


@pytest.mark.parametrize(
    "line",
    [
        "torch._C._functorch.peek_interpreter_stack()",
        "from torch.fx.experimental.proxy_tensor import make_fx",
        "from pyro.poutine.runtime import _PYRO_STACK",
        "store._param_to_name[key] = name",
        "module.graph._codegen = CodeGen()",
        "from torch.utils._pytree import tree_map",
    ],
)
def test_a_private_api_elsewhere_is_found(line: str) -> None:
    assert private_names(line)


def test_without_functions_that_pack_sequences_only_recordings_of_packed_ones_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [function.__name__ for function in private_apis.packing()]
    for name in names:
        monkeypatch.delattr(torch, name)
    assert private_apis.packing() == (None, None)
