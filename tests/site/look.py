"""Look at HTML pages in Chromium: ``python tests/site/look.py PAGE_OR_FOLDER... --out FOLDER``.

Each page is opened at two widths in the light and in the dark theme, and pictures of it are written. What is wrong is
printed: an error in the console, a picture or another file of the site that is missing, a page that scrolls sideways. Only
what the page itself has is judged; requests to other hosts are not made.

With the environment variable ``AXE``, the path of ``axe.min.js`` of the npm package axe-core, `barriers` says what keeps
readers with a keyboard or a screen reader out: violations that axe-core calls serious or critical.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WIDTHS, THEMES = (1280, 400), ("light", "dark")
HEIGHT = 900
_PATIENCE = 180_000  # milliseconds
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
]
_FLAGS += ["--disable-sync", "--no-first-run"]
_MISSING = """() => [...document.images]
    .filter(i => i.currentSrc.startsWith('data:') || new URL(i.currentSrc || i.src, location).host === location.host)
    .filter(i => getComputedStyle(i).display !== 'none' && i.complete && i.naturalWidth === 0)
    .map(i => i.getAttribute('src').slice(0, 80))"""
_WHOLE = """() => { for (const image of document.images) image.loading = 'eager'; return Promise.all([...document.images]
    .filter(i => !i.complete).map(i => new Promise(done => { i.onload = i.onerror = done; setTimeout(done, 5000); }))); }"""
_BARRIERS = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
    .filter(v => ['serious', 'critical'].includes(v.impact))
    .map(v => `${v.id}: ${v.help} (${v.nodes.length}): ${v.nodes[0].html.slice(0, 160)}`)"""
_SIDEWAYS = """() => { const page = document.scrollingElement; page.scrollLeft = 1000; const moved = page.scrollLeft;
    page.scrollLeft = 0; return moved; }"""


def why_not() -> str | None:
    """Why pages cannot be checked here; None if they can."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return None if chromium() else "there is no Chromium here"


def chromium() -> str | None:
    """The path of Chromium or Chrome."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


def pages_of(paths: Sequence[Path]) -> list[Path]:
    """The HTML files among these, and all within these folders.

    Raises:
        FileNotFoundError: one of them is not there, or there are no pages.
    """
    found = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"a page or a folder of pages must exist; got {path}")
        found += sorted(path.rglob("*.html")) if path.is_dir() else [path]
    if not found:
        raise FileNotFoundError(f"there are no pages in {', '.join(map(str, paths))}")
    return [path.resolve() for path in found]


def look(pages: Sequence[Path], out: Path | None = None) -> list[str]:
    """What is wrong with the pages, a line each; pictures go to the folder `out`."""
    from playwright.sync_api import sync_playwright

    root = Path(os.path.commonpath([page.parent for page in pages]))
    wrong: list[str] = []
    with served(root) as address, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=_FLAGS)
        for theme in THEMES:
            for width in WIDTHS:
                context = browser.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=theme)
                context.route(lambda url: not url.startswith((address, "data:")), lambda route: route.abort())
                for path in pages:
                    name = path.relative_to(root).with_suffix("").as_posix()
                    picture = out / f"{name.replace('/', '-')}-{width}-{theme}.png" if out else None
                    found = judged(context, f"{address}/{path.relative_to(root).as_posix()}", address, picture)
                    wrong += [f"{name}, {width} pixels, {theme}: {line}" for line in found]
                context.close()
        browser.close()
    return wrong


def axe() -> Path | None:
    """The file of axe-core that the environment names."""
    named = os.environ.get("AXE")
    return Path(named) if named and Path(named).is_file() else None


def barriers(pages: Sequence[Path], script: Path) -> list[str]:
    """Serious and critical violations that axe-core finds, a line each: wide in the light theme, narrow in the dark one."""
    from playwright.sync_api import sync_playwright

    root = Path(os.path.commonpath([page.parent for page in pages]))
    found: list[str] = []
    with served(root) as address, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=_FLAGS)
        for width, theme in zip(WIDTHS, THEMES, strict=True):
            context = browser.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=theme)
            for path in pages:
                name = path.relative_to(root).as_posix()
                page = context.new_page()
                page.goto(f"{address}/{name}", wait_until="load", timeout=_PATIENCE)
                page.add_script_tag(path=script)
                for violation in page.evaluate(_BARRIERS):
                    found.append(f"{name}, {width} pixels, {theme}: {violation}")
                page.close()
            context.close()
        browser.close()
    return found


def judged(context: Any, url: str, address: str, picture: Path | None) -> list[str]:
    """What is wrong with one page in one theme and width."""
    found: list[str] = []
    page = context.new_page()
    page.on("console", lambda said: found.append(f"console: {said.text}") if counts(said, address) else None)
    page.on("pageerror", lambda error: found.append(f"script: {error}"))
    page.on("response", lambda got: found.append(f"missing: {got.url} ({got.status})") if got.status >= 400 else None)
    page.goto(url, wait_until="load")
    page.evaluate(_WHOLE)
    found += [f"missing picture: {source}" for source in page.evaluate(_MISSING)]
    if moved := page.evaluate(_SIDEWAYS):
        found.append(f"scrolls sideways by {moved:.0f} pixels")
    if picture:
        picture.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=picture, full_page=True)
    page.close()
    return found


def counts(said: Any, address: str) -> bool:
    """Whether a message of the console is an error that is not of a request to another host, or of one that is reported."""
    if said.type != "error":
        return False
    where = said.location.get("url", "")
    return not ("Failed to load resource" in said.text and (not where.startswith(address) or "404" in said.text))


@contextmanager
def served(root: Path) -> Iterator[str]:
    """The address at which the files of a folder are served."""
    handler = functools.partial(_Quiet, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def main(argv: Sequence[str] | None = None) -> int:
    """Look at pages; 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python tests/site/look.py", description="Look at HTML pages in Chromium.")
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE", help="an HTML file, or a folder of them")
    parser.add_argument("--out", type=Path, help="a folder for pictures")
    chosen = parser.parse_args(argv)
    if reason := why_not():
        print(f"skipped: {reason}")
        return 0
    pages = pages_of(chosen.pages)
    wrong = look(pages, chosen.out)
    print("\n".join(wrong) or f"{len(pages)} pages: nothing is wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
