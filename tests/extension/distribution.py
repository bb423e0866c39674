"""Real distributions in a folder: modules, and the metadata that an installer would write."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guide" / "extending.md"


def install(
    site: Path,
    name: str,
    modules: Mapping[str, str],
    entry_points: Mapping[str, Mapping[str, str]],
    version: str = "1.0",
) -> None:
    """Modules by their path in `site`; entry points by group and name."""
    for path, source in modules.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(source)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        line for group, entries in entry_points.items() for line in (f"[{group}]", *map(" = ".join, entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def blocks_of_the_guide() -> dict[str, str]:
    """The files that docs/guide/extending.md shows, by the path in their first line."""
    found = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    return dict(found)


def install_the_guides_package(site: Path) -> None:
    blocks = blocks_of_the_guide()
    project: dict[str, Any] = tomllib.loads(blocks["pyproject.toml"])["project"]
    modules = {path: source for path, source in blocks.items() if path.startswith("mycotrain/")}
    install(site, project["name"], modules | {"mycotrain/__init__.py": ""}, project["entry-points"], project["version"])
