"""packages.json: the third-party packages that provide a run's method, backbone or data set."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cotrain.config import Config
from cotrain.data.loading import data_provider
from cotrain.methods import METHODS, method_class
from cotrain.model.named import BACKBONES, family_of
from cotrain.model.trust import is_import_path
from cotrain.registry import Provider, Unavailable, Unknown
from cotrain.runs import schema
from cotrain.storage.reading import first_problem, read_json
from cotrain.types import UserError

PACKAGES = "packages.json"
Packages = Mapping[str, Mapping[str, str]]
CHECKED: dict[str, tuple[str, str, Callable[[str], object]]] = {
    "method": ("method", "name", method_class),
    "backbone": ("model", "backbone", family_of),
}  # what a run needs to be opened: its section and key in config.json, and the lookup


def packages_of(config: Config, source: str | None) -> dict[str, dict[str, str]]:
    """The packages by what they provide; empty for a run that needs only cotrain."""
    method, backbone = config.method.name, config.model.backbone
    providers: dict[str, tuple[str, Provider | None] | None] = {
        "method": (method, METHODS.provider(method)),
        "backbone": None if is_import_path(backbone) else (backbone, BACKBONES.provider(family_of(backbone).name)),
        "data": data_provider(source),
    }
    return {
        what: {"name": pair[0], "package": pair[1].name, "version": pair[1].version}
        for what, pair in providers.items()
        if pair is not None and pair[1] is not None
    }


def read_packages(folder: Path) -> Packages:
    path = folder / PACKAGES
    if not path.exists():
        return {}
    try:
        found = schema.PACKAGES.validate_python(read_json(path), strict=True)
    except ValidationError as error:
        raise UserError(f"{path} is damaged: {first_problem(error)}") from error
    return {what: {"name": one.name, "package": one.package, "version": one.version} for what, one in found.items()}


def check_available(folder: Path, values: Any) -> None:
    """Raise an error that says what to install if the method or backbone in config.json is not installed."""
    for what, (section, key, find) in CHECKED.items():
        try:
            name = values[section][key]
            if isinstance(name, str) and not is_import_path(name):
                find(name)
        except (KeyError, TypeError):
            continue  # damaged, or written by an older version: parsing the config reports it
        except Unknown as error:
            raise UserError(not_installed(folder, what, name, read_packages(folder))) from error
        except Unavailable as error:
            raise UserError(f"{folder} uses the {what} {name!r}: {error}") from error


def not_installed(folder: Path, what: str, name: str, packages: Packages) -> str:
    noun = "data set" if what == "data" else what
    if what not in packages:
        return f"{folder} uses the {noun} {name!r}, which is not installed; install the package that provides it"
    package, version = packages[what]["package"], packages[what]["version"]
    return (
        f"{folder} uses the {noun} {name!r} from {package} {version}, which is not installed; "
        f"install it: pip install {package}=={version}"
    )
