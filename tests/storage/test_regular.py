"""Only regular files are opened, and no link out of a folder is followed, for reading and for writing."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import cotrain.data.decode as decode
from cotrain import UserError
from cotrain.runs.log import Log
from cotrain.storage import regular
from cotrain.storage.regular import leads_out, open_regular, open_to_append


def read(path: Path) -> None:
    open_regular(path, inside=path.parent).close()


def append(path: Path) -> None:
    os.close(open_to_append(path, inside=path.parent))


def log(path: Path) -> None:
    Log(path, 0).__exit__()


@pytest.mark.parametrize("use", [read, append, log])
def test_links_out_of_the_folder_are_refused(tmp_path: Path, use: Callable[[Path], None]) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (tmp_path / "victim").write_text("precious")
    (folder / "inner").write_text("")
    (folder / "link").symlink_to(tmp_path / "victim")
    (folder / "nowhere").symlink_to(tmp_path / "absent")
    (folder / "same").symlink_to("inner")
    use(folder / "same")
    for name in ("link", "nowhere"):
        if use is not log:  # which replaces what is there
            with pytest.raises(OSError, match="link out of its folder"):
                use(folder / name)
        else:
            use(folder / name)
    assert (tmp_path / "victim").read_text() == "precious" and not (tmp_path / "absent").exists()
    root = os.path.realpath(folder)
    assert leads_out(tmp_path / "folderx", root) and not leads_out(folder / "deep" / ".." / "inner", root)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders")
@pytest.mark.parametrize("use", [read, append, log])
def test_nobody_waits_for_a_pipe(tmp_path: Path, use: Callable[[Path], None]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises((OSError, UserError)):
        use(tmp_path / "pipe")


def test_the_decode_worker_uses_the_same_function_without_the_package() -> None:
    command = [sys.executable, "-P", "-X", "importtime", decode.__file__, regular.__file__]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=60)
    assert done.returncode == 0 and b" torch" not in done.stderr and b" cotrain" not in done.stderr
