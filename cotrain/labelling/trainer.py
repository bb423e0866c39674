"""Trains in the background while people label, so that the page never waits."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.console import Console

from cotrain.labelling.learning import Known, Snapshot, Teacher
from cotrain.labelling.lines import console_of_lines

EVERY = 4  # new labels after which the heads train at once
QUIET = 0.8  # seconds without a new label after which they train with fewer
REST = 3.0  # seconds without a new label after which the error is estimated in any case
FIRST_ESTIMATE = 8  # labels
GROWTH = 1.15  # the next estimate needs this many times the labels of the last one

FAILURES = (ValueError, ArithmeticError, RuntimeError, OSError, MemoryError)  # that a page survives
Prepare = Callable[[Console], Iterable[Teacher]]  # the first chooses images, the last one trains


@dataclass(frozen=True)
class Model:
    """A snapshot, and the numbers of its classes, which stay the same when a class is renamed."""

    snapshot: Snapshot
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Task:
    """What there is to learn from."""

    known: Known
    numbers: tuple[int, ...]  # of known.classes

    @property
    def count(self) -> int:
        return len(self.known.labels)


class Trainer(threading.Thread):
    """Trains after every few labels. A job, such as finishing, waits for the training and takes its place."""

    def __init__(self, prepare: Prepare, task: Callable[[], Task], on_change: Callable[[], None]) -> None:
        super().__init__(daemon=True, name="trainer")
        self.prepare, self.task, self.on_change = prepare, task, on_change
        self.teacher: Teacher | None = None  # until the features of all images are there
        self.preparing = "reading the images"
        self.model: Model | None = None
        self.training = False
        self.problem = ""
        self._trained: Known | None = None
        self._estimated = 0  # labels
        self._wake, self._ending = threading.Condition(), False
        self._last_change = 0.0
        self._job: Callable[[], None] | None = None

    def labels_changed(self) -> None:
        with self._wake:
            self._last_change = time.monotonic()
            self._wake.notify()

    def do(self, job: Callable[[], None]) -> None:
        """Run the job in this thread as soon as the current training ends."""
        with self._wake:
            self._job = job
            self._wake.notify()

    def end(self) -> None:
        """Start nothing new. What is running is abandoned when the process ends."""
        with self._wake:
            self._ending = True
            self._wake.notify()

    def run(self) -> None:
        self._prepare()
        while not self._ending:
            job, self._job = self._job, None
            if job is not None:
                job()
            elif (estimate := self._due()) is not None:
                self._train(estimate)
            else:
                with self._wake:
                    if self._job is None and not self._ending:
                        self._wake.wait(QUIET / 2)

    def _prepare(self) -> None:
        def say(line: str) -> None:
            self.preparing = line
            self.on_change()

        try:
            for teacher in self.prepare(console_of_lines(say)):
                self.teacher = teacher
                self.on_change()
        except FAILURES as error:
            self.problem = f"The model cannot learn: {_reason(error)}. You can still label."
            self.teacher = None
        say("")

    def _due(self) -> bool | None:
        """Whether to train now, and if so whether to estimate the error too."""
        if self.teacher is None:
            return None
        task = self.task()
        quiet = time.monotonic() - self._last_change
        if task.known == self._trained:  # the page has its new guesses; estimating takes longer
            many = task.count >= max(FIRST_ESTIMATE, GROWTH * self._estimated)
            unestimated = self.model is not None and task.count != self._estimated
            return True if unestimated and (many or quiet > REST) else None
        before = len(self._trained.labels) if self._trained else 0
        if quiet < QUIET and abs(task.count - before) < EVERY:
            return None
        return False

    def _train(self, estimate: bool) -> None:
        assert self.teacher is not None
        task = self.task()
        self.training = True
        self.on_change()
        try:
            earlier = self.model.snapshot if self.model else None
            snapshot = self.teacher.train(task.known, earlier, estimate=estimate)
            self.model = Model(snapshot, task.numbers) if snapshot is not None else None
            self.problem = ""
        except FAILURES as error:
            self.problem = f"The last training failed: {_reason(error)}. Your labels are safe."
        self._trained = task.known
        if estimate or self.model is None:
            self._estimated = task.count
        self.training = False
        self.on_change()


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
