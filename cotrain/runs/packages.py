"""packages.json: the packages that a run's method, backbone or data came from, where that was not cotrain."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cotrain.config import Config
from cotrain.data.opening import data_provider
from cotrain.methods import METHODS, method_class
from cotrain.model.named import BACKBONES, family_of
from cotrain.registry import Provider, Unavailable, Unknown
from cotrain.runs.checkpoint import read_json
from cotrain.types import UserError

PACKAGES = "packages.json"
Packages = Mapping[str, Mapping[str, str]]
CHECKED: dict[str, tuple[str, str, Callable[[str], object]]] = {
    "method": ("method", "name", method_class),
    "backbone": ("model", "backbone", family_of),
}  # what a run cannot be opened without: its section and key in config.json, and how it is found


def packages_of(config: Config, source: str | None) -> dict[str, dict[str, str]]:
    """By what they provide; nothing for a run that only needs cotrain."""
    method, backbone = config.method.name, config.model.backbone
    found: dict[str, tuple[str, Provider | None] | None] = {
        "method": (method, METHODS.provider(method)),
        "backbone": None if ":" in backbone else (backbone, BACKBONES.provider(family_of(backbone).name)),
        "data": data_provider(source),
    }
    return {
        what: {"name": pair[0], "package": pair[1].name, "version": pair[1].version}
        for what, pair in found.items()
        if pair is not None and pair[1] is not None
    }


def read_packages(folder: Path) -> Packages:
    return read_json(folder / PACKAGES) if (folder / PACKAGES).exists() else {}


def check_available(folder: Path, values: Any) -> None:
    """Refuse a run, given its config.json, whose method or backbone is not here; say what to install."""
    for what, (section, key, find) in CHECKED.items():
        try:
            name = values[section][key]
            if isinstance(name, str) and ":" not in name:
                find(name)
        except (KeyError, TypeError):
            continue  # damaged, or of a version without it: reading the config tells
        except Unknown as error:
            raise UserError(not_installed(folder, what, name, read_packages(folder))) from error
        except Unavailable as error:
            raise UserError(f"{folder} was made with the {what} {name!r}: {error}") from error


def not_installed(folder: Path, what: str, name: str, packages: Packages) -> str:
    noun = "data set" if what == "data" else what
    if what not in packages:
        return f"{folder} was made with the {noun} {name!r}, which is not here; install the package that provides it"
    package, version = packages[what]["package"], packages[what]["version"]
    return (
        f"{folder} was made with the {noun} {name!r} of {package} {version}, which is not here; "
        f"install it: pip install {package}=={version}"
    )
