"""The folder is the list: every module here holds one method, named after its file. Other packages add theirs by an
entry point in the group `cotrain.methods`."""

from cotrain.registry import Registry
from cotrain.types import Method

METHODS = Registry("method", Method, __name__, group="cotrain.methods")  # type: ignore[type-abstract]


def method_class(name: str) -> type[Method]:
    return METHODS.named(name)
