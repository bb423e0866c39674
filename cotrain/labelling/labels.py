"""The labels that events add up to. Pure functions: nothing here reads or writes files."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

from cotrain.labelling.events import STRANGER, Clear, Event, Label, Merge, Name, NewClass, Refused, Rename, Skip, Undo

UNDOABLE = (NewClass, Rename, Merge, Label, Clear, Skip)
NOT_FROM_THE_PAGE = ("import", "table")


@dataclass(frozen=True)
class Said:
    """What one person said about an image."""

    number: int  # of the class, or STRANGER
    who: str
    guess: int | None = None  # the model's class, if the audit asked
    reviewed: bool = False  # said on a second look


@dataclass(frozen=True)
class Labels:
    """All labels at one moment. Images are paths relative to the folder; classes are numbers that never change."""

    names: dict[int, str] = field(default_factory=dict)  # by number, in the order in which people named them
    merged: dict[int, int] = field(default_factory=dict)
    said: dict[str, tuple[Said, ...]] = field(default_factory=dict)  # by image; the newest is the last
    skipped: dict[str, int] = field(default_factory=dict)  # image -> event
    people: dict[str, str] = field(default_factory=dict)  # browser -> name

    def resolve(self, number: int) -> int:
        """The class that this number stands for now."""
        while number in self.merged:
            number = self.merged[number]
        return number

    def values(self, image: str) -> list[int]:
        """What people say about an image: nothing, one class (or STRANGER), or several if they disagree."""
        return list(dict.fromkeys(self.resolve(one.number) for one in self.said.get(image, ())))

    @cached_property
    def settled(self) -> dict[str, int]:
        """The images on whose value people agree, strangers included."""
        each = ((image, self.values(image)) for image in self.said)
        return {image: values[0] for image, values in each if len(values) == 1}

    @cached_property
    def classes(self) -> dict[str, int]:
        """The images that have a class: the labels to train on and to write to labels.csv."""
        return {image: value for image, value in self.settled.items() if value != STRANGER}

    @cached_property
    def strangers(self) -> frozenset[str]:
        return frozenset(image for image, value in self.settled.items() if value == STRANGER)

    @cached_property
    def conflicts(self) -> dict[str, tuple[Said, ...]]:
        return {image: said for image, said in self.said.items() if image not in self.settled}

    @cached_property
    def audit(self) -> dict[str, bool]:
        """Whether the model was right about each image of the audit that has a class."""
        asked = {image: [one.guess for one in self.said[image] if one.guess is not None] for image in self.classes}
        return {image: self.resolve(guesses[0]) == self.classes[image] for image, guesses in asked.items() if guesses}

    @cached_property
    def counts(self) -> Counter[int]:
        return Counter(self.classes.values())

    @property
    def by_name(self) -> dict[str, str]:
        """The class name of every image that has one, as in labels.csv."""
        return {image: self.names[value] for image, value in self.classes.items()}

    def number_of(self, name: str) -> int | None:
        return next((number for number, known in self.names.items() if known == name), None)

    def check_new(self, name: str, apart_from: int | None = None) -> None:
        """Refuse a name that a reader would take for that of another class."""
        for number, known in self.names.items():
            if number != apart_from and known.casefold() == name.casefold():
                raise Refused(f"there is already a class {known}; merge the two if they mean the same")

    def after(self, event: Event) -> "Labels":
        """The labels after one more event, which is not an undo."""
        copied = {each.name: dict(getattr(self, each.name)) for each in fields(self)}
        copy = Labels(**copied)
        _apply(copy, event)
        return copy


def replay(events: Sequence[Event]) -> Labels:
    """The labels after all events. An event that was undone never happened."""
    undone = {event.of for event in events if isinstance(event, Undo)}
    labels = Labels()
    for event in events:
        if event.id not in undone:
            _apply(labels, event)
    return labels


def _apply(labels: Labels, event: Event) -> None:
    match event:
        case NewClass(number=number, name=name) | Rename(number=number, name=name):
            labels.names[labels.resolve(number)] = name
        case Merge(number=number, into=into):
            first, last = labels.resolve(number), labels.resolve(into)
            if first != last:
                labels.merged[first] = last
                labels.names.pop(first, None)
        case Label():
            _add(labels, event)
        case Clear(images=images):
            for image in images:
                labels.said.pop(image, None)
                labels.skipped.pop(image, None)
        case Skip(images=images):
            labels.skipped.update({image: event.id for image in images if image not in labels.said})
        case Name(who=who, name=name):
            labels.people[who] = name


def _add(labels: Labels, event: Label) -> None:
    new = Said(event.number, event.who, event.guess, event.how == "review")
    for image in event.images:
        others = () if event.replaces else tuple(one for one in labels.said.get(image, ()) if one.who != event.who)
        labels.said[image] = (*others, new)
        labels.skipped.pop(image, None)


def last_undoable(events: Sequence[Event], who: str) -> Event | None:
    """The newest event of this person that an undo would take back."""
    undone = {event.of for event in events if isinstance(event, Undo)}
    for event in reversed(events):
        own = event.who == who and event.how not in NOT_FROM_THE_PAGE
        if own and isinstance(event, UNDOABLE) and event.id not in undone:
            return event
    return None


def check_consistent(labels: Labels) -> None:
    """Refuse labels that an undo has left without their class, or classes that would share a name."""
    used = _used(labels)
    if not used <= labels.names.keys() | {STRANGER}:
        raise Refused("this cannot be undone: somebody else has used this class since")
    if len(set(labels.names.values())) < len(labels.names):
        raise Refused("this cannot be undone: another class has this name now")


def _used(labels: Labels) -> set[int]:
    numbers: Iterable[int] = (one.number for said in labels.said.values() for one in said)
    return {labels.resolve(number) for number in numbers} | {labels.resolve(number) for number in labels.merged}
