"""The table at the end of `cotrain fit` and `cotrain evaluate`."""

from rich.table import Table
from rich.text import Text

from cotrain.evaluation.verdict import how_better
from cotrain.fitting.rivals import FOREST, SPREADING
from cotrain.inference.model import METHOD
from cotrain.progress import clock, times
from cotrain.runs.result import BaselineScores, CrossValidation, Result, Verdict
from cotrain.runs.run import DOES_NOT_BELONG, LABELLED_ONLY, LOGISTIC, SUSPECT_LABELS, Run
from cotrain.types import Method, Unit, UserError

NAMES = {
    LABELLED_ONLY: "labelled-only heads",
    LOGISTIC: "logistic regression",
    FOREST: "random forest",
    SPREADING: "label spreading",
}


def result_table(run: Run, result: Result) -> Table:
    _check_whole(run, result)
    method, unit, test = run.config.method, run.config.unit, result.test
    title, checked = _title(result, unit), result.cross_validation
    if checked and not test.images:
        table = Table("", "estimated error", "95 % confidence interval", title=title, title_justify="left")
        _add_estimates(table, checked, _name(method, unit), unit)
        _add_facts(table, run, result)
        return table
    table = Table("", "test error", title=title, title_justify="left")
    if method.views.any_unlabelled and result.baselines.model_fields_set and test.images:
        table.add_row(f"baseline (labelled {unit.many} only)", _baseline(run, result.baselines))
        if (error := result.baselines.logistic_regression_error) is not None:
            table.add_row("logistic regression, same features", _percent(error, unit))
    for number, error in enumerate((test.head_errors or []) if method.heads > 1 else [], start=1):
        table.add_row(f"head {number}", _percent(error, unit))
    table.add_row(_name(method, unit), _percent(test.error, unit), style="bold")
    table.add_section()
    if test.interval is not None:
        low, high = test.interval
        table.add_row("95 % confidence interval", f"{low:.1f} to {high:.1f} % ({test.images:,} test {unit.many})")
    if (verdict := result.verdict) is not None:
        against = "" if verdict.against == LABELLED_ONLY else f", against {NAMES[verdict.against]}"
        longer = ", longer training included" if run.config.run.warm_start else ""
        table.add_row(f"effect of unlabelled {unit.many}", _effect(verdict, unit) + against + longer)
    if (found := result.validation) is not None:
        table.add_row("validation error", f"{found.error:.1f} %, of the baseline {found.labelled_only:.1f} %")
    _add_facts(table, run, result)
    return table


def _check_whole(run: Run, result: Result) -> None:
    """Older versions and other people may have left out what is shown. A new evaluation knows nothing of training."""
    test, training, data = result.test, result.training, result.data
    needed: dict[str, object] = {"test_images": test.images, "agreement": result.agreement}
    if test.error is not None:
        needed |= {"test_interval": test.interval, "head_errors": test.head_errors}
    of_training = {"seconds": training.seconds, "steps": training.steps, "labels": data.labels, "seed": training.seed}
    if any(value is not None for value in of_training.values()):
        needed |= of_training
    for key in sorted(key for key, value in needed.items() if value is None):
        raise UserError(f"{run.folder / 'result.json'} is damaged: it has no {key}; delete it and add --resume")


def _title(result: Result, unit: Unit) -> str:
    """The first line of the result: a baseline that is better is the news."""
    against = result.cross_validation.against if result.cross_validation else None
    if against and against.word == "hurt" and against.baseline in (FOREST, SPREADING):
        return f"Result: {NAMES[against.baseline]} is clearly better here; use scikit-learn's for these rows"
    if result.used == METHOD:
        return "Result"
    return (
        f"Result: the baseline ({NAMES[result.used]}) is {how_better(result, unit)}, so `cotrain predict` uses it "
        "(--use method for the other)"
    )


