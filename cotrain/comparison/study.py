"""What a study is: it runs by name and writes a table and a figure next to the paper's numbers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from rich.console import Console

from cotrain.comparison.study_output import StudyReport
from cotrain.config import Config
from cotrain.data import Dataset

Scale = Literal["minutes", "hours", "published"]


@dataclass(frozen=True)
class StudyOptions:
    """What the user asked for. None means the study's own default."""

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
    def run(self, options: StudyOptions) -> StudyReport: ...
