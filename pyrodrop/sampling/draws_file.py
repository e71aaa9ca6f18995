"""The checkpoint of `pyrodrop.sample`, from which an interrupted run continues to the draws of a run without interruption.

It has the draws made so far, the state of the chains after these, and the state of the generator. A run that is interrupted
during tuning begins anew. The file identifies its run by the model with its values, the data, the starts of the chains, and
the options that change the result. Only `draws` may be larger in the run that continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyrodrop.files import check_writable, read_tensors, under, write_tensors
from pyrodrop.identity import differences, is_words, refuse
from pyrodrop.sampling.chains import Chains
from pyrodrop.sampling.kernel import State

_KIND = "sampling"


class DrawsFile:
    """The file of one run.

    Args:
        identity: descriptions of all that determines the draws, by name.
    """

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        self.path: Path = path
        self.identity: dict[str, str] = dict(identity)
        check_writable(path)

    def save(self, chains: Chains) -> None:
        """Write the chains and their draws in place of what the file has."""
        draws = {f"stats.{name}": value[:, : chains.done] for name, value in chains.stats.items()}
        draws["q"] = chains.q[:, : chains.done]
        write_tensors(self.path, _tensors(chains) | draws, {"kind": _KIND, "run": self.identity})

    def read(self) -> dict[str, Tensor] | None:
        """The tensors of the file, with the positions of chains as ``state.q``; None if there is no file.

        Raises:
            ValueError: it is of another run, or is no such file.
            OSError: it cannot be read.
        """
        if not self.path.exists():
            return None
        tensors, about = read_tensors(self.path)
        run: Any = about.get("run")
        if about.get("kind") != _KIND or not is_words(run):
            raise ValueError(f"checkpoint must be a file that pyrodrop.sample wrote, or a new one; got {self.path}")
        refuse(
            {"run": differences(run, self.identity)},
            f"the checkpoint {self.path} is of another run",
            "Use another file",
        )
        if "state.q" not in tensors:
            raise self._damaged()
        return tensors

    def restore(self, chains: Chains, tensors: Mapping[str, Tensor]) -> None:
        """Set chains that have not moved yet to the state in the file.

        Raises:
            ValueError: the file has other tensors than these chains, or more draws than they are to make.
        """
        kernel, want, stats = chains.kernel, _tensors(chains), under("stats.", tensors)
        count, size = kernel.state.q.shape
        q = tensors.get("q", torch.empty(0))
        done = q.shape[1] if q.dim() == 3 else 0
        if done > chains.draws:
            raise ValueError(
                f"draws must be at least the {done} that the checkpoint {self.path} has already; got {chains.draws}"
            )
        whole = all(
            name in tensors and tensors[name].shape == value.shape and tensors[name].dtype == value.dtype
            for name, value in want.items()
        )
        whole &= q.shape == (count, done, size) and q.dtype == kernel.state.q.dtype
        whole &= not done or {"lp", "diverging", "n_steps"} <= stats.keys()
        whole &= all(value.shape == (count, done) for value in stats.values())
        if not whole:
            raise self._damaged()
        state, place = under("state.", tensors), kernel.state.q.device
        kernel.state = State(**{name: value.to(place) for name, value in state.items()})
        kernel.tuned = type(kernel.tuned)(
            *(
                tensors[f"tuned.{name}"].to(place) if isinstance(value, Tensor) else float(tensors[f"tuned.{name}"])
                for name, value in kernel.tuned._asdict().items()
            )
        )
        kernel.generator.set_state(tensors["generator"])
        chains.cpu_seconds, chains.rounding = float(tensors["cpu_seconds"]), float(tensors["rounding"])
        missing = chains.draws - done
        chains.q = torch.cat([q, q.new_empty(count, missing, size)], 1)
        chains.stats = {name: torch.cat([v, v.new_zeros(count, missing)], 1) for name, v in stats.items()}
        chains.done, chains.transitions = done, kernel.tune + done * chains.thin

    def _damaged(self) -> ValueError:
        return ValueError(f"the checkpoint {self.path} is damaged: it does not have the chains of this run")


def _tensors(chains: Chains) -> dict[str, Tensor]:
    """Chains without their draws: all that transitions depend on, the processor time and the rounding error."""
    kernel = chains.kernel
    numbers = {"cpu_seconds": chains.cpu_seconds, "rounding": chains.rounding}
    tuned = {f"tuned.{name}": value for name, value in kernel.tuned._asdict().items()}
    return {
        **{f"state.{name}": value for name, value in kernel.state._asdict().items()},
        **{
            n: v if isinstance(v, Tensor) else torch.tensor(v, dtype=torch.float64)
            for n, v in (numbers | tuned).items()
        },
        "generator": kernel.generator.get_state(),
    }
