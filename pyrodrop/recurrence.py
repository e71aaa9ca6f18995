"""nn.LSTM, nn.GRU and nn.RNN by elementary operations, for cases that PyTorch's kernels do not support.

    nn.RNN     h' = tanh(W x + b + U h + c), or with relu
    nn.LSTM    i, f, g, o = W x + b + U h + c       [4 H]
               c' = sigmoid(f) c + sigmoid(i) tanh(g)
               h' = sigmoid(o) tanh(c'),            with proj_size R sigmoid(o) tanh(c')
    nn.GRU     r, z, n = W x + b                    [3 H]
               r', z', n' = U h + c
               h' = (1 - a) m + a h,                a = sigmoid(z + z'),  m = tanh(n + sigmoid(r + r') n')

with W ``[G H, in]`` = weight_ih, U ``[G H, H]`` = weight_hh, R = weight_hr, b = bias_ih and c = bias_hh. These are the
equations of PyTorch's documentation, in the order of its own implementation for a CPU, so the numbers are those of the
layers up to rounding. The products W x of all steps are one matrix product; every step has one more, U h.

They replace PyTorch's kernels in three cases: under `torch.vmap` over weights, for which the kernels have no rule; in a
recording of the gradient, which cannot repeat the kernel of nn.LSTM for float32; and with a lazy weight that has noise per
example. That noise is the same at every step, one mask for the whole sequence: Gal & Ghahramani (2016), A Theoretically
Grounded Application of Dropout in Recurrent Neural Networks, https://arxiv.org/abs/1512.05287. The batch sizes of a packed
sequence must be known, so a recording supports fixed lengths, but not lengths that are part of x.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

from pyrodrop.private_apis import pack, unpack

State = tuple[Tensor, ...]  # (h,) or (h, c), [N, H] each
Cell = Callable[[Tensor, State, Sequence[Any]], State]  # the next state from W x + b, the state, and U, c and R


def by_steps(layer: Callable[..., Any], input: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """Evaluate `layer`, one of `LAYERS`, by elementary operations.

    Args:
        input: ``[T, N, in]``, ``[N, T, in]`` with batch_first, or the data of a packed sequence.
        args: the further arguments that nn.LSTM passes to it; for a packed sequence, the first are the batch sizes.

    Returns:
        The output and the last states, as `layer` returns them.

    Raises:
        RuntimeError: the batch sizes of a packed sequence depend on tensors of a recording.
    """
    sizes = [int(size) for size in args[0]] if is_packed(args) else None
    hx, weights, biases, layers, drop_rate, training, both, *rest = args if sizes is None else args[1:]
    turned = bool(rest and rest[0])
    x = input.transpose(0, 1) if turned else input
    start = tuple(hx) if isinstance(hx, list | tuple) else (hx,)
    directions = 2 if both else 1
    each = len(weights) // (layers * directions)
    ends: list[State] = []
    for number in range(layers):
        outputs = []
        for direction in range(directions):
            place = number * directions + direction
            of_cell = weights[place * each : (place + 1) * each]
            state = tuple(tensor[place] for tensor in start)
            y, end = _direction(LAYERS[layer], x, sizes, state, of_cell, bool(biases), backward=direction == 1)
            outputs.append(y)
            ends.append(end)
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if number + 1 < layers:
            x = F.dropout(x, drop_rate, bool(training))
    return (x.transpose(0, 1) if turned else x, *(torch.stack(column) for column in zip(*ends, strict=True)))


def step_linear(input: Tensor, weight: Any, bias: Any = None) -> Tensor:
    """`F.linear` in a recurrent layer, whose lazy weight has the same noise at every step of a sequence."""
    if has_torch_function((weight, bias)):
        return handle_torch_function(step_linear, (weight, bias), input, weight, bias)  # type: ignore[no-any-return]
    return F.linear(input, weight, bias)


def _direction(
    cell: Cell,
    x: Tensor,
    sizes: list[int] | None,
    state: State,
    weights: Sequence[Any],
    biases: bool,
    *,
    backward: bool,
) -> tuple[Tensor, State]:
    """Run one layer in one direction. Returns its outputs, stacked or packed as x is, and its last state."""
    w, u = weights[:2]
    b, c = weights[2:4] if biases else (None, None)
    inputs, around = step_linear(x, w, b), (u, c, *weights[4 if biases else 2 :])
    steps = inputs.unbind(0) if sizes is None else inputs.split(sizes)
    outputs = []
    for step in reversed(steps) if backward else steps:
        count = step.shape[0]  # in a packed sequence, the examples that are this long come first
        some = count < state[0].shape[0]
        new = cell(step, tuple(old[:count] for old in state) if some else state, around)
        state = tuple(torch.cat([h, old[count:]]) for h, old in zip(new, state, strict=True)) if some else new
        outputs.append(new[0])
    outputs = outputs[::-1] if backward else outputs
    return torch.stack(outputs) if sizes is None else torch.cat(outputs), state


def _lstm(step: Tensor, state: State, weights: Sequence[Any]) -> State:
    h, cell = state
    u, c, *projection = weights
    i, f, g, o = (step_linear(h, u, c) + step).chunk(4, -1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    h = o.sigmoid() * cell.tanh()
    return (step_linear(h, *projection) if projection else h), cell


def _gru(step: Tensor, state: State, weights: Sequence[Any]) -> State:
    (h,) = state
    r, z, n = step.chunk(3, -1)
    around_r, around_z, around_n = step_linear(h, *weights).chunk(3, -1)
    reset, update = (around_r + r).sigmoid(), (around_z + z).sigmoid()
    new = (n + around_n * reset).tanh()
    return ((h - new) * update + new,)


def _tanh(step: Tensor, state: State, weights: Sequence[Any]) -> State:
    return ((step_linear(state[0], *weights) + step).tanh(),)


def _relu(step: Tensor, state: State, weights: Sequence[Any]) -> State:
    return ((step_linear(state[0], *weights) + step).relu(),)


LAYERS: dict[Any, Cell] = {torch.lstm: _lstm, torch.gru: _gru, torch.rnn_tanh: _tanh, torch.rnn_relu: _relu}


def is_packed(args: Sequence[Any]) -> bool:
    """Whether the arguments after the input are those for a packed sequence, which begin with its batch sizes."""
    return isinstance(args[2], list | tuple)


def _pack(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """Data and batch sizes of a packed sequence, of lengths in descending order."""
    ends = [int(length) for length in lengths]
    sizes = [sum(end > t for end in ends) for t in range(ends[0])]
    x = input.transpose(0, 1) if batch_first else input
    return torch.cat([step[:size] for step, size in zip(x.unbind(0), sizes, strict=False)]), torch.tensor(sizes)


def _pad(data: Tensor, batch_sizes: Tensor, batch_first: bool, value: float, total: int) -> tuple[Tensor, Tensor]:
    """A packed sequence as a padded tensor, and its lengths."""
    sizes = [int(size) for size in batch_sizes]
    steps = [*data.split(sizes), *(max(0, total - len(sizes)) * [data[:0]])]
    rest = [data.new_full((sizes[0] - len(step), *data.shape[1:]), value) for step in steps]
    padded = torch.stack([torch.cat(pair) for pair in zip(steps, rest, strict=True)], 1 if batch_first else 0)
    return padded, torch.tensor([sum(size > n for size in sizes) for n in range(sizes[0])])


_ELEMENTARY: dict[Any, Callable[..., Any]] = {
    **{layer: functools.partial(by_steps, layer) for layer in LAYERS},
    pack: _pack,
    unpack: _pad,
}


class _BySteps(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _ELEMENTARY.get(func, func)(*args, **(kwargs or {}))


@contextmanager
def elementary() -> Iterator[None]:
    """Evaluate recurrent layers and attention by elementary operations, which can be mapped, recorded and compiled."""
    with sdpa_kernel(SDPBackend.MATH), _BySteps():
        yield
