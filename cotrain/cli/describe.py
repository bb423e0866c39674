"""`cotrain describe`: the list of recipes, or the network, images per step and settings of one recipe."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from cyclopts import Parameter, validators
from rich.table import Table
from rich.text import Text

from cotrain.cli.options import Changes, parse_changes
from cotrain.config import Config, Setting, plain, settings_of
from cotrain.config.recipes import RECIPES, recipe_named, with_preset
from cotrain.networks import build_network
from cotrain.progress import terminal

Positive = Annotated[int | None, Parameter(validator=validators.Number(gte=1))]
console = terminal()


def describe_command(
    recipe: str | None = None,
    *,
    preset: Literal["paper", "code"] = "paper",
    classes: Positive = None,
    channels: Positive = None,
    changes: Changes = (),
) -> None:
    """Show the network, the images per step and every setting of a recipe. Without a recipe, list the recipes.

    Parameters
    ----------
    recipe
        A recipe's name.
    preset
        The paper's equations, or the released code's reading of them.
    classes
        Number of classes, for counting parameters; by default those of the recipe's dataset.
    channels
        Number of image channels; by default those of the recipe's dataset.
    changes
        KEY=VALUE, as in fit.
    """
    if recipe is None:
        table = Table("recipe", "command, cost and expected result", title="Recipes", title_justify="left")
        for name, known in RECIPES.items():
            table.add_row(name, known.summary)
        console.print(table)
        return
    base = recipe_named(recipe)
    config = with_preset(base, preset).changed(parse_changes(changes))
    console.print(network_table(config, classes or RECIPES[recipe].classes, channels or RECIPES[recipe].channels))
    console.print(step_table(config))
    settings = [*settings_of(config)]
    console.print(settings_table([each for each in settings if not each.advanced], f"Settings of {recipe}"))
    console.print(settings_table([each for each in settings if each.advanced], f"Advanced settings of {recipe}"))


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
    table = Table(f"{config.unit.many} per step", "number")
    table.columns[1].justify = "right"
    for name, number in rows.items():
        if number:
            table.add_row(name, f"{number:,}")
    table.add_row("total", f"{sum(rows.values()):,}", style="bold")
    return table


def settings_table(settings: Iterable[Setting], title: str) -> Table:
    table = Table("setting", "value", "meaning", title=title, title_justify="left")
    table.columns[0].no_wrap = True
    for each in settings:
        table.add_row(f"--{each.key}", plain(each.value), Text(f"{each.meaning} [{each.choices}]"))
    return table
