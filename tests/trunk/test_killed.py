"""Banks that survive: real processes that fill them are really killed, stopped, refused and started at once."""

from pathlib import Path
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP

import pytest

from tests.processes import Running
from tests.trunk.tiny import files
from tests.trunk.worker import fill, saved, views

pytestmark = pytest.mark.system
ALL = 80 * 6 + 16
OFTEN, RARELY = {"SAVE_SECONDS": 0.0}, {"SAVE_SECONDS": 1e9}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    home = tmp_path_factory.mktemp("whole")
    assert Running(fill, home).wait().returncode == 0
    return files(home)


def computed_again(home: Path, whole: dict[str, bytes]) -> int:
    """The views that another process computes to finish the bank, which is then as if nothing had happened."""
    before = sum(views(home))
    again = Running(fill, home).wait()
    assert (again.returncode, again.stderr) == (0, "")
    assert files(home) == whole
    return sum(views(home)) - before


def test_killed_while_it_is_made_the_bank_is_finished_with_the_same_bytes(
    whole: dict[str, bytes], tmp_path: Path
) -> None:
    assert Running(fill, tmp_path, 0.02, OFTEN, None, 100).wait().returncode == -SIGKILL
    kept = saved(tmp_path)
    assert 100 < kept < ALL
    timed = 2 * 6  # one image, to estimate the time
    assert ALL - kept <= computed_again(tmp_path, whole) <= ALL - kept + timed


def test_what_was_not_saved_before_the_kill_is_computed_again(whole: dict[str, bytes], tmp_path: Path) -> None:
    assert Running(fill, tmp_path, 0.02, RARELY, (SIGKILL, 200)).wait().returncode == -SIGKILL
    assert saved(tmp_path) == 0
    assert computed_again(tmp_path, whole) >= ALL


def test_ctrl_c_keeps_what_is_done(whole: dict[str, bytes], tmp_path: Path) -> None:
    assert Running(fill, tmp_path, 0.02, RARELY, (SIGINT, 200)).wait().returncode != 0
    kept = saved(tmp_path)
    assert 100 < kept < ALL
    assert computed_again(tmp_path, whole) < ALL - 80


def test_two_processes_at_once_compute_it_once(whole: dict[str, bytes], tmp_path: Path) -> None:
    first = Running(fill, tmp_path, 0.02)
    first.wait_until(lambda: views(tmp_path))
    first.send(SIGSTOP)
    second = Running(fill, tmp_path)
    second.wait_until(lambda: second.stdout)
    first.send(SIGCONT)
    done = [first.wait(), second.wait()]
    assert [(each.returncode, each.stderr) for each in done] == [(0, "")] * 2
    assert files(tmp_path) == whole
    assert len(views(tmp_path)) == 1, "the other computed nothing"
    assert done[0].stdout.startswith("computing 496 views of 96 images once: about 0:")
    assert done[1].stdout == "waiting for another process that is computing the same features\n"


def test_a_disk_that_takes_no_more_is_one_line(whole: dict[str, bytes], tmp_path: Path) -> None:
    """The kernel refuses to let a file grow past the limit, as a full disk does."""
    done = Running(fill, tmp_path, file_size=1000).wait()
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith(f"cannot keep the features in {tmp_path}/banks/")
    assert "File too large; set COTRAIN_HOME to a folder with room" in done.stderr
    assert computed_again(tmp_path, whole) >= ALL
