"""The folder is the list: every module here holds one method, named after its file."""

import importlib
import pkgutil
from difflib import get_close_matches

from cotrain.types import Method, UserError


def _find() -> dict[str, type[Method]]:
    found = {}
    for module_name in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        module = importlib.import_module(f"{__name__}.{module_name}")
        own = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, Method) and value.__module__ == module.__name__
        ]
        if len(own) != 1:
            raise TypeError(f"{module.__name__} must define exactly one Method, it defines {len(own)}")
        own[0].name = module_name
        found[module_name] = own[0]
    return found


METHODS: dict[str, type[Method]] = _find()


def method_class(name: str) -> type[Method]:
    if name in METHODS:
        return METHODS[name]
    nearest = get_close_matches(name, METHODS, n=1, cutoff=0.5)
    listed = ", ".join(nearest + [other for other in METHODS if other not in nearest])
    raise UserError(f"there is no method {name!r}; there are: {listed}")
