"""One `cotrain label`: the images, what people say about them, the model that learns from it, and what to show next."""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cotrain.data import Dataset
from cotrain.data.workers import walk
from cotrain.labelling.events import CONFLICT, STRANGER, Event, How, Refused
from cotrain.labelling.finish import Finishing
from cotrain.labelling.guesses import Guesses
from cotrain.labelling.history import LabelHistory, Seen
from cotrain.labelling.image_index import ImageIndex
from cotrain.labelling.labels import Labels
from cotrain.labelling.queue import Queue
from cotrain.labelling.revision import Revision
from cotrain.labelling.served_images import Pictures
from cotrain.labelling.snapshot import Known, Order
from cotrain.labelling.trainer import Prepare, Trainer
from cotrain.types import UserError

SAVE_AFTER = 0.2  # seconds after a label, so that labels.csv is not written for each of many
LOOK_EVERY = 1.0  # seconds between looks at labels.csv
FOLDER_EVERY = 10.0  # seconds between looks at the folder


class Session:
    """Shared by all pages. Everything that changes labels goes through here; images are paths, classes are numbers."""

    def __init__(
        self,
        dataset: Dataset,
        history: LabelHistory,
        pictures: Pictures,
        prepare: Prepare,
        finishing: Finishing,
        revision: Revision,
        order: Order,
        seed: int,
    ) -> None:
        self.dataset, self.history, self.pictures = dataset, history, pictures
        self.finishing, self.revision = finishing, revision
        self.index = ImageIndex(dataset.paths, dataset.train)
        self.queue = Queue(self.index, history, seed)
        self.trainer = Trainer(prepare, self.known, revision, order)
        self.folder_notice = ""
        self._known: tuple[Labels, Known] | None = None  # of these labels
        self._ending, self._unsaved = threading.Event(), threading.Event()

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
        self.history.save()
        self.history.close()

    @property
    def labels(self) -> Labels:
        return self.history.labels

    @property
    def guesses(self) -> Guesses | None:
        return self.trainer.guesses

    def known(self) -> Known:
        """What there is to learn from. Labels of test images stay out of it."""
        labels = self.labels
        if self._known is None or self._known[0] is not labels:
            self._known = labels, self._known_from(labels)
        return self._known[1]

    def _known_from(self, labels: Labels) -> Known:
        rows = self.index.by_row(labels.classes)
        audit = {row: right for row, right in self.index.by_row(labels.audit).items() if row in rows}
        strangers, set_aside = (
            frozenset(map(self.index.row, self.index.among(images)))
            for images in (labels.having(STRANGER), [*labels.having(CONFLICT), *labels.skipped])
        )
        return Known(dict(labels.names), rows, strangers, audit, set_aside)

    def next(self, page: str, count: int, have: Iterable[str], *, audit: bool = False) -> list[str]:
        """Images to ask this page next."""
        return self.queue.next(page, count, have, self.trainer.ranking, audit=audit)

    def label(self, seen: Seen, number: int, *, who: str, how: How) -> None:
        guess = None
        if how == "audit" and len(seen) == 1 and number != STRANGER:
            guess = self.guess(next(iter(seen)))
        with self._writing():
            self.history.label(seen, number, who=who, how=how, guess=guess)

    def clear(self, images: Sequence[str], *, who: str, how: How) -> None:
        with self._writing():
            self.history.clear(images, who=who, how=how)

    def skip(self, images: Sequence[str], *, who: str, how: How) -> None:
        with self._writing():
            self.history.skip(images, who=who, how=how)

    def new_class(self, name: str, *, who: str, how: How) -> int:
        with self._writing():
            return self.history.new_class(name, who=who, how=how)

    def rename(self, number: int, name: str, *, who: str, how: How) -> None:
        with self._writing():
            self.history.rename(number, name, who=who, how=how)

    def merge(self, number: int, into: int, *, who: str, how: How) -> None:
        with self._writing():
            self.history.merge(number, into, who=who, how=how)

    def introduce(self, name: str, *, who: str, how: How) -> None:
        with self._writing():
            self.history.introduce(name, who=who, how=how)

    def undo(self, *, who: str, how: How) -> Event:
        with self._writing():
            return self.history.undo(who=who, how=how)

    def finish(self) -> None:
        if sum(self.labels.counts[number] > 0 for number in self.labels.names) < 2:
            raise Refused("a model needs labels of at least two classes")
        if not self.finishing.begin():
            raise Refused("the run folder is already being written")
        self.trainer.do(self.finishing.run)

    def guess(self, image: str) -> int | None:
        """The model's class for an image, if the class still exists."""
        if (guesses := self.guesses) is None:
            return None
        number = self.labels.resolve(guesses.number(self.index.row(image)))
        return number if number in self.labels.names else None

    def notices(self) -> list[str]:
        return [*filter(None, (self.folder_notice, *self.history.notices, self.trainer.problem))]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Tell the pages, the trainer and the saver what changed, also if only a part of it could be saved."""
        before = self.labels
        try:
            yield
        finally:
            if self.labels is not before:
                self._tell()
                self._unsaved.set()

    def _tell(self) -> None:
        self.revision.bump()
        self.trainer.labels_changed()

    def _keep_saving(self) -> None:
        looked = 0.0
        while not self._ending.is_set():
            if self._unsaved.wait(LOOK_EVERY):
                self._ending.wait(SAVE_AFTER)
                self._unsaved.clear()
            if self.history.save():
                self._tell()
            if time.monotonic() - looked > FOLDER_EVERY:
                looked = time.monotonic()
                self._look_at_folder()

    def _look_at_folder(self) -> None:
        notice = folder_notice(self.pictures.folder, self.dataset.paths, follow_links=self.pictures.follow_links)
        if notice != self.folder_notice:
            self.folder_notice = notice
            self.revision.bump()


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
