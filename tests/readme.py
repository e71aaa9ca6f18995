"""Run the Python code of the README and of the pages in docs/, and compare what it prints with what they show.

    python -P tests/readme.py                             README.md and every page
    python -P tests/readme.py docs/judging.md                one page
    python -P tests/readme.py --write docs/judging.md        run it and write what it prints into the page

A page runs in a fresh process, its blocks in order, in one namespace and in an empty folder, as a reader would paste them.
The blocks of README.md have a namespace each, since readers paste one of them.
A block of text directly after a block of Python is its output. A figure that a page shows from docs/images is saved by its
code.

Training with the same seed ends elsewhere on another processor or with another version of PyTorch, as far away as another
seed does, and processors of one name round differently. So words must be the same, and numbers nearly: they may differ by
the share `NEARLY`, or that of the page in `ELSEWHERE`, or by `LAST` units of the last digit. With
``ATEN_CPU_CAPABILITY=default``, which rounds as another processor does, the largest difference on other pages was 2.5 %, of
a standard error of two digits.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEARLY = 0.15
ELSEWHERE = {
    "docs/judging.md": math.inf,  # draws of Markov chains: another rounding is another chain
    "docs/symptoms.md": math.inf,  # Markov chains too, and trainings that diverge
    "docs/saving.md": math.inf,  # shares of 16 and 32 weights that are kept, with standard errors of a tenth each
}
LAST = 3
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", flags=re.MULTILINE | re.DOTALL)
_IMAGE = re.compile(r"\]\(images/([\w.-]+)\)")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?%?(?![\w])")


def pages() -> list[str]:
    """README.md and the pages that are run here, by their paths from the root."""
    names = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").glob("*.md"))]
    return ["README.md", *(name for name in names if blocks((ROOT / name).read_text(encoding="utf-8")))]


def blocks(text: str) -> list[tuple[str, str | None]]:
    """Every Python block and the output that the page shows for it, or None."""
    return [(match[1], match[2]) for match in _BLOCK.finditer(text)]


def run(name: str, images: Path | None = None) -> Iterator[tuple[str, str | None, str]]:
    """Run the blocks of a page: each block, the output that is shown and the output that it has.

    Figures of the page are copied to the folder `images`, if there is one.
    """
    import pyro
    import torch

    text = (ROOT / name).read_text(encoding="utf-8")
    sections = blocks(text)
    if not sections:
        raise SystemExit(f"{name} has no Python block")
    pyro.clear_param_store()
    torch.set_num_threads(1)  # sums in another order end elsewhere after thousands of steps
    namespace: dict[str, object] = {"__name__": "page"}
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        for number, (code, shown) in enumerate(sections, 1):
            if name == "README.md":
                namespace = {"__name__": "page"}
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, f"{name}, block {number}", "exec"), namespace)
            yield code, shown, "\n".join(line.rstrip() for line in printed.getvalue().splitlines()) + "\n"
        for image in _IMAGE.findall(text):
            if not Path(image).exists():
                raise ValueError(f"{name} shows images/{image}, which its code does not save")
            if images is not None:
                images.mkdir(exist_ok=True)
                shutil.copyfile(image, images / image)


def difference(shown: str, printed: str, nearly: float = NEARLY) -> str | None:
    """What differs between the output that is shown and that of a run, or None."""
    expected, numbers = _split(shown), _split(printed)
    if expected[0] != numbers[0]:
        return f"the page shows\n{shown}\nand the code prints\n{printed}"
    for theirs, ours in zip(expected[1], numbers[1], strict=True):
        if not _near(theirs, ours, nearly):
            return f"the page shows {theirs} where the code prints {ours}, in\n{printed}"
    return None


def _split(text: str) -> tuple[list[str], list[str]]:
    """The text without its numbers, and the numbers. Widths of columns and lines of tables do not count."""
    rest = re.sub(r"\s+|[─━═-]{2,}", " ", _NUMBER.sub("#", text))
    return rest.split(), _NUMBER.findall(text)


def _near(shown: str, printed: str, nearly: float) -> bool:
    a, b = (float(number.rstrip("%")) for number in (shown, printed))
    mantissa, _, power = shown.rstrip("%").partition("e")
    unit = 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))
    whole = "." not in shown + printed and max(abs(a), abs(b)) < 10
    if nearly == math.inf:
        return True
    return a == b if whole else abs(a - b) <= max(nearly * max(abs(a), abs(b)), LAST * unit * (1 + 1e-9))


def check(name: str) -> None:
    """Run a page; a ValueError if an output is not the one that it shows."""
    for number, (_, shown, printed) in enumerate(run(name), 1):
        wrong = shown is not None and difference(shown, printed, ELSEWHERE.get(name, NEARLY))
        if wrong:
            raise ValueError(f"{name}, block {number}: {wrong}")


def write(name: str) -> None:
    """Run a page and write what it prints into the blocks of text."""
    outputs = iter([(shown, printed) for _, shown, printed in run(name, (ROOT / name).parent / "images")])

    def replaced(match: re.Match[str]) -> str:
        shown, printed = next(outputs)
        return match[0] if shown is None else f"```python\n{match[1]}```\n\n```text\n{printed}```\n"

    path = ROOT / name
    path.write_text(_BLOCK.sub(replaced, path.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    """Run pages; an error ends it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", help="such as docs/judging.md; README.md and every page by default")
    parser.add_argument("--write", action="store_true", help="write what the code prints into the page")
    options = parser.parse_args()
    chosen = options.pages or pages()
    if len(chosen) > 1:
        again = [sys.executable, "-P", __file__, *(["--write"] if options.write else [])]
        failed = [page for page in chosen if subprocess.run([*again, page]).returncode]
        sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
    start = time.process_time()
    (write if options.write else check)(Path(os.path.normpath(chosen[0])).as_posix())
    print(f"{chosen[0]}: ran, {time.process_time() - start:.0f} s of CPU time", flush=True)


if __name__ == "__main__":
    main()
