"""Draw the wordmark, ``wordmark.svg``: the name behind two layers of units, of which some are dropped.

The letters are paths, so that it looks the same without the font; the colours follow the reader's light or dark scheme, and
``wordmark-light.svg`` and ``wordmark-dark.svg`` those of a page that has a switch of its own.
"""

from pathlib import Path

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

FOLDER = Path(__file__).parent
INK = {"light": "#1b1f24", "dark": "#e6edf3"}
FLAME = {"light": "#c2410c", "dark": "#fb923c"}
LAYERS = {14: (12, 30, 48), 44: (12, 30, 48)}  # y of the units by x
DROPPED = {(14, 30), (44, 12)}
RADIUS, LETTERS, LEFT, BASE, SIZE = 6, 42, 66, 43, (296, 60)


def letters() -> str:
    """The name as the commands of an SVG path."""
    path = TextPath((LEFT, -BASE), "pyrodrop", size=LETTERS, prop=FontProperties(family="DejaVu Sans", weight="bold"))
    words, names = [], {1: "M", 2: "L", 3: "Q", 4: "C", 79: "Z"}
    for points, code in path.iter_segments(curves=True, simplify=False):
        numbers = " ".join(f"{x:.1f} {-y:.1f}" for x, y in points.reshape(-1, 2))
        words.append("Z" if code == 79 else f"{names[int(code)]}{numbers}")
    return "".join(words)


def drawing(style: str) -> str:
    """The wordmark with a style sheet for its classes ``ink`` and ``flame``."""
    units = [(x, y) for x, column in LAYERS.items() for y in column]
    kept = [unit for unit in units if unit not in DROPPED]
    lines = "".join(f"M{a} {b}L{c} {d}" for a, b in kept for c, d in kept if a < c)
    circles = "".join(f'<circle class="flame" cx="{x}" cy="{y}" r="{RADIUS}"/>' for x, y in kept)
    hollow = "".join(f'<circle class="hollow" cx="{x}" cy="{y}" r="{RADIUS - 1}"/>' for x, y in sorted(DROPPED))
    width, height = SIZE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="pyrodrop"><title>pyrodrop</title><style>{style}</style>'
        f'<path class="line" d="{lines}"/>{circles}{hollow}<path class="ink" d="{letters()}"/></svg>\n'
    )


def style(scheme: str) -> str:
    """The colours of a scheme."""
    ink, flame = INK[scheme], FLAME[scheme]
    return (
        f".ink{{fill:{ink}}}.flame{{fill:{flame}}}.line{{stroke:{flame};stroke-width:1.5}}"
        f".hollow{{fill:none;stroke:{ink};stroke-width:1.5;stroke-dasharray:2.5 2.5}}"
    )


if __name__ == "__main__":
    both = f"{style('light')}@media(prefers-color-scheme:dark){{{style('dark')}}}"
    for name, sheet in {"": both, "-light": style("light"), "-dark": style("dark")}.items():
        (FOLDER / f"wordmark{name}.svg").write_text(drawing(sheet), encoding="utf-8")
