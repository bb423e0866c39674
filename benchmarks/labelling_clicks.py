"""How long the server of `cotrain label` takes for a click, with many images and labels.

    python -m benchmarks.labelling_clicks
    python -m benchmarks.labelling_clicks --images 20000 --labels 1000 --clicks 50

Starts the server in this process and speaks HTTP to it on one connection. The server time is the CPU time of the
threads that answer. The time to the answer also holds the wait for the disk, for other processes, and for the threads
that train, write labels.csv and watch the folder meanwhile.

The images are empty files, the history has one event per label, and a training gives random guesses at once; the next
images are ranked as always. The same clicks on a folder of 1,000 images, half of them labelled, give the ratio.
"""

import argparse
import http.client
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cotrain.data import Dataset
from cotrain.data.settings import DataSettings
from cotrain.labelling.events import Event, Label, NewClass
from cotrain.labelling.finish import Finishing
from cotrain.labelling.history import LabelHistory
from cotrain.labelling.journal import Journal
from cotrain.labelling.labels_csv import LabelTable
from cotrain.labelling.launch import answering, listening
from cotrain.labelling.learning import PageModel
from cotrain.labelling.order import DIMENSIONS, Space
from cotrain.labelling.revision import Revision
from cotrain.labelling.security import AccessControl
from cotrain.labelling.served_images import Pictures
from cotrain.labelling.session import Session
from cotrain.labelling.snapshot import Estimate, Known, Snapshot

SMALL = 1_000  # images of the other folder
CLASSES = 10
READY = 5  # images that a page has already when it asks for the next one
LIMIT = 20.0  # milliseconds
KINDS = ("label", "undo", "next image", "state")

WHICH = ("server time", "answer")

Times = dict[str, list[tuple[float, float]]]  # server time and time to the answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--labels", type=int, default=5_000)
    parser.add_argument("--clicks", type=int, default=300)
    asked = parser.parse_args()
    small = measured(SMALL, min(asked.labels, SMALL // 2), min(asked.clicks, SMALL // 4))
    large = measured(asked.images, asked.labels, asked.clicks)
    print(f"{asked.images:,} images, {asked.labels:,} labels, {asked.clicks} clicks of each kind; milliseconds\n")
    print(f"| click | | minimum | median | 95th percentile | median / that with {SMALL:,} images |")
    print("|---|---|---|---|---|---|")
    for kind in KINDS:
        for which in (0, 1):
            least, middle, most = np.quantile([time[which] for time in large[kind]], [0, 0.5, 0.95])
            ratio = middle / np.median([time[which] for time in small[kind]])
            print(f"| {kind} | {WHICH[which]} | {least:.1f} | {middle:.1f} | {most:.1f} | {ratio:.2f} |")
    slow = [kind for kind in KINDS if np.quantile([time[0] for time in large[kind]], 0.95) > LIMIT]
    print(f"\nthe 95th percentile of the server time is above {LIMIT:g} ms for: {', '.join(slow) or 'none'}")


def measured(images: int, labels: int, clicks: int) -> Times:
    """Milliseconds of each kind of click, in the order in which a person makes them."""
    with tempfile.TemporaryDirectory() as place, serving(Path(place), images, labels) as page:
        times: Times = {kind: [] for kind in KINDS}
        page.wait_for_model()
        have = [card["row"] for card in page.get(f"/api/next?page=1&count={READY}")]
        for click in range(clicks):
            shown = "".join(f"&have={row}" for row in have)
            (card,) = timed(times["next image"], lambda url=f"/api/next?page=1&count=1{shown}": page.get(url))
            row, have = have[0], [*have[1:], card["row"]]
            body = {"class": 1 + click % CLASSES, "images": [{"row": row, "seen": None}], "how": "key"}
            timed(times["label"], lambda body=body: page.post("/api/label", body))
            timed(times["state"], lambda: page.get("/api/state"))
            timed(times["undo"], lambda: page.post("/api/undo", {}))
            page.post("/api/label", body)
        return times


def timed(into: list[tuple[float, float]], act: Callable[[], Any]) -> Any:
    began, used = time.perf_counter(), server_time()
    answer = act()
    seconds = time.perf_counter() - began
    into.append((1000 * (server_time() - used), 1000 * seconds))
    return answer


def server_time() -> float:
    """CPU seconds of the threads that answer requests."""
    own = [each for each in threading.enumerate() if each.name == "server" or each.name.startswith("AnyIO worker")]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(each.ident)) for each in own if each.ident)


