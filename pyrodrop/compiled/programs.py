"""A cache of compiled programs for later processes.

TorchInductor caches the kernels of a graph, but to find them it traces the graph three more times, which takes a second. The
key here is a digest of all that determines a program: the operations of the gradient, the optimiser's rules, shapes, strides
and dtypes of all inputs, versions and source code, the processor and the number of threads. Like a new program, a cached
program is compared with the graph before it is used.

The files are libraries, which run code when they are loaded. They are read only if no other user can write to them.
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
    """The cached program for these parts, if it passes the check; otherwise a new program, which is then cached.

    Args:
        parts: all that determines the program besides shapes, strides and dtypes of its inputs.
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
    """The path of the program in the cache; None on a GPU, and if there is no cache folder."""
    place = folder("programs")
    if place is None or any(tensor.is_cuda for tensor in inputs):
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


def _read(path: Path) -> Program | None:
    try:
        if not is_mine(path):
            return None
        os.utime(path)  # the time of its last use
        return load_program(path)
    except (OSError, ImportError) as error:
        if path.exists():
            _log.info("the program of an earlier process cannot be loaded: %s", error)
        return None


def _keep(program: Program, path: Path) -> None:
    """Cache the file of a program, and remove the least recently used files if there are too many."""
    if program.file is None:
        return
    with suppress(OSError):
        with whole(path) as part:
            shutil.copyfile(program.file, part)
        files = sorted(path.parent.glob("*.so"), key=lambda file: file.stat().st_mtime)
        for file in files[:-_MOST]:
            file.unlink(missing_ok=True)
