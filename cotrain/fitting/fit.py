"""From data to a finished run: split, labelled-only baseline, training, and one evaluation on the test images."""

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from cotrain.config import Config
from cotrain.config.defaults import configured_for_fit, opened
from cotrain.data import Dataset, Split, draw_split, is_openable
from cotrain.data.settings import OF_SPLITS
from cotrain.device import pick_device
from cotrain.fitting.baseline import fit_baselines, has_baseline
from cotrain.fitting.crossvalidation import cross_validate, is_cross_validated
from cotrain.fitting.messages import estimate, heading, title_of
from cotrain.fitting.summary import result_of
from cotrain.inference.model import Model, better_model_of, model_trained
from cotrain.model.own import OwnNetwork, own_network
from cotrain.model.trust import Trust, is_import_path, is_importable
from cotrain.progress import say
from cotrain.runs.interrupt import Interrupted
from cotrain.runs.result import Result
from cotrain.runs.run import LABELLED_ONLY, Run, is_unused, reserve_folder
from cotrain.training.checks import check_batches, check_trainable
from cotrain.training.distributed import Ranks, process_group
from cotrain.training.experiment import Experiment, Prepared
from cotrain.training.loop import train
from cotrain.training.selection import known_shares
from cotrain.types import UserError

WORTH_ESTIMATING = 200  # steps


@dataclass(frozen=True)
class Fitted:
    """A finished run: its folder, its result, and the model."""

    result: Result
    run: Run

    @property
    def folder(self) -> Path:
        return self.run.folder

    @property
    def model(self) -> Model:
        return better_model_of(self.run)


def fit(
    data: str | Path | Dataset | None = None,
    *,
    out: str | Path | None = None,
    config: Config | None = None,
    settings: Mapping[str, Any] | None = None,
    preset: str = "paper",
    model: Any = None,
    model_arguments: Mapping[str, Any] | None = None,
    split: Split | None = None,
    resume: bool = False,
    memory: float | None = None,
    trust_code: bool = False,
    console: Console | None = None,
) -> Fitted:
    """Train on `data` and write everything to the folder `out`.

    `config` comes from a recipe (by default one that suits the data: docs/guide/command-line.md); `settings` change
    it by dotted keys, such as {"data.labels": 40, "run.seed": 1}. `split` is an existing split to use instead of one
    drawn from the settings and the seed. `preset` "code" follows the released code where it differs from the paper.
    With `resume`, an unfinished run in `out` continues from its last checkpoint; `data` can be left out then, and
    `trust_code` allows the run to import the network that its settings name. A folder of images that needs more than
    `memory` GB is read from disk during training.

    `model` is a network of your own: a function `build(*, channels, classes, **model_arguments)`, or its import path
    "package.module:function", which returns (trunk, build_head) or a list of `Stage`; or such a pair or list itself. A
    trunk given as an object is copied, and training starts from its current weights. See docs/guide/extending.md.
    """
    console, changes = console or Console(quiet=True), settings or {}
    if split is not None and (both := sorted(SPLIT_SETTINGS & changes.keys())):
        raise UserError(f"both a split and {both[0]} were given; the split already determines it, so drop the setting")
    if model is not None and "model.backbone" in changes:
        raise UserError("model= and model.backbone both choose the network; give only one")
    with process_group() as ranks:
        if not ranks.first:
            console = Console(quiet=True)
        earlier = ranks.from_first(lambda: _earlier(out, trust_code)) if resume else None
        config = config and config.with_trust(Trust.USER)
        network = _given(model, earlier)
        known = earlier.config if earlier else config
        data = earlier.split.source if data is None and earlier else data
        if data is None and earlier:
            raise ranks.error(f"{earlier.folder} was trained on arrays, which it does not contain: pass them as data")
        if data is None:
            raise ranks.error("name the data to train on, such as a folder of images: cotrain fit photos/")
        if earlier and data == earlier.split.source and not is_openable(data):
            raise ranks.error(earlier.data_missing)
        chosen = {"model.backbone": network.recorded, **changes} if network else changes
        dataset = ranks.each(lambda: opened(data, known, chosen, memory, console))
        ranks.same(dataset.fingerprint, f"the data, {dataset.name},")
        own = earlier.config if earlier and preset == "paper" else None
        asked = configured_for_fit(dataset, config or own, preset, chosen, split)
        if network is not None or model_arguments is not None:
            asked = asked.with_network(network, model_arguments)
        prepared = Prepared(asked, dataset, ranks, console)
        ranks.each(lambda: check_trainable(prepared))
        run = ranks.from_first(
            lambda: _resume(earlier, dataset, asked, split) if earlier else _start(out, dataset, asked, split)
        ).with_network_of(asked)
        device = pick_device(run.config.run.device, ranks.local)
        experiment = Experiment(run.config, dataset, run.split, device, ranks, prepared=prepared)
        return Fitted(trained(run, experiment, console), run)


