"""Streams that are closed when a command starts, and empty words in the place of names."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cotrain.cli.main import main
from tests.processes import here


def shell(line: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = line.replace("cotrain", f"{shlex.quote(sys.executable)} -m cotrain", 1)
    return subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=300)


def test_a_table_for_a_closed_output_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(sys, "stdout", None)
        try:
            main(["predict", "run", "a.png"])
        finally:
            sys.stdout.close()
    line = capsys.readouterr().err
    assert end.value.code == 2
    assert "standard output" in line and "--out" in line and line.count("\n") == 1


@pytest.mark.system
@pytest.mark.skipif(os.name != "posix", reason="there is no shell that closes streams")
@pytest.mark.parametrize(
    ("line", "code", "errors"),
    [
        ("cotrain predict run a.png >&-", 2, 1),
        ("cotrain predict run a.png --out new.csv >&-", 2, 1),
        ("cotrain predict run a.png 2>&-", 2, 0),
        ("cotrain describe small32 >&-", 0, 0),
        ("cotrain describe >&- 2>&- <&-", 0, 0),
        ("cotrain --version >&-", 0, 0),
        ("cotrain data check digits >&- 2>&-", 0, 0),
        ("cotrain data split digits --out split.json >&-", 0, 0),
        ("cotrain describe small32 >/dev/full", 2, 1),
        ("cotrain --help >/dev/full", 2, 1),
    ],
)
def test_closed_and_full_streams_are_no_traceback(line: str, code: int, errors: int, tmp_path: Path) -> None:
    done = shell(line, tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, errors), done.stderr
    assert done.stdout == "", "an error never becomes output"


@pytest.mark.system
@pytest.mark.skipif(os.name != "posix", reason="there is no shell that closes streams")
def test_what_is_printed_never_ends_in_another_file(tmp_path: Path) -> None:
    """A file that is opened first would get the descriptor of a closed stream."""
    script = """
import os
from cotrain.cli.streams import prepare_streams

prepare_streams()
with open("file", "wb") as file:
    for descriptor in (1, 2):
        os.write(descriptor, b"printed by a library")
assert open("file", "rb").read() == b""
"""
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run(
        ["sh", "-c", f"{shlex.quote(sys.executable)} script.py >&- 2>&- <&-"], cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("fit", "digits", "--out", ""),
        ("fit", "digits", "--out="),
        ("fit", ""),
        ("fit", "digits", "--split", ""),
        ("fit", "digits", "--labels", ""),
        ("fit", "digits", "--test", ""),
        ("fit", "digits", "--class-shares", ""),
        ("label", ""),
        ("label", "photos", "--out", ""),
        ("label", "photos", "--labels", ""),
        ("predict", "", "a.png"),
        ("predict", "run", ""),
        ("predict", "run", "a.png", "--out", ""),
        ("export", "run", ""),
        ("evaluate", ""),
        ("report", "run", "--out", ""),
        ("report", "run", "--data", ""),
        ("compare", "digits", "--out", ""),
        ("study", ""),
        ("data", "check", ""),
        ("data", "show", "digits", "--out", ""),
        ("data", "split", "digits", "--out", ""),
    ],
    ids=" ".join,
)
def test_empty_names_are_refused(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = here(capsys, *words)
    option = next((word.rstrip("=") for word in words if word.startswith("--")), "argument")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert option in done.stderr and "empty" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_empty_settings_are_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert here(capsys, "describe", "small32", "--data.ignore", "").returncode == 0
    assert here(capsys, "describe", "small32", "--data.ignore=").returncode == 0
