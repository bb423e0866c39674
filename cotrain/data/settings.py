"""Settings of the data: how images are read and how they are split."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from cotrain.types import IntOrNone, Settings, StrOrNone, none_if_written

LARGEST_SIDE = 2048  # pixels of an image as the network gets it


def _size(value: Any) -> Any:
    """Accept 48x64, and 48 for 48x48."""
    value = none_if_written(value)
    if value is None:
        return None
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", str(value).strip().lower())
    if not match or not all(4 <= int(side) <= LARGEST_SIDE for side in match.groups() if side):
        raise ValueError(
            f"must be one side, such as 64, or HEIGHTxWIDTH, such as 48x64, from 4 to {LARGEST_SIDE} pixels"
        )
    return f"{int(match[1])}x{int(match[2] or match[1])}"


Size = Annotated[str | None, BeforeValidator(_size)]


OF_SPLITS = {"labels", "balance", "include_labelled", "test_share", "valid_share"}


class DataSettings(Settings):
    advanced = frozenset({"include_labelled", "largest"})

    labels: IntOrNone = Field(
        None, ge=1, description="number of training images that keep their label; none: all labelled ones"
    )
    balance: Literal["equal", "proportional"] = Field(
        "equal", description="labelled images per class: the same number for each, or in proportion to its size"
    )
    include_labelled: bool = Field(
        True,
        description="the unlabelled images include the labelled ones, as in the released code",
    )
    test_share: float = Field(
        0.2, ge=0, lt=1, description="if there are no test images, fraction of the labelled ones set aside for testing"
    )
    valid_share: float = Field(
        0.0, ge=0, lt=1, description="if there are no validation images, fraction of the labelled ones set aside"
    )
    size: Size = Field(None, description="resize images to this side or HEIGHTxWIDTH; none: chosen from the images")
    largest: int = Field(
        224,
        ge=4,
        le=LARGEST_SIDE,
        description="side of larger photographs if data.size is none; grey images: at most 64",
    )
    labels_file: StrOrNone = Field(
        None, description="label table (paths and labels) for a folder of images; none: its labels.csv, if any"
    )
    path_column: StrOrNone = Field(
        None, description="the label table's column of paths; none: guessed from common names"
    )
    label_column: StrOrNone = Field(
        None, description="the label table's column of labels; none: guessed from common names"
    )
    target: StrOrNone = Field(
        None, description="a table's column of labels (in .npz, the key y); none: guessed from common names"
    )
    ignore: StrOrNone = Field(None, description="columns of a table to leave out, separated by commas")
    test_file: StrOrNone = Field(None, description="a table of test rows, with the same columns and labels")
    follow_links: bool = Field(
        False, description="also use images and tables that are links to places outside the folder of images"
    )
    skip_unreadable: bool = Field(
        False,
        description="continue even if more than a tenth of the images or of the table's files are unreadable",
    )

    @property
    def for_reading(self) -> "DataSettings":
        """The settings that affect the images; runs may split the same images in different ways."""
        return DataSettings(**self.model_dump(exclude=OF_SPLITS))


class BankSettings(Settings):
    """The fixed views of each image whose features a frozen trunk computes once."""

    weak: int = Field(2, ge=1, description="weak views of each training image, for a frozen trunk")
    strong: int = Field(4, ge=1, description="strong views of each training image, for a frozen trunk")
