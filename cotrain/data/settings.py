"""What a run settles about its data: how they are read, and how they are split."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from cotrain.types import IntOrNone, Settings, StrOrNone, none_if_written


def _size(value: Any) -> Any:
    """48x64 and 48 (for 48x48), as people write it."""
    value = none_if_written(value)
    if value is None:
        return None
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", str(value).strip().lower())
    if not match or not all(4 <= int(side) <= 2048 for side in match.groups() if side):
        raise ValueError("should be one side, such as 64, or HEIGHTxWIDTH, such as 48x64, of 4 to 2048 pixels")
    return f"{int(match[1])}x{int(match[2] or match[1])}"


Size = Annotated[str | None, BeforeValidator(_size)]


OF_SPLITS = {"labels", "balance", "include_labelled", "test_share", "valid_share"}


class DataSettings(Settings):
    labels: IntOrNone = Field(
        None, ge=1, description="how many training images keep their label; none: all that have one"
    )
    balance: Literal["equal", "proportional"] = Field(
        "equal", description="labelled images per class: equally many, or in proportion to the class"
    )
    include_labelled: bool = Field(
        True, description="the unlabelled images include the labelled ones, as in the released code"
    )
    test_share: float = Field(
        0.2, ge=0, lt=1, description="where no test images are given: share of the labelled ones set aside to test on"
    )
    valid_share: float = Field(
        0.0, ge=0, lt=1, description="where no valid images are given: share of the labelled ones set aside"
    )
    size: Size = Field(None, description="images are resized to this side or HEIGHTxWIDTH; none: chosen from them")
    labels_file: StrOrNone = Field(
        None, description="table of path and label for a folder of images; none: its labels.csv if there is one"
    )
    path_column: StrOrNone = Field(None, description="the table's column of paths; none: guessed from the usual names")
    label_column: StrOrNone = Field(
        None, description="the table's column of labels; none: guessed from the usual names"
    )
    skip_unreadable: bool = Field(
        False, description="go on where more than a tenth of the images, or files of the table, are not readable"
    )

    @property
    def for_reading(self) -> "DataSettings":
        """Those that the images depend on: runs may split the same ones in different ways."""
        return DataSettings(**self.model_dump(exclude=OF_SPLITS))
