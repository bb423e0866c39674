"""How long a person waits for `cotrain label`: for the first image, and from a label to a new guess.

    python -m benchmarks.labelling_times FOLDER

Starts the command on a FOLDER without labels, with nothing cached, and speaks HTTP to it as the page does. The answers
are made up; the label files that they leave in the folder are removed at the end.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, OpenerDirector, Request, build_opener

LABELS = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if (folder / "labels.csv").exists():
        sys.exit(f"{folder} has a labels.csv; use a folder without labels")
    with tempfile.TemporaryDirectory() as home:
        began = time.monotonic()
        command = [sys.executable, "-m", "cotrain", "label", str(folder), "--no-browser", "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COTRAIN_HOME": home})
        try:
            measure(server, began)
        finally:
            server.terminate()
            server.wait()
            for name in ("labels.csv", "labels-history.jsonl"):
                (folder / name).unlink(missing_ok=True)


def measure(server: "subprocess.Popen[str]", began: float) -> None:
    def report(what: str, since: float = began) -> None:
        print(f"{what}: {time.monotonic() - since:.1f} s", flush=True)

    page = Page(address_of(server))
    report("address printed")
    first = page.get("/api/next?page=1&count=1")[0]
    page.read(f"/image/{first['row']}")
    report("first image shown")
    page.wait(lambda state: not state["preparing"])
    report("features of all views ready")
    classes = [page.post("/api/class", name=name)["made"] for name in ("one", "other")]
    for number in range(LABELS):
        row = page.get("/api/next?page=1&count=1")[0]["row"]
        body = {"class": classes[number % 2], "images": [{"row": row, "seen": None}]}
        labelled = time.monotonic()
        page.post("/api/label", **body)
        if number % 4 == 3:
            page.wait(lambda state, labels=number + 1: (state["model"] or {"labels": 0})["labels"] >= labels)
            report(f"label {number + 1} to new guesses", labelled)


def address_of(server: "subprocess.Popen[str]") -> str:
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"http://\S+", line):
            return found[0]
    sys.exit("the server ended")


class Page:
    """A browser without a window."""

    def __init__(self, address: str) -> None:
        self.base = re.match(r"http://[^/]+", address)[0]  # type: ignore[index]
        self.opener: OpenerDirector = build_opener(HTTPCookieProcessor())
        self.opener.open(address).read()

    def read(self, path: str, body: bytes | None = None) -> bytes:
        headers = {"Origin": self.base, "Content-Type": "application/json"} if body else {}
        return self.opener.open(Request(self.base + path, body, headers)).read()

    def get(self, path: str) -> Any:
        return json.loads(self.read(path))

    def post(self, path: str, **body: Any) -> Any:
        return json.loads(self.read(path, json.dumps(body).encode()))

    def wait(self, condition: Callable[[Any], bool]) -> None:
        while not condition(self.get("/api/state")):
            time.sleep(0.1)


if __name__ == "__main__":
    main()
