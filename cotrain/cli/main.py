"""The command line: one file per command in this folder; this file holds what they share."""

import re
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NoReturn

import torch
from cyclopts import App, CycloptsError, Parameter
from rich.table import Table

from cotrain.cli.compare import compare_command
from cotrain.cli.data import data_app
from cotrain.cli.describe import describe_command, settings_table
from cotrain.cli.evaluate import evaluate_command
from cotrain.cli.export import export_command
from cotrain.cli.fit import fit_command
from cotrain.cli.label import label_command
from cotrain.cli.predict import predict_command
from cotrain.cli.report import report_command
from cotrain.cli.streams import prepare_streams
from cotrain.cli.study import studies_table, study_command
from cotrain.config import settings_of
from cotrain.config.recipes import recipe_named
from cotrain.fitting.summary import versions
from cotrain.progress import terminal
from cotrain.runs.interrupt import Interrupted, ignore_stopping, stop_like_ctrl_c
from cotrain.storage.reading import reason
from cotrain.training.distributed import RankLost, ReportedByRankZero, own_rank
from cotrain.types import UserError

app = App(
    name="cotrain",
    help="Train an image classifier from a few labelled and many unlabelled images with Multi-Head Co-Training.",
    version=versions()["cotrain"],
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(json_dict=False, json_list=False),  # a file may be called [1].png
)
console = terminal()
ALL_RANKS = 2**31
INTERRUPTED = 130  # as shells have it for SIGINT
app.command(fit_command, name="fit")
app.command(label_command, name="label")
app.command(evaluate_command, name="evaluate")
app.command(predict_command, name="predict")
app.command(export_command, name="export")
app.command(describe_command, name="describe")
app.command(data_app)
app.command(compare_command, name="compare")
app.command(report_command, name="report")
app.command(study_command, name="study")


def all_settings() -> Table:
    usual = [each for each in settings_of(recipe_named("small32")) if not each.advanced]
    title = "Settings, with the values of small32 (cotrain describe RECIPE shows other values and advanced settings)"
    return settings_table(usual, title)


BELOW_HELP: dict[str, Callable[[], Table]] = {"fit": all_settings, "study": studies_table}  # by command


def _as_set(tokens: Sequence[str]) -> list[str]:
    """Turn `--optim.weight_decay 0.1` into `--set optim.weight_decay=0.1`. It may have = or, for each _, a hyphen."""
    words, result = iter(tokens), []
    for word in words:
        if match := re.fullmatch(r"--([a-z_]+\.[a-z_-]+)(=.*)?", word):
            value = match[2] or f"={next(words, '')}"
            result += ["--set", match[1].replace("-", "_") + value]
        else:
            result.append(word)
    return result


def _check_empty(tokens: Sequence[str]) -> None:
    """Refuse empty words, such as "$UNSET" in a script: an empty path is the current folder. Settings may be empty."""
    for before, word in pairwise(["", *tokens]):
        option = re.fullmatch(r"(--[a-z][a-z_-]*)=", word)
        if option is not None or word == "":
            name = option[1] if option else before if before.startswith("--") else "an argument"
            if "." not in name and name != "--set":
                raise UserError(f"{name} is empty; write a value, or leave it out")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. A user error is one line and exit code 2; an interruption is exit code 130."""
    if arguments is None:
        stop_like_ctrl_c()
    try:
        _main(arguments)
    except KeyboardInterrupt:  # one more, while the first was being reported
        sys.exit(INTERRUPTED)


def _main(arguments: Sequence[str] | None) -> None:
    prepare_streams()
    given = sys.argv[1:] if arguments is None else arguments
    tokens = _as_set(given)
    try:
        _check_empty(given)
        app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        if {"--help", "-h"} & set(tokens) and tokens[0] in BELOW_HELP:
            console.print(BELOW_HELP[tokens[0]]())
    except (ReportedByRankZero, CycloptsError) as error:
        _end(str(error), 2)
    except UserError as error:
        _end(str(error), 2, printing=ALL_RANKS)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _end(f"{place}{reason(error)}", 2, printing=ALL_RANKS)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        _end(
            f"not enough memory ({reason(error)}); use smaller batches or a smaller network",
            2,
            printing=ALL_RANKS,
        )
    except RankLost as lost:
        _end(str(lost), 1, printing=2)
    except (Interrupted, KeyboardInterrupt) as stop:
        if arguments is None:  # the process ends now; more signals would only spoil its exit code
            ignore_stopping()
        _end(str(stop) or "interrupted", INTERRUPTED)


def _end(line: str, code: int, printing: int = 1) -> NoReturn:
    """Print the line and exit. Of several processes only the first `printing` print: two, if one may be gone."""
    if own_rank() < printing:
        rank = f"rank {own_rank()}: " if printing == ALL_RANKS and own_rank() else ""
        print(f"cotrain: {rank}{' '.join(line.split())}", file=sys.stderr)
    sys.exit(code)
