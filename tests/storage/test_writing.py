"""Files are complete or absent, whoever else writes them and whatever was planted beside them."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cotrain import UserError
from cotrain.storage import writing
from cotrain.storage.writing import names_in, new_file, remove_abandoned, replacing, write_whole


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
