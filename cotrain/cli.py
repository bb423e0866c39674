"""The command line: fit, evaluate, predict and describe; the other commands have files of their own."""

import io
import re
import sys
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import torch
from cyclopts import App, CycloptsError, Parameter, validators
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from cotrain.cli_bench import bench_command
from cotrain.cli_compare import compare_command
from cotrain.cli_data import data_app
from cotrain.cli_report import report_command
from cotrain.cli_study import study_command
from cotrain.config import Config, plain, settings_of
from cotrain.data import is_openable, open_data
from cotrain.data.files import find_images
from cotrain.data.split import read_split
from cotrain.device import Precision
from cotrain.fitting import fit, versions
from cotrain.interrupt import Interrupted
from cotrain.judging import evaluate
from cotrain.options import Changes, Flag, Options, parse_changes
from cotrain.predict import as_csv, deferred, how_calibrated, load, promised_threshold, write_csv
from cotrain.progress import clock
from cotrain.ranks import LostRank, SaidByFirst, own_rank
from cotrain.recipes import RECIPES, as_released, recipe_named
from cotrain.run import Run
from cotrain.train import build_network
from cotrain.types import UserError
from cotrain.verdict import Verdict

app = App(
    name="cotrain",
    help="Train an image classifier from a few labelled and many unlabelled images by Multi-Head Co-Training.",
    version=versions()["cotrain"],
    suppress_keyboard_interrupt=False,
)
console = Console()
EVERY = 2**31  # processes
Positive = Annotated[int | None, Parameter(validator=validators.Number(gte=1))]
Share = Annotated[float | None, Parameter(validator=validators.Number(gte=0, lte=1))]
app.command(data_app)
app.command(bench_command, name="bench")
app.command(compare_command, name="compare")
app.command(report_command, name="report")
app.command(study_command, name="study")


@app.command(name="fit")
def fit_command(
    data: str,
    *,
    out: Path | None = None,
    resume: Annotated[bool, Flag] = False,
    no_baseline: Annotated[bool, Flag] = False,
    method: str | None = None,
    steps: int | None = None,
    precision: Precision | None = None,
    compile: Annotated[bool, Flag] = False,
    track: Literal["none", "tensorboard"] | None = None,
    split: Path | None = None,
    options: Options | None = None,
) -> None:
    """Train on DATA and keep everything in a run folder.

    Parameters
    ----------
    data
        A folder of images, a .npz file, digits, or the name or files of one of the paper's data sets.
    out
        The run folder; by default a new one in runs/.
    resume
        Go on with the run in --out from its newest checkpoint.
    no_baseline
        Leave out the labelled-only network that the result is compared with.
    method
        The learning method.
    steps
        optim.steps: how long to train.
    precision
        run.precision: type of the convolutions.
    compile
        run.compile: compile the network first.
    track
        run.track: where log and figures go too; tensorboard needs the extra of that name.
    split
        A file of `cotrain data split`, instead of a split drawn from the settings and the seed.
    """
    options = options or Options()
    short = {
        "method": method,
        "optim.steps": steps,
        "run.baseline": False if no_baseline else None,
        "run.precision": precision,
        "run.compile": compile or None,
        "run.track": track,
    }
    fitted = fit(
        data,
        out=out,
        config=options.config,
        settings={**options.settings, **{key: value for key, value in short.items() if value is not None}},
        preset=options.preset,
        split=read_split(split) if split is not None else None,
        resume=resume,
        memory=options.memory,
        console=console,
    )
    if own_rank() == 0:
        console.print(result_table(Run.open(fitted.folder), fitted.result))


@app.command(name="evaluate")
def evaluate_command(
    run: Path, *, data: str | None = None, labels: Path | None = None, memory: float | None = None
) -> None:
    """Errors of a finished run on its test images, computed anew.

    Parameters
    ----------
    run
        A run folder.
    data
        Where the data lie now, if they moved; other content than the run was made from is refused.
    labels
        Where the table of labels lies now, if it moved.
    memory
        As for fit.
    """
    opened = Run.open(run)
    settings = opened.config.data
    if labels is not None:
        settings = settings.model_copy(update={"labels_file": str(labels)})
    source = data or opened.split.source
    if source is None:
        raise UserError(f"{run} was made from arrays; say where they are with --data, or use cotrain.judging.evaluate")
    if data is None and not is_openable(source):
        raise UserError(f"the data of {run} are not at {source}; say where they are with --data")
    dataset = open_data(source, settings, memory=memory, console=console)
    console.print(result_table(opened, evaluate(opened, dataset)))


