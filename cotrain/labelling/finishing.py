"""The button "Finish": writes the run folder in the background and says how far it is."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from cotrain.labelling.lines import console_of_lines
from cotrain.runs.interrupt import Interrupted
from cotrain.runs.run import reserve_folder
from cotrain.types import UserError

Stage = Literal["idle", "running", "done", "failed"]
Finish = Callable[[Path, Path, Console, Mapping[str, Any]], Path]


class Finishing:
    """Runs `finish` once at a time; the page shows `stage` and `line`."""

    def __init__(self, finish: Finish, folder: Path, out: Path | None, settings: Mapping[str, Any]) -> None:
        self._finish, self.folder, self._out, self._settings = finish, folder, out, settings
        self.stage: Stage = "idle"
        self.line = ""
        self.out: Path | None = None  # the run folder that is being written
        self.on_change: Callable[[], None] = lambda: None
        self._lock = threading.Lock()

    def begin(self) -> bool:
        """Announce the work; false if it is being done already."""
        with self._lock:
            if self.stage == "running":
                return False
            self._set("running", "Waiting for the current training to end.")
            return True

    def run(self, save: Callable[[], None]) -> None:
        """Write labels.csv, then the run folder. Called in the trainer's thread."""
        self._set("running", "Training on all labels.")
        try:
            save()
            wanted = self._out or Path("runs") / self.folder.resolve().name
            self.out = reserve_folder(wanted.parent, wanted.name)
            console = console_of_lines(self._say)
            done = self._finish(self.folder, self.out, console, self._settings)
        except (UserError, Interrupted, OSError, RuntimeError, MemoryError) as error:
            self._set("failed", " ".join(str(error).split()) or type(error).__name__)
        else:
            self._set("done", str(done.resolve()))

    def _say(self, line: str) -> None:
        self._set("running", line)

    def _set(self, stage: Stage, line: str) -> None:
        self.stage, self.line = stage, line
        self.on_change()
