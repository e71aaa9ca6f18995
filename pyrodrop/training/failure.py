"""What broke first in a training whose loss is no longer finite.

The losses are checked seldom, since every check waits for the device, and by then all parameters are NaN. So a copy of a
finite state is kept from time to time. From there the same steps are made again, one by one, up to the first that is not
finite, and that one is taken apart: the terms of the loss by site, and their gradients by parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from torch import Tensor

from pyrodrop.devices import available
from pyrodrop.elbo import terms_by_site
from pyrodrop.engines import Arguments, Joint, Loss
from pyrodrop.engines.graph import Parameter
from pyrodrop.training.loop import Loop, not_finite
from pyrodrop.training.state import State

_SMALL = 2**20  # bytes that any device has


class FirstFailure:
    """Keeps a finite state of a training, and finds what broke first after it."""

    def __init__(self, loop: Loop, loss: Loss, state: State) -> None:
        self._loop, self._loss, self._state = loop, loss, state
        self._kept: dict[str, Tensor] | None = None
        self._done = 0

    def remember(self) -> None:
        """Keep a copy of the present state, unless the device's memory is short."""
        tensors = self._tensors()
        device = self._loop.history.device
        need = sum(value.nbytes for value in tensors.values())
        self._kept = None  # so that there are never two copies
        if need < _SMALL or 4 * need < available(device):
            self._kept, self._done = {name: value.detach().clone() for name, value in tensors.items()}, self._loop.done

    def words(self) -> str:
        """What broke first, in sentences, or why that cannot be told. The training is left as it is."""
        if self._kept is None:
            return "Which parameter broke first cannot be told: a copy of the state would not have fitted into memory."
        if self._loss.changes:
            return f"Which parameter broke first cannot be told: {self._loss.changes}, so steps cannot be made again."
        loop, now = self._loop, {name: value.detach().clone() for name, value in self._tensors().items()}
        done, chosen = loop.done, (loop.engine, loop._chosen)
        try:
            with pyro.validation_enabled(False):
                return self._search(self._kept, done)
        except Exception as error:  # the message about the failure must not be lost by another one
            return f"Which parameter broke first cannot be told: {_first_line(error)}"
        finally:
            self._restore(now, done)
            loop.engine, loop._chosen = chosen

    def _search(self, kept: dict[str, Tensor], end: int) -> str:
        """Make the steps again up to the one that broke, and take it apart."""
        loop, first = self._loop, self._done
        self._restore(kept, first)
        engine = loop.engine
        plan = loop.plan(first, end)
        engine.begin(plan)
        for index in range(end - first):
            batch = loop.batches.next()
            before = {name: value.detach().clone() for name, value in self._tensors(finish=False).items()}
            terms = engine.step(batch, index)
            loop.done = first + index + 1
            finite = bool(torch.isfinite(terms).all())
            broken = not_finite(loop.parameters, loop.moving())
            if finite and not broken:
                continue
            rows = loop.batches.last(before["batches.order"], int(before["batches.position"]))  # the place is after it
            self._restore(before, first + index)
            batches = [part.batch for part in batch.parts] if isinstance(batch, Joint) else [batch]
            causes = (_cause(self._loss, part, loop.parameters) for part in batches)
            cause = next(filter(None, causes), "")
            if not cause:
                cause = f"{broken[0]}, by its update" if broken else "the loss; evaluated by Pyro it is finite"
            return f"What broke first, in step {first + index}: {cause}. {rows} {self._largest()}"
        return (
            f"Which parameter broke first cannot be told: made again from step {first}, all steps are finite, as rounding "
            "may differ."
        )

    def _tensors(self, *, finish: bool = True) -> dict[str, Tensor]:
        tensors = self._state.tensors(finish=finish)
        del tensors["history"]
        return tensors

    def _restore(self, tensors: dict[str, Tensor], done: int) -> None:
        self._loop.done = done
        self._state.restore(tensors, int(tensors["batches.position"]))

    def _largest(self) -> str:
        """The parameter with the largest value before the step."""
        name, value = max(self._loop.parameters.items(), key=lambda item: float(item[1].detach().abs().max()))
        return f"The largest value of a parameter before it is {float(value.detach().abs().max()):.3g}, in {name}."


def _cause(loss: Loss, batch: Arguments, leaves: Mapping[str, Tensor]) -> str:
    """The first site whose term of the loss or whose gradient is not finite, and its parameter; empty if all are finite."""
    for name, parameter in loss.parameters.items():
        if not bool(torch.isfinite(_value(parameter)).all()):
            return f"the value of the parameter {name}"
    with torch.enable_grad():
        objective = loss.objective
        try:
            with objective.cast(batch):
                terms = terms_by_site(objective.model, objective.guide, *batch.args, **batch.kwargs)
        except ValueError:  # sites that a loss object of Pyro sums out have no terms
            terms = {"of all sites": objective.terms(batch)[0]}
        for site, term in terms.items():
            gradients = _gradients(term, leaves)
            names = [name for name, gradient in gradients.items() if gradient is not None]
            of = f" (its parameters: {_some(names)})" if names else ""
            if not bool(torch.isfinite(term)):
                return f"the term of the site {site} in the loss, {float(term.detach()):g}{of}"
            for name in names:
                bad = ~torch.isfinite(gradients[name])  # type: ignore[arg-type]
                if bool(bad.any()):
                    return (
                        f"the gradient of the parameter {name}, in {int(bad.sum())} of {bad.numel()} entries, from the site "
                        f"{site}"
                    )
    return ""


def _gradients(term: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor | None]:
    if not term.requires_grad:
        return dict.fromkeys(leaves)
    gradients = torch.autograd.grad(term, list(leaves.values()), retain_graph=True, allow_unused=True)
    return dict(zip(leaves, gradients, strict=True))


def _value(parameter: Parameter) -> Tensor:
    """The value of a parameter under its constraint."""
    with torch.no_grad():
        transform: Callable[[Tensor], Any] = torch.distributions.transform_to(parameter.constraint)
        return transform(parameter.unconstrained)  # type: ignore[no-any-return]


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
