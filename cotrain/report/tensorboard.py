"""The figures of the report as images for TensorBoard."""

from collections.abc import Iterator

from cotrain.data import Dataset
from cotrain.evaluation.results import Results
from cotrain.report import pictures
from cotrain.report.figures import PRINTED
from cotrain.report.test_results import WORDS, baseline_outputs, drawn, heat_map_of
from cotrain.runs.result import UNKNOWN
from cotrain.runs.run import Run
from cotrain.runs.scores import Outputs
from cotrain.runs.tracking import Shot, has_figures, write_figures

VIEWS = "Unlabelled images, one per row, with the views used in training: "
MISTAKES = "Misclassified test images, the most confident first, row by row: "


def track_figures(run: Run, dataset: Dataset) -> None:
    """Write the figures, unless the run already has them."""
    if not has_figures(run.folder):
        known = (run.result or UNKNOWN).training.steps
        write_figures(run.folder, run.config.optim.steps if known is None else known, dict(_shots(run, dataset)))


def _shots(run: Run, dataset: Dataset) -> Iterator[tuple[str, Shot]]:
    classes = tuple(run.model_facts.classes)
    rule, temperature = run.config.run.ensemble, (run.result or UNKNOWN).temperature.value
    parts = run.outputs(len(classes))
    if "test" in parts:
        yield from _of_test_images(run, parts, classes, temperature)
    if not pictures.can_be_drawn(dataset):
        return
    if views := pictures.some_views(dataset, run.split, run.config):
        yield (
            "views",
            Shot(pictures.sheet([[*one.strips.values()] for one in views]), VIEWS + ", ".join(views[0].strips)),
        )
    if "test" in parts and (mistakes := pictures.confident_mistakes(parts["test"], rule, temperature, dataset)):
        listed = "; ".join(f"{one.name}: {one.words}" for one in mistakes)
        yield "mistakes", Shot(pictures.sheet(pictures.in_rows([one.png for one in mistakes])), MISTAKES + listed)


def _of_test_images(
    run: Run, parts: dict[str, Outputs], classes: tuple[str, ...], temperature: float | None
) -> Iterator[tuple[str, Shot]]:
    results = Results(parts["test"], run.config.run.ensemble, temperature)
    shown = drawn(results, baseline_outputs(run, classes), run.config.unit, PRINTED)
    for one, diagram in zip(results.calibrated, shown.diagrams, strict=True):
        yield f"reliability/{WORDS[one.kind]}", Shot(diagram.png, diagram.caption)
    yield "risk_and_coverage", Shot(shown.risk.png, shown.risk.caption)
    heat_map = shown.heat_map or heat_map_of(PRINTED, results.confused, run.config.unit)
    names = ", ".join(f"{number} {name}" for number, name in enumerate(classes))
    yield "confusion", Shot(heat_map.png, f"{heat_map.caption} Classes: {names}.")
