"""The folder of a run: one process at a time, one job, one set of settings.

run.json      the job with its settings and versions, written when a run begins. A run with other settings is refused, and
              one with the same settings continues with what is already there.
.lock         locked by the running process. The operating system releases it when the process ends, however it ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from pyrodrop import parts
from pyrodrop.analysis.reports.console import versions
from pyrodrop.analysis.reports.json_files import read_record, write_json
from pyrodrop.failed import Failed
from pyrodrop.files import Record

RECORD = "run.json"
_PACKAGES = ("pyrodrop", "torch", "pyro-ppl")  # results of other versions do not go into one table
_ADVICE = "choose another folder with --out, or remove this one to start again"


@contextmanager
def run_folder(path: str | Path, job: str, settings: Mapping[str, Any]) -> Iterator[Path]:
    """The folder of a run, created if it does not exist, for the duration of the block.

    Args:
        settings: values by name that the results depend on: numbers, strings, lists and None.

    Raises:
        Failed: the folder cannot be written to, another process is writing to it, or its run has another job, settings or
            versions, which the message names. A ValueError within the block is also raised as a `Failed`.
        KeyboardInterrupt: the block was interrupted; the message says whether the same command would continue.
    """
    with locked(path) as folder:
        try:
            _same_run(folder, job, settings)
            yield folder
        except KeyboardInterrupt:
            begun = {path.name for path in folder.iterdir()} - {RECORD, ".lock"}
            next_time = (
                f"continues from what is finished in {folder}" if begun else "begins again: nothing was finished yet"
            )
            raise KeyboardInterrupt(f"the same command {next_time}") from None
        except OSError as error:
            if error.errno is None and not isinstance(error, ConnectionError):  # of safetensors and h5py
                raise Failed(f"the run in {folder} failed: {error}") from error
            if error.filename is None:  # as of a full disk
                error.filename = str(folder)
            raise
        except Failed:
            raise
        except (ValueError, SafetensorError) as error:
            raise Failed(f"{error}" if str(folder) in str(error) else f"the run in {folder} failed: {error}") from error


@contextmanager
def locked(path: str | Path) -> Iterator[Path]:
    """A folder, created if it does not exist, for one process at a time.

    Raises:
        Failed: it cannot be written to, or another process has locked it.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock").acquire(timeout=0)
    except Timeout:
        raise Failed(
            f"another run is writing to {folder} now; wait until it has ended, or choose another folder with --out"
        ) from None
    except OSError as error:
        raise Failed(f"results need a folder that can be written to; got {folder}: {error.strerror}") from None
    with lock:
        yield folder


def _same_run(folder: Path, job: str, settings: Mapping[str, Any]) -> None:
    """Compare with the record of the folder, or write it if there is none."""
    path = folder / RECORD
    installed = versions()
    ours = {"job": job, "settings": json.loads(json.dumps(settings)), "versions": {p: installed[p] for p in _PACKAGES}}
    if not path.exists():
        if (folder / "results.json").exists():
            raise Failed(f"{folder} has the results of a run whose settings are not recorded; {_ADVICE}")
        write_json(path, ours)
        return
    record = read_record(path, _ADVICE)
    if record.text("job") != job:
        raise Failed(f"{folder} has a run of {record.text('job')}, this is one of {job}; {_ADVICE}")
    differ = [
        *differences(record.record("settings").content, ours["settings"]),
        *differences(record.record("versions").content, ours["versions"]),
    ]
    if differ:
        raise Failed(f"{folder} has a run with other settings: {', '.join(differ)}; {_ADVICE}")


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Descriptions of the settings in which two runs differ."""
    return parts.differences(*({name: repr(value) for name, value in run.items()} for run in (there, here)))


class Cells:
    """Results of finished parts of a run, one JSON file each, so that an interrupted run does not repeat them.

    A file has the settings of its part under ``cell``, and the result beside it.

    Args:
        about: returns the settings of the part of this name, beyond those of the run; empty if there are none.
        check: raises a `Failed` if the content of a file is not a result of a part.
    """

    def __init__(
        self, folder: Path, about: Callable[[str], Mapping[str, Any]], check: Callable[[Record], object]
    ) -> None:
        self.folder: Path = folder
        self.about = about
        self.check: Callable[[Record], object] = check

    def file(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '-')}.json"

    def kept(self, name: str) -> dict[str, Any] | None:
        """The content of the file of a finished part; None if there is none, a `Failed` if it has other settings."""
        path = self.file(name)
        if not path.exists():
            return None
        record, about = read_record(path, "remove this file and run the same command again"), self._about(name)
        differ = differences(record.record("cell").content if about else {}, about)
        if differ:
            raise Failed(
                f"{path} has a result of other settings ({', '.join(differ)}); choose another folder with --out"
            )
        self.check(record)
        return dict(record.content)

    def keep(self, name: str, result: Mapping[str, Any]) -> dict[str, Any]:
        """Write the result of a finished part, and return the content of its file."""
        about = self._about(name)
        content = {**({"cell": about} if about else {}), **result}
        self.folder.mkdir(exist_ok=True)
        write_json(self.file(name), content)
        return content

    def _about(self, name: str) -> dict[str, Any]:
        return json.loads(json.dumps(self.about(name)))  # type: ignore[no-any-return]


def say_reused(names: Collection[str], folder: Path) -> None:
    """Print in one line which results are reused, if there are any."""
    if names:
        print(f"reused from {folder}: {', '.join(names)} (remove the folder to compute them again)", flush=True)
