"""Downloads from a real local server that breaks in the ways servers do."""

import hashlib
import io
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import Request, urlopen

import numpy as np
import pytest
from rich.console import Console

from cotrain import UserError
from cotrain.data import fetch as fetching
from cotrain.data.fetch import FETCHABLE, NAMES, RemoteFile, data_home, fetch, placed

CONTENT = np.random.default_rng(0).bytes(700_000)
QUICK = (0.0, 0.01)


class Server(ThreadingHTTPServer):
    """Serves `content` under any name. The lists are used up, one item a request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.ranges = True
        self.says_length = True
        self.breaks: list[int] = []  # bytes after which the connection ends
        self.codes: list[int] = []  # answers instead of the content
        self.stalls: list[float] = []  # seconds before the answer
        self.asked: list[str | None] = []  # the Range of each request

    def file(self, content: bytes = CONTENT, size: int | None = None, name: str = "set.bin") -> RemoteFile:
        url = f"http://127.0.0.1:{self.server_port}/some/where/{name}"
        return RemoteFile(url, hashlib.sha256(content).hexdigest(), size)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, asked = self.server, self.headers["Range"]
        server.asked.append(asked)
        if server.stalls:
            time.sleep(server.stalls.pop(0))
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.ranges else 0
        if server.codes or start >= len(server.content):
            self.send_error(server.codes.pop(0) if server.codes else 416)
            return
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if server.says_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.breaks.pop(0)] if server.breaks else body)

    def handle(self) -> None:
        with suppress(ConnectionError):  # the client may be tired of waiting
            super().handle()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with Server() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=100)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def refused(name: str, console: Console, folder: Path, *files: RemoteFile) -> str:
    with pytest.raises(UserError) as error:
        fetch(name, console, into=folder, files=files, pauses=QUICK)
    assert "\n" not in str(error.value)
    return str(error.value)


def part_of(folder: Path) -> Path:
    return folder / "set.bin.part"


def test_files_come_into_the_data_folder(
    server: Server, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTRAIN_HOME", str(tmp_path / "home"))
    assert data_home() == tmp_path / "home" / "data"
    monkeypatch.setitem(FETCHABLE, "svhn", (server.file(name="train.mat"), server.file(name="test.mat")))
    with pytest.raises(UserError, match=r"svhn is not at .*data/svhn; download it with `cotrain data fetch svhn`"):
        placed("svhn")
    folder = fetch("svhn", console)
    assert folder == placed("svhn") == tmp_path / "home" / "data" / "svhn"
    assert {file.name: file.read_bytes() for file in folder.glob("*.mat")} == dict.fromkeys(
        ("train.mat", "test.mat"), CONTENT
    )
    assert said(console) == "train.mat: 700.0 kB, checksum correct\ntest.mat: 700.0 kB, checksum correct\n"
    assert fetch("svhn", console) == folder
    assert server.asked == [None, None] and said(console).count("already downloaded") == 2


def test_a_server_that_sends_too_much_is_cut_off(server: Server, console: Console, tmp_path: Path) -> None:
    file = replace(server.file(name="train.mat"), size=len(CONTENT) - 1)
    with pytest.raises(UserError, match=r"sends more than the [\d,]+ bytes it should have; it was deleted"):
        fetch("svhn", console, into=tmp_path, files=(file,))
    assert [*tmp_path.iterdir()] == []


def test_a_file_placed_by_hand_is_hashed_once(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTRAIN_HOME", str(tmp_path))
    monkeypatch.setitem(FETCHABLE, "svhn", (server.file(name="train.mat"),))
    path = tmp_path / "data" / "svhn" / "train.mat"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"something else")
    with pytest.raises(UserError, match=r"train\.mat is not the official file: its SHA-256 is .*; move it away"):
        placed("svhn")
    path.write_bytes(CONTENT)
    placed("svhn")
    with monkeypatch.context() as patch:
        patch.setattr(fetching, "_sha256", lambda path: pytest.fail("it was hashed again"))
        placed("svhn")
    path.write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(UserError, match="is not the official file"):
        placed("svhn")


def test_without_a_home_the_users_cache_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COTRAIN_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_home().is_relative_to(tmp_path) and "cotrain" in data_home().parts and data_home().name == "data"


def test_a_broken_download_goes_on_where_it_ended(server: Server, console: Console, tmp_path: Path) -> None:
    server.breaks = [300_000, 100_000, 0]
    fetch("set", console, into=tmp_path, files=(server.file(),), pauses=QUICK)
    assert (tmp_path / "set.bin").read_bytes() == CONTENT and not part_of(tmp_path).exists()
    assert server.asked == [None, "bytes=300000-", "bytes=400000-", "bytes=400000-"]
    assert "the server stopped after 300000 of 700000 bytes; retrying in 0 s" in said(console)


def test_tries_that_bring_something_do_not_count(server: Server, console: Console, tmp_path: Path) -> None:
    server.breaks = [100_000] * 6
    fetch("set", console, into=tmp_path, files=(server.file(),), pauses=QUICK)
    assert (tmp_path / "set.bin").read_bytes() == CONTENT and len(server.asked) == 7


def test_a_server_that_always_breaks_is_given_up_and_the_part_kept(
    server: Server, console: Console, tmp_path: Path
) -> None:
    server.breaks = [300_000, 0, 0]
    message = refused("set", console, tmp_path, server.file())
    assert "the server stopped after 300000 of 700000 bytes; try again later, or copy it to" in message
    assert server.file().url in message and str(tmp_path / "set.bin") in message
    assert part_of(tmp_path).read_bytes() == CONTENT[:300_000] and not (tmp_path / "set.bin").exists()
    assert len(server.asked) == 3
    server.breaks = []
    fetch("set", console, into=tmp_path, files=(server.file(),))
    assert server.asked[-1] == "bytes=300000-" and (tmp_path / "set.bin").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(server: Server, console: Console, tmp_path: Path) -> None:
    server.ranges, server.breaks = False, [300_000]
    fetch("set", console, into=tmp_path, files=(server.file(),), pauses=QUICK)
    assert server.asked == [None, "bytes=300000-"] and (tmp_path / "set.bin").read_bytes() == CONTENT


def test_a_server_without_ranges_that_always_breaks_is_given_up(
    server: Server, console: Console, tmp_path: Path
) -> None:
    server.ranges, server.breaks = False, [300_000] * 9
    assert "stopped after 300000 of 700000" in refused("set", console, tmp_path, server.file())
    assert len(server.asked) == 3


def test_a_part_that_is_whole_is_kept_and_one_that_is_too_long_is_not(
    server: Server, console: Console, tmp_path: Path
) -> None:
    part_of(tmp_path).write_bytes(CONTENT)
    fetch("set", console, into=tmp_path, files=(server.file(),), pauses=QUICK)
    assert server.asked == ["bytes=700000-"] and (tmp_path / "set.bin").read_bytes() == CONTENT
    (tmp_path / "set.bin").unlink()
    part_of(tmp_path).write_bytes(CONTENT + b"more")
    fetch("set", console, into=tmp_path, files=(server.file(),), pauses=QUICK)
    assert server.asked[1:] == ["bytes=700004-", None] and (tmp_path / "set.bin").read_bytes() == CONTENT


def test_a_known_size_stands_in_for_an_unsaid_length(server: Server, console: Console, tmp_path: Path) -> None:
    server.says_length, server.breaks = False, [300_000]
    fetch("set", console, into=tmp_path, files=(server.file(size=len(CONTENT)),), pauses=QUICK)
    assert server.asked == [None, "bytes=300000-"] and (tmp_path / "set.bin").read_bytes() == CONTENT


def test_wrong_content_is_removed(server: Server, console: Console, tmp_path: Path) -> None:
    server.content = b"X" + CONTENT[1:]
    message = refused("set", console, tmp_path, server.file())
    for content in (server.content, CONTENT):
        assert hashlib.sha256(content).hexdigest() in message
    assert server.file().url in message and "it was deleted" in message and not list(tmp_path.iterdir())


def test_a_wrong_file_that_is_there_is_not_overwritten(server: Server, console: Console, tmp_path: Path) -> None:
    (tmp_path / "set.bin").write_bytes(b"mine")
    message = refused("set", console, tmp_path, server.file())
    for content in (b"mine", CONTENT):
        assert hashlib.sha256(content).hexdigest() in message
    assert f"{tmp_path / 'set.bin'} already exists" in message and "move it away" in message
    assert (tmp_path / "set.bin").read_bytes() == b"mine" and not server.asked


def test_a_file_that_is_not_there_is_not_asked_for_again(server: Server, console: Console, tmp_path: Path) -> None:
    server.codes = [404]
    message = refused("set", console, tmp_path, server.file())
    assert f"{server.file().url} could not be downloaded: HTTP 404 Not Found" in message
    assert f"copy it to {tmp_path / 'set.bin'} yourself" in message and len(server.asked) == 1


def test_a_busy_server_is_asked_again(server: Server, console: Console, tmp_path: Path) -> None:
    server.codes = [503, 429]
    fetch("set", console, into=tmp_path, files=(server.file(),), pauses=QUICK)
    assert len(server.asked) == 3 and (tmp_path / "set.bin").read_bytes() == CONTENT
    assert "HTTP 503 Service Unavailable; retrying in 0 s" in said(console)


def test_a_server_that_says_nothing_is_asked_again(
    server: Server, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts = []

    def open_impatiently(request: Request, timeout: float) -> object:
        """Only the first time: on a busy machine a good answer may take longer."""
        timeouts.append(timeout)
        return urlopen(request, timeout=0.2 if len(timeouts) == 1 else timeout)

    monkeypatch.setattr(fetching, "urlopen", open_impatiently)
    server.stalls = [0.5]
    fetch("set", console, into=tmp_path, files=(server.file(),), pauses=QUICK)
    assert len(server.asked) == 2 and (tmp_path / "set.bin").read_bytes() == CONTENT
    assert "timed out" in said(console)
    assert timeouts == [fetching.TIMEOUT] * 2


def test_without_a_network_the_address_and_the_place_are_named(console: Console, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/set.bin"
        message = refused("set", console, tmp_path, RemoteFile(url, "0" * 64))
    assert f"{url} could not be downloaded: " in message and "refused" in message
    assert f"copy it to {tmp_path / 'set.bin'} yourself" in message
    assert said(console).count("retrying in") == len(QUICK)


def test_folders_that_cannot_be_written_are_named(server: Server, console: Console, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = refused("set", console, tmp_path / "file" / "folder", server.file())
    assert f"set cannot be written to {tmp_path / 'file' / 'folder'}" in message and not server.asked


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_is_no_broken_connection(server: Server, console: Console, tmp_path: Path) -> None:
    part_of(tmp_path).symlink_to("/dev/full")
    message = refused("set", console, tmp_path, server.file())
    assert f"set cannot be written to {tmp_path} ([Errno 28] No space left" in message
    assert len(server.asked) == 1 and "retrying" not in said(console)


def test_terminals_get_a_bar_and_files_get_lines(
    server: Server, console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    fetch("set", terminal, into=tmp_path / "a", files=(server.file(),))
    assert "━" in said(terminal) and "/s" in said(terminal) and "MB/s\n" not in said(terminal)
    monkeypatch.setattr(fetching, "PLAIN_SECONDS", 0.0)
    fetch("set", console, into=tmp_path / "b", files=(server.file(),))
    first = said(console).splitlines()[0]
    assert first.startswith("set.bin: 0.3 of 0.7 MB, 0:00 left, ") and first.endswith("MB/s")


def test_what_has_no_address_is_placed_by_hand(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTRAIN_HOME", str(tmp_path))
    folder = tmp_path / "data" / "miniimagenet"
    for ask in (placed, lambda name: fetch(name, console)):
        with pytest.raises(UserError) as error:
            ask("miniimagenet")
        for words in ("ImageNet's terms", str(folder), "train.csv, val.csv and test.csv (filename,label)", "images"):
            assert words in str(error.value)
        with pytest.raises(UserError, match="dataset mnist; choose one of: cifar10, cifar100, svhn, miniimagenet"):
            ask("mnist")
    (folder / "images").mkdir(parents=True)
    assert placed("miniimagenet") == folder


def test_a_folder_with_only_a_broken_download_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTRAIN_HOME", str(tmp_path))
    (tmp_path / "data" / "cifar10").mkdir(parents=True)
    (tmp_path / "data" / "cifar10" / "cifar-10-python.tar.gz.part").touch()
    with pytest.raises(UserError, match="cotrain data fetch cifar10"):
        placed("cifar10")


def test_the_table_is_well_formed() -> None:
    assert set(NAMES) == {"cifar10", "cifar100", "svhn", "miniimagenet"}
    for remote in (remote for files in FETCHABLE.values() for remote in files):
        assert len(bytes.fromhex(remote.sha256)) == 32 and remote.size and remote.name.endswith((".tar.gz", ".mat"))
