"""Folders to label, a server in this process or in its own, and a client that speaks HTTP to it."""

import http.client
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from cotrain.cli.main import main
from cotrain.labelling.launch import Asked, answering, labelling, listening
from cotrain.labelling.security import AccessControl
from cotrain.labelling.session import Session
from tests.processes import PATIENCE, Running
from tests.trunk.tiny import QUIET, known, small_data

CLASSES = ("red", "green", "blue")  # of the image n: CLASSES[n % 3]
TOKEN = "a-token-that-is-not-random"
SETTINGS = {
    "model.backbone": "tiny",
    "model.hidden": 8,
    "optim.steps": 10,
    "optim.labelled": 8,
    "optim.unlabelled": 8,
    "run.runtime": "torch",
    "run.repeats": 1,
    "run.folds": 2,
    "run.device": "cpu",
}
OPTIONS = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]


def photos(folder: Path, count: int = 24) -> Path:
    """Images that differ in the brightness of one channel."""
    folder.mkdir(parents=True)
    for row, image in enumerate(small_data(count, 0, 0).images.numpy()):
        Image.fromarray(image).save(folder / f"{row:03d}.png")
    return folder


def truth(path: str) -> str:
    return CLASSES[int(path.removesuffix(".png")) % len(CLASSES)]


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """A browser without a page: it keeps the cookies that it gets."""

    port: int
    cookies: dict[str, str] = field(default_factory=dict)

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str | None) -> Answer:
        host = f"127.0.0.1:{self.port}"
        sent: dict[str, str | None] = {"Host": host}
        if method not in ("GET", "HEAD"):
            sent |= {"Origin": f"http://{host}", "Content-Type": "application/json"}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            if body is not None and "Content-Length" not in headers:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def open(self, token: str) -> "Client":
        """Visit the address that the command printed."""
        answer = self.request("GET", f"/?token={token}")
        assert answer.status == 303, answer.body
        for cookie in answer.headers.get_all("Set-Cookie"):
            name, value = cookie.split(";")[0].split("=", 1)
            self.cookies[name] = value
        return self

    def get(self, path: str) -> Any:
        answer = self.request("GET", path)
        assert answer.status == 200, answer.body
        return answer.json

    def post(self, path: str, **body: Any) -> Any:
        answer = self.request("POST", path, json.dumps(body).encode())
        assert answer.status == 200, answer.body
        return answer.json

    def refused(self, path: str, **body: Any) -> tuple[int, str]:
        answer = self.request("POST", path, json.dumps(body).encode())
        assert answer.status >= 400, answer.body
        return answer.status, answer.json["problem"]

    @property
    def state(self) -> Any:
        return self.get("/api/state")

    def wait(self, condition: Callable[[Any], Any]) -> Any:
        """The first state for which the condition holds."""
        end = time.monotonic() + PATIENCE
        while not condition(state := self.state):
            assert time.monotonic() < end, state
            time.sleep(0.05)
        return state

    def name(self, *names: str) -> dict[str, int]:
        """Make these classes."""
        return {name: self.post("/api/class", name=name)["made"] for name in names}

    def label(self, number: int, *rows: int, seen: int | None = None, how: str = "click") -> Any:
        return self.post(
            "/api/label", **{"class": number}, images=[{"row": row, "seen": seen} for row in rows], how=how
        )


@dataclass(frozen=True)
class Served:
    session: Session
    port: int
    client: Client

    def visitor(self) -> Client:
        """Somebody else with the address."""
        return Client(self.port).open(TOKEN)


@contextmanager
def serving(folder: Path, **asked: Any) -> Iterator[Served]:
    """A server in this process."""
    with (
        listening("127.0.0.1", 0) as own_socket,
        labelling(Asked(folder, settings=SETTINGS, **asked), QUIET) as session,
    ):
        port = own_socket.getsockname()[1]
        with answering(session, AccessControl(TOKEN, port), own_socket):
            yield Served(session, port, Client(port).open(TOKEN))
    session.trainer.join()  # torch ends a process badly in which a thread still trains


def command(words: list[str]) -> None:
    """`cotrain label`, in a process of its own, on the tiny backbone."""
    torch.set_num_threads(1)
    with known():
        main(["label", *words, *OPTIONS])


def start(folder: Path, *words: str, **options: Any) -> tuple[Running, str]:
    """The process and the address that it printed."""
    process = Running(command, [str(folder), "--no-browser", "--port", "0", *words], **options)
    process.wait_until(lambda: re.search(r"open http\S+\n", process.stdout))
    found = re.search(r"open (http\S+)\n", process.stdout)
    assert found
    return process, found[1]


def visit(address: str) -> Client:
    found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", address)
    assert found
    return Client(int(found[1])).open(found[2])
