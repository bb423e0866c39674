"""The rooms of the package as a picture, from the import contract: a room imports only from those below it.

    python docs/figures/architecture.py           # write architecture.svg beside this file
    python docs/figures/architecture.py --files   # print every file of the package with what it holds

The layers are those of pyproject.toml, and the words are the first sentence of each docstring, so the picture says what
the code says.
"""

import ast
import sys
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDTH, GAP, LEFT = 960, 6, 8
LINE = 15  # pixels
COLOURS = ("#eef3fb", "#dfe9f8")  # of the layers, in turns
INK, FAINT, EDGE = "#1c2b45", "#55637d", "#9db2d3"
LETTER = 6.8  # pixels, roughly, of the small type


def layers() -> list[list[str]]:
    """From the top to the bottom, as import-linter checks them."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = settings["tool"]["importlinter"]["contracts"]
    return [[name.strip() for name in layer.replace("|", ":").split(":")] for layer in contract["layers"]]


def about(name: str) -> str:
    """The first sentence of the docstring of a room or file."""
    folder = ROOT / "cotrain" / name
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    words = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())
    return words.partition(". ")[0].rstrip(".").replace("`", "")


def wrapped(text: str, width: float) -> list[str]:
    most, found = int(width / LETTER), [""]
    for word in text.split():
        if len(found[-1]) + len(word) + 1 > most and found[-1]:
            found.append("")
        found[-1] = f"{found[-1]} {word}".strip()
    return found


def picture() -> str:
    shapes, top = [], LEFT
    for number, names in enumerate(layers()):
        width = (WIDTH - 2 * LEFT - GAP * (len(names) - 1)) / len(names)
        words = {name: wrapped(about(name), width - 20) for name in names}
        height = 31 + LINE * max(map(len, words.values()))
        for place, name in enumerate(names):
            left = LEFT + place * (width + GAP)
            shapes.append(
                f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{height}" rx="6" '
                f'fill="{COLOURS[number % 2]}" stroke="{EDGE}"/>'
            )
            shapes.append(f'<text x="{left + 10:.1f}" y="{top + 18}" class="name">{escape(name)}</text>')
            for row, line in enumerate(words[name]):
                y = top + 36 + LINE * row
                shapes.append(f'<text x="{left + 10:.1f}" y="{y}" class="words">{escape(line)}</text>')
        top += height + GAP
    style = (
        f"text{{font-family:system-ui,sans-serif;fill:{INK}}} .name{{font-size:14px;font-weight:600}} "
        f".words{{font-size:12px;fill:{FAINT}}} svg{{background:#fff}}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 2}" role="img"'
    title = "<title>The rooms of cotrain. Each imports only from those below it.</title>"
    return "\n".join([f"{head}>", title, f"<style>{style}</style>", *shapes, "</svg>", ""])


def files() -> str:
    """Every file, in the order of the rooms, with the first sentence of its docstring."""
    lines = []
    for name in (name for layer in layers() for name in layer):
        room = ROOT / "cotrain" / name
        inside = sorted(room.rglob("*.py")) if room.is_dir() else [room.with_suffix(".py")]
        for path in inside:
            place = path.relative_to(ROOT / "cotrain").with_suffix("").as_posix()
            lines.append(f"{place.removesuffix('/__init__'):32} {about(place)}")
    return "\n".join(lines)


if __name__ == "__main__":
    if "--files" in sys.argv:
        print(files())
    else:
        (Path(__file__).parent / "architecture.svg").write_text(picture(), encoding="utf-8")
