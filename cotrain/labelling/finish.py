"""The end of labelling: a run folder like that of `cotrain fit`, and predictions for all images of the folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from cotrain.data.files import find_images, worker_count
from cotrain.evaluation.job import Job
from cotrain.evaluation.parts import job_facts, partial_folder
from cotrain.evaluation.predict import BETTER, load, used_folder
from cotrain.evaluation.streaming import files_at_once
from cotrain.pipeline.fit import fit
from cotrain.runs.run import Run

PREDICTIONS = "predictions.csv"


def finish(folder: Path, out: Path, console: Console, settings: Mapping[str, Any] | None = None) -> Path:
    """Train as `cotrain fit FOLDER --out OUT` does, then predict every image as `cotrain predict OUT FOLDER` does.

    Returns the run folder. A call that was interrupted continues if it is repeated with the same labels.
    """
    fitted = fit(folder, out=out, settings=settings, resume=(out / "config.json").exists(), console=console)
    if not (fitted.folder / PREDICTIONS).exists():
        predict_all(fitted.folder, folder, console)
    return fitted.folder


def predict_all(run: Path, folder: Path, console: Console) -> None:
    """Write predictions.csv into the run, with the better model of the run, as `cotrain predict` chooses it."""
    model, chosen, out = load(run, use=BETTER), used_folder(Run.open(run), BETTER), run / PREDICTIONS
    paths, batch = find_images([folder]), files_at_once(model)
    job = Job(model, paths, None, worker_count(len(paths)), console)
    options = {"temperature": model.temperature, "shard": "1/1", "defer_below": None}
    facts = job_facts(Run.open(chosen).model_path, paths, **options, batch=batch)
    job.to_file(out, facts, resume=partial_folder(out).exists())
