"""What cannot be resumed is refused in one line that names the file or the setting."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from cotrain.cli.main import main
from tests.processes import Done, here
from tests.runs.small_fit import arguments, checkpoint


@pytest.fixture
def fit(capsys: pytest.CaptureFixture[str]):
    return lambda out, *more: here(capsys, *arguments(), "--out", out, *more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    main([*arguments(), "--out", str(out)])
    return out


def one_line(done: Done) -> str:
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    return done.stderr


def test_a_finished_run_is_not_trained_again(finished: Path, fit) -> None:
    before = (finished / "result.json").stat().st_mtime_ns
    done = fit(finished, "--resume")
    assert (done.returncode, done.stderr) == (0, "")
    assert (finished / "result.json").stat().st_mtime_ns == before


def test_an_existing_folder_is_never_written_into(finished: Path, fit) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert "already exists; choose another --out, or add --resume" in one_line(fit(finished))
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--optim.lr", "0.5"), "cannot be resumed with different settings: optim.lr was 0.1 and is now 0.5"),
        (("--seed", "3"), "run.seed was 0 and is now 3"),
        (("--recipe", "svhn"), "optim.lr was 0.1 and is now 0.3"),
    ],
)
def test_other_settings_cannot_resume(finished: Path, fit, more: tuple[str, ...], message: str) -> None:
    assert message in one_line(fit(finished, "--resume", *more))


def test_a_nan_or_infinite_loss_is_found_before_anything_is_saved(tmp_path: Path, fit) -> None:
    out = tmp_path / "run"
    line = one_line(fit(out, "--no-baseline", "--optim.lr", "1e25", "--run.checkpoint_every", "1"))
    step = int(line.split("the loss is NaN or infinite at step ")[1].split(";")[0]) - 1
    assert f"the last checkpoint before that is {checkpoint(out, step)}" in line
    saved = load_file(checkpoint(out, step))
    assert all(tensor.isfinite().all() for name, tensor in saved.items() if name.endswith("conv1.weight"))


def test_a_changed_config_file_is_noticed(finished: Path, tmp_path: Path, fit) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "result.json").unlink()
    config = json.loads((out / "config.json").read_text())
    config["run"]["baseline"] = False
    (out / "config.json").write_text(json.dumps(config))
    line = one_line(fit(out, "--resume"))
    assert "has changed since the last checkpoint: run.baseline was True and is now False" in line


@pytest.mark.parametrize(
    ("name", "content"),
    [("split.json", "{}"), ("config.json", "[]"), ("config.json", "{"), ("result.json", "{}")],
)
def test_damaged_files_of_a_run_are_named(finished: Path, tmp_path: Path, fit, name: str, content: str) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / name).write_text(content)
    assert str(out / name) in one_line(fit(out, "--resume"))
