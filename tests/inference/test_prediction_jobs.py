"""Prediction jobs: really killed, resumed, divided, and started with mistakes."""

import os
import shlex
from contextlib import suppress
from itertools import count
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM, Signals

import numpy as np
import pytest
from filelock import FileLock

import cotrain
from cotrain import Dataset
from cotrain.cli.main import main
from cotrain.inference import job_parts, streaming
from cotrain.inference.shards import Shard
from cotrain.storage.rows import RECORD
from tests.inference.many import BATCH, words
from tests.processes import Done, Running, here, torchrun

pytestmark = pytest.mark.usefixtures("small_batches")


def signalled(arguments: list[str], number: Signals, batches: int) -> None:
    """A job that saves every batch and gets a signal after so many."""
    streaming.LARGEST_BATCH, job_parts.SECONDS = BATCH, -1.0
    predict_batch, predicted = streaming.predict_batch, count(1)

    def counted(*batch: object) -> object:
        result = predict_batch(*batch)
        if next(predicted) == batches:
            os.kill(os.getpid(), number)
        return result

    streaming.predict_batch = counted
    main(arguments)


def stopped(arguments: list[str], number: Signals, batches: int) -> Done:
    return Running(signalled, arguments, number, batches).wait()


@pytest.mark.system
@pytest.mark.parametrize(("suffix", "more"), [("csv", []), ("parquet", []), ("deferred.csv", ["--defer-below", "0.9"])])
def test_killed_again_and_again_the_table_has_the_same_bytes(
    suffix: str, more: list[str], many: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / f"preds.{suffix}"
    for number, batches in enumerate((3, 1, 5)):
        arguments = words(many, out, *more, *(["--resume"] if number else []))
        assert stopped(arguments, SIGKILL, batches).returncode == -SIGKILL
        assert not out.exists()
    records = np.fromfile(tmp_path / f"preds.{suffix}.partial" / "rows.index", RECORD)
    assert np.count_nonzero(records["digest"]) == (2 + 0 + 4) * BATCH
    main(words(many, out, *more, "--resume"))
    assert out.read_bytes() == whole[suffix]
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.system
@pytest.mark.parametrize("number", [SIGINT, SIGTERM, SIGHUP])
def test_a_signal_keeps_what_is_done_and_says_how_to_resume(
    number: Signals, many: Path, whole: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my preds.csv"
    done = stopped(words(many, out, "--workers", "1"), number, 4)
    assert done.returncode == 130
    (line,) = done.stderr.splitlines()
    assert line.startswith("cotrain: stopped after 200 of 600 images; resume with: cotrain predict ")
    (again,) = {*shlex.split(line.split("resume with: ")[1])} - {*words(many, out, "--workers", "1"), "cotrain"}
    assert again == "--resume"
    resumed = here(capsys, *shlex.split(line.split("resume with: ")[1])[1:])
    assert resumed.returncode == 0 and "600 images, 7 unreadable" in resumed.stdout
    assert out.read_bytes() == whole["csv"]


@pytest.mark.system
def test_a_full_disk_keeps_the_predictions(many: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    """The kernel refuses to let a file grow past the limit, as a full disk does."""
    for suffix in ("csv", "parquet"):
        out = tmp_path / f"preds.{suffix}"
        done = Running(one_of_two, words(many, out), file_size=len(whole[suffix]) - 100).wait()
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert f"cannot write {out}: " in done.stderr and "add --resume" in done.stderr
        assert not out.exists()
        main(words(many, out, "--resume"))
        assert out.read_bytes() == whole[suffix]


@pytest.mark.parametrize("error", [RuntimeError("the network is broken"), MemoryError(), OSError(28, "No space left")])
def test_a_job_that_fails_at_once_does_not_block_the_same_command(
    error: Exception,
    many: Path,
    whole: dict[str, bytes],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "preds.csv"

    def broken(*_: object) -> None:
        raise error

    with monkeypatch.context() as while_broken, suppress(RuntimeError):
        while_broken.setattr(streaming, "predict_batch", broken)
        assert here(capsys, *words(many, out)).returncode == 2
    assert list(tmp_path.iterdir()) == []
    main(words(many, out))
    assert out.read_bytes() == whole["csv"]


def test_what_a_kill_left_before_the_first_row_does_not_block_the_same_command(
    many: Path, whole: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, partial = tmp_path / "preds.csv", tmp_path / "preds.csv.partial"
    partial.mkdir()
    (partial / "job.json").write_text("{}")
    (partial / ".lock").touch()
    with FileLock(partial / ".lock"):
        assert "another process is writing" in here(capsys, *words(many, out)).stderr
    (partial / "notes.txt").write_text("somebody's")
    assert "holds an unfinished job" in here(capsys, *words(many, out)).stderr
    assert (partial / "notes.txt").read_text() == "somebody's"
    (partial / "notes.txt").unlink()
    main(words(many, out))
    assert out.read_bytes() == whole["csv"]
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.system
def test_damaged_and_deleted_predictions_are_made_again(many: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    out, partial = tmp_path / "preds.csv", tmp_path / "preds.csv.partial"
    stopped(words(many, out), SIGINT, 6)
    files = {path: path.read_bytes() for path in partial.iterdir() if path.name not in (".lock", "job.json")}
    assert sorted(path.name for path in files) == ["errors", "errors.index", "rows", "rows.index"]
    job = (partial / "job.json").read_bytes()
    for path, content in files.items():
        middle = len(content) // 2
        for damage in (None, b"", b"x" * 3000, content[:middle], content[:middle] + b"~" + content[middle + 1 :]):
            partial.mkdir(exist_ok=True)
            for each, undamaged in files.items():
                each.write_bytes(undamaged)
            (partial / "job.json").write_bytes(job if damage else b"{")
            path.unlink() if damage is None else path.write_bytes(damage)
            main(words(many, out, "--resume"))
            assert out.read_bytes() == whole["csv"]
            assert [*tmp_path.iterdir()] == [out]
            out.unlink()


def test_shards_put_together_are_the_whole(many: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    tables = []
    for number in (1, 2, 3):
        main(words(many, tmp_path / f"{number}.csv", "--shard", f"{number}/3"))
        tables.append((tmp_path / f"{number}.csv").read_bytes().splitlines(keepends=True))
    assert tables[0][0] == tables[1][0] == tables[2][0]
    assert b"".join([tables[0][0], *tables[0][1:], *tables[1][1:], *tables[2][1:]]) == whole["csv"]
    assert [len(table) - 1 for table in tables] == [200, 200, 200]


@pytest.mark.parametrize(("images", "shards"), [(0, 3), (1, 4), (1000, 1), (1000, 7), (999, 20)])
def test_every_image_is_in_one_shard(images: int, shards: int) -> None:
    paths = [str(number) for number in range(images)]
    divided = [Shard(number, shards).of(paths, 50) for number in range(1, shards + 1)]
    assert [path for some in divided for path in some] == paths
    assert max(map(len, divided)) - min(map(len, divided)) <= 100
    assert all(len(some) % 50 == 0 for some in divided[:-1])


def one_of_two(arguments: list[str]) -> None:
    streaming.LARGEST_BATCH = BATCH
    main(arguments)


@pytest.mark.system
def test_under_torchrun_each_process_writes_its_shard(
    many: Path, whole: dict[str, bytes], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "preds.csv"
    done = torchrun(one_of_two, words(many, out)).wait()
    assert done.returncode == 0, done.stderr
    first, second = (tmp_path / f"preds-0000{number}-of-00002.csv" for number in (1, 2))
    assert sorted(tmp_path.iterdir()) == [first, second]
    header, together = whole["csv"].splitlines()[0], first.read_bytes() + second.read_bytes()
    assert together.replace(header + b"\n", b"") == whole["csv"].replace(header + b"\n", b"")
    assert done.stderr.count("probabilities are") == 1
    second.unlink()
    again = torchrun(one_of_two, words(many, out, "--resume")).wait()
    assert again.returncode == 0, again.stderr
    assert f"{first} is already complete" in again.stdout and "300 images" in again.stdout
    assert first.read_bytes() + second.read_bytes() == together


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--shard 0/4", "--shard 0/4: write K/N with K from 1 to N, for example --shard 3/16"),
        ("--shard 5/4", "--shard 5/4: write K/N"),
        ("--shard x", "--shard x: write K/N"),
        ("--shard -1/4", "--shard"),
        ("--resume", "there is nothing to resume: {out}.partial does not exist; omit --resume"),
        ("--workers -1", "Must be >= 0"),
    ],
)
def test_mistakes_are_one_line(
    more: str, expected: str, many: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "preds.csv"
    done = here(capsys, *words(many, out, *more.split()))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert expected.format(out=out) in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.system
def test_what_cannot_be_resumed_is_one_line(
    many: Path, toy: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "preds.csv"
    partial = f"{out}.partial"
    stopped(words(many, out), SIGINT, 2)
    other = cotrain.recipe_named("digits")
    settings = {"optim.steps": 2, "optim.labelled": 8, "optim.unlabelled": 16, "data.labels": 8}
    settings |= {"run.baseline": False, "run.report": False, "run.seed": 1}
    cotrain.fit(toy, out=tmp_path / "other", config=other, settings=settings)
    given = words(many, out)
    cases = [
        (given, f"{partial} holds an unfinished job: add --resume to continue it, or delete it to start again"),
        ([given[0], str(tmp_path / "other"), *given[2:], "--resume"], f"{partial} was started with another model"),
        ([*given, str(many / "photos/0/0, a.png"), "--resume"], f"{partial} was started with other data"),
        ([*given, "--resume", "--defer-below", "0.5"], "with another --defer-below or --target-error: repeat that"),
        ([*given, "--resume", "--shard", "1/2"], "was started with other data and another --shard"),
        ([*given[:3], "--resume"], "--resume needs the --out"),
    ]
    for arguments, expected in cases:
        done = here(capsys, *arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
        assert expected in done.stderr
    with FileLock(f"{partial}/.lock"):
        assert "another process is writing" in here(capsys, *given, "--resume").stderr
    out.write_text("finished")
    for more in ([], ["--resume"]):
        done = here(capsys, *given, *more)
        assert (done.returncode, done.stderr) == (2, f"cotrain: {out} already exists; choose another --out\n")
    assert out.read_text() == "finished"