@app.command(name="predict")
def predict_command(
    run: Path,
    /,
    *images: Path,
    out: Path | None = None,
    defer_below: Share = None,
    target_error: Share = None,
) -> None:
    """Predict image files: path, class, probability, how many heads agree, and an error where a file is unreadable.

    With one of the last two options there is a column `defer`, and the images that a person should look at come first.

    Parameters
    ----------
    run
        A run folder.
    images
        Image files and folders of them.
    out
        A new CSV file; by default the table is printed.
    defer_below
        Pass images on to a person whose probability is below this.
    target_error
        Pass on as many as it takes for the error of the others to be at most this, if they are like the run's valid
        images, which tell it with 95 % confidence.
    """
    if defer_below is not None and target_error is not None:
        raise UserError("--defer-below and --target-error both say what to pass on; choose one")
    if not images:
        raise UserError("predict needs image files or folders after the run folder")
    if out is not None and out.exists():
        raise UserError(f"{out} exists already; choose another --out")
    model = load(run)
    if target_error is not None:
        promised = promised_threshold(run, model, target_error)
        defer_below = promised.probability
        shown = f"{promised.wrong} of {promised.answered} valid images that are not were wrong"
        most = rounded_up(100 * promised.bound)
        bound = f"so the error on images like the valid ones is at most {most} % (95 % confidence)"
        print(f"below {promised.probability:.9g} images are passed on: {shown}, {bound}", file=sys.stderr)
    paths = find_images(images)
    aside = Console(stderr=True)
    rows = list(
        track(
            model.predict_files(paths),
            "predicting",
            len(paths),
            console=aside,
            disable=not aside.is_terminal,
            transient=True,
        )
    )
    print(how_calibrated(run), file=sys.stderr)
    if defer_below is not None:
        rows = deferred(rows, defer_below)
    if out is None:
        sys.stdout.write(as_csv(rows))
        return
    write_csv(out, rows)
    unreadable = sum(bool(row["error"]) for row in rows)
    to_look_at = f", {sum(row['defer'] == 'yes' for row in rows)} for a person" if defer_below is not None else ""
    print(f"{len(rows)} images, {unreadable} unreadable{to_look_at} -> {out}")


def rounded_up(bound: float) -> str:
    """With two digits: a bound holds with more, never with less."""
    return f"{float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(str(bound))):g}"


@app.command(name="describe")
def describe_command(
    recipe: str | None = None,
    *,
    preset: Literal["paper", "code"] = "paper",
    classes: Positive = None,
    channels: Positive = None,
    changes: Changes = (),
) -> None:
    """The network, the images of a step, and every setting of a recipe. Without a recipe: what recipes there are.

    Parameters
    ----------
    recipe
        A recipe's name.
    preset
        The paper's equations, or the released code's readings of them.
    classes
        Classes to count parameters for; by default those of the recipe's data set.
    channels
        Image channels; by default those of the recipe's data set.
    changes
        KEY=VALUE, as for fit.
    """
    if recipe is None:
        table = Table("recipe", "command, cost and expected result", title="Recipes", title_justify="left")
        for name, known in RECIPES.items():
            table.add_row(name, known.summary)
        console.print(table)
        return
    base = recipe_named(recipe)
    config = (as_released(base) if preset == "code" else base).changed(parse_changes(changes))
    console.print(network_table(config, classes or RECIPES[recipe].classes, channels or RECIPES[recipe].channels))
    console.print(step_table(config))
    console.print(settings_table(config, f"Settings of {recipe}"))


