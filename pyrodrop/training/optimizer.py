"""The optimiser of a training, and checks that it can be used."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pyro.optim
import torch
from pyro.optim import PyroOptim
from torch import Tensor

from pyrodrop.arguments import real
from pyrodrop.changes import modules_of
from pyrodrop.module_flags import Flags
from pyrodrop.private_apis import StoreAsItIs, without_compiler
from pyrodrop.steps import Loss
from pyrodrop.steps.update import Update
from pyrodrop.training.settings import LearningRate, Optimizer

# Of steps that test whether an optimiser is elementwise. A limit of the norm of gradients shows at large ones.
_LR, _SIZE = 0.01, 1e12


def optimizer_of(
    parameters: Mapping[str, Tensor], optimizer: Optimizer, lr: LearningRate, *, stacked: bool = False
) -> torch.optim.Optimizer:
    """The optimiser of these parameters: one group, or one per parameter where `lr` is a function of the name.

    Args:
        lr: learning rate, or a function from a parameter's name to it.
        stacked: whether the first axis of every parameter is that of independent fits.

    Raises:
        TypeError: `optimizer` does not return a `torch.optim.Optimizer`, or `lr` no number.
        ValueError: a learning rate is negative, NaN or infinite; the optimiser fails for these parameters, decays them,
            does not step by one dense gradient, or, if stacked, mixes the gradients of independent fits.
    """
    of_pyro = isinstance(optimizer, PyroOptim) or getattr(optimizer, "__module__", "").startswith("pyro.optim.pytorch")
    if of_pyro or optimizer in (pyro.optim.ClippedAdam, pyro.optim.DCTAdam, pyro.optim.AdagradRMSProp):
        raise TypeError(
            "optimizer must be a torch.optim class or a function with the same arguments; got one of pyro.optim, which get "
            "their parameters from Pyro's SVI: use the same optimiser of torch.optim, or "
            "pyro.optim.clipped_adam.ClippedAdam, which is a torch.optim class"
        )
    for parameter in parameters.values():
        parameter.data = parameter.data.contiguous()  # as torch's fused Adam assumes, even of a transposed weight
    groups = [{"params": list(parameters.values()), "lr": lr}]
    if callable(lr):
        groups = [{"params": [p], "lr": _rate(lr, name)} for name, p in parameters.items()]
    made = _made(optimizer, groups)
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(
            "optimizer must be a torch.optim class or a function with the same arguments, such as "
            f"functools.partial(torch.optim.SGD, momentum=0.9); it returned a {type(made).__name__}"
        )
    decay = next((group["weight_decay"] for group in made.param_groups if group.get("weight_decay", 0) != 0), None)
    if decay is not None:
        name = type(made).__name__
        raise ValueError(
            "optimizer must have weight_decay 0: the penalty of the weights is the model's prior, and a decay would be "
            f"another one, also of log scales, which the ELBO does not have; got {name} with weight_decay={decay}: use "
            f"functools.partial(torch.optim.{name}, weight_decay=0) and a prior, such as priors.Gaussian(scale=...)"
        )
    closure = inspect.signature(made.step).parameters.get("closure")
    if isinstance(made, torch.optim.SparseAdam) or (closure is not None and closure.default is closure.empty):
        raise ValueError(
            f"optimizer must step by one dense gradient; got {type(made).__name__}: use torch.optim.Adam or SGD, or a loop "
            "of your own around Pyro's ELBO()(model, guide)"
        )
    if stacked:
        _check_elementwise(optimizer)
    return made


def _rate(lr: Callable[[str], float], name: str) -> float:
    """The learning rate of a parameter, at least 0."""
    return real(lr(name), "lr", f"the learning rate, here by its function for {name!r},", least=0)


def _made(optimizer: Optimizer, groups: list[dict[str, Any]]) -> Any:
    try:
        with without_compiler():
            return optimizer(groups)
    except Exception as error:  # the optimiser's own checks may raise anything
        raise ValueError(
            f"optimizer could not be made for the {len(groups)} groups of parameters of this fit; it says: {error}"
        ) from error


def _check_elementwise(optimizer: Optimizer) -> None:
    """Raise a ValueError unless the optimiser updates two stacked parameters as it would update each alone."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    gradients = torch.randn(3, 2, 4, 3, generator=generator, dtype=torch.float64)
    gradients *= torch.tensor([_SIZE, 100 * _SIZE]).reshape(2, 1, 1)

    def moved(start: Tensor, steps: Tensor) -> Tensor:
        parameter = torch.nn.Parameter(start.clone())
        update = Update(_made(optimizer, [{"params": [parameter], "lr": _LR}]))  # as in training, without the compiler
        for gradient in steps:
            parameter.grad = gradient.clone()
            update([_LR])
        return parameter.detach() - start

    alone = torch.stack([moved(values[r], gradients[:, r]) for r in range(2)])
    if not torch.allclose(moved(values, gradients), alone, rtol=1e-4, atol=1e-6 * float(alone.abs().max())):
        name = getattr(optimizer, "__name__", type(optimizer).__name__)
        raise ValueError(
            "replicates are trained as one stack of parameters, which needs an optimiser that updates every entry by "
            f"its own gradient alone, as Adam and SGD do; got {name}: use one of those, or fit one by one"
        )


class Trained:
    """The parameters that a training changes, which model and guide must keep.

    Args:
        model, guide: of the training.
        loss: the loss that is minimised, with its parameters.
    """

    def __init__(self, model: Any, guide: Any, loss: Loss) -> None:
        self._parts, self._leaves = (model, guide), {n: p.unconstrained for n, p in loss.parameters.items()}
        self._note()

    def _note(self) -> None:
        self._flags = Flags(modules_of(*self._parts), self._leaves)
        learning = {id(p) for p in (*self._flags.parameters.values(), *self._leaves.values()) if p.requires_grad}
        self._learning = learning
        self._known = learning | set(map(id, self._leaves.values()))
        self._store = StoreAsItIs()

    def changed(self) -> str:
        """The flag, mode or object of a module or parameter that has changed since the last call; empty if there is none.

        Raises:
            RuntimeError: a parameter has been replaced, or one requires a gradient that did not before.
        """
        replaced = [name for name in self._store.replaced() if id(self._store.before[name]) in self._known]
        name = self._flags.changed()
        if not replaced and not name:
            return ""
        known = self._known
        self._note()
        new = [name for name, p in self._flags.parameters.items() if id(p) in self._learning - known]
        if new or replaced:
            raise RuntimeError(
                f"the parameter {(new or replaced)[0]} has been replaced, or requires a gradient and did not when the "
                "training began, so that no step would change it: change values in place (copy_), and let parameters "
                "require a gradient before the training, which may freeze them"
            )
        return name
