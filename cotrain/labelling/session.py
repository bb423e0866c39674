"""One `cotrain label`: the images, what people say about them, the model that learns from it, and what to show next."""

import random
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cotrain.data import Dataset
from cotrain.data.workers import walk
from cotrain.labelling.book import Book, Seen
from cotrain.labelling.events import STRANGER, How, Refused
from cotrain.labelling.finish import Finishing
from cotrain.labelling.images import NotShown, Pictures
from cotrain.labelling.learning import Known, Order
from cotrain.labelling.trainer import Model, Prepare, Task, Trainer
from cotrain.storage.cells import is_text
from cotrain.types import UserError

LEASE = 120.0  # seconds for which an image that one page shows is not offered to another
SAVE_AFTER = 0.2  # seconds after a label, so that labels.csv is not written for each of many
LOOK_EVERY = 1.0  # seconds between looks at labels.csv
FOLDER_EVERY = 10.0  # seconds between looks at the folder


class Session:
    """Shared by all pages. The page gets rows of the dataset; the book knows images by their paths."""

    def __init__(
        self, dataset: Dataset, book: Book, pictures: Pictures, prepare: Prepare, finishing: Finishing, order: Order
    ) -> None:
        self.dataset, self.book, self.pictures = dataset, book, pictures
        self.finishing, self.order = finishing, order
        self.row_of = {path: row for row, path in enumerate(dataset.paths)}
        self.askable = frozenset(row for row in dataset.train.tolist() if is_text(dataset.paths[row]))
        self.trainer = Trainer(prepare, self.task, self.bump)
        self.folder_notice = ""
        self.version = 1
        self._leases: dict[int, tuple[str, float]] = {}
        self._leasing, self._ending, self._unsaved = threading.Lock(), threading.Event(), threading.Event()
        book.on_change = self._labels_changed
        finishing.on_change = self.bump

    def start(self) -> None:
        self.trainer.start()
        self._saver = threading.Thread(target=self._keep_saving, daemon=True, name="saver")
        self._saver.start()

    def end(self) -> None:
        """Stop the threads and write labels.csv a last time."""
        self._ending.set()
        self._unsaved.set()
        self.trainer.end()
        self._saver.join()
        self.book.save()
        self.book.journal.close()

    def bump(self) -> None:
        """Tell the pages that something changed."""
        self.version += 1

    def task(self) -> Task:
        """What there is to learn from, by row. Labels of test images stay out of it."""
        labels = self.book.labels
        numbers = tuple(labels.names)
        place = {number: index for index, number in enumerate(numbers)}
        rows = {row: place[value] for row, value in self._by_row(labels.classes.items())}
        audit = {row: right for row, right in self._by_row(labels.audit.items()) if row in rows}
        strangers = frozenset(self.rows(labels.strangers))
        return Task(Known(tuple(labels.names.values()), rows, strangers, audit), numbers)

    @property
    def model(self) -> Model | None:
        return self.trainer.model

    def next(self, page: str, count: int, have: Iterable[int], *, audit: bool = False) -> list[int]:
        """Rows to ask this page next; those that other pages have are asked last."""
        known = self.task().known
        own = self.unasked() - set(have)
        with self._leasing:
            now = time.monotonic()
            taken = {row for row, (whose, end) in self._leases.items() if whose != page and end > now}
            free = own - taken if own - taken else own
            hidden = frozenset(range(len(self.dataset.paths))) - free
            rows = self._chosen(known, free, hidden, count, audit) if free else []
            self._leases |= dict.fromkeys(rows, (page, now + LEASE))
        return rows

    def _chosen(self, known: Known, free: set[int], hidden: frozenset[int], count: int, audit: bool) -> list[int]:
        teacher = self.trainer.teacher
        if teacher is None:  # any image is better than waiting
            return random.Random(0).sample(sorted(free), min(count, len(free)))
        if audit:
            return teacher.audit(known, count, hidden)
        return teacher.next(self.model.snapshot if self.model else None, known, hidden, count, self.order)

    def unasked(self) -> set[int]:
        """The rows that nobody has answered or skipped."""
        labels = self.book.labels
        return set(self.askable) - {*self.rows(labels.said), *self.rows(labels.skipped)}

    def label(self, seen: dict[int, int | None], number: int, *, who: str, how: How) -> None:
        guess = None
        if how == "audit" and len(seen) == 1 and number != STRANGER:
            guess = self.guess(next(iter(seen)))
        self.book.label(self.seen_images(seen), number, who=who, how=how, guess=guess)

    def seen_images(self, seen: dict[int, int | None]) -> Seen:
        return {self.image(row): value for row, value in seen.items()}

    def image(self, row: int) -> str:
        if row not in self.askable:
            raise NotShown(f"there is no image {row}")
        return self.dataset.paths[row]

    def guess(self, row: int) -> int | None:
        """The model's class for an image, if the class still exists."""
        if (model := self.model) is None:
            return None
        number = self.book.labels.resolve(model.numbers[int(np.argmax(model.snapshot.probabilities[row]))])
        return number if number in self.book.labels.names else None

    def finish(self) -> None:
        if len(self.book.labels.counts) < 2:
            raise Refused("a model needs labels of at least two classes")
        if not self.finishing.begin():
            raise Refused("the run folder is already being written")
        self.trainer.do(self.finishing.run)

    def notices(self) -> list[str]:
        each = [self.folder_notice, self.book.problem, self.book.news, self.book.journal.news, self.trainer.problem]
        return [*filter(None, each)]

    def _by_row(self, items: Iterable[tuple[str, Any]]) -> list[tuple[int, Any]]:
        each = ((self.row_of.get(image, -1), value) for image, value in items)
        return [(row, value) for row, value in each if row in self.askable]

    def rows(self, images: Iterable[str]) -> list[int]:
        return [row for row, _ in self._by_row((image, None) for image in images)]

    def _labels_changed(self) -> None:
        self.bump()
        self.trainer.labels_changed()
        self._unsaved.set()

    def _keep_saving(self) -> None:
        looked = 0.0
        while not self._ending.is_set():
            if self._unsaved.wait(LOOK_EVERY):
                self._ending.wait(SAVE_AFTER)
                self._unsaved.clear()
            self.book.save()
            if time.monotonic() - looked > FOLDER_EVERY:
                looked = time.monotonic()
                self._look_at_folder()

    def _look_at_folder(self) -> None:
        notice = folder_notice(self.pictures.folder, self.dataset.paths, follow_links=self.pictures.follow_links)
        if notice != self.folder_notice:
            self.folder_notice = notice
            self.bump()


def folder_notice(folder: Path, paths: Sequence[str], *, follow_links: bool) -> str:
    """What changed in the folder since it was opened."""
    try:
        now = {file.path for file in walk(folder, follow_links=follow_links) if file.is_image}
    except (OSError, UserError):
        return f"The folder {folder} cannot be read at the moment. Labels that were confirmed are safe."
    new, gone = len(now - set(paths)), len(set(paths) - now)
    parts = [f"{_images(new)} came" if new else "", f"{_images(gone)} went" if gone else ""]
    if not any(parts):
        return ""
    return f"{' and '.join(filter(None, parts))} since the start. Restart cotrain label to see the folder as it is now."


def _images(count: int) -> str:
    return f"{count:,} {'image' if count == 1 else 'images'}"
