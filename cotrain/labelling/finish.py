"""The end of labelling: a run folder like that of `cotrain fit`, and predictions for all images of the folder."""

import hashlib
import json
import threading
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path, PureWindowsPath
from typing import Any, Literal

from rich.console import Console

from cotrain.fitting.fit import fit
from cotrain.inference.job_parts import partial_folder
from cotrain.inference.predict import Choices, prepared
from cotrain.labelling.events import Finish
from cotrain.labelling.history import LabelHistory
from cotrain.labelling.lines import console_of_lines
from cotrain.labelling.revision import Revision
from cotrain.runs.interrupt import Interrupted
from cotrain.runs.run import MADE_FROM, reserve_folder
from cotrain.storage.reading import read_json
from cotrain.storage.writing import write_json
from cotrain.types import UserError

PREDICTIONS = "predictions.csv"
Stage = Literal["idle", "running", "done", "failed", "stopped"]


def finish(folder: Path, out: Path, console: Console, settings: Mapping[str, Any] | None = None) -> Path:
    """Train as `cotrain fit FOLDER --out OUT` does, then predict every image as `cotrain predict OUT FOLDER` does.

    Returns the run folder. A call that was interrupted continues if it is repeated with the same labels.
    """
    fitted = fit(folder, out=out, settings=settings, resume=(out / "config.json").exists(), console=console)
    out = fitted.folder / PREDICTIONS
    if not out.exists():
        choices = Choices(follow_links=fitted.run.config.data.follow_links)
        prepared(fitted.folder, [folder], choices, console).to_file(out, resume=partial_folder(out).exists())
    return fitted.folder


def began(earlier: Finish) -> bool:
    """Whether Finish has begun to write this folder, from what the key stands for."""
    if PureWindowsPath(earlier.out).drive.startswith("\\\\"):  # looking there would ask another machine
        return False
    try:
        return bool(read_json(Path(earlier.out) / MADE_FROM) == earlier.key)
    except UserError:
        return False


class Finishing:
    """The button Finish: runs `finish` in the background, once at a time. The page shows `stage` and `line`."""

    def __init__(
        self,
        folder: Path,
        out: Path | None,
        settings: Mapping[str, Any],
        history: LabelHistory,
        images: str,
        revision: Revision,
    ) -> None:
        """`images` stands for the images as they are now."""
        self.folder, self._out, self._settings, self._images = folder, out, settings, images
        self._history, self._revision = history, revision
        self.stage: Stage = "idle"
        self.line = ""
        self.out: Path | None = None  # the run folder that is being written
        self._lock = threading.Lock()
        earlier = history.last_finish
        if earlier and began(earlier) and not (Path(earlier.out) / PREDICTIONS).exists():
            self.stage, self.line = "stopped", earlier.out

    def begin(self) -> bool:
        """Announce the work; false if it is being done already."""
        with self._lock:
            if self.stage == "running":
                return False
            self._set("running", "Waiting for the current training to end.")
            return True

    def run(self) -> None:
        """Write labels.csv, then the run folder. Called in the trainer's thread."""
        self._set("running", "Training on all labels.")
        try:
            self._history.save()
            if self._history.problem:
                raise UserError(self._history.problem)
            self.out = self._run_folder()
            done = finish(self.folder, self.out, console_of_lines(self._say), self._settings)
        except (UserError, Interrupted, OSError, RuntimeError, MemoryError) as error:
            self._set("failed", " ".join(str(error).split()) or type(error).__name__)
        else:
            self._set("done", str(done.resolve()))

    def _run_folder(self) -> Path:
        """The folder of the last time, which continues if everything it is made from is the same; otherwise a new one.

        The journal knows the folder, so that this also holds after the process was killed. The folder must know the
        journal too: a journal may come from somebody else, who does not decide where files are written.
        """
        made_from = [self._history.table.digest(), self._images, version("cotrain"), self._settings, str(self._out)]
        key = hashlib.sha256(json.dumps(made_from, sort_keys=True, default=str).encode()).hexdigest()[:16]
        earlier = self._history.last_finish
        if earlier and earlier.key == key and began(earlier):
            return Path(earlier.out)
        wanted = self._out or Path("runs") / self.folder.resolve().name
        out = reserve_folder(wanted.parent, wanted.name).resolve()
        write_json(out / MADE_FROM, key)
        self._history.begin_finish(str(out), key)
        return out

    def _say(self, line: str) -> None:
        self._set("running", line)

    def _set(self, stage: Stage, line: str) -> None:
        self.stage, self.line = stage, line
        self._revision.bump()
