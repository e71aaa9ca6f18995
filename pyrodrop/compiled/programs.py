"""Compiled programs that later processes find again.

TorchInductor keeps the kernels of a graph, but to find them it traces the graph three more times, which takes a second. Here
a program is found by what it is made of: the operations of the gradient, the optimiser's rules, the form of all inputs, the
versions of all that takes part, the processor and the number of threads. It is compared with the graph before it is used, as
a new one is.

The files are libraries, which run code when they are loaded. They are read only where this user alone may write.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from pyrodrop.cache import folder, is_mine
from pyrodrop.compiled.private_apis import Program, compiler_folder, load_program
from pyrodrop.compiled.untraceable import Untraceable
from pyrodrop.devices import processor
from pyrodrop.files import whole

_log = logging.getLogger("pyrodrop")

_MOST = 500  # files


def found_or_made(
    parts: Iterable[object], inputs: Sequence[Tensor], make: Callable[[], Program], check: Callable[[Program], None]
) -> Program:
    """The program of these parts that an earlier process has made, if it passes the check; a new one otherwise.

    Args:
        parts: what the program is made of, beside the form of its inputs.
        check: raises `Untraceable` for a program that is wrong.

    Raises:
        Untraceable: the program cannot be compiled, or is wrong.
    """
    path = _path(parts, inputs)
    kept = None if path is None else _read(path)
    if kept is not None:
        try:
            check(kept)
        except Untraceable as error:
            _log.info("the program of an earlier process is not used: %s", error)
        else:
            return kept
    with compiler_folder(folder("inductor")):
        program = make()
    check(program)
    if path is not None:
        _keep(program, path)
    return program


def _path(parts: Iterable[object], inputs: Sequence[Tensor]) -> Path | None:
    """Where the program of these parts is kept; None on a GPU, and where there is no folder for it."""
    place = folder("programs")
    if place is None or any(tensor.is_cuda for tensor in inputs):
        return None
    digest = hashlib.sha256(_of_this_machine().encode())
    for part in (torch.get_num_threads(), *parts, *((t.shape, t.stride(), t.dtype) for t in inputs)):
        digest.update(f"{part};".encode())
    return place / f"{digest.hexdigest()[:32]}.so"


@functools.cache
def _of_this_machine() -> str:
    """What a program depends on in this process, whatever it computes."""
    capability, isa = torch.backends.cpu.get_cpu_capability(), os.environ.get("ATEN_CPU_CAPABILITY")
    ours = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py"))))
    versions = torch.__version__, torch.version.git_version, sys.version
    return f"{versions} {processor()} {capability} {isa} {ours.hexdigest()}"


def _read(path: Path) -> Program | None:
    try:
        if not is_mine(path):
            return None
        os.utime(path)  # it was used last now
        return load_program(path)
    except (OSError, ImportError) as error:
        if path.exists():
            _log.info("the program of an earlier process cannot be loaded: %s", error)
        return None


def _keep(program: Program, path: Path) -> None:
    """Keep the file of a program, and remove the files that were not used for the longest time."""
    if program.file is None:
        return
    with suppress(OSError):
        with whole(path) as part:
            shutil.copyfile(program.file, part)
        files = sorted(path.parent.glob("*.so"), key=lambda file: file.stat().st_mtime)
        for file in files[:-_MOST]:
            file.unlink(missing_ok=True)