def _given(model: Any, earlier: Run | None) -> OwnNetwork | None:
    """The user's network. If the earlier run's network cannot be imported, assume that it is this one."""
    if model is None:
        return None
    network = own_network(model)
    known = earlier.config.model.backbone if earlier else network.recorded
    unavailable = is_import_path(known) and not is_importable(known)
    return replace(network, recorded=known) if unavailable else network


def _write_report(run: Run, dataset: Dataset, model: Model | None) -> None:
    from cotrain.report.card import write_card  # matplotlib is slow to import
    from cotrain.report.page import write_report

    write_report(run, dataset, model=model)
    write_card(run)


def _track_figures(run: Run, dataset: Dataset) -> None:
    from cotrain.report.tensorboard import track_figures  # matplotlib is slow to import

    track_figures(run, dataset)


@dataclass(frozen=True)
class Job:
    """A larger job that a run is part of."""

    title: str  # of this run
    seconds_after: float  # time that the remaining runs will take


def trained(run: Run, experiment: Experiment, console: Console, *, part_of: Job | None = None) -> Result:
    """Train unless the run is finished, write its report, and return its result.

    A run that is part of a larger job prints only its progress.
    """
    ranks = experiment.ranks
    result: Result | None = ranks.from_first(lambda: run.result)
    if part_of is None and result is None:
        for line in heading(run, experiment):
            say(console, line)
    with _resumable(run, "the same command" if part_of else None):
        dataset = experiment.dataset
    model = None
    if result is None:
        with _locked(run, ranks):
            result = ranks.from_first(lambda: run.result)  # another process may have finished it in the meantime
            if result is None:
                result, model = _result(run, experiment, console, part_of)
    if run.config.run.report:
        ranks.from_first(lambda: _write_report(run, dataset, model))
    if run.config.run.track == "tensorboard":
        ranks.from_first(lambda: _track_figures(run, dataset))
    return result


def _result(run: Run, experiment: Experiment, console: Console, part_of: Job | None) -> tuple[Result, Model | None]:
    """Train and evaluate. The first rank also gets the model."""
    ranks = experiment.ranks
    with _resumable(run, "the same command" if part_of else None):
        if part_of is None:
            begun = ranks.from_first(lambda: run.is_begun)
            long = run.config.optim.steps >= WORTH_ESTIMATING or experiment.kind.bank is not None
            if long and not run.config.run.compile and not begun:
                say(console, estimate(run, experiment))
        wanted = has_baseline(run.config, run.split, experiment.kind)
        baselines = fit_baselines(run, experiment, console) if wanted else {}
        job = part_of or Job(title_of(run.config.method), 0.0)
        warm = run.config.run.warm_start and LABELLED_ONLY in baselines
        weights = ranks.from_first(lambda: baselines[LABELLED_ONLY].weights) if warm else None
        state = train(run, experiment, console, job.title, job.seconds_after, weights)
        wanted = is_cross_validated(run.config, experiment.kind)
        checked = ranks.from_first(lambda: cross_validate(run, experiment, console)) if wanted else None
        models: list[Model] = []

        def finish() -> Result:
            model = model_trained(
                state.average.net, run.config, experiment.dataset, experiment.inputs, experiment.trunk
            )
            result = result_of(run, experiment, state, model, baselines, checked)
            run.finish(result)
            models.append(replace(model, temperature=result.temperature.value or 1.0))
            return result

        return ranks.from_first(finish), models[0] if models else None


@contextmanager
def _locked(run: Run, ranks: Ranks) -> Iterator[None]:
    """Rank 0 holds the lock for all ranks."""
    with ExitStack() as held:
        ranks.from_first(lambda: held.enter_context(run.locked()))
        yield


@contextmanager
def _resumable(run: Run, resume_command: str | None) -> Iterator[None]:
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stop:
        what = str(stop) or "interrupted; the newest checkpoint is kept"
        raise Interrupted(f"{what}; resume with: {resume_command or run.resume_command}") from stop


def _earlier(out: str | Path | None, trust_code: bool) -> Run:
    if out is None:
        raise UserError("--resume needs --out, the folder of the run to resume")
    folder = Path(out)
    if is_unused(folder):
        raise UserError(f"{folder} has nothing to resume yet; omit --resume to start the run")
    run = Run.open(folder)
    return run.trusting_code() if trust_code else run


SPLIT_SETTINGS = {f"data.{name}" for name in OF_SPLITS}


def _start(out: str | Path | None, dataset: Dataset, config: Config, split: Split | None) -> Run:
    if split is None:
        split = draw_split(dataset, config.data, config.run.seed)
    split.check_fits(dataset, f"split {split.name}")
    split.check_usable(dataset)
    check_batches(config, dataset, split)
    known_shares(config, dataset)  # a bad table is refused before anything is computed
    folder = Path(out) if out is not None else reserve_folder(Path("runs"), dataset.name)
    return Run.create(folder, config, split, shlex.join(sys.argv))


def _resume(run: Run, dataset: Dataset, config: Config, split: Split | None) -> Run:
    run.check_data(dataset)
    return run.resumed(config, split or run.split)
