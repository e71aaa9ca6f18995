"""The state of training in one file, so that an interrupted run goes on as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyrodrop.files import read_tensors, write_tensors

if TYPE_CHECKING:
    from pyrodrop.training.loop import Training


class Checkpoint:
    """Saves a `Training` to `path` and restores it: parameters, optimiser, buffers, random state, place in the
    epoch, losses."""

    def __init__(self, path: Path, training: Training, settings: dict[str, Any]) -> None:
        self.path, self.training = path, training
        self.settings = {k: v for k, v in settings.items() if k != "steps"}  # a run may be made longer

    def save(self) -> None:
        training = self.training
        tensors = {f"parameter.{n}": p for n, p in training.parameters.items()}
        tensors |= {f"buffer.{n}": b for n, b in training.buffers().items()}
        tensors |= {f"optimizer.{key}": value for key, value in self._optimizer_state().items()}
        tensors["history"] = training.history[: training.done]
        tensors["batches.order"] = training.batches.order
        tensors["random.cpu"] = torch.get_rng_state()
        if training.history.is_cuda:
            tensors["random.cuda"] = torch.cuda.get_rng_state(training.history.device)
        about = {"settings": self.settings, "position": training.batches.position}
        write_tensors(self.path, tensors, about)

    def resume(self) -> None:
        """Go on from the file, if it is there; a ValueError if it is another run's."""
        if not self.path.exists():
            return
        tensors, about = read_tensors(self.path)
        training = self.training
        other = {k: v for k, v in self.settings.items() if about["settings"].get(k) != v}
        if other:
            found = {k: about["settings"].get(k) for k in other}
            raise ValueError(f"the checkpoint {self.path} is of another run: it has {found}, this run has {other}")
        done = len(tensors["history"])
        if done > len(training.history):
            raise ValueError(
                f"the checkpoint {self.path} has done {done} steps already; steps must be at least that, "
                f"got {len(training.history)}"
            )
        own = {f"parameter.{n}": p for n, p in training.parameters.items()}
        own |= {f"buffer.{n}": b for n, b in training.buffers().items()}
        wrong = [n for n, value in own.items() if n not in tensors or tensors[n].shape != value.shape]
        if wrong:
            raise ValueError(
                f"the checkpoint {self.path} is of another model or guide: what this run has as {', '.join(wrong)} is "
                "missing there or of another shape"
            )
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(tensors[name])
        self._load_optimizer(
            {k.removeprefix("optimizer."): v for k, v in tensors.items() if k.startswith("optimizer.")}
        )
        training.history[:done] = tensors["history"].to(training.history.device)
        training.batches.order = tensors["batches.order"].to(training.history.device)
        training.batches.position = about["position"]
        training.done = done
        torch.set_rng_state(tensors["random.cpu"])
        if training.history.is_cuda:
            torch.cuda.set_rng_state(tensors["random.cuda"], training.history.device)

    def _optimizer_state(self) -> dict[str, Tensor]:
        state = self.training.optimizer.state_dict()["state"]
        return {
            f"{i}.{key}": torch.as_tensor(v) for i, entry in state.items() for key, v in entry.items() if v is not None
        }

    def _load_optimizer(self, tensors: dict[str, Tensor]) -> None:
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            index, key = name.split(".", 1)
            state.setdefault(int(index), {})[key] = value
        groups = self.training.optimizer.state_dict()["param_groups"]
        self.training.optimizer.load_state_dict({"state": state, "param_groups": groups})
