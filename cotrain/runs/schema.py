"""What the files of a run must hold to be used: they may be damaged, edited, or a stranger's."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from cotrain.data.settings import LARGEST_SIDE

Number = Annotated[float, Field(allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=100)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Divisor = Annotated[float, Field(ge=1e-3, le=1e3)]  # what is fitted is from 1/20 to 20
MOST_CHANNELS = 1024  # of an image
Side = Annotated[int, Field(ge=1, le=1 << 14)]

COMMAND = TypeAdapter(str)


class File(BaseModel):
    """Types are not converted, and other keys are left alone: later versions may add some."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")


class Package(File):
    name: str
    package: str
    version: str


PACKAGES = TypeAdapter(dict[str, Package])


class Header(File):
    """The JSON in the header of a safetensors file."""

    digest: str
    facts: dict[str, Any]


class ColumnFacts(File):
    name: str
    categories: list[str] | None  # None: numbers


class ModelFacts(File):
    """What is needed besides its weights to use a model on new images, or on new rows of a table."""

    config: dict[str, Any]
    classes: list[str] = Field(min_length=1)
    size: Annotated[list[Side], Field(min_length=2, max_length=2)]  # height, width
    channels: int = Field(ge=1)
    mean: list[Number] = []
    std: list[Annotated[Number, Field(gt=0)]] = []
    trunk: str | None = None  # identifies the weights of the frozen trunk; older runs do not know theirs
    columns: list[ColumnFacts] = []  # of a table

    @model_validator(mode="after")
    def _per_channel(self) -> "ModelFacts":
        expected, what = (len(self.columns), "columns") if self.columns else (self.channels, "channels")
        if not len(self.mean) == len(self.std) or len(self.mean) not in (0, expected):
            raise ValueError(f"mean and std must have one number for each of the {expected} {what}")
        if not self.columns and self.channels > MOST_CHANNELS:
            raise ValueError(f"images have at most {MOST_CHANNELS} channels, not {self.channels}")
        if self.size[0] * self.size[1] > LARGEST_SIDE**2:
            height, width = self.size
            raise ValueError(f"its images have {height}x{width} pixels; at most {LARGEST_SIDE}x{LARGEST_SIDE} fit")
        return self


class CheckpointFacts(File):
    step: Count
    seconds: Annotated[Number, Field(ge=0)]
    split: str
    config: dict[str, Any]
    scaler: dict[str, Number]
    threads: Count
    processes: Count
