"""The end of labelling: a run folder like that of `cotrain fit`, and predictions for all images of the folder."""

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path, PureWindowsPath
from typing import Any, Literal

from rich.console import Console

from cotrain.data.workers import find_images, worker_count
from cotrain.fitting.fit import fit
from cotrain.inference.job import Job
from cotrain.inference.job_parts import job_facts, partial_folder
from cotrain.inference.model import BETTER, load, used_folder
from cotrain.inference.streaming import files_at_once
from cotrain.labelling.book import Book
from cotrain.labelling.events import Finish
from cotrain.labelling.lines import console_of_lines
from cotrain.runs.interrupt import Interrupted
from cotrain.runs.run import MADE_FROM, Run, reserve_folder
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
    if not (fitted.folder / PREDICTIONS).exists():
        predict_all(fitted.folder, folder, console)
    return fitted.folder


def predict_all(run: Path, folder: Path, console: Console) -> None:
    """Write predictions.csv into the run, with the better model of the run, as `cotrain predict` chooses it."""
    model, chosen, out = load(run, use=BETTER), used_folder(Run.open(run), BETTER), run / PREDICTIONS
    follow_links = Run.open(run).config.data.follow_links
    paths, batch = find_images([folder], follow_links=follow_links, console=console), files_at_once(model)
    job = Job(model, paths, None, worker_count(len(paths)), console)
    options = {"temperature": model.temperature, "shard": "1/1", "defer_below": None}
    facts = job_facts(Run.open(chosen).model_path, paths, **options, batch=batch)
    job.to_file(out, facts, resume=partial_folder(out).exists())


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

    def __init__(self, folder: Path, out: Path | None, settings: Mapping[str, Any], book: Book, images: str) -> None:
        """`images` stands for the images as they are now."""
        self.folder, self._out, self._settings, self._book, self._images = folder, out, settings, book, images
        self.stage: Stage = "idle"
        self.line = ""
        self.out: Path | None = None  # the run folder that is being written
        self.on_change: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        earlier = book.last_finish
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
            self._book.save()
            if self._book.problem:
                raise UserError(self._book.problem)
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
        made_from = [self._book.table.digest(), self._images, version("cotrain"), self._settings, str(self._out)]
        key = hashlib.sha256(json.dumps(made_from, sort_keys=True, default=str).encode()).hexdigest()[:16]
        earlier = self._book.last_finish
        if earlier and earlier.key == key and began(earlier):
            return Path(earlier.out)
        wanted = self._out or Path("runs") / self.folder.resolve().name
        out = reserve_folder(wanted.parent, wanted.name).resolve()
        write_json(out / MADE_FROM, key)
        self._book.finishing(str(out), key)
        return out

    def _say(self, line: str) -> None:
        self._set("running", line)

    def _set(self, stage: Stage, line: str) -> None:
        self.stage, self.line = stage, line
        self.on_change()
