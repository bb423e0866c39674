"""What people do while labelling, as events. The journal keeps them; `labels.replay` turns them into labels."""

import unicodedata
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from cotrain.data.dataset import LONGEST_NAME as LONGEST_CLASS
from cotrain.data.label_table import MINUS_ONE
from cotrain.storage.cells import NO_LABEL
from cotrain.types import UserError

STRANGER = 0  # the value of an image that belongs to no class; classes are numbered from 1
CONFLICT = -1  # the value of an image about which people disagree
LONGEST_NAME = 100  # of a class that a person names here; those of folders and tables may be longer
MOST_CLASSES = 1000
MOST_NUMBER = 2**53 - 1  # of a class; integers up to here are exact in JavaScript

How = Literal["key", "click", "grid", "audit", "review", "import", "table"]


class Refused(UserError):
    """A request that makes sense but cannot be carried out as things are. Nothing was changed."""


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    id: int
    time: str  # UTC, ISO 8601
    who: str  # the browser, or the file that labels were read from
    person: str | None = None  # the name that the person gave, if any
    how: How


ClassName = Annotated[str, Field(max_length=LONGEST_CLASS)]


class NewClass(_Event):
    kind: Literal["class"] = "class"
    number: int = Field(ge=1, alias="class")
    name: ClassName


class Rename(_Event):
    kind: Literal["rename"] = "rename"
    number: int = Field(ge=1, alias="class")
    name: ClassName


class Merge(_Event):
    """All images of one class, now and later, belong to another one."""

    kind: Literal["merge"] = "merge"
    number: int = Field(ge=1, alias="class")
    into: int = Field(ge=1)


class Label(_Event):
    """These images have this class, or with STRANGER none of the classes.

    A label replaces those of other people only if its author saw them; otherwise both are kept.
    """

    kind: Literal["label"] = "label"
    number: int = Field(ge=STRANGER, alias="class")
    name: str  # of the class at that time, for people who read the journal
    images: tuple[str, ...]
    replaces: bool = False
    guess: int | None = None  # the model's class for an image of the audit


class Clear(_Event):
    """These images have no label any more."""

    kind: Literal["clear"] = "clear"
    images: tuple[str, ...]


class Skip(_Event):
    kind: Literal["skip"] = "skip"
    images: tuple[str, ...]


class Undo(_Event):
    kind: Literal["undo"] = "undo"
    of: int


class Written(_Event):
    """labels.csv holds all labels up to here; `digest` is that of the file."""

    kind: Literal["written"] = "written"
    digest: str


class Name(_Event):
    """The person at this browser has a name; an empty one takes it back."""

    kind: Literal["name"] = "name"
    name: str


class Finish(_Event):
    """A run folder is being written; `key` stands for the labels, images and settings that it is made from."""

    kind: Literal["finish"] = "finish"
    out: str
    key: str


ClassEvent = NewClass | Rename | Merge
ImageEvent = Label | Clear | Skip
Event = NewClass | Rename | Merge | Label | Clear | Skip | Undo | Written | Name | Finish
EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


def class_name(text: str) -> str:
    """A class name as it is kept: one that a label table holds and gives back unchanged."""
    name = one_line(text)
    if not name:
        raise Refused("a class needs a name")
    if name in NO_LABEL or name == MINUS_ONE:
        raise Refused(f"{name} means unlabelled in a label table; choose another name")
    return name


def one_line(text: str) -> str:
    """A name as it is kept, with single spaces."""
    name = " ".join(unicodedata.normalize("NFC", text).split())
    if len(name) > LONGEST_NAME:
        raise Refused(f"a name has at most {LONGEST_NAME} characters")
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name):
        raise Refused("a name cannot contain control characters")
    return name
