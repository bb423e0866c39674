"""The table that ends `cotrain fit` and `cotrain evaluate`."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from cotrain.evaluation.verdict import Verdict
from cotrain.progress import clock
from cotrain.runs.run import Run


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
