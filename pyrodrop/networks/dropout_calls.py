"""Run a network with masks from outside in every call that drops units.

    nn.Dropout, F.dropout, torch.dropout                       mask of the input's shape
    nn.Dropout1d, 2d, 3d, F.dropout1d ..., feature_dropout     mask [N, C, 1, ...]
    nn.LSTM, nn.GRU, nn.RNN with dropout                       mask of the output of every layer but the last
    F.scaled_dot_product_attention(dropout_p=...)              mask of the attention probabilities, [N, heads, T, T]
    nn.MultiheadAttention                                      the same, [N * heads, T, T] if it returns them
    Tensor.bernoulli_, torch.bernoulli                         the result itself: stochastic depth, masks made by hand

`DropoutCalls` is a mode of PyTorch (`torch.overrides.TorchFunctionMode`) that intercepts these functions, whichever module
calls them. A call in evaluation mode, or with rate 0, drops nothing and needs no mask. Batch and instance normalisation use
running statistics if there are any, also where the call requests those of the minibatch.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyrodrop.networks.call import Unfit
from pyrodrop.private_apis import body_of


@dataclass(frozen=True)
class DropoutCall:
    """A call that drops units.

    Attributes:
        kind: a short description of the function.
        drop_rate: probability of a zero in the mask.
        shape: of the mask.
        input: the tensor whose units are dropped, or one with the same leading axes; None if unknown.
        like: a tensor of the mask's dtype and device.
        draw: a mask as PyTorch draws it for this call: from the same random state, the same mask.
    """

    kind: str
    drop_rate: float
    shape: torch.Size
    input: Tensor | None
    like: Tensor
    draw: Callable[[], Tensor]


Answer = Callable[[DropoutCall], Tensor | None]


class DropoutCalls(TorchFunctionMode):
    """Gets the mask of every call that drops units from a function.

    Args:
        answer: returns zeros and ones that broadcast to the shape of the call's mask, or None to drop nothing.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = _HANDLERS.get(func)
        if handler is None:
            return func(*args, **(kwargs or {}))
        return handler(self, func, *args, **(kwargs or {}))

    def mask(self, call: DropoutCall) -> Tensor | None:
        """The mask of a call, in the dtype of its result; None to drop nothing."""
        if call.drop_rate >= 1:
            raise Unfit(
                f"a posterior needs drop rates below 1; the network calls {call.kind} with a rate of {call.drop_rate:g}, "
                "which drops everything"
            )
        mask = self.answer(call)
        return None if mask is None else mask.to(call.like.dtype)


