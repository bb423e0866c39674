"""What a study is: something that is asked for by name, and leaves a table and a figure beside the paper's numbers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from rich.console import Console

from cotrain.config import Config
from cotrain.data import Dataset
from cotrain.studies.writing import Written

Scale = Literal["minutes", "hours", "published"]


@dataclass(frozen=True)
class Asked:
    """What a user asked a study for; None: the study's own."""

    data: str | Path | Dataset | None = None
    scale: Scale = "minutes"
    out: str | Path | None = None
    seeds: int | None = None
    config: Config | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    preset: str = "paper"
    memory: float | None = None
    console: Console = field(default_factory=lambda: Console(quiet=True))


class Study(ABC):
    """One final subclass per file in `studies/`; the file's name is the study's name."""

    name: ClassVar[str]
    about: ClassVar[str]  # what is varied or measured

    @abstractmethod
    def run(self, asked: Asked) -> Written: ...
