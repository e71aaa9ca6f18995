"""Gradient and optimiser as one program that TorchInductor compiles.

An optimiser is a rule of tensors, so that a graph can contain its update:

    Adam    m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2,   w <- w - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
    AdamW   w <- (1 - lr decay) w first, Adam then
    Clipped Adam with g clipped to [-c, c], lr d in place of lr, and eps / sqrt(1 - b2^t) in place of eps

Kingma & Ba (2015); Loshchilov & Hutter (2019). The state is stored in the `torch.optim` optimiser
under its usual names, so checkpoints do not depend on the engine. Numbers that depend on the step are computed outside the
program and are inputs of it.

On a CPU the program is one C++ function, called without PyTorch's checks of every call. Every program is compared with the
operations that it was compiled from before it is used.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pooch
import torch
from pyro.optim.clipped_adam import ClippedAdam
from torch import Tensor, fx

from pyrodrop.arrays import near
from pyrodrop.checks import first_line
from pyrodrop.compiled.program import AS_THEY_ARE, Program, loosen_views, make_flat, pure
from pyrodrop.compiled.record import Untraceable
from pyrodrop.devices import processor, seeded
from pyrodrop.files import whole
from pyrodrop.private_apis import (
    Compiled,
    compile_by_inductor,
    elementary_forms,
    load_program,
    record,
)
from pyrodrop.steps import Arguments, Group, does_more

_log = logging.getLogger("pyrodrop")
_A: Any = torch.ops.aten

# Operations that write to tensors which their signatures do not mark as written; their elementary forms mark them.
_BATCH_NORMS = (_A.native_batch_norm, _A.native_batch_norm_backward, _A.cudnn_batch_norm, _A.cudnn_batch_norm_backward)

Call = Callable[[list[Tensor]], Sequence[Tensor]]
Guard = Callable[[Tensor, Sequence[Tensor], Sequence[Tensor]], Callable[[Tensor, Tensor], Tensor]]

_MOST = 500  # files of programs
_NARROW = 32  # numbers per row: two of the widest vectors


class Rule:
    """The update of one parameter group by Adam, AdamW or ClippedAdam."""

    state = ("exp_avg", "exp_avg_sq")
    numbers = 3

    def __init__(self, group: Group) -> None:
        self.group = group

    def __repr__(self) -> str:
        return str({name: value for name, value in self.group.items() if name not in ("params", "lr", "initial_lr")})

    def schedule(self, step: int, lr: float) -> tuple[float, ...]:
        """The numbers that `update` needs at a step, counted from 1."""
        b1, b2 = self.group["betas"]
        lr *= self.group.get("lrd", 1)
        return lr / (1 - b1**step), 1 / math.sqrt(1 - b2**step), 1 - lr * self.group["weight_decay"]

    def update(self, w: Tensor, g: Tensor, m: Tensor, v: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The new parameter and state."""
        group, eps = self.group, self.group["eps"]
        (b1, b2), decay = group["betas"], group["weight_decay"]
        if "clip_norm" in group:
            g, eps = g.clamp(-group["clip_norm"], group["clip_norm"]), eps * numbers[1]
        if decay and group.get("decoupled_weight_decay"):
            w = w * numbers[2]
        elif decay:
            g = g + decay * w
        m = m + (1 - b1) * (g - m)
        v = b2 * v + (1 - b2) * g * g
        return w - numbers[0] * m / (v.sqrt() * numbers[1] + eps), m, v


def rules_of(optimizer: Any) -> list[Rule]:
    """A rule for every parameter group of an optimiser, or of the ``optimizers`` of a `PyroOptim` as one.

    Raises:
        Untraceable: an optimiser, or one of its options, has no rule.
    """
    every, known = getattr(optimizer, "optimizers", [optimizer]), (torch.optim.Adam, torch.optim.AdamW, ClippedAdam)
    for each in every:
        if type(each) not in known or does_more(each):
            name = type(each).__name__
            raise Untraceable(f"the optimiser {name} has no compiled form (Adam, AdamW and ClippedAdam have)")
    return [Rule(group) for each in every for group in each.param_groups]


