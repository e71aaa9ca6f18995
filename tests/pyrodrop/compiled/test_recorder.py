"""Recorded functions of tensors compute what the functions do, in every form in which a graph is run."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from pyrodrop.compiled import Untraceable, pure
from pyrodrop.compiled.program import simplified
from pyrodrop.compiled.record import Unrecordable, recorded
from pyrodrop.private_apis import script, scripts_as_they_are

HELD = torch.tensor([0.5, 2.0, 1.0, 3.0])


def gradient(loss: Callable[[Tensor], Tensor]) -> Callable[[Tensor], list[Tensor]]:
    """A loss of x and its gradient."""

    def run(x: Tensor) -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        value = loss(leaf)
        return [value.detach(), *torch.autograd.grad(value, [leaf])]

    return run


def written(x: Tensor) -> Tensor:
    """Writes to views of tensors that are read before and after."""
    y = (x * 2).contiguous()
    before = y.sum()
    y[:, 1].add_(1.0)
    y.view(-1)[:2].mul_(3.0)
    return before + y.sum() * y.exp().sum()


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "elementwise": lambda x: (x.sin() * 2 - HELD[:3] / 3).pow(2).sum(),
    "repeated": lambda x: (x.exp() + x.exp()).sum() + x.t().t().sum() + x.expand(4, 3).sum(),
    "reductions": lambda x: x.logsumexp(-1).sum() + x.std() + x.max(0).values.sum() + x.topk(2).values.sum(),
    "pieces": lambda x: torch.cat([p * i for i, p in enumerate(x.chunk(3, 1))], 0).cumsum(0)[-1].sum(),
    "split": lambda x: sum(((p + 1).log1p().sum() for p in (x**2).split([1, 3])), torch.zeros(())),
    "indices": lambda x: x[torch.tensor([0, 2, 2])].sum() + x[:, [1]].sinc().sum() + x[..., -1].flip(0)[0],
    "where": lambda x: torch.where(x > 0, x, 0.1 * x).clamp(-1, 2).sum() + x.masked_fill(x > 1, 7.0).sum(),
    "products": lambda x: (
        (x @ x.T).sum() + torch.einsum("ij,kj->ik", x, x).trace() + torch.bmm(x[None], x.T[None]).sum()
    ),
    "norms": lambda x: F.layer_norm(x, [3]).pow(3).sum() + F.softmax(x, -1).log().sum() + F.normalize(x).sum(),
    "convolution": lambda x: F.max_pool1d(F.conv1d(x[None], x.new_ones(2, 4, 2), padding=1), 2).sum(),
    "dtypes": lambda x: x.double().sum().float() + x.to(torch.bfloat16).float().sum() + (x > 0).float().mean(),
    "numbers": lambda x: (2 / x.abs().add(1)).sum() + (1 - x).pow(1.5 + 0 * 2).nan_to_num().sum() + x.sum() ** 1,
    "made inside": lambda x: (x * torch.arange(3.0) + torch.ones(4, 3) + torch.tensor(2.0)).sum() + torch.eye(3).sum(),
    "written": written,
    "turned in place": lambda x: ((x * 2).t_().unsqueeze_(0).squeeze_(0) * torch.arange(4.0)).sum() + (x * 2).sum(),
    "infinite": lambda x: torch.full((3,), float("inf")).clamp_max(x.sum()).sum() + x.new_full((2,), 2.0).sum(),
    "types of numbers": lambda x: (
        x.sum() * torch.full((2,), 7.0).sqrt().sum() + torch.full((2,), 7).bitwise_and(2).sum()
    ),
    "empty": lambda x: x.new_empty(0).sum() + x.sum([0, 1]) + x.reshape([-1]).sum(),
}


@pytest.mark.few(6)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_recording_is_the_function_in_every_form(name: str, dtype: torch.dtype) -> None:
    """To the same bits, on other values than those of the recording, also transposed ones; simplified, and as a program."""
    function = gradient(lambda x: LOSSES[name](x).to(dtype))
    for x, other in ((torch.randn(4, 3), torch.randn(4, 3)), (torch.randn(3, 4).t(), torch.randn(3, 4).t())):
        want = function(other.to(dtype))
        recording = recorded(function, [x.to(dtype)])
        step, once = simplified(recording.graph, recording.constants)
        fixed = fx.GraphModule({}, once)(*recording.met)
        results: list[Sequence[Tensor]] = [fx.GraphModule({}, recording.graph)(other.to(dtype), *recording.met)]
        results.append(fx.GraphModule({}, step)(other.to(dtype), *fixed))
        with torch.no_grad(), scripts_as_they_are():
            results.append(script(step)(other.to(dtype), *fixed))
        for got in results:
            for one, two in zip(got, want, strict=True):
                torch.testing.assert_close(one, two, rtol=0, atol=0, equal_nan=True)


def test_numbers_in_torchscript_are_those_of_the_graph() -> None:
    """The same float64 numbers; a truth value would become a whole number, of another dtype."""
    numbers = (0.1, -1e-300, 5e-324, -0.0, math.pi * 1e300, -math.inf, math.nan)
    graph = recorded(lambda x: [torch.full_like(x, number) for number in numbers], [torch.zeros(1).double()]).graph
    got = torch.cat(list(script(graph)(torch.zeros(1).double())))
    torch.testing.assert_close(got, torch.tensor(numbers, dtype=torch.float64), rtol=0, atol=0, equal_nan=True)
    assert got.signbit().tolist()[:4] == [False, True, False, True]
    with pytest.raises(NotImplementedError, match="truth value"):
        script(recorded(lambda x: [torch.full_like(x, True)], [torch.zeros(1)]).graph)


@pytest.mark.parametrize(
    "network",
    [nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8).eval(), nn.ReLU(), nn.Linear(8, 1)), nn.GRU(3, 4),
     nn.TransformerEncoderLayer(3, 1, 8, 0.0), nn.Sequential(nn.Unflatten(0, (1, 1, 4)), nn.Conv2d(1, 2, 2), nn.GELU())],
    ids=["linear", "batch norm", "gru", "transformer", "convolution"],
)  # fmt: skip
def test_networks_with_their_parameters_as_inputs(network: nn.Module) -> None:
    parameters = dict(network.named_parameters())

    def function(x: Tensor, *values: Tensor) -> list[Tensor]:
        leaves = [value.detach().requires_grad_() for value in values]
        out = torch.func.functional_call(network, dict(zip(parameters, leaves, strict=True)), (x,))
        out = out[0] if isinstance(out, tuple) else out
        return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves)]

    values = [parameter.detach() for parameter in parameters.values()]
    graph = pure(function, [torch.randn(4, 3), *values], [network])
    x, others = torch.randn(4, 3), [torch.randn_like(value) for value in values]
    buffers = [buffer.clone() for buffer in network.buffers()]
    got = graph.evaluate(x, *others, *graph.constants)
    assert all(torch.equal(one, two) for one, two in zip(network.buffers(), buffers, strict=True))
    with sdpa_kernel(SDPBackend.MATH):
        want = function(x, *others)
    assert all(torch.equal(one, two) for one, two in zip(got, want, strict=True))


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (lambda x: [x * float(x.sum())], "gives Python a number"),
        (lambda x: [x * float(torch.tensor(0.0).add_(x.sum()))], "gives Python a number"),
        (
            lambda x: [x * float((made := torch.zeros(3), made[1:], made.copy_(x[0]))[1][0])],
            "gives Python a number",
        ),
        (lambda x: [x * float(torch.empty(()).normal_())], "gives Python a number"),
        (lambda x: [x * float(torch.randperm(3)[0])], "gives Python a number"),
        (lambda x: [x * len(torch.arange(4.0)[x[:, 0] > 0])], "the shape of the result"),
        (lambda x: [x if x.sum() > 0 else -x], "gives Python a number"),
        (lambda x: [x * int(torch.allclose(x, x))], "gives Python a number"),
        (lambda x: [x[x > 0]], "the shape of the result"),
        (lambda x: [x.nonzero()], "the shape of the result"),
        (lambda x: [torch.unique(x)], "the shape of the result"),
        (lambda x: [(x * 2).resize_(2)], "changes the memory"),
    ],
)
def test_what_a_graph_cannot_repeat_is_refused(what: Any, reason: str) -> None:
    with pytest.raises(Unrecordable, match=reason):
        recorded(what, [torch.randn(4, 3)])


@pytest.mark.parametrize(
    "what", [lambda x: [x * x.tolist()[0][0]], lambda x: [x * x.numpy().mean()], lambda x: [x * x.data_ptr()]]
)
def test_values_that_leave_pytorch_are_refused_too(what: Any) -> None:
    """An address is 0 or an error: nothing of the value can be read."""
    try:
        graph = pure(what, [torch.randn(4, 3)])
    except Untraceable:
        return
    assert not graph.evaluate(torch.randn(4, 3), *graph.constants)[0].any()


def caught(x: Tensor) -> float:
    try:
        return float(x.sum())
    except RuntimeError:
        return 1.0


READERS: dict[str, Callable[[Tensor], Any]] = {
    "dictionary": lambda x: {1.0: 2.0}.get(x.sum().item(), 3.0),
    "arithmetic before": lambda x: {1.0: 2.0}.get(x.sum().item() * 2 + 1, 3.0),
    "whole number": lambda x: {1: 2.0}.get((x > 0).sum().item(), 3.0),
    "truth": lambda x: {True: 2.0}.get((x > 0).all().item(), 3.0),
    "set": lambda x: float(x.sum().item() in {1.0}),
    "tuple": lambda x: float(x.sum().item() in (1.0, 2.0)),
    "cached function": lambda x: functools.cache(lambda v: 2.0)(x.sum().item()),
    "text": lambda x: float(len(str(x.sum().item()))),
    "f-string": lambda x: float(len(f"{x.sum().item():.2f}")),
    "text of a tensor": lambda x: float(len(f"{x}")),
    "percent": lambda x: float(len("%s %d" % (x.sum().item(), 1))),  # noqa: UP031
    "floor": lambda x: float(math.floor(x.sum().item())),
    "round": lambda x: float(round(x.sum().item())),
    "range": lambda x: float(len(range(int(x.sum().abs())))),
    "largest": lambda x: max(x.sum().item(), 0.0),
    "dlpack": lambda x: float(np.from_dlpack(x).sum()),
    "array": lambda x: float(np.asarray(x).sum()),
    "contained": lambda x: float(1.0 in x),
    "caught": caught,
}


@pytest.mark.parametrize("name", READERS)
def test_no_value_reaches_python_in_silence(name: str) -> None:
    with pytest.raises(Untraceable, match=r"cannot be traced.*, at test_recorder\.py, line \d+: "):
        pure(lambda x: [x * READERS[name](x)], [torch.randn(4, 3)])


@pytest.mark.parametrize(
    "what",
    [lambda x: x.sum().item() * 2 + 1, lambda x: 2.0 ** x.sum().item(), lambda x: x.clamp(max=x.sum().item()),
     lambda x: torch.tensor(x.sum().item()), lambda x: [1.0, 2.0, 3.0][int(torch.tensor(2).item())],
     lambda x: sum(float(i) * x[i].sum() for i in torch.arange(4)), lambda x: x[:, torch.ones(3, 3).tril()[1] > 0].sum(),
     lambda x: len(torch.arange(5).nonzero()), lambda x: int(torch.zeros(3).add_(2)[1:].sum()),
     lambda x: {3.0: 5.0}[torch.tensor(3.0).item()], lambda x: float(len(f"{torch.tensor(3.0).item()}"))],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:To copy construct")
def test_numbers_to_compute_with_and_numbers_that_are_fixed(what: Callable[[Tensor], Any]) -> None:
    graph = pure(lambda x: [x * what(x)], [torch.randn(4, 3)])
    other = torch.randn(4, 3)
    torch.testing.assert_close(graph.evaluate(other, *graph.constants)[0], other * what(other))


def test_what_is_known_of_memory_ends_with_it() -> None:
    """Memory that was written to is freed, and a constant gets the same address."""

    def function(x: Tensor) -> list[Tensor]:
        total = x
        for _ in range(20):
            total = total + torch.zeros(12).add_(x)
            if (torch.full((12,), 1.5) > 1).any():
                total = total + 1
        return [total]

    x = torch.arange(12.0)
    torch.testing.assert_close(pure(function, [x]).module(x), function(x))


def test_what_does_nothing_is_left_out_and_what_is_fixed_moves_out() -> None:
    """sin(held) is computed once; x.detach(), views of the same shape, the second exp and x ** 1 are no operations."""

    def function(x: Tensor) -> list[Tensor]:
        return [x.detach().view(4, 3).exp() + x.t().t().exp() + (HELD.sin() * 2)[:, None] + (x**1).expand(4, 3)]

    recording = recorded(function, [torch.randn(4, 3)])
    step, once = simplified(recording.graph, recording.constants)
    names = [str(node.target) for node in step.nodes if node.op == "call_function"]
    assert sorted(names) == ["aten.add.Tensor"] * 3 + ["aten.exp.default"]
    assert any("sin" in str(node.target) for node in once.nodes)


def test_large_constants_are_not_kept() -> None:
    held = torch.ones(())
    recording = recorded(lambda x: [x * held.expand(200, 200).exp()], [torch.randn(200, 200)])
    _, once = simplified(recording.graph, recording.constants)
    assert not [node for node in once.nodes if node.op == "call_function"]


@pytest.mark.more
def test_recording_resuming_and_replicates_do_not_import_the_compiler(tmp_path: Path) -> None:
    """Which takes longer than everything else before the first step."""
    code = """
import sys, torch, pyrodrop
from pyrodrop import guides, likelihoods, models, priors
model = models.MLP([1, 4, 1], prior=priors.Gaussian(), likelihood=likelihoods.Gaussian(1.0))
x, settings = torch.randn(20, 1), {"progress": False, "device": "cpu", "checkpoint": sys.argv[1]}
for steps in (50, 100):
    fit = pyrodrop.fit(model, guides.BernoulliDropout(model, 0.1), (x, x), steps=steps, **settings)
pyrodrop.fit_replicates(model, guides.BernoulliDropout(model, 0.1), (x, x), count=2, steps=50, progress=False, device="cpu")
print(fit.settings["engine"], *(name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules))
"""
    command = [sys.executable, "-P", "-c", code, str(tmp_path / "fit.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["traced"]
