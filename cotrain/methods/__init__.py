"""Every module in this folder holds one method, named after its file. Other packages register methods with an entry
point in the group `cotrain.methods`."""

from cotrain.registry import Registry
from cotrain.types import Method

METHODS = Registry("method", Method, __name__, group="cotrain.methods")  # type: ignore[type-abstract]


def method_class(name: str) -> type[Method]:
    return METHODS.named(name)