def _add_estimates(table: Table, checked: CrossValidation, name: str, unit: Unit) -> None:
    for baseline, one in checked.errors.items():
        style = "bold" if baseline == METHOD else None
        interval = f"{one.low:.1f} to {one.high:.1f} %"
        table.add_row(NAMES.get(baseline, name), f"{one.error:.1f} %", interval, style=style)
    table.add_section()
    how = f"{checked.images} labelled {unit.many}, {checked.folds} folds, {times(checked.repeats)}"
    table.add_row("by cross-validation over", how)
    if (against := checked.against) is not None:
        points = f"{against.difference:+.1f} points ({against.low:+.1f} to {against.high:+.1f})"
        table.add_row(f"against {NAMES[against.baseline]}", f"{against.word}: {points}")


def _add_facts(table: Table, run: Run, result: Result) -> None:
    folder, method, unit, training = run.folder, run.config.method, run.config.unit, result.training
    _add_folder(table, result, unit)
    if method.heads > 1 and result.agreement is not None:
        table.add_row("all heads agree", f"on {100 * result.agreement:.1f} % of the unlabelled {unit.many}")
    if training.seconds is not None:
        table.add_row(f"labelled {unit.many}", f"{result.data.labels:,}")
        table.add_row("seed", str(training.seed))
        table.add_row("training time", f"{clock(training.seconds)} for {training.steps:,} steps")
    for warning in result.warnings:
        table.add_row("warning", warning)
    table.add_row("run folder", Text(str(folder)))
    if (folder / "report.html").exists():
        table.add_row("report", Text(str(folder / "report.html")))


def _add_folder(table: Table, result: Result, unit: Unit) -> None:
    """What was found out about the data as they are."""
    if result.recalls.by_class:
        worst = min(result.recalls.by_class, key=lambda one: one.recall)
        interval = f"{worst.low:.0f} to {worst.high:.0f} %"
        table.add_row("balanced error", f"{result.recalls.balanced_error:.1f} %")
        table.add_row("lowest recall", Text(f"{worst.name}: {worst.recall:.0f} % ({interval})"))
    if result.class_shares and len(result.class_shares) > 1:
        by_size = sorted(result.class_shares, key=lambda one: one.share)
        words = " to ".join(f"{one.name} {100 * one.share:.0f} %" for one in (by_size[0], by_size[-1]))
        table.add_row("estimated class shares", Text(f"from {words}"))
    if (strangers := result.strangers) is not None:
        share = f"about {100 * strangers.estimated_share:.0f} %" if strangers.clear else "no clear sign of any"
        left = f"; {strangers.left_out:,} left out" if strangers.left_out else ""
        table.add_row(f"{unit.many} of no class", f"{share}{left} ({DOES_NOT_BELONG})")
    if (labels := result.suspect_labels) is not None and labels.disputed:
        table.add_row("disputed labels", f"{labels.disputed:,} of {labels.listed:,} listed ({SUSPECT_LABELS})")


def _name(method: Method, unit: Unit) -> str:
    if not method.views.any_unlabelled:
        return f"labelled {unit.many} only"
    return f"ensemble of {method.heads} heads" if method.heads > 1 else f"labelled and unlabelled {unit.many}"


def _percent(error: float | None, unit: Unit) -> str:
    return f"unknown (no test {unit.many})" if error is None else f"{error:.2f} %"


def _baseline(run: Run, scores: BaselineScores) -> str:
    error, seconds = scores.labelled_only_error, scores.labelled_only_seconds
    if error is None:
        return "not trained"
    steps = f"{run.config.baseline_steps:,} steps"
    same = "same " if run.config.baseline_steps == run.config.optim.steps else ""
    return _percent(error, run.config.unit) + (f" ({same}{steps}, in {clock(seconds)})" if seconds is not None else "")


def _effect(verdict: Verdict, unit: Unit) -> str:
    points = f"{verdict.difference:+.1f} points ({verdict.low:+.1f} to {verdict.high:+.1f})"
    return f"{verdict.word}: {points}" + (f"; too few {unit.many} differ to tell" if verdict.few else "")
