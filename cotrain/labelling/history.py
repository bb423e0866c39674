"""The history of label changes: what people do goes to the journal, then to labels.csv."""

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from cotrain.labelling.events import (
    CONFLICT,
    LONGEST_CLASS,
    MOST_CLASSES,
    MOST_NUMBER,
    STRANGER,
    ClassEvent,
    Clear,
    Event,
    Finish,
    How,
    ImageEvent,
    Label,
    Merge,
    Name,
    NewClass,
    Refused,
    Rename,
    Skip,
    Undo,
    Written,
    class_name,
    one_line,
)
from cotrain.labelling.journal import Journal, up_to
from cotrain.labelling.labels import Labels, check_consistent, replay
from cotrain.labelling.labels_csv import ABSENT, Content, Edited, LabelTable
from cotrain.storage.cells import is_text
from cotrain.types import UserError

STRANGER_NAME = "does not belong"
FOLDERS = "class folders"
UNDOABLE = ClassEvent | ImageEvent
NOT_FROM_THE_PAGE = ("import", "table")
Seen = Mapping[str, int | None]  # image -> the value that the person saw; None: no label


class LabelHistory:
    """All methods may be called by several threads at once."""

    def __init__(self, journal: Journal, table: LabelTable) -> None:
        self.journal, self.table = journal, table
        self.labels = self._replayed(journal.events)
        self.problem = ""  # why labels.csv could not be written
        self.news = ""  # what happened to labels.csv
        self._images = tuple(filter(is_text, table.images))
        self._present = set(self._images)
        written = next((event for event in reversed(journal.events) if isinstance(event, Written)), None)
        self._known_digest = self._noted_digest = written.digest if written else ABSENT
        self._in_table = self._replayed(up_to(journal.events, written.id)).by_name if written else {}
        self._undone = {event.of for event in journal.events if isinstance(event, Undo)}
        self._undoable: dict[str, list[Event]] = {}  # by browser; the newest is the last
        for event in journal.events:
            self._note(event)
        self._lock, self._saving = threading.RLock(), threading.Lock()
        self._saved: tuple[Labels, object] | None = None  # the labels that labels.csv holds, and its stamp

    def start(self, in_folders: Mapping[str, str]) -> None:
        """Take over the labels that exist: those of labels.csv, or of class folders if nobody labelled before."""
        self._number_again()
        content = self.table.read()
        if content is not None and self._is_news(content):
            self._take_over(content)
            if not content.labels.keys() <= self.labels.by_name.keys():
                self.table.keep_copy()  # rows will go because of labels that are newer than the table
        elif content is None and not self.journal.events:
            self._import(in_folders, {}, FOLDERS, "import")

    @property
    def events(self) -> Sequence[Event]:
        return self.journal.events

    def last_undoable(self, who: str) -> Event | None:
        """The newest event of this person that an undo would take back."""
        with self._lock:
            return next(reversed(self._undoable.get(who, ())), None)

    def changed_since(self, position: int) -> tuple[int, Labels, set[str]]:
        """The number of events, the labels that they add up to, and the images of those after the first `position`."""
        with self._lock:
            images = set[str]()
            for event in self.events[position:]:
                about = self._event(event.of) if isinstance(event, Undo) else event
                images.update(getattr(about, "images", ()))
            return len(self.events), self.labels, images

    def label(self, seen: Seen, number: int, *, who: str, how: How, guess: int | None = None) -> None:
        """Give these images a class, or STRANGER. Labels of others that the person did not see are kept beside it."""
        with self._lock:
            number = self._known(number)
            name = self.labels.names.get(number, STRANGER_NAME)
            groups: dict[bool, list[str]] = {}
            for image, value in seen.items():
                groups.setdefault(self._is_informed(image, value), []).append(image)
            for replaces, images in groups.items():
                self._add(
                    Label, who=who, how=how, number=number, name=name, images=images, replaces=replaces, guess=guess
                )

    def clear(self, images: Sequence[str], *, who: str, how: How) -> None:
        self._add(Clear, who=who, how=how, images=images)

    def skip(self, images: Sequence[str], *, who: str, how: How) -> None:
        self._add(Skip, who=who, how=how, images=images)

    def new_class(self, name: str, *, who: str, how: How) -> int:
        with self._lock:
            name = class_name(name)
            self.labels.check_new(name)
            return self._new_class(name, who, how)

    def rename(self, number: int, name: str, *, who: str, how: How) -> None:
        with self._lock:
            number, name = self._known(number, stranger=False), class_name(name)
            self.labels.check_new(name, apart_from=number)
            self._add(Rename, who=who, how=how, number=number, name=name)

    def merge(self, number: int, into: int, *, who: str, how: How) -> None:
        with self._lock:
            number, into = self._known(number, stranger=False), self._known(into, stranger=False)
            if number == into:
                raise Refused("a class cannot be merged with itself")
            self._add(Merge, who=who, how=how, number=number, into=into)

    def introduce(self, name: str, *, who: str, how: How) -> None:
        """From now on, what this browser does carries a person's name."""
        name = one_line(name)
        if name != self.labels.people.get(who, ""):
            self._add(Name, who=who, how=how, name=name)

    def begin_finish(self, out: str, key: str) -> None:
        with self._lock:
            self.journal.add(Finish, who="cotrain", how="click", out=out, key=key)

    @property
    def last_finish(self) -> Finish | None:
        return next((event for event in reversed(self.events) if isinstance(event, Finish)), None)

    def undo(self, *, who: str, how: How) -> Event:
        """Take back the newest thing that this person did, and return it."""
        with self._lock:
            event = self.last_undoable(who)
            if event is None:
                raise Refused("there is nothing to undo")
            undone = self._undone | {event.id}
            labels = self.labels.without(event, [one for one in self.events if one.id not in undone])
            check_consistent(labels)
            self.journal.add(Undo, who=who, how=how, person=self._person(who), of=event.id)
            self._undone.add(event.id)
            self._undoable[who].pop()
            self.labels = labels
            return event

    def close(self) -> None:
        self.journal.close()

    def save(self) -> bool:
        """Write labels.csv if labels or the file changed. If that fails, `problem` says why; the journal has it all.

        Whether this changed anything that the page shows.
        """
        with self._saving:
            before = self.labels, self.notices
            self._try_to_save()
            return self.labels is not before[0] or self.notices != before[1]

    @property
    def notices(self) -> list[str]:
        """What happened to the files."""
        return [*filter(None, (self.problem, self.news, self.journal.news))]

    def _try_to_save(self) -> None:
        history = self._keep_history()
        safe = history or f"All labels are safe in {self.journal.path.name}, and cotrain keeps trying."
        try:
            if self._saved != (self.labels, self.table.stamp()):
                self._save()
            self.problem = history
        except Edited:
            return  # somebody is writing it at this moment; the next save sees what they wrote
        except UserError as error:
            said = f"{str(error)[:1].upper()}{str(error)[1:]}"
            self.problem = f"{self.table.path.name} is not written. {said}. {safe}"
        except OSError as error:
            self.problem = f"{self.table.path.name} cannot be written: {error.strerror or error}. {safe}"

    def _keep_history(self) -> str:
        """Write the history again if somebody cut it; if that fails, say why."""
        try:
            with self._lock:
                self.journal.keep()
        except OSError as error:
            return f"{self.journal.path.name} cannot be written: {error.strerror}."
        return ""

    def _save(self) -> None:
        content = self.table.read()
        digest = content.digest if content else ABSENT
        if content is not None and self._is_news(content):
            self._merge_edits(content)
        with self._lock:
            labels = self.labels
        wanted = {image: name for image, name in labels.by_name.items() if image in self._present}
        if wanted != (content.labels if content else {}):
            digest = self.table.write(wanted, content)
        if digest != self._noted_digest:
            self._written(digest, labels)
        self._saved = (labels, self.table.stamp())

    def _merge_edits(self, content: Content) -> None:
        copy = self.table.keep_copy()
        self._take_over(content)
        self.news = f"Somebody edited {self.table.path.name}. The edits were merged; {copy.name} is a copy of them."

    def _take_over(self, content: Content) -> None:
        """Import what somebody changed in labels.csv since it was last written here."""
        with self._lock:
            labels = dict(content.labels)
            if content.digest == self._known_digest:  # the history was cut: what it lacks is added, and nothing cleared
                labels = {**self._in_table, **labels}
            self._import(labels, self._in_table, self.table.path.name, "table")
            self._written(content.digest, self.labels, content.labels)

    def _is_news(self, content: Content) -> bool:
        """Whether the table holds labels to which the history does not lead."""
        return content.digest != self._known_digest or not content.labels.items() <= self._in_table.items()

    def _replayed(self, events: Sequence[Event]) -> Labels:
        """The labels after events that were read from the journal."""
        labels = replay(events)
        try:
            check_consistent(labels)
        except Refused as error:
            raise UserError(
                f"{self.journal.path} is damaged: labels and classes do not fit together; restore it from a copy"
            ) from error
        return labels

    def _import(self, labels: Mapping[str, str], before: Mapping[str, str], who: str, how: How) -> None:
        """Turn what differs between two tables into events of a person called `who`."""
        changes: dict[str | None, list[str]] = {}
        for image in self._images:
            if labels.get(image) != before.get(image):
                changes.setdefault(labels.get(image), []).append(image)
        for name in sorted(changes, key=str):
            images = changes[name]
            if name is None:
                self._add(Clear, who=who, how=how, images=images)
                continue
            number = self.labels.number_of(name) or self._new_class(name, who, how)
            self.label({image: self._number(before.get(image)) for image in images}, number, who=who, how=how)

    def _number(self, name: str | None) -> int | None:
        return None if name is None else self.labels.number_of(name)

    def _written(self, digest: str, labels: Labels, in_table: Mapping[str, str] | None = None) -> None:
        """Note that labels.csv holds these labels. If there are newer ones already, the next save notes it."""
        with self._lock:
            self._known_digest = digest
            self._in_table = labels.by_name if in_table is None else dict(in_table)
            if labels is self.labels:
                self.journal.add(Written, who="cotrain", how="table", digest=digest)
                self._noted_digest = digest

    def _number_again(self) -> None:
        """Give classes whose numbers the page cannot handle, from a history of another program, numbers that it can."""
        for number in [number for number in self.labels.names if number > MOST_NUMBER]:
            name, others = self.labels.names[number], self.labels.names.values()
            free = next(other for each in count(2) if (other := f"{name[:900]} ({each})") not in others)
            into = self._new_class(free, "cotrain", "import")  # two classes of one name would be damage, if killed here
            self._add(Merge, who="cotrain", how="import", number=number, into=into)
            self._add(Rename, who="cotrain", how="import", number=into, name=name)

    def _new_class(self, name: str, who: str, how: How) -> int:
        if len(self.labels.names) >= MOST_CLASSES:
            raise Refused(f"there can be at most {MOST_CLASSES:,} classes")
        if len(name) > LONGEST_CLASS:
            raise Refused(f"a class has a name of {len(name):,} characters; at most {LONGEST_CLASS:,} are allowed")
        used = {event.number for event in self.events if isinstance(event, NewClass | Rename)}
        number = next(number for number in count(1) if number not in used)
        self._add(NewClass, who=who, how=how, number=number, name=name)
        return number

    def _known(self, number: int, *, stranger: bool = True) -> int:
        number = self.labels.resolve(number)
        if number not in self.labels.names and not (stranger and number == STRANGER):
            raise Refused("this class no longer exists; choose another one")
        return number

    def _is_informed(self, image: str, seen: int | None) -> bool:
        """Whether the person saw what others say about the image now."""
        if seen is not None and seen != CONFLICT:
            seen = self.labels.resolve(seen)
        return seen is not None and seen == self.labels.values.get(image)

    def _person(self, who: str) -> str | None:
        return self.labels.people.get(who) or None

    def _add(self, kind: Any, *, who: str, how: How, **details: Any) -> None:
        with self._lock:
            event = self.journal.add(kind, who=who, how=how, person=self._person(who), **details)
            self.labels = self.labels.after(event)
            self._note(event)

    def _note(self, event: Event) -> None:
        """Remember who can undo an event."""
        if isinstance(event, UNDOABLE) and event.how not in NOT_FROM_THE_PAGE and event.id not in self._undone:
            self._undoable.setdefault(event.who, []).append(event)

    def _event(self, number: int) -> Event | None:
        place = bisect_left(self.events, number, key=lambda event: event.id)
        return self.events[place] if place < len(self.events) and self.events[place].id == number else None