class WholeStep:
    """The gradient and the update of all parameters as one function, which writes to parameters, state and buffers.

    Args:
        leaves: the parameters.
        optimizer: of `torch.optim`, or the optimisers of a `PyroOptim` as one.
        buffers: the buffers that a step updates.
        guard: a function from nll and kl, gradients and `extra`, to the function that takes the old and the new value of a
            parameter, state or buffer to the value that it takes. If it is None, every step counts.
        extra: further tensors that `guard` writes to.

    Attributes:
        rules: the rule of every parameter group.
        tensors: all that a step writes to.
        width: the number of numbers that a step takes: the factor of kl, and those of the rules.

    Raises:
        Untraceable: the optimiser has no rule, or no state for a parameter.
    """

    def __init__(
        self,
        leaves: Sequence[Tensor],
        optimizer: Any,
        buffers: Sequence[Tensor],
        guard: Guard | None = None,
        extra: Sequence[Tensor] = (),
    ) -> None:
        self.rules, self._guard = rules_of(optimizer), guard
        group_of = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self._groups = [group_of[id(leaf)] for leaf in leaves]
        try:
            states = [optimizer.state[leaf][name] for leaf in leaves for name in Rule.state]
        except KeyError as error:
            raise Untraceable(f"a parameter had no gradient in the first step, so that it has no {error}") from error
        self._counts = len(leaves), len(states), len(buffers), len(extra)
        self.tensors: list[Tensor] = [*(leaf.detach() for leaf in leaves), *states, *buffers, *extra]
        self.width: int = 1 + Rule.numbers * len(self.rules)

    def numbers(self, step: int, weight: float, rates: Sequence[float]) -> list[float]:
        """The numbers of a step, counted from 1."""
        schedules = (rule.schedule(step, rate) for rule, rate in zip(self.rules, rates, strict=True))
        return [weight, *(number for schedule in schedules for number in schedule)]

    def of(self, evaluate: Callable[..., Any], rows: int) -> Callable[..., list[Tensor]]:
        """The step as a function of all its inputs, for a gradient by `evaluate`, whose arguments have `rows` tensors."""

        def step(*inputs: Tensor) -> list[Tensor]:
            after = iter(inputs)
            leaves, flat, moving, extra = ([next(after) for _ in range(count)] for count in self._counts)
            batch, controls = [next(after) for _ in range(rows)], next(after)
            terms, *results = evaluate(*leaves, *moving, *batch, controls[0], *after)
            gradients, moved = results[: len(leaves)], results[len(leaves) :]
            choice = self._guard(terms, gradients, extra) if self._guard else lambda _, new: new
            states, numbers = zip(flat[::2], flat[1::2], strict=True), controls[1:].unflatten(0, (-1, Rule.numbers))
            for leaf, gradient, state, group in zip(leaves, gradients, states, self._groups, strict=True):
                new = self.rules[group].update(leaf, gradient, *state, numbers[group])
                for place, value in zip((leaf, *state), new, strict=True):
                    place.copy_(choice(place, value))
            for place, value in zip(moving, moved, strict=True):
                place.copy_(choice(place, value))
            return [terms]

        return step

    @torch.no_grad()
    def compiled(self, program: Program, batch: Arguments, options: Mapping[str, Any]) -> Call:
        """The step with a program's gradient, compiled for such minibatches, which has passed a comparison.

        Compared are nll, kl, the buffers, and the optimiser's state, which moves in proportion to the gradient. Parameters
        do not: a gradient of 0 up to rounding moves them, too.

        Raises:
            Untraceable: it cannot be compiled, or gives other numbers.
        """
        if drawn := program.draws_itself:
            others = [operation for operation in drawn if operation not in AS_THEY_ARE]
            if others or batch.device.type == "cuda":
                raise Untraceable(
                    f"it draws noise whose distribution depends on parameters, by {(others or drawn)[0]}, of which a "
                    "compiled program would draw other numbers"
                )
            options = {**options, "fallback_random": True}
        rest = [*batch.tensors, self.tensors[0].new_ones(self.width), *program.constants]
        inputs = on(batch.device, [*self.tensors, *rest, *program.shapes()])
        rows, (leaves, states, buffers, _) = len(batch.tensors), self._counts
        compared, count = slice(leaves, leaves + states + buffers), len(self.tensors)

        def agrees(compiled: Compiled, seed: int) -> bool:
            want, got = ([value.clone() for value in inputs[:count]] for _ in range(2))
            with seeded(seed, batch.device):
                noise = program.draw()
            with seeded(seed, batch.device):  # of what the graph itself draws
                terms = self.of(program.evaluate, rows)(*want, *rest, *noise)
            try:
                with seeded(seed, batch.device):
                    ours = compiled(*got, *on(batch.device, [*rest, *noise]))
            except Exception as error:
                raise Untraceable(f"its compiled program cannot be run: {first_line(error)}") from error
            moves = [(a - old, b - old) for a, b, old in list(zip(want, got, inputs, strict=False))[compared]]
            return same_numbers([(terms[0], ours[0])], moves)

        def check(compiled: Compiled) -> None:
            """Rounding may carry a value over the kink of a ReLU, but not for other noise; a wrong program stays wrong."""
            if not any(agrees(compiled, seed) for seed in (1, 2, 3)):
                raise Untraceable("its compiled program gives other numbers than the trace does")

        parts = [
            getattr(self._guard, "__qualname__", ""),
            program.text,
            *self.rules,
            self._groups,
            sorted(options.items()),
        ]
        make = partial(compile_graph, self.of(program.module, rows), inputs, options)
        return found_or_made(parts, inputs, make, check).call


