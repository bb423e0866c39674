"""The campaigns at their smallest: that they run, and that they notice. `make chaos` and `make fuzz` do the rest."""

import random
import signal
import time
from pathlib import Path

import pytest

from tests.campaigns import fuzz, targets
from tests.campaigns.chaos import killed
from tests.campaigns.jobs import FillBank, check_whole
from tests.campaigns.targets import TARGETS, Target


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("here", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.mark.parametrize("name", ["table", "image-png", "npz", "archive", "setting", "split", "journal", "bank"])
def test_a_few_inputs_break_nothing(name: str, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert fuzz.campaign(name, 10, 0, place / "kept", place) == 0, capfd.readouterr().out


@pytest.mark.parametrize("problem", [RuntimeError, MemoryError, fuzz.TooSlow])
def test_a_finding_is_kept_with_the_command_that_repeats_it(
    problem: type[BaseException], place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(content: bytes, folder: Path) -> None:
        if b"," in content:
            raise problem

    monkeypatch.setitem(targets.TARGETS, "table", Target(TARGETS["table"].inputs, broken))
    assert fuzz.campaign("table", 30, 0, place / "kept", place) == 1
    (kept,) = (place / "kept").iterdir()
    assert f"python -m tests.campaigns.fuzz --repeat {kept}" in capfd.readouterr().out
    with pytest.raises(problem):
        fuzz._used("table", kept.read_bytes(), place)


def test_files_written_elsewhere_are_a_finding(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def writes(content: bytes, folder: Path) -> None:
        Path("stray").touch()

    monkeypatch.setitem(targets.TARGETS, "table", Target(TARGETS["table"].inputs, writes))
    assert fuzz.campaign("table", 2, 0, place / "kept", place) == 1


def test_a_process_that_no_signal_ends_is_killed(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def hangs(content: bytes, folder: Path) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGPROF])  # as compiled code does
        time.sleep(600)

    monkeypatch.setattr(fuzz, "BUSY", 0)
    monkeypatch.setitem(targets.TARGETS, "table", Target(TARGETS["table"].inputs, hangs))
    assert fuzz.campaign("table", 2, 0, place / "kept", place) == 1
    assert "ended with exit code -9" in capfd.readouterr().out


@pytest.mark.system
def test_killed_twice_a_bank_has_the_same_bits(tmp_path: Path) -> None:
    assert killed(FillBank, 2, random.Random(0), tmp_path).startswith("2 kills")


def test_a_half_file_under_its_final_name_is_noticed(tmp_path: Path) -> None:
    (tmp_path / ".result.json.partial").write_text("{")
    check_whole(tmp_path)
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(ValueError, match="cannot read"):
        check_whole(tmp_path)
