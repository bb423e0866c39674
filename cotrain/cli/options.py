"""Options shared by several commands."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from cotrain.config import Config, data_settings
from cotrain.config.recipes import recipe_named
from cotrain.data import DataSettings
from cotrain.types import UserError

Flag = Parameter(negative=())
Changes = Annotated[tuple[str, ...], Parameter(name="--set", negative=(), consume_multiple=False)]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """What to train on, and with which settings.

    Parameters
    ----------
    labels
        A table of paths and labels for a folder of images (data.labels_file; by default its labels.csv). Or a number:
        use the labels of only that many training images (data.labels).
    target
        data.target: the column of labels of a table; an empty cell or -1 is unlabelled.
    test
        data.test_file: a table of test rows; by default the error is estimated by cross-validation.
    ignore
        data.ignore: columns of a table to leave out, separated by commas.
    size
        data.size: resize images to a square of this side, or to HEIGHTxWIDTH.
    follow_links
        data.follow_links: also use images and tables that are links to places outside the folder of images.
    skip_unreadable
        data.skip_unreadable: continue even if more than a tenth of the images are unreadable.
    memory
        GB of memory for decoded images; a folder that needs more is read from disk during training. By default a
        quarter of the machine's memory.
    views
        bank.weak and bank.strong as WEAK+STRONG, such as 2+4: views of each image whose features a frozen trunk
        computes. More views take more time and disk space.
    seed
        run.seed: the seed of everything random.
    recipe
        The settings to start from (`cotrain describe` lists recipes); by default digits for digits, features
        for tables, photos for colour images and for grey ones of 48 pixels or more, otherwise routed32 for fit and
        small32 for the rest.
    preset
        The paper's equations, or the released code's reading of them.
    changes
        KEY=VALUE: change any setting (`cotrain fit --help` lists them); `--KEY VALUE` does the same.
    """

    labels: str | None = None
    target: str | None = None
    test: str | None = None
    ignore: str | None = None
    size: str | None = None
    follow_links: Annotated[bool, Flag] = False
    skip_unreadable: Annotated[bool, Flag] = False
    memory: float | None = None
    views: str | None = None
    seed: int | None = None
    recipe: str | None = None
    preset: Literal["paper", "code"] = "paper"
    changes: Changes = ()

    @property
    def config(self) -> Config | None:
        return None if self.recipe is None else recipe_named(self.recipe)

    @property
    def settings(self) -> dict[str, Any]:
        """The requested changes, by dotted key."""
        counted = self.labels is not None and self.labels.isdigit()
        short = {
            "data.labels": self.labels if counted else None,
            "data.labels_file": None if counted or self.labels is None else absolute_if_file(self.labels),
            "data.target": self.target,
            "data.test_file": None if self.test is None else absolute_if_file(self.test),
            "data.ignore": self.ignore,
            "data.size": self.size,
            "data.follow_links": self.follow_links or None,
            "data.skip_unreadable": self.skip_unreadable or None,
            "run.seed": self.seed,
            **self._views,
        }
        return {**parse_changes(self.changes), **{key: value for key, value in short.items() if value is not None}}

    @property
    def _views(self) -> dict[str, str]:
        if self.views is None:
            return {}
        weak, plus, strong = self.views.partition("+")
        if not (plus and weak.isdigit() and strong.isdigit()):
            raise UserError(f"--views {self.views}: write WEAK+STRONG, for example 2+4")
        return {"bank.weak": weak, "bank.strong": strong}

    @property
    def data_settings(self) -> DataSettings:
        return data_settings(self.config, self.settings)


def absolute_if_file(table: str) -> str:
    """So that the run can be evaluated from another folder. A table that is not here may be in the image folder."""
    return str(Path(table).resolve()) if Path(table).exists() else table


def parse_changes(changes: Sequence[str]) -> dict[str, str]:
    parsed = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise UserError(f"--set {change}: write KEY=VALUE, for example --set optim.lr=0.1")
        parsed[key.strip()] = value.strip()
    return parsed
