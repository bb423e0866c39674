"""The labels that events add up to. Pure functions: nothing here reads or writes files."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from cotrain.labelling.events import (
    CONFLICT,
    STRANGER,
    ClassEvent,
    Clear,
    Event,
    ImageEvent,
    Label,
    Merge,
    Name,
    NewClass,
    Refused,
    Rename,
    Skip,
    Undo,
)


@dataclass(frozen=True)
class Opinion:
    """What one person said about an image."""

    number: int  # of the class, or STRANGER
    who: str
    event: int
    guess: int | None = None  # the model's class, if the audit asked
    reviewed: bool = False  # given on a second look


@dataclass(frozen=True)
class Labels:
    """All labels at one moment. Images are paths relative to the folder; classes are numbers that never change.

    `values` and `guesses` follow from the opinions. A new event changes them for its own images only.
    """

    names: dict[int, str] = field(default_factory=dict)  # by number, in the order in which people named them
    merged: dict[int, int] = field(default_factory=dict)
    opinions: dict[str, tuple[Opinion, ...]] = field(default_factory=dict)  # by image; the newest is the last
    skipped: dict[str, int] = field(default_factory=dict)  # image -> event
    people: dict[str, str] = field(default_factory=dict)  # browser -> name
    values: dict[str, int] = field(default_factory=dict)  # image -> class, STRANGER or CONFLICT
    guesses: dict[str, int] = field(default_factory=dict)  # image of the audit -> the model's class when it was asked

    def resolve(self, number: int) -> int:
        """The class that this number stands for now."""
        while number in self.merged:
            number = self.merged[number]
        return number

    @cached_property
    def counts(self) -> Counter[int]:
        """The number of images with each value."""
        return Counter(self.values.values())

    @property
    def labelled(self) -> int:
        """The number of images that have a class."""
        return len(self.values) - self.counts[STRANGER] - self.counts[CONFLICT]

    @cached_property
    def classes(self) -> dict[str, int]:
        """The images that have a class, the latest label last: the labels to train on and to write to labels.csv."""
        order = sorted(self.values, key=lambda image: self.opinions[image][-1].event)
        return {image: self.values[image] for image in order if self.values[image] not in (STRANGER, CONFLICT)}

    def having(self, value: int) -> list[str]:
        """The images with this value."""
        return [image for image, each in self.values.items() if each == value]

    @property
    def audit(self) -> dict[str, bool]:
        """Whether the model was right about each image of the audit that has a class, the oldest answer first."""
        known = [image for image in self.guesses if self.values[image] not in (STRANGER, CONFLICT)]
        known.sort(key=lambda image: self.opinions[image][-1].event)
        return {image: self.resolve(self.guesses[image]) == self.values[image] for image in known}

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
        copy = self._copy()
        _apply(copy, event)
        if isinstance(event, Merge):
            _settle(copy, copy.opinions)
        elif isinstance(event, ImageEvent):
            _settle(copy, event.images)
        return copy

    def without(self, event: Event, remaining: Sequence[Event]) -> "Labels":
        """The labels if an event had never happened. `remaining` are all others that happened, in their order."""
        copy = self._copy()
        if isinstance(event, ImageEvent):
            images = set(event.images)
            about = [one for one in remaining if isinstance(one, ImageEvent) and not images.isdisjoint(one.images)]
            before = replay(about)
            for image in images:
                _take(copy.opinions, before.opinions, image)
                _take(copy.skipped, before.skipped, image)
            _settle(copy, images)
        else:
            before = replay([one for one in remaining if isinstance(one, ClassEvent)])
            copy = Labels(before.names, before.merged, copy.opinions, copy.skipped, copy.people)
            _settle(copy, copy.opinions)
        return copy

    def _copy(self) -> "Labels":
        return Labels(**{each.name: dict(getattr(self, each.name)) for each in fields(self)})


def replay(events: Sequence[Event]) -> Labels:
    """The labels after all events. An event that was undone never happened."""
    undone = {event.of for event in events if isinstance(event, Undo)}
    labels = Labels()
    for event in events:
        if event.id not in undone:
            _apply(labels, event)
    _settle(labels, labels.opinions)
    return labels


def _apply(labels: Labels, event: Event) -> None:
    """Everything but values and guesses, which `_settle` works out for the images that the event is about."""
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
                labels.opinions.pop(image, None)
                labels.skipped.pop(image, None)
        case Skip(images=images):
            labels.skipped.update({image: event.id for image in images if image not in labels.opinions})
        case Name(who=who, name=name):
            labels.people[who] = name


def _add(labels: Labels, event: Label) -> None:
    new = Opinion(event.number, event.who, event.id, event.guess, event.how == "review")
    for image in event.images:
        others = () if event.replaces else tuple(one for one in labels.opinions.get(image, ()) if one.who != event.who)
        labels.opinions[image] = (*others, new)
        labels.skipped.pop(image, None)


def _settle(labels: Labels, images: Iterable[str]) -> None:
    """Work out the values of these images, and what was guessed for them."""
    for image in images:
        opinions = labels.opinions.get(image, ())
        numbers = {labels.resolve(one.number) for one in opinions}
        guess = next((one.guess for one in opinions if one.guess is not None), None)
        _put(labels.values, image, None if not numbers else numbers.pop() if len(numbers) == 1 else CONFLICT)
        _put(labels.guesses, image, guess)


def _put(found: dict[str, int], image: str, value: int | None) -> None:
    if value is None:
        found.pop(image, None)
    else:
        found[image] = value


def _take(into: dict[str, Any], other: dict[str, Any], image: str) -> None:
    into.pop(image, None)
    if image in other:
        into[image] = other[image]


def check_consistent(labels: Labels) -> None:
    """Refuse labels that an undo has left without their class, or classes that would share a name."""
    if not _used(labels) <= labels.names.keys() | {STRANGER}:
        raise Refused("this cannot be undone: somebody else has used this class since")
    if len(set(labels.names.values())) < len(labels.names):
        raise Refused("this cannot be undone: another class has this name now")


def _used(labels: Labels) -> set[int]:
    numbers = {one.number for opinions in labels.opinions.values() for one in opinions}
    return {labels.resolve(number) for number in numbers} | {labels.resolve(number) for number in labels.merged}
