"""The table at the end of `cotrain fit` and `cotrain evaluate`."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from cotrain.evaluation.verdict import Verdict, how_better
from cotrain.fitting.rivals import FOREST, SPREADING
from cotrain.inference.model import METHOD
from cotrain.progress import clock, times
from cotrain.runs.run import DOES_NOT_BELONG, LABELLED_ONLY, LOGISTIC, SUSPECT_LABELS, Run
from cotrain.types import Method, Unit, UserError

NAMES = {
    LABELLED_ONLY: "labelled-only heads",
    LOGISTIC: "logistic regression",
    FOREST: "random forest",
    SPREADING: "label spreading",
}


NEEDED = {"test_error", "test_interval", "test_images", "head_errors", "agreement"}
OF_TRAINING = {"seconds", "steps", "labels", "seed"}  # in result.json, but not in a new evaluation


def result_table(run: Run, result: Mapping[str, Any]) -> Table:
    _check_whole(run, result)
    method, unit = run.config.method, run.config.unit
    title = _title(result, unit)
    checked = result.get("cross_validation")
    if checked and not result["test_images"]:
        table = Table("", "estimated error", "95 % confidence interval", title=title, title_justify="left")
        _add_estimates(table, checked, _name(method, unit), unit)
        _add_facts(table, run, result)
        return table
    table = Table("", "test error", title=title, title_justify="left")
    if method.views.any_unlabelled and "labelled_only_error" in result and result["test_images"]:
        table.add_row(f"baseline (labelled {unit.many} only)", _baseline(run, result))
        if result.get("logistic_regression_error") is not None:
            table.add_row("logistic regression, same features", _percent(result["logistic_regression_error"], unit))
    for number, error in enumerate((result["head_errors"] or []) if method.heads > 1 else [], start=1):
        table.add_row(f"head {number}", _percent(error, unit))
    table.add_row(_name(method, unit), _percent(result["test_error"], unit), style="bold")
    table.add_section()
    if result["test_interval"] is not None:
        low, high = result["test_interval"]
        tested = f"{result['test_images']:,} test {unit.many}"
        table.add_row("95 % confidence interval", f"{low:.1f} to {high:.1f} % ({tested})")
    if result.get("verdict"):
        verdict = Verdict(**result["verdict"])
        against = "" if verdict.against == LABELLED_ONLY else f", against {NAMES[verdict.against]}"
        longer = ", longer training included" if run.config.run.warm_start else ""
        table.add_row(f"effect of unlabelled {unit.many}", _effect(verdict, unit) + against + longer)
    if result.get("validation"):
        found = Verdict(**result["validation"])
        table.add_row("validation error", f"{found.error:.1f} %, of the baseline {found.labelled_only:.1f} %")
    _add_facts(table, run, result)
    return table


def _check_whole(run: Run, result: Mapping[str, Any]) -> None:
    needed = NEEDED | OF_TRAINING if OF_TRAINING & result.keys() else NEEDED
    for key in sorted(needed - result.keys()):
        raise UserError(f"{run.folder / 'result.json'} is damaged: it has no {key}; delete it and add --resume")


def _title(result: Mapping[str, Any], unit: Unit) -> str:
    """The first line of the result: a baseline that is better is the news."""
    used = result.get("used", METHOD)
    against = (result.get("cross_validation") or {}).get("against")
    if against and against["word"] == "hurt" and against["baseline"] in (FOREST, SPREADING):
        return f"Result: {NAMES[against['baseline']]} is clearly better here; use scikit-learn's for these rows"
    if used == METHOD:
        return "Result"
    return (
        f"Result: the baseline ({NAMES[used]}) is {how_better(result, unit)}, so `cotrain predict` uses it "
        "(--use method for the other)"
    )


def _add_estimates(table: Table, checked: Mapping[str, Any], name: str, unit: Unit) -> None:
    for baseline, one in checked["errors"].items():
        style = "bold" if baseline == METHOD else None
        interval = f"{one['low']:.1f} to {one['high']:.1f} %"
        table.add_row(NAMES.get(baseline, name), f"{one['error']:.1f} %", interval, style=style)
    table.add_section()
    how = f"{checked['images']} labelled {unit.many}, {checked['folds']} folds, {times(checked['repeats'])}"
    table.add_row("by cross-validation over", how)
    if (against := checked["against"]) is not None:
        points = f"{against['difference']:+.1f} points ({against['low']:+.1f} to {against['high']:+.1f})"
        table.add_row(f"against {NAMES.get(against['baseline'], against['baseline'])}", f"{against['word']}: {points}")


def _add_facts(table: Table, run: Run, result: Mapping[str, Any]) -> None:
    folder, method, unit = run.folder, run.config.method, run.config.unit
    _add_folder(table, result, unit)
    if method.heads > 1:
        table.add_row("all heads agree", f"on {100 * result['agreement']:.1f} % of the unlabelled {unit.many}")
    if "seconds" in result:
        table.add_row(f"labelled {unit.many}", f"{result['labels']:,}")
        table.add_row("seed", str(result["seed"]))
        table.add_row("training time", f"{clock(result['seconds'])} for {result['steps']:,} steps")
    for warning in result.get("warnings", []):
        table.add_row("warning", warning)
    table.add_row("run folder", Text(str(folder)))
    if (folder / "report.html").exists():
        table.add_row("report", Text(str(folder / "report.html")))


def _add_folder(table: Table, result: Mapping[str, Any], unit: Unit) -> None:
    """What was found out about the data as they are."""
    if result.get("recalls"):
        worst = min(result["recalls"], key=lambda one: one["recall"])
        interval = f"{worst['low']:.0f} to {worst['high']:.0f} %"
        table.add_row("balanced error", f"{result['balanced_error']:.1f} %")
        table.add_row("lowest recall", Text(f"{worst['class']}: {worst['recall']:.0f} % ({interval})"))
    if result.get("class_shares") and len(result["class_shares"]) > 1:
        by_size = sorted(result["class_shares"], key=lambda one: one["share"])
        words = " to ".join(f"{one['class']} {100 * one['share']:.0f} %" for one in (by_size[0], by_size[-1]))
        table.add_row("estimated class shares", Text(f"from {words}"))
    if strangers := result.get("strangers"):
        clear, estimated = strangers.get("clear", True), strangers["estimated_share"]
        share = f"about {100 * estimated:.0f} %" if clear else "no clear sign of any"
        left = f"; {strangers['left_out']:,} left out" if strangers["left_out"] else ""
        table.add_row(f"{unit.many} of no class", f"{share}{left} ({DOES_NOT_BELONG})")
    if (labels := result.get("suspect_labels")) and labels["disputed"]:
        table.add_row("disputed labels", f"{labels['disputed']:,} of {labels['listed']:,} listed ({SUSPECT_LABELS})")


def _name(method: Method, unit: Unit) -> str:
    if not method.views.any_unlabelled:
        return f"labelled {unit.many} only"
    return f"ensemble of {method.heads} heads" if method.heads > 1 else f"labelled and unlabelled {unit.many}"


def _percent(error: float | None, unit: Unit) -> str:
    return f"unknown (no test {unit.many})" if error is None else f"{error:.2f} %"


def _baseline(run: Run, result: Mapping[str, Any]) -> str:
    error, seconds = result["labelled_only_error"], result.get("labelled_only_seconds")
    if error is None:
        return "not trained"
    steps = f"{run.config.baseline_steps:,} steps"
    same = "same " if run.config.baseline_steps == run.config.optim.steps else ""
    return _percent(error, run.config.unit) + (f" ({same}{steps}, in {clock(seconds)})" if seconds is not None else "")


def _effect(verdict: Verdict, unit: Unit) -> str:
    points = f"{verdict.difference:+.1f} points ({verdict.low:+.1f} to {verdict.high:+.1f})"
    return f"{verdict.word}: {points}" + (f"; too few {unit.many} differ to tell" if verdict.few else "")