def _dropout(kind: str, shape: Callable[[Tensor], torch.Size]) -> Callable[..., Tensor]:
    """Dropout to 0 with a mask of this shape, scaled by 1 / (1 - p)."""

    def dropout(
        mode: DropoutCalls,
        func: Any,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Tensor:
        if not training or p == 0:
            return input
        of = shape(input)
        mask = mode.mask(DropoutCall(kind, p, of, input, input, lambda: _drawn(input, p, of, fused=kind == "dropout")))
        return _scaled(input, p, mask)

    return dropout


def _drawn(input: Tensor, p: float, shape: torch.Size | None = None, *, fused: bool = True) -> Tensor:
    """The mask that PyTorch draws for dropout of this tensor, or one of another shape; fused on GPUs unless of channels."""
    empty = torch.empty_like(input) if shape in (None, input.shape) else input.new_empty(shape)  # type: ignore[arg-type]
    return torch.dropout(empty.fill_(1), p, True).ne(0) if fused else empty.bernoulli_(1 - p)


def _channels(single: int | None = None) -> Callable[[Tensor], torch.Size]:
    """The shape of a mask of channels; an input of `single` dimensions is one example without an axis of examples."""

    def shape(input: Tensor) -> torch.Size:
        lead = 1 if input.dim() == single else 2
        return torch.Size((*input.shape[:lead], *(1,) * (input.dim() - lead)))

    return shape


def _scaled(input: Tensor, p: float, mask: Tensor | None) -> Tensor:
    return input if mask is None else input * (mask / (1 - p))


def _bernoulli(mode: DropoutCalls, func: Any, like: Tensor, p: Any = None, **settings: Any) -> Tensor:
    """`torch.bernoulli` and its methods, of which one works in place, with 0.5 unless there is another probability."""
    here = func is Tensor.bernoulli_
    chance = p if p is not None else 0.5 if here else like
    if isinstance(chance, Tensor):
        if chance.numel() == 0 or bool((chance != chance.flatten()[0]).any()):
            raise Unfit(
                "the network draws Bernoulli numbers whose probabilities differ between entries or depend on x, so they are "
                "no dropout with a rate; draw them with one rate each"
            )
        chance = chance.flatten()[0]
    keep = float(chance)
    if keep in (0.0, 1.0):
        return torch.full_like(like, keep)

    def draw() -> Tensor:
        return func(like.clone() if here else like, *() if p is None else (p,))  # type: ignore[no-any-return]

    mask = mode.mask(DropoutCall("Bernoulli numbers", 1 - keep, like.shape, None, like, draw))
    return torch.full_like(like, keep) if mask is None else mask.expand(like.shape).clone()


def _recurrent(mode: DropoutCalls, func: Any, input: Tensor, *args: Any) -> Any:
    """nn.LSTM, nn.GRU and nn.RNN: PyTorch's kernel runs layer by layer, and the dropout between layers is applied here."""
    packed = isinstance(args[2], list | tuple)
    hx, weights, biases, layers, p, training, both, *rest = args[packed:]
    if not training or p == 0 or layers == 1:
        return func(input, *args)
    if packed:
        raise Unfit("the dropout of a recurrent layer on packed sequences cannot be read: pad the sequences")
    turned = bool(rest and rest[0])  # batch_first: PyTorch runs, and draws masks, with time first
    if turned:
        input, rest = input.transpose(0, 1), [False]
    several = isinstance(hx, list | tuple)
    directions = 2 if both else 1
    each = len(weights) // layers
    states: list[Any] = []
    y = input
    for layer in range(layers):
        of_layer = slice(layer * directions, (layer + 1) * directions)
        start = [h[of_layer] for h in hx] if several else hx[of_layer]
        of_weights = list(weights[layer * each : (layer + 1) * each])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "RNN module weights are not part")  # by cuDNN, of sampled ones
            y, *state = func(y, start, of_weights, biases, 1, 0.0, training, both, *rest)
        states.append(state)
        if layer + 1 < layers:
            kind = f"dropout after layer {layer}"
            y = _scaled(y, p, mode.mask(DropoutCall(kind, p, y.shape, y, y, functools.partial(_drawn, y, p))))
    y = y.transpose(0, 1) if turned else y
    return (y, *(torch.cat(ends) for ends in zip(*states, strict=True)))


def _attention(
    mode: DropoutCalls,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(q k^T / sqrt(d) + mask) v, with dropout of the probabilities."""
    settings = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    heads = query.shape[:-2]
    shape = torch.Size((*heads, query.shape[-2], key.shape[-2]))
    call = DropoutCall("dropout of attention", dropout_p, shape, query, query, lambda: _drawn(query, dropout_p, shape))
    mask = mode.mask(call) if dropout_p else None
    if mask is None:
        return func(query, key, value, attn_mask, 0.0, **settings)
    if enable_gqa:
        key, value = (part.repeat_interleave(heads[-1] // part.shape[-3], -3) for part in (key, value))
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    nowhere = scores.isneginf().all(-1, keepdim=True)  # a query that may look at no key gets 0, as in PyTorch
    probabilities = torch.softmax(scores.masked_fill(nowhere, 0.0), -1).masked_fill(nowhere, 0.0)
    return _scaled(probabilities, dropout_p, mask) @ value


def _multihead(mode: DropoutCalls, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run PyTorch's own function with this mode inside of it."""
    with mode:
        return body_of(func)(*args, **kwargs)


def _norm(
    mode: DropoutCalls,
    func: Any,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *rest: Any,
    training: bool = False,
    use_input_stats: bool = True,
    **kwargs: Any,
) -> Any:
    """Normalise by running statistics if there are any, whatever the call requests."""
    return func(input, running_mean, running_var, weight, bias, running_mean is None, *rest[1:], **kwargs)


_HANDLERS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((F.dropout, torch.dropout, torch.dropout_), _dropout("dropout", lambda input: input.shape)),
    **dict.fromkeys(
        (F.dropout2d, torch.feature_dropout, torch.feature_dropout_), _dropout("dropout of channels", _channels())
    ),
    F.dropout1d: _dropout("dropout of channels", _channels(2)),
    F.dropout3d: _dropout("dropout of channels", _channels(4)),
    **dict.fromkeys((Tensor.bernoulli_, Tensor.bernoulli, torch.bernoulli), _bernoulli),
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _recurrent),
    F.scaled_dot_product_attention: _attention,
    F.multi_head_attention_forward: _multihead,
    **dict.fromkeys((F.batch_norm, F.instance_norm), _norm),
}