def same_numbers(terms: Sequence[tuple[Tensor, Tensor]], gradients: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Whether pairs of results of a graph and its program agree up to rounding.

    Each gradient is compared relative to its largest entry, or to a hundredth of the largest entry of all if that is more.
    """
    sizes = [float(one.abs().max()) for one, _ in gradients if one.numel() and one.is_floating_point()]
    least = 1e-2 * max((size for size in sizes if math.isfinite(size)), default=0.0)
    return all(near(*pair, 2e-3) for pair in terms) and all(near(*pair, 1e-2, least) for pair in gradients)


def calling(
    function: Callable[..., Sequence[Tensor]],
    program: Program,
    inputs: Sequence[Tensor],
    *,
    mapped: bool = False,
    compiled: bool = True,
    code: str = "",
) -> Callable[..., Sequence[Tensor]]:
    """A function of tensors that calls a program, which draws nothing, as one graph.

    The result does not check its inputs, which must be contiguous and of the shapes and dtypes of `inputs`.

    Args:
        function: takes the program, as a function of its inputs, and the tensors.
        mapped: whether `function` calls the program for many values of its inputs, along their first axes.
        compiled: whether TorchInductor compiles the graph; if not, its operations are called one by one.
        code: all that `function` computes besides the program, as text; the compiled graph is then kept for later processes.

    Raises:
        Untraceable: the function cannot be recorded, the program not be mapped, or the compiler fails.
    """
    constants = [constant.contiguous() for constant in program.constants]
    count = sum(node.op == "placeholder" for node in program.graph.nodes) - len(constants)
    call = program.mapped([0] * count + [None] * len(constants)) if mapped else program.module

    def whole(*tensors: Tensor) -> list[Tensor]:
        rest = tensors[len(inputs) :]
        return list(function(lambda *values: call(*values, *rest), *tensors[: len(inputs)]))

    every = [*inputs, *constants]
    if not compiled:
        steps = pure(whole, every)
        return lambda *tensors: steps.evaluate(*tensors, *constants, *steps.constants)

    with torch.no_grad():
        make = partial(compile_graph, whole, every, {})
        graph = found_or_made([code, program.text, mapped], every, make, lambda _: None) if code else make()
    return lambda *tensors: graph(*tensors, *constants)


def compile_graph(function: Callable[..., Any], inputs: list[Tensor], options: Mapping[str, Any]) -> Compiled:
    """Compile a function of tensors by TorchInductor, with these options of its configuration; on a CPU to C++.

    Raises:
        Untraceable: the function cannot be recorded, or the compiler fails, such as without a C++ compiler.
    """
    try:
        module = record(function, inputs, elementary_forms(_BATCH_NORMS))
    except Exception as error:  # whatever an operation that cannot be mapped over replicates or chains raises
        raise Untraceable(f"it cannot be recorded: {first_line(error)}") from error
    make_flat(module)
    turn_narrow_products(module)
    # Compiling PyTorch's headers ahead takes as long as six programs that do without.
    native = {} if inputs and inputs[0].is_cuda else {"cpp_wrapper": True, "cpp_cache_precompile_headers": False}
    try:
        return compile_by_inductor(module, inputs, {**options, **native, "size_asserts": False})
    except Exception as error:  # the compiler's errors have no common type
        raise Untraceable(f"the compiler failed: {first_line(error)}") from error


def on(device: torch.device, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Move tensors to the device of a program: numbers, and rows of a subsample, may have been made on the CPU."""
    return [tensor.to(device) for tensor in tensors]


def found_or_made(
    parts: Iterable[object], inputs: Sequence[Tensor], make: Callable[[], Compiled], check: Callable[[Compiled], None]
) -> Compiled:
    """The cached program for these parts, if it passes the check; otherwise a new program, which is then cached.

    Args:
        parts: all that determines the program besides shapes, strides and dtypes of its inputs.
        check: raises `Untraceable` for a program that is wrong.

    Raises:
        Untraceable: the program cannot be compiled, or is wrong.
    """
    path = _path(parts, inputs)
    if path is not None and path.exists():
        try:
            kept = load_program(path)
            check(kept)
            os.utime(path)  # the time of its last use
            return kept
        except (OSError, ImportError, Untraceable) as error:
            _log.info("the program of an earlier process is not used: %s", error)
    program = make()
    check(program)
    if path is not None and program.file is not None:
        with suppress(OSError):
            with whole(path) as part:
                shutil.copyfile(program.file, part)
            for file in sorted(path.parent.glob("*.so"), key=lambda file: file.stat().st_mtime)[:-_MOST]:
                file.unlink(missing_ok=True)
    return program


def _path(parts: Iterable[object], inputs: Sequence[Tensor]) -> Path | None:
    """The path of the program, in the folder that the environment variable ``PYRODROP_CACHE`` names, by default the user's
    cache. None on a GPU, and if the folder cannot be written to, or other users can write to it."""
    place = Path(os.environ.get("PYRODROP_CACHE") or pooch.os_cache("pyrodrop")) / "programs"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        status, user = place.stat(), getattr(os, "getuid", lambda: 0)()  # on Windows it lies in the user's profile
    except OSError:
        return None
    safe = status.st_uid == user and not status.st_mode & 0o022 and os.access(place, os.W_OK)
    if not safe or any(tensor.is_cuda for tensor in inputs):
        return None
    digest = hashlib.sha256(_of_this_machine().encode())
    for part in (torch.get_num_threads(), *parts, *((t.shape, t.stride(), t.dtype) for t in inputs)):
        digest.update(f"{part};".encode())
    return place / f"{digest.hexdigest()[:32]}.so"


@functools.cache
def _of_this_machine() -> str:
    """Versions, source code and processor, on which every program of this process depends."""
    capability, isa = torch.backends.cpu.get_cpu_capability(), os.environ.get("ATEN_CPU_CAPABILITY")
    ours = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py"))))
    versions = torch.__version__, torch.version.git_version, sys.version
    return f"{versions} {processor()} {capability} {isa} {ours.hexdigest()}"


def turn_narrow_products(module: fx.GraphModule) -> None:
    """Rewrite every batched product whose result has fewer than 32 columns, and fewer columns than rows."""
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=_A.bmm.default):
        *_, rows, columns = node.meta["val"].shape
        if columns < min(rows, _NARROW):
            with graph.inserting_before(node):
                left, right = (graph.call_function(_A.transpose.int, (of, 1, 2)) for of in node.args)
                product = graph.call_function(_A.bmm.default, (right, left))
                turned = graph.call_function(_A.transpose.int, (product, 1, 2))
            node.replace_all_uses_with(turned)
            graph.erase_node(node)
    loosen_views(module)