@contextmanager
def serving(folder: Path, images: int, labels: int) -> Iterator["Page"]:
    dataset = made_up_dataset(folder, images)
    write_journal(folder / "labels-history.jsonl", dataset.paths, labels)
    history = LabelHistory(
        Journal.open(folder / "labels-history.jsonl"),
        LabelTable(folder / "labels.csv", folder, dataset.paths, DataSettings()),
    )
    history.start({})
    revision, token = Revision(), "made-up"
    finishing = Finishing(folder, None, {}, history, "", revision)
    model = RandomModel(dataset)
    with Pictures(folder) as pictures, listening("127.0.0.1", 0) as own_socket:
        session = Session(dataset, history, pictures, lambda console: [model], finishing, revision, "informative", 0)
        session.start()
        access = AccessControl(token, own_socket.getsockname()[1])
        with answering(session, access, own_socket):
            yield Page(access.port, token)
        session.end()


def made_up_dataset(folder: Path, images: int) -> Dataset:
    paths = [f"{row // 1000:03d}/{row:06d}.jpg" for row in range(images)]
    for number in range(-(-images // 1000)):
        (folder / f"{number:03d}").mkdir()
    for path in paths:
        (folder / path).touch()
    return Dataset(
        name="made up",
        images=torch.zeros(images, 1, 1, 3, dtype=torch.uint8),
        hashes=np.arange(images, dtype=np.uint64),
        labels=torch.full((images,), -1),
        classes=("one", "other"),
        train=np.arange(images),
        valid=np.array([], np.int64),
        test=np.array([], np.int64),
        paths=tuple(paths),
    )


def write_journal(path: Path, paths: tuple[str, ...], labels: int) -> None:
    """The events of one person who labelled every few images."""
    common: dict[str, Any] = {"time": "2026-01-01T00:00:00.000+00:00", "who": "0" * 12, "how": "key"}
    events: list[Event] = [
        NewClass(id=number, number=number, name=f"class {number}", **common) for number in range(1, CLASSES + 1)
    ]
    step = len(paths) // labels
    for place in range(labels):
        number = 1 + place % CLASSES
        images = (paths[place * step],)
        events.append(Label(id=len(events) + 1, number=number, name=f"class {number}", images=images, **common))
    lines = (event.model_dump_json(exclude_none=True, by_alias=True) + "\n" for event in events)
    path.write_text("".join(lines))


class RandomModel(PageModel):
    """Learns nothing, and ranks the images as always."""

    def __init__(self, dataset: Dataset) -> None:
        rng = np.random.default_rng(0)
        points = rng.normal(size=(len(dataset.train), DIMENSIONS)).astype(np.float32)
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        self.dataset, self.seed = dataset, 0
        self.space = Space(dataset.train, points, 0.5)
        self.weights: NDArray[np.float32] = rng.normal(size=(DIMENSIONS, CLASSES)).astype(np.float32)

    def train(self, known: Known, earlier: Snapshot | None = None) -> Snapshot:
        logits = self.space.points @ self.weights
        probabilities = np.exp(logits)
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        return Snapshot(
            labels=len(known.labels),
            classes=tuple(known.classes),
            ensemble=probabilities,
            temperature=1.5,
            heads=probabilities.argmax(axis=1)[None],
            doubt=-(probabilities * np.log(probabilities)).sum(axis=1),
            stranger_score=1 - probabilities.max(axis=1),
            disputed=(),
            curve=(),
            paying=None,
            advice="",
            seconds=0.0,
        )

    def estimate(self, known: Known, snapshot: Snapshot) -> Iterator[Estimate | None]:
        yield Estimate(None, 1.5, (), None, "")


class Page:
    """A browser without a window, on one connection."""

    def __init__(self, port: int, token: str) -> None:
        self.origin = f"http://127.0.0.1:{port}"
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        self.connection.request("GET", f"/?token={token}")
        answer = self.connection.getresponse()
        answer.read()
        cookies = answer.headers.get_all("Set-Cookie") or []
        self.headers = {"Cookie": "; ".join(cookie.split(";")[0] for cookie in cookies), "Origin": self.origin}

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._ask("POST", path, json.dumps(body))

    def _ask(self, method: str, path: str, body: str | None) -> Any:
        self.connection.request(method, path, body, {**self.headers, "Content-Type": "application/json"})
        answer = self.connection.getresponse()
        content = json.loads(answer.read())
        assert answer.status == 200, content
        return content

    def wait_for_model(self) -> None:
        while not self.get("/api/state")["model"]:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