def result_table(run: Run, result: Mapping[str, Any]) -> Table:
    folder, method = run.folder, run.config.method

    def percent(value: float | None) -> str:
        return "unknown: there is no test set" if value is None else f"{value:.2f} %"

    table = Table("", "test error", title="Result", title_justify="left")
    if method.views.any_unlabelled and "labelled_only_error" in result and result["test_images"]:
        baseline, seconds = result["labelled_only_error"], result.get("labelled_only_seconds")
        time = f", the same {result['steps']:,} steps in {clock(seconds)}" if seconds is not None else ""
        table.add_row("labelled images only", "not trained" if baseline is None else f"{percent(baseline)}{time}")
    for number, error in enumerate((result["head_errors"] or []) if method.heads > 1 else [], start=1):
        table.add_row(f"head {number}", percent(error))
    both = "all heads together" if method.heads > 1 else "labelled and unlabelled images"
    used = both if method.views.any_unlabelled else "labelled images only"
    table.add_row(used, percent(result["test_error"]), style="bold")
    table.add_section()
    if result["test_interval"] is not None:
        low, high = result["test_interval"]
        table.add_row("95 % interval", f"{low:.1f} to {high:.1f} %, from {result['test_images']:,} test images")
    if found := result.get("verdict"):
        points = f"{found['difference']:+.1f} points ({found['low']:+.1f} to {found['high']:+.1f})"
        few = "; too few images differ" if Verdict(**found).few else ""
        table.add_row("unlabelled images", f"{found['word']}: {points}{few}")
    if method.heads > 1:
        table.add_row("heads agree on", f"{100 * result['agreement']:.1f} % of unlabelled images")
    if "seconds" in result:
        table.add_row("labels, seed", f"{result['labels']}, {result['seed']}")
        table.add_row("time", f"{clock(result['seconds'])} for {result['steps']:,} steps")
    for warning in result.get("warnings", []):
        table.add_row("note", warning)
    table.add_row("run folder", Text(str(folder)))
    if (folder / "report.html").exists():
        table.add_row("page", Text(str(folder / "report.html")))
    return table


def network_table(config: Config, classes: int, channels: int) -> Table:
    net = build_network(config, classes, channels)
    trunk, heads = _parameters(net.trunk), [_parameters(head) for head in net.heads]
    table = Table(f"{config.model.backbone}, {classes} classes, {channels} channels", "parameters")
    table.columns[1].justify = "right"
    table.add_row("shared trunk", f"{trunk:,}")
    for number, head in enumerate(heads, start=1):
        table.add_row(f"head {number}", f"{head:,}")
    table.add_row("total", f"{trunk + sum(heads):,}", style="bold")
    return table


def _parameters(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def step_table(config: Config) -> Table:
    views, optim = config.method.views, config.optim
    rows = {
        "labelled, weak view": optim.labelled,
        "labelled, strong views": views.labelled_strong * optim.labelled,
        "labelled, CTAugment's probe": optim.labelled if views.ctaugment != "none" else 0,
        "unlabelled, weak views": views.weak * config.unlabelled,
        "unlabelled, strong views": views.strong * config.unlabelled,
    }
    table = Table("images a step", "number")
    table.columns[1].justify = "right"
    for name, number in rows.items():
        if number:
            table.add_row(name, f"{number:,}")
    table.add_row("total", f"{sum(rows.values()):,}", style="bold")
    return table


def settings_table(config: Config, title: str) -> Table:
    table = Table("setting", "value", "meaning", title=title, title_justify="left")
    table.columns[0].no_wrap = True
    for key, value, choices, meaning in settings_of(config):
        table.add_row(f"--{key}", plain(value), Text(f"{meaning} [{choices}]"))
    return table


def _as_set(tokens: Sequence[str]) -> list[str]:
    """`--optim.weight_decay 0.1`, with = or with - for _, is short for `--set optim.weight_decay=0.1`."""
    words, result = iter(tokens), []
    for word in words:
        if match := re.fullmatch(r"--([a-z_]+\.[a-z_-]+)(=.*)?", word):
            value = match[2] or f"={next(words, '')}"
            result += ["--set", match[1].replace("-", "_") + value]
        else:
            result.append(word)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. An error of the user's is one line and exit code 2, an interruption is exit code 130."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")  # file names are bytes, and are shown as they are
    tokens = _as_set(sys.argv[1:] if arguments is None else arguments)
    try:
        app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
        if tokens[:1] == ["fit"] and {"--help", "-h"} & set(tokens):
            console.print(
                settings_table(
                    recipe_named("small32"), "All settings, with small32's values; cotrain describe RECIPE: others"
                )
            )
    except (SaidByFirst, CycloptsError) as error:
        _end(str(error), 2)
    except (UserError, OSError) as error:
        _end(str(error), 2, speaking=EVERY)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        _end(
            f"not enough memory ({str(error).splitlines()[0]}); use smaller batches or a smaller network",
            2,
            speaking=EVERY,
        )
    except LostRank as lost:
        _end(str(lost), 1, speaking=2)
    except (Interrupted, KeyboardInterrupt) as stop:
        _end(str(stop) or "interrupted", 130)


def _end(line: str, code: int, speaking: int = 1) -> NoReturn:
    """Of several processes that end alike the first `speaking` say so: two, where one may be gone already."""
    if own_rank() < speaking:
        who = f"rank {own_rank()}: " if speaking == EVERY and own_rank() else ""
        print(f"cotrain: {who}{' '.join(line.split())}", file=sys.stderr)
    sys.exit(code)
