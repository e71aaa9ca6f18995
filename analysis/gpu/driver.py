"""Go through the pieces: skip what is done, go on with what was broken off, and leave what fails behind."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from filelock import FileLock, Timeout

from pyrodrop.analysis.gpu.attempt import Attempt, attempt
from pyrodrop.analysis.gpu.pieces import Piece
from pyrodrop.analysis.gpu.record import BROKEN_OFF, DONE, FAILED, MISSING, Place, progress, results, stamp
from pyrodrop.failed import Failed
from pyrodrop.files import writable_folder

LIMIT = 480.0  # seconds of an attempt
LEAST = 20.0  # of a budget: Python and PyTorch take some to start


def drive(chosen: Sequence[Piece], place: Place, *, limit: float = LIMIT, budget: float | None = None) -> int:
    """Run the pieces in their order, each for at most `limit` seconds, then go on with those that were broken off.

    A piece that was broken off without having written anything is not attempted again in this call.

    Args:
        chosen: the pieces.
        place: of their records.
        limit: seconds of an attempt.
        budget: seconds in all; None for no limit. Attempts are cut to what is left.

    Returns:
        0 if all is done, 1 if something failed or is left.

    Raises:
        Failed: the folder cannot be written to, another process uses it, or a record there is broken.
    """
    try:
        writable_folder(place.out)
    except ValueError as error:
        raise Failed(str(error)) from None
    lock = FileLock(place.out / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise Failed(f"another process runs pieces in {place.out} now; wait, or choose another folder") from None
    start = time.perf_counter()

    def left() -> float:
        return math.inf if budget is None else budget - (time.perf_counter() - start)

    try:
        pending = [piece for piece in chosen if _to_do(piece, place)]
        while pending and left() >= LEAST:
            pending = _round(pending, place, limit, left)
        return _summary(chosen, place)
    finally:
        lock.release()


def _to_do(piece: Piece, place: Place) -> bool:
    """Whether a piece is to be run; says so if not."""
    record = place.read(piece)
    if record.get("state") == DONE:
        print(f"{piece.name}: done before, in {record['seconds']:.0f} s", flush=True)
        return False
    if piece.missing:
        print(f"{piece.name}: {piece.missing}", flush=True)
        place.write(piece, MISSING, {"attempts": 0, "seconds": 0.0, "why": piece.missing})
        return False
    return True


def _round(pending: Sequence[Piece], place: Place, limit: float, left: Callable[[], float]) -> list[Piece]:
    """An attempt at each; returns the pieces that can go on."""
    again = []
    for piece in pending:
        if left() < LEAST:
            print(f"{piece.name}: no time left for it", flush=True)
            continue
        folder = place.folder(piece)
        folder.mkdir(exist_ok=True)
        before = stamp(folder)
        if _once(piece, place, min(limit, left())) == BROKEN_OFF:
            if stamp(folder) == before:
                print(f"{piece.name}: it has written nothing in this time", flush=True)
            else:
                again.append(piece)
    return again


def _once(piece: Piece, place: Place, limit: float) -> str:
    """One attempt, and its record."""
    folder, kept = place.folder(piece), place.read(piece)
    content: dict[str, Any] = {"attempts": kept.get("attempts", 0) + 1, "seconds": kept.get("seconds", 0.0)}
    print(f"{piece.name}: attempt {content['attempts']}, at most {limit:.0f} s", flush=True)
    place.write(piece, BROKEN_OFF, {**content, "progress": progress(folder)})  # should this process be killed
    start = time.perf_counter()
    try:
        got = attempt(place.words(piece), folder / "log.txt", limit)
    except KeyboardInterrupt:
        content["seconds"] += time.perf_counter() - start
        place.write(piece, BROKEN_OFF, {**content, "progress": progress(folder)})
        raise
    content["seconds"] += got.seconds
    state, more = _judged(piece, place, got)
    place.write(piece, state, content | more)
    print(f"{piece.name}: {state} after {got.seconds:.0f} s{more.get('why', '') and ', ' + more['why']}", flush=True)
    return state


def _judged(piece: Piece, place: Place, got: Attempt) -> tuple[str, dict[str, Any]]:
    """The state of a piece after an attempt, and what belongs to it."""
    folder = place.folder(piece)
    try:
        found = results(piece, folder)
    except (ValueError, SyntaxError) as error:  # a broken JSON or XML file
        return FAILED, {"why": f"its results cannot be read: {error}", "last lines": got.tail}
    if got.status == 0 and found:
        return DONE, {"results": found}
    if got.status is None:
        return BROKEN_OFF, {"progress": progress(folder), "last lines": got.tail}
    why = f"status {got.status}" if got.status else f"it wrote no {' and '.join(piece.results)}"
    last = next((line.strip() for line in reversed(got.tail) if line.strip()), "")
    return FAILED, {"why": f"{why}{last and ': ' + last}", "results": found, "last lines": got.tail}


def _summary(chosen: Sequence[Piece], place: Place) -> int:
    """Print a line per state; 1 if something failed or is left."""
    states: dict[str, list[str]] = {}
    for piece in chosen:
        states.setdefault(place.read(piece).get("state", "not begun"), []).append(piece.name)
    print(f"records: {place.out}")
    for state, names in states.items():
        print(f"  {state}: {', '.join(names)}")
    unfinished = states.keys() - {DONE, MISSING}
    if unfinished:
        print("run the same command again to go on", flush=True)
    return int(bool(unfinished))
