"""Clients that begin a request and never end it, or never take the answer, on real sockets."""

import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from cotrain.labelling import connections
from cotrain.labelling.security import FORBIDDEN
from tests.labelling.served import CLASSES, Served, command, photos, serving, truth, visit
from tests.processes import PATIENCE, Running

SECONDS = 0.4  # for a request or for an answer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(photos(tmp_path_factory.mktemp("connections") / "photos")) as one:
        yield one


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", SECONDS)
    monkeypatch.setattr(connections, "ANSWER_SECONDS", SECONDS)


def connected(port: int) -> socket.socket:
    wire = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return wire


def seconds_until_closed(wire: socket.socket) -> float:
    began = time.monotonic()
    with suppress(ConnectionError):
        while wire.recv(65_536):
            pass
    return time.monotonic() - began


def a_post(served: Served, length: int, *, token: bool) -> bytes:
    host = f"127.0.0.1:{served.port}"
    lines = ["POST /api/class HTTP/1.1", f"Host: {host}", f"Origin: http://{host}", f"Content-Length: {length}"]
    if token:
        lines += ["Content-Type: application/json"]
        lines += ["Cookie: " + "; ".join(f"{name}={value}" for name, value in served.client.cookies.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@pytest.mark.parametrize("token", [True, False])
@pytest.mark.parametrize("part", ["nothing", "half of a line", "half of the headers", "half of the body"])
def test_a_request_that_is_never_complete_is_ended(part: str, token: bool, served: Served) -> None:
    whole = a_post(served, 1000, token=token)
    sent = {
        "nothing": b"",
        "half of a line": b"POS",
        "half of the headers": whole[:-2],
        "half of the body": whole + b"x",
    }
    with connected(served.port) as wire:
        wire.sendall(sent[part])
        assert seconds_until_closed(wire) < 30 * SECONDS
    assert served.client.state["total"] == 24


@pytest.mark.parametrize("token", [True, False])
def test_one_byte_now_and_then_does_not_keep_a_request_open(token: bool, served: Served) -> None:
    """Without the token the answer comes before the body, which is then read and forgotten."""
    began = time.monotonic()
    with connected(served.port) as wire, pytest.raises(ConnectionError):
        wire.sendall(a_post(served, 100_000, token=token))
        while time.monotonic() - began < 30 * SECONDS:
            wire.sendall(b"x")
            time.sleep(SECONDS / 20)
    assert served.client.state["total"] == 24


def test_a_slow_request_that_becomes_complete_is_answered_and_the_connection_serves_more(served: Served) -> None:
    with connected(served.port) as wire:
        for _ in range(3):
            request = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode()
            for start in range(0, len(request), 10):
                wire.sendall(request[start : start + 10])
                time.sleep(SECONDS / 30)
            answer = b""
            while not answer.endswith(FORBIDDEN.encode()):
                answer += wire.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 403")


def test_a_client_that_takes_no_answer_is_ended(served: Served) -> None:
    request = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode()
    with socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.connect(("127.0.0.1", served.port))
        wire.settimeout(SECONDS / 10)
        end = time.monotonic() + 30 * SECONDS
        with pytest.raises(ConnectionError):
            while time.monotonic() < end:
                with suppress(TimeoutError):  # the server reads no more, because its answers are not taken
                    wire.send(100 * request)
    assert served.client.state["total"] == 24


def open_connections() -> list[str]:
    """The sockets of this process."""
    names = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in names if name.startswith("socket:")]


def test_many_open_connections_do_not_keep_others_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 60.0)
    before = len(open_connections())
    with ExitStack() as wires:
        held = [wires.enter_context(connected(served.port)) for _ in range(3 * connections.MOST)]
        for wire in held:
            with suppress(ConnectionError):
                wire.sendall(b"GET / HTT")
        assert served.client.state["total"] == 24
        assert len(open_connections()) - before - len(held) < connections.MOST + 10 * connections.AT_ONCE
        assert seconds_until_closed(held[0]) < 30, "the one that waited longest"
    assert served.client.state["total"] == 24


def with_few_descriptors(words: list[str]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    command(words)


@pytest.mark.system
def test_with_256_descriptors_unfinished_requests_stop_neither_answers_nor_learning(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    process = Running(with_few_descriptors, [str(folder), "--no-browser", "--port", "0"])
    process.wait_until(lambda: "stop with Ctrl-C" in process.stdout)
    address = process.stdout.split("open ")[1].split()[0]
    port = int(address.split(":")[2].split("/")[0])
    with ExitStack() as wires:
        for number in range(400):
            wire = wires.enter_context(connected(port))
            with suppress(ConnectionError):
                wire.sendall(b"" if number % 2 else b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n1")
        client = visit(address)
        numbers = client.name(*CLASSES)
        for row in range(12):
            client.label(numbers[truth(f"{row:03d}.png")], row)
        state = client.wait(lambda state: state["model"])
        assert not any("cannot learn" in notice for notice in state["notices"])
    process.send(signal.SIGINT)
    done = process.wait()
    assert (done.returncode, done.stderr) == (0, "")
    assert len((folder / "labels.csv").read_text().splitlines()) == 13
