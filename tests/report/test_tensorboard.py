"""What a run logs, and the figures of its page, are in TensorBoard's files too."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import cotrain
from cotrain import Config, Dataset, UserError
from cotrain.report import figures, pictures
from cotrain.report.tensorboard import track_figures
from cotrain.runs.log import read_log
from cotrain.runs.scores import read_outputs
from cotrain.training import loop
from tests.made_up import made_up_run, some_data
from tests.processes import Running
from tests.report.imports import fit_and_look

TRACKED = {"run.track": "tensorboard"}
FIGURES = ["reliability/uncalibrated", "reliability/the paper's temperature", "risk_and_coverage", "confusion", "views"]


def board(run: Path) -> EventAccumulator:
    return EventAccumulator(str(run / "tensorboard"), {"images": 0, "scalars": 0, "tensors": 0}).Reload()


def scalars(run: Path) -> list[tuple[str, int, float]]:
    events = board(run)
    return sorted((tag, event.step, event.value) for tag in events.Tags()["scalars"] for event in events.Scalars(tag))


def logged(run: Path) -> list[tuple[str, int, float]]:
    rows = read_log(run / "log.jsonl")
    return sorted((name, row["step"], value) for row in rows for name, value in row.items() if name != "step")


def same(ours: list[tuple[str, int, float]], theirs: list[tuple[str, int, float]]) -> bool:
    values = [value for *_, value in theirs]
    return [one[:2] for one in ours] == [one[:2] for one in theirs] and [one[2] for one in ours] == pytest.approx(
        values, rel=1e-5
    )


def image(events: EventAccumulator, tag: str) -> NDArray[np.uint8]:
    (event,) = events.Images(tag)
    picture = Image.open(io.BytesIO(event.encoded_image_string))
    assert picture.size == (event.width, event.height)
    return np.asarray(picture)


def words_of(events: EventAccumulator, tag: str) -> str:
    (event,) = events.Tensors(f"{tag}/text_summary")
    return event.tensor_proto.string_val[0].decode()


def test_the_same_scalars_and_figures_are_there_and_not_twice(toy: Dataset, tiny: Config, tmp_path: Path) -> None:
    run = tmp_path / "run"
    cotrain.fit(toy, out=run, config=tiny, settings=TRACKED)
    assert not (run / "report.html").exists()
    assert same(scalars(run), logged(run))
    assert ("supervised", 30) in {one[:2] for one in scalars(run)}
    events = board(run)
    assert {*FIGURES} <= {*events.Tags()["images"]} <= {*FIGURES, "mistakes"}
    assert {event.step for tag in events.Tags()["images"] for event in events.Images(tag)} == {30}
    for tag in FIGURES:
        assert image(events, tag).std() > 10, tag  # not blank
    assert image(events, "risk_and_coverage").shape == (420, 630, 3)
    assert image(events, "confusion").shape == (660, 690, 3)
    assert [path.name for path in run.iterdir() if path.name.startswith(".figures")] == []
    before = {path: path.read_bytes() for path in (run / "tensorboard").iterdir()}
    cotrain.fit(toy, out=run, config=tiny, settings=TRACKED, resume=True)
    assert {path: path.read_bytes() for path in (run / "tensorboard").iterdir()} == before
    (drawn,) = (run / "tensorboard").glob("*.figures")
    drawn.unlink()  # as if it had been killed between its result and its figures
    cotrain.fit(toy, out=run, config=tiny, settings=TRACKED, resume=True)
    assert {*FIGURES} <= {*board(run).Tags()["images"]} and same(scalars(run), logged(run))


def test_what_the_figures_show(tmp_path: Path) -> None:
    data = some_data(("cat", "<dog>", "\udcff"), test=90)
    run = made_up_run(tmp_path / "run", data, changes={"data.valid_share": 0.2}, right=0.7)
    track_figures(run, data)
    events = board(run.folder)
    assert "reliability/fitted temperature" in events.Tags()["images"]
    assert "Classes: 0 cat, 1 <dog>, 2 \\udcff." in words_of(events, "confusion")
    assert "below it the network is overconfident" in words_of(events, "reliability/uncalibrated")
    assert "predicted <dog>" in words_of(events, "mistakes")
    mistakes = image(events, "mistakes")
    side, gap = 96, pictures.GAP
    assert mistakes.shape[1] == 6 * (side + gap) and mistakes.shape[0] % (side + gap) == 0
    outputs = read_outputs(run.scores_path)["test"]
    confidence, predicted = outputs.logits.double().softmax(-1).mean(0).max(-1)
    wrong = [row for row in range(90) if predicted[row] != outputs.labels[row]]
    worst = data.images[int(outputs.rows[max(wrong, key=lambda row: float(confidence[row]))])].numpy()
    assert np.array_equal(mistakes[:side, :side], worst.repeat(12, axis=0).repeat(12, axis=1))
    views = image(events, "views")
    first = data.images[run.split.unlabelled[0]].numpy()
    assert np.array_equal(views[:side, :side], first.repeat(12, axis=0).repeat(12, axis=1))


def test_the_confusions_of_many_classes_are_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    draw = figures.heat_map
    monkeypatch.setattr(figures, "heat_map", lambda *what: drawn.append(draw(*what)) or drawn[-1])
    data = some_data(tuple(f"class {number}" for number in range(30)), test=60)
    run = made_up_run(tmp_path / "run", data)
    track_figures(run, data)
    (one,) = drawn
    pixels = np.asarray(Image.open(io.BytesIO(one.png)).convert("RGB"))
    assert np.array_equal(image(board(run.folder), "confusion"), pixels)


def test_without_test_images_or_with_four_channels_there_is_less_to_show(tmp_path: Path) -> None:
    data = some_data(test=0)
    run = made_up_run(tmp_path / "untested", data, alone=None)
    track_figures(run, data)
    assert board(run.folder).Tags()["images"] == ["views"]
    four = np.concatenate([data.images.numpy(), data.images.numpy()[..., :1]], axis=-1)
    data = cotrain.from_arrays(four, data.labels.numpy(), test=(four[:20], data.labels.numpy()[:20]))
    run = made_up_run(tmp_path / "four", data)
    track_figures(run, data)
    assert "confusion" in board(run.folder).Tags()["images"] and "views" not in board(run.folder).Tags()["images"]


@pytest.mark.system
def test_what_a_killed_run_wrote_beyond_its_checkpoint_is_hidden(
    toy: Dataset, tiny: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    save = loop.save

    def killed(state, *others) -> None:
        if state.step == 20:  # logged at 15 and 20, saved at 10
            raise Killed
        save(state, *others)

    run = tmp_path / "run"
    monkeypatch.setattr(loop, "save", killed)
    with pytest.raises(Killed):
        cotrain.fit(toy, out=run, config=tiny, settings=TRACKED)
    assert max(step for _, step, _ in scalars(run)) == 20
    lost = {one for one in scalars(run) if one[1] > 10}
    monkeypatch.undo()
    cotrain.fit(toy, out=run, config=tiny, settings=TRACKED, resume=True)
    assert same(scalars(run), logged(run))  # each step once
    assert {one for one in lost if one[0] == "seconds"} & {*scalars(run)} == set()
    assert {*FIGURES} <= {*board(run).Tags()["images"]}


@pytest.mark.system
@pytest.mark.parametrize(("track", "imported"), [("none", False), ("tensorboard", True)])
def test_nothing_is_drawn_with_unless_asked_for(track: str, imported: bool, tmp_path: Path) -> None:
    done = Running(fit_and_look, tmp_path / "run", track).wait()
    assert (done.returncode, done.stdout) == (0, f"{imported}\n"), done.stderr


def test_without_the_package_it_is_said_before_anything_is_written(
    toy: Dataset, tiny: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match="needs the package tensorboard: pip install"):
        cotrain.fit(toy, out=tmp_path / "run", config=tiny, settings=TRACKED)
    assert not any(tmp_path.iterdir())
