"""Install packages with pip, and show in one line what it does: ``python .ci/installing.py --editable '.[test]'``.

On a terminal the line changes; elsewhere there is a line for each large download and every 25th package. What pip printed is
shown if it fails.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time

_LARGE = 20  # MB from which a download is worth a line
_EVERY = 25


def shown(line: str, count: int) -> tuple[str, bool]:
    """What a line of pip means, with the number of packages so far, and whether it is shown on no terminal too."""
    if match := re.match(r"Collecting ([\w.\[\]-]+)", line):
        return f"package {count}: {match[1]}", count % _EVERY == 0
    if match := re.match(r"\s*Downloading (\S+) \(([\d.]+) (kB|MB|GB)\)", line):
        megabytes = float(match[2]) * {"kB": 1e-3, "MB": 1.0, "GB": 1e3}[match[3]]
        name = match[1].rpartition("/")[2].split("-")[0]
        return f"package {count}: downloading {name}, {match[2]} {match[3]}", megabytes >= _LARGE
    if line.startswith("Installing collected packages"):
        return f"unpacking {line.count(',') + 1} packages", True
    return "", False


def main() -> int:
    """Run pip with the arguments, and return its exit status."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    start, lines, count, terminal = time.monotonic(), [], 0, sys.stdout.isatty()
    with subprocess.Popen([*command, *sys.argv[1:]], stdout=-1, stderr=subprocess.STDOUT, text=True) as pip:
        for line in pip.stdout or ():
            lines.append(line)
            count += line.startswith("Collecting ")
            text, always = shown(line, count)
            text = text and f"  {time.monotonic() - start:4.0f} s  {text}"
            if text and terminal:
                width = shutil.get_terminal_size().columns - 1
                print(f"\r{text[:width]:{width}}", end="", flush=True)
            elif text and always:
                print(text, flush=True)
    if terminal:
        print()
    if pip.returncode:
        print("".join(lines))
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main())
