"""Trains in the background while people label, so that the page never waits.

New labels come first: an estimate of the error is made in steps of one training each, and new labels have to wait for
one of them at most. Between two trainings there is always one step, so that the estimate also ends if somebody labels
without a pause. It is then about the labels with which it began.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console

from cotrain.labelling.guesses import Guesses
from cotrain.labelling.learning import Estimate, Known, Order, PageModel, with_estimate
from cotrain.labelling.lines import console_of_lines
from cotrain.labelling.revision import Revision

EVERY = 4  # new labels after which the heads train at once
QUIET = 0.8  # seconds without a new label after which they train with fewer
REST = 3.0  # seconds without a new label after which the error is estimated in any case
FIRST_ESTIMATE = 8  # labels
GROWTH = 1.15  # the next estimate needs this many times the labels of the last one

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0  # seconds before what failed is tried again
FAILURES = (ValueError, ArithmeticError, RuntimeError, OSError, MemoryError)  # that a page survives
Prepare = Callable[[Console], Iterable[PageModel]]  # the first chooses images, the last one trains


class Attempt:
    """Whether the last attempt at something failed, why, and when the next one is due.

    The disk may have room then, or the process descriptors. The pause doubles after each failure in a row.
    """

    def __init__(self) -> None:
        self.succeeded()

    def succeeded(self) -> None:
        self.problem, self._pause, self._due = "", FIRST_PAUSE, math.inf

    def failed(self, problem: str) -> None:
        self.problem, self._due = problem, time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._due


class Trainer(threading.Thread):
    """Trains after every few labels. A job, such as finishing, waits for the training and takes its place."""

    def __init__(
        self, prepare: Prepare, known: Callable[[], Known], revision: Revision, order: Order = "informative"
    ) -> None:
        super().__init__(daemon=True, name="trainer")
        self.prepare, self.known, self.revision, self.order = prepare, known, revision, order
        self.page_model: PageModel | None = None  # until the features of all images are there
        self._ready = False  # to train, which needs the features of all views
        self.preparing = "reading the images"
        self.guesses: Guesses | None = None
        self.ranking: Sequence[int] = ()  # rows to ask for next, best first
        self.training, self.estimating = False, False
        self._to_prepare, self._to_train, self._to_estimate = Attempt(), Attempt(), Attempt()
        self._trained: Known | None = None
        self._estimated = 0  # labels of the last estimate
        self._steps: Iterator[Estimate | None] = iter(())  # those that are left of it
        self._wake, self._ending = threading.Condition(), False
        self._last_change = 0.0
        self._job: Callable[[], None] | None = None

    @property
    def problem(self) -> str:
        return self._to_prepare.problem or self._to_train.problem or self._to_estimate.problem

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
        steps_turn = False
        while not self._ending:
            job, self._job = self._job, None
            if job is not None:
                job()
            elif self._to_prepare.is_due:
                self._prepare()
            elif self._training_is_due() and not (steps_turn and self._estimate_is_due()):
                self._train()
                steps_turn = True
            elif self._estimate_is_due():
                self._take_step()
                steps_turn = False
            else:
                with self._wake:
                    if self._job is None and not self._ending:
                        self._wake.wait(QUIET / 2)

    def _prepare(self) -> None:
        def say(line: str) -> None:
            self.preparing = line
            self.revision.bump()

        try:
            for page_model in self.prepare(console_of_lines(say)):
                self.page_model = page_model
                self.ranking = self._ranked(self.known())
                self.revision.bump()
            self._ready = True
            self._to_prepare.succeeded()
        except FAILURES as error:
            self._to_prepare.failed(f"The model cannot learn: {_reason(error)}. You can still label. It tries again.")
        say("")

    def _training_is_due(self) -> bool:
        if not self._ready:
            return False
        known = self.known()
        if known == self._trained:
            return self._to_train.is_due
        before = len(self._trained.labels) if self._trained else 0
        return abs(len(known.labels) - before) >= EVERY or self._quiet() >= QUIET

    def _estimate_is_due(self) -> bool:
        """Whether to begin or to continue one."""
        if self.guesses is None or self.estimating:
            return self.estimating
        labels = len(self.guesses.known.labels)
        many = labels >= max(FIRST_ESTIMATE, GROWTH * self._estimated)
        return self._to_estimate.is_due or (labels != self._estimated and (many or self._quiet() > REST))

    def _quiet(self) -> float:
        return time.monotonic() - self._last_change

    def _train(self) -> None:
        assert self.page_model is not None
        known = self.known()
        self.training = True
        self.revision.bump()
        try:
            snapshot = self.page_model.train(known, self.guesses.snapshot if self.guesses else None)
            guesses = Guesses(snapshot, known) if snapshot is not None else None
            self.ranking, self.guesses = self._ranked(known, guesses), guesses
            self._to_train.succeeded()
        except FAILURES as error:
            self._to_train.failed(f"The last training failed: {_reason(error)}. Your labels are safe.")
        self._trained = known
        if self.guesses is None:
            self.estimating, self._estimated = False, 0
            self._to_estimate.succeeded()
        self.training = False
        self.revision.bump()

    def _ranked(self, known: Known, guesses: Guesses | None = None) -> Sequence[int]:
        assert self.page_model is not None
        if self.order == "random":
            return ()
        return self.page_model.ranking(guesses.snapshot if guesses else None, known)

    def _take_step(self) -> None:
        """One step of an estimate, which begins with what the model knows now."""
        assert self.page_model is not None and self.guesses is not None
        known = self.guesses.known
        if not self.estimating:
            self._steps = self.page_model.estimate(known, self.guesses.snapshot)
            self.estimating, self._estimated = True, len(known.labels)
            self.revision.bump()
        try:
            if (estimate := next(self._steps)) is None:
                return
            self.guesses = Guesses(with_estimate(self.guesses.snapshot, known, estimate), known)
            self._to_estimate.succeeded()
        except FAILURES as error:
            self._to_estimate.failed(f"The error could not be estimated: {_reason(error)}. Your labels are safe.")
        self.estimating = False
        self.revision.bump()


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
