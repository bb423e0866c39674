"""Registries of named classes: one file each in a folder of this package, or entry points of other packages.

Built-in classes are found by scanning the folder, so there is no list to maintain. Other packages are known only by
their metadata until one of their names is used; only then are they imported.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from cotrain.types import UserError

T = TypeVar("T")


class Unavailable(UserError):
    """A name that cannot be used here: it is unknown, ambiguous, or its package cannot be loaded."""


class Unknown(Unavailable):
    """A name that no installed package provides."""


@dataclass(frozen=True)
class Provider:
    """The distribution that an entry point belongs to."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class Registry(Mapping[str, type[T]], Generic[T]):
    """The final subclasses of `base` by name. Each class knows its name as `cls.name`.

    `room` is the package whose modules define the built-in classes, at most one each; `group` is the entry-point group
    of the others. Iterating over the names imports no other package; looking up a name imports its package.
    """

    def __init__(self, what: str, base: type[T], room: str, group: str | None = None) -> None:
        self.what, self.base, self.room, self.group = what, base, room, group
        self.added: dict[str, type[T]] = {}
        self.broken: dict[str, Unavailable] = {}
        self._loaded: dict[str, type[T]] = {}

    @cached_property
    def built_in(self) -> dict[str, type[T]]:
        found = {}
        for name in sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(self.room).__path__)):
            module = importlib.import_module(f"{self.room}.{name}")
            own = [
                value for value in vars(module).values() if self._fits(value) and value.__module__ == module.__name__
            ]
            if len(own) > 1:
                raise TypeError(f"{module.__name__} must define one {self.base.__name__}, it defines {len(own)}")
            if own:
                found[name] = self._named(name, own[0])
        return found

    @cached_property
    def offered(self) -> dict[str, list[EntryPoint]]:
        """Entry points by name, not loaded."""
        found: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=self.group) if self.group else ():
            found.setdefault(entry.name, []).append(entry)
        return dict(sorted(found.items()))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.built_in, *self.added, *self.offered]))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self.added or name in self.offered

    def __getitem__(self, name: str) -> type[T]:
        if name in self.built_in:
            return self.built_in[name]
        return self.added[name] if name in self.added else self._load(name)

    def named(self, name: str) -> type[T]:
        """The class that the user means by this name. If that is not clear, a one-line error."""
        if name not in self:
            nearest = get_close_matches(name, self, n=1, cutoff=0.5)
            raise self.unknown(name, nearest + [other for other in self if other not in nearest])
        self.check_free(name)
        return self[name]

    def unknown(self, name: str, listed: Collection[str]) -> Unknown:
        return Unknown(f"there is no {self.what} {name!r}; there are: {', '.join(listed)}")

    def check_free(self, name: str) -> None:
        """Refuse a name that more than one package uses."""
        owners = [f"{provider_of(entry)}" for entry in self.offered.get(name, ())]
        if name in self.built_in:
            owners.insert(0, "cotrain")
        if len(owners) > 1:
            raise Unavailable(
                f"the {self.what} name {name!r} is taken twice, by {' and by '.join(owners)}; "
                f"uninstall {owners[-1].split()[0]}, or rename its entry point in {self.group}"
            )

    def provider(self, name: str) -> Provider | None:
        """The package that provides a name. None: it is built in, or was added in this process."""
        if name in self.built_in or name in self.added or name not in self.offered:
            return None
        return provider_of(self.offered[name][0])

    def from_others(self) -> Iterator[type[T]]:
        """Import and return the classes of other packages. Those that cannot be imported go to `broken`."""
        yield from self.added.values()
        for name in self.offered:
            if name in self.built_in:
                continue
            try:
                yield self.named(name)
            except Unavailable as error:
                self.broken[name] = error

    def add(self, name: str, cls: type[T]) -> None:
        """Add a class in this process only; an entry point would add it in every process."""
        if name in self and self[name] is not cls:
            raise Unavailable(f"the {self.what} name {name!r} is already taken; choose another one")
        self.added[name] = self._checked(name, cls, f"the {self.what} {name!r}")

    @contextmanager
    def with_added(self, name: str, cls: type[T]) -> Iterator[None]:
        self.add(name, cls)
        try:
            yield
        finally:
            del self.added[name]

    def _load(self, name: str) -> type[T]:
        if name in self._loaded:
            return self._loaded[name]
        if name not in self.offered:
            raise KeyError(name)
        entry = self.offered[name][0]
        where = f"the entry point {entry.name} = {entry.value} ({self.group}) of {provider_of(entry)}"
        try:
            value = entry.load()
        except (Exception, SystemExit) as error:  # other people's code may raise anything when it is imported
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise Unavailable(
                f"{where} cannot be loaded ({reason}); repair or uninstall {provider_of(entry).name}"
            ) from error
        self._loaded[name] = self._checked(name, value, where)
        return self._loaded[name]

    def _checked(self, name: str, value: Any, where: str) -> type[T]:
        wanted = f"a subclass of cotrain.{self.base.__name__}"
        if not isinstance(value, type) or not issubclass(value, self.base):
            kind = f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
            raise Unavailable(f"{where} is {kind}; it must be {wanted}")
        if not self._fits(value):
            missing = ", ".join(sorted(getattr(value, "__abstractmethods__", ())))
            raise Unavailable(f"{where} is abstract; it must define {missing}")
        if vars(value).get("name", name) != name:
            raise Unavailable(f"{where} already has the name {vars(value)['name']!r}; a class has one name")
        return self._named(name, value)

    def _fits(self, value: Any) -> bool:
        return isinstance(value, type) and issubclass(value, self.base) and not inspect.isabstract(value)

    @staticmethod
    def _named(name: str, cls: Any) -> Any:
        cls.name = name
        return cls


def provider_of(entry: EntryPoint) -> Provider:
    return Provider(entry.dist.name, entry.dist.version) if entry.dist else Provider("an unknown package", "")
