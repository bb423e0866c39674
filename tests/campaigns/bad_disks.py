"""Disks that are really full or read-only: small file systems in memory, which need the right to mount them."""

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.campaigns.jobs import FIT, Predict, check_whole, trained
from tests.processes import start

LARGE = "64m"
PAGE = 4096  # bytes that a file system in memory allocates at a time


class Skipped(Exception):
    """This part cannot run here; the text says why."""


@contextmanager
def disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of this size."""
    place.mkdir()
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True)
    except OSError as error:
        raise Skipped(f"there is no command mount ({error.strerror})") from error
    if done.returncode:
        raise Skipped(f"a tmpfs cannot be mounted here ({done.stderr.decode().strip()})")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)


def full_disk(kills: int, draw: random.Random, place: Path) -> str:
    """Jobs on a disk that is too small say so in one line, keep what they have, and finish when there is room."""
    expected = Predict(place / "job")
    assert expected.begin().wait().returncode == 0
    table = expected.made()
    assert start(*FIT, "--out", place / "calm").wait().returncode == 0
    weights = (place / "calm" / "model.safetensors").stat().st_size
    with disk(place / "small", "16k") as small:
        words = ["predict", expected.run, expected.photos, "--out", small / "preds.csv"]
        done = start(*words).wait()
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert not (small / "preds.csv").exists()
        check_whole(small)
        remount(small, f"size={LARGE}")
        more = ["--resume"] if (small / "preds.csv.partial").exists() else []
        done = start(*words, *more).wait()
        assert done.returncode == 0, done.stderr
        assert (small / "preds.csv").read_bytes() == table
    with disk(place / "tight", str(weights)) as tight:
        done = start(*FIT, "--out", tight / "run").wait()
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        check_whole(tight)
        remount(tight, f"size={LARGE}")
        more = ["--resume"] if (tight / "run" / "config.json").exists() else []
        done = start(*FIT, "--out", tight / "run", *more).wait()
        assert done.returncode == 0, done.stderr
        assert [*trained(tight).values()] == [*trained(place / "calm").values()]
        fill_while_the_page_is_written(tight)
    return "predict, fit and report stop with one line, and finish with the same bits when there is room"


def fill_while_the_page_is_written(place: Path) -> None:
    """There is room for the first kilobytes of report.html only."""
    run = place / "run"
    used = sum(-(-path.stat().st_size // PAGE) * PAGE for path in place.rglob("*") if path.is_file())
    remount(place, f"size={used + 4 * PAGE}")
    done = start("report", run).wait()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert not (run / "report.html").exists()
    check_whole(place)
    remount(place, f"size={LARGE}")
    done = start("report", run).wait()
    assert done.returncode == 0 and (run / "report.html").exists(), done.stderr


def read_only(kills: int, draw: random.Random, place: Path) -> str:
    """A disk that becomes read-only: one line, and nothing changes."""
    with disk(place / "disk", LARGE) as where:
        assert start(*FIT, "--out", where / "run").wait().returncode == 0
        before = {path: path.read_bytes() for path in where.rglob("*") if path.is_file()}
        remount(where, "ro")
        attempts = [[*FIT, "--out", where / "new"], ["report", where / "run"]]
        for words in attempts:
            done = start(*words).wait()
            assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        after = {path: path.read_bytes() for path in where.rglob("*") if path.is_file()}
        assert after == before
        remount(where, "rw")
    return "fit and report stop with one line, and nothing changes"
