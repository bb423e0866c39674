"""Files are complete or absent, whoever else writes them and whatever was planted beside them."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cotrain import UserError, open_data
from cotrain.storage import writing
from cotrain.storage.writing import names_in, new_file, remove_abandoned, replacing, write_whole
from tests.data.photos import by_class


def test_many_writers_of_one_path_all_succeed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([number]) * 50_000 for number in range(30)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda content: write_whole(path, content), contents))
    assert path.read_bytes() in contents
    assert [*tmp_path.iterdir()] == [path]


def test_a_planted_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if somebody guesses the name of the temporary file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr(writing, "token_hex", lambda size: "0" * 2 * size)
    temporary, descriptor = new_file(tmp_path / "out")
    os.close(descriptor)
    temporary.unlink()
    temporary.symlink_to(victim)
    with pytest.raises(UserError, match=r"cannot write .*out: File exists"):
        write_whole(tmp_path / "out", b"new")
    assert victim.read_text() == "precious"


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "out").symlink_to(tmp_path / "victim")
    write_whole(tmp_path / "out", b"new")
    assert ((tmp_path / "victim").read_text(), (tmp_path / "out").read_bytes()) == ("precious", b"new")


def test_an_error_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as file:
        file.write(b"half of it")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [*tmp_path.iterdir()] == [path]


class Reader:
    """Another process that has the file open for so many attempts to replace it: Windows refuses them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, attempts: float, winerror: int | None = 32) -> None:
        self.attempts, self.winerror, self.refused, self.replace = attempts, winerror, 0, os.replace
        monkeypatch.setattr(writing.os, "replace", self)

    def __call__(self, source: Path, path: Path) -> None:
        if self.refused >= self.attempts:
            return self.replace(source, path)
        self.refused += 1
        error = PermissionError(13, "Permission denied")
        if self.winerror is not None:
            error.winerror = self.winerror  # type: ignore[attr-defined]
        raise error


@pytest.mark.parametrize("winerror", [5, 32])
def test_a_file_that_another_process_reads_is_replaced_when_it_is_closed(
    winerror: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(monkeypatch, 3, winerror)
    write_whole(tmp_path / "file", b"new")
    assert (reader.refused, (tmp_path / "file").read_bytes()) == (3, b"new")
    reader.refused = 0
    open_data(by_class(tmp_path / "photos"))
    assert reader.refused == 3, "the decoded copy"


def test_a_file_that_stays_open_or_may_not_be_replaced_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "BUSY_SECONDS", 0.05)
    (tmp_path / "file").write_bytes(b"old")
    for winerror, most in ((32, 60), (None, 1), (1314, 1)):
        with monkeypatch.context() as while_open, pytest.raises(UserError, match="file: Permission denied"):
            reader = Reader(while_open, float("inf"), winerror)
            write_whole(tmp_path / "file", b"new")
        assert min(most, 2) <= reader.refused <= most
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"old"}


def test_names_of_any_length_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("\u00e9" * 127)
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"


def test_only_what_killed_processes_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, descriptor = new_file(tmp_path / "log")
    os.close(descriptor)
    (tmp_path / ".hidden").touch()
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    monkeypatch.setattr(writing.os, "getpid", lambda: process.pid)
    left, descriptor = new_file(tmp_path / "log")
    os.close(descriptor)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(writing.platform, "node", lambda: "another machine")
        theirs, descriptor = new_file(tmp_path / "log")
        os.close(descriptor)
    remove_abandoned(tmp_path)
    assert {own, theirs} == {path for path in tmp_path.iterdir() if path.name != ".hidden"}
    assert not left.exists()
    assert names_in(tmp_path) == {".hidden"}
