"""Open a folder for labelling, and serve the page until the user stops it."""

import hashlib
import os
import secrets
import socket
import threading
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from rich.console import Console

from cotrain.config import Config, data_settings
from cotrain.config.defaults import opened
from cotrain.data import Dataset
from cotrain.data.dataset import UNLABELLED
from cotrain.data.layout import TABLE, part_of
from cotrain.labelling.connections import AT_ONCE, Connection, Listener
from cotrain.labelling.finish import Finishing
from cotrain.labelling.history import LabelHistory
from cotrain.labelling.journal import Journal, only_one
from cotrain.labelling.labels_csv import LabelTable
from cotrain.labelling.learning import Order, PageModel, interactive_config
from cotrain.labelling.revision import Revision
from cotrain.labelling.security import LOOPBACK, AccessControl
from cotrain.labelling.served_images import Pictures
from cotrain.labelling.server import make_app
from cotrain.labelling.session import Session
from cotrain.progress import say
from cotrain.runs.interrupt import handled_by
from cotrain.storage.cells import is_text
from cotrain.storage.writing import remove_abandoned
from cotrain.training.experiment import Prepared
from cotrain.types import UserError

HISTORY = "history.jsonl"
PORT = 8417  # the first choice, so that an SSH tunnel can be written down


@dataclass(frozen=True)
class Asked:
    """What the command line asks for."""

    folder: Path
    labels: Path | None = None  # the label table; None: labels.csv in the folder
    order: Order = "informative"
    host: str = "127.0.0.1"
    port: int | None = None
    out: Path | None = None
    follow_links: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    memory: float | None = None

    @property
    def table(self) -> Path:
        return self.labels or self.folder / TABLE

    @property
    def journal(self) -> Path:
        return self.table.with_name(f"{self.table.stem}-{HISTORY}")


@contextmanager
def labelling(asked: Asked, console: Console) -> Iterator[Session]:
    """A running session for the folder. At the end, all labels are in the table."""
    if not asked.folder.is_dir():
        raise UserError(f"{asked.folder} is not a folder; cotrain label needs a folder of images")
    with ExitStack() as held:
        held.enter_context(only_one(asked.journal))
        journal = Journal.open(asked.journal)
        settings = dict(asked.settings)
        if asked.follow_links:
            settings["data.follow_links"] = True
        if asked.table.exists() and asked.labels is not None:
            settings["data.labels_file"] = os.fspath(asked.labels.resolve())
        dataset = opened(asked.folder, None, settings, asked.memory, console)
        _check_parts(dataset, asked)
        config = interactive_config(dataset, settings)
        pictures = held.enter_context(Pictures(asked.folder, follow_links=data_settings(None, settings).follow_links))
        table = LabelTable(asked.table, asked.folder, dataset.paths, data_settings(None, settings))
        remove_abandoned(table.path.parent)
        history, revision = LabelHistory(journal, table), Revision()
        history.start(_labels_of(dataset))
        if asked.labels is not None:
            settings["data.labels_file"] = os.fspath(asked.labels.resolve())
        finishing = Finishing(asked.folder, asked.out, settings, history, _digest(dataset), revision)
        prepare = partial(_page_models, dataset, config)
        session = Session(dataset, history, pictures, prepare, finishing, revision, asked.order, config.run.seed)
        _check_askable(session)
        session.start()
        try:
            yield session
        finally:
            session.end()


def _page_models(dataset: Dataset, config: Config, console: Console) -> Iterator[PageModel]:
    """One that knows each image as it is and chooses the first ones, then one that knows all views and trains."""
    two = replace(dataset, classes=("one", "another"))  # people name the classes later
    plain, whole = (Prepared(config, two, console=console, augmented=augmented) for augmented in (False, True))
    whole.trunk = plain.trunk
    for prepared in (plain, whole):
        yield PageModel(prepared, config.run.seed)


def _labels_of(dataset: Dataset) -> dict[str, str]:
    labels = dataset.labels.tolist()
    return {
        path: dataset.classes[label] for path, label in zip(dataset.paths, labels, strict=True) if label != UNLABELLED
    }


def _digest(dataset: Dataset) -> str:
    """Of the images and their paths."""
    digest = hashlib.sha256("\n".join(dataset.paths).encode(errors="surrogateescape"))
    digest.update(dataset.hashes.tobytes())
    return digest.hexdigest()


def _check_parts(dataset: Dataset, asked: Asked) -> None:
    """Refuse a folder whose test images a new labels.csv would turn into training images."""
    if asked.table.exists():
        return
    for part in ("valid", "test"):
        for row in getattr(dataset, part).tolist():
            if part_of(dataset.paths[row]) != part:
                raise UserError(
                    f"{asked.folder} is organised by {dataset.layout}, which labels.csv would replace; "
                    "write the labels to labels.csv, and move the test images to a folder test/"
                )


def _check_askable(session: Session) -> None:
    if len(session.index):
        return
    named = sum(not is_text(path) for path in session.dataset.paths)
    why = "their names are not valid text; rename them" if named else "all are test images"
    raise UserError(f"no image in {session.pictures.folder} can be labelled: {why}")


def listening(host: str, port: int | None) -> socket.socket:
    """A socket on this port, or on any free one if the user did not choose."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for attempt in (port,) if port is not None else (PORT, 0):
        made = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sends without delay only over TCP
        if os.name == "posix":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, attempt))
            made.listen()
        except OSError as error:
            made.close()
            reason = error.strerror or str(error)
            if port is None and attempt != 0:
                continue
            raise UserError(f"cannot listen on {host} port {attempt} ({reason}); choose another --port") from error
        except OverflowError as error:
            raise UserError(f"--port {port}: ports are 0 to 65535") from error
        return made
    raise AssertionError


@contextmanager
def answering(session: Session, access: AccessControl, own_socket: socket.socket) -> Iterator[threading.Thread]:
    """The server, in a thread of its own until the end of the block."""
    settings = uvicorn.Config(
        make_app(session, access),
        log_level="critical",
        access_log=False,
        lifespan="off",
        server_header=False,
        http=Connection,
        ws="none",
        backlog=AT_ONCE,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, args=([own_socket],), daemon=True, name="server")
    thread.start()
    try:
        yield thread
    finally:
        server.should_exit = True
        thread.join()


def serve(asked: Asked, console: Console, *, browser: bool) -> None:
    """Print the address and serve until Ctrl-C, SIGTERM or the end of the terminal."""
    with listening(asked.host, asked.port) as own_socket, labelling(asked, console) as session:
        access = AccessControl(secrets.token_urlsafe(24), own_socket.getsockname()[1], asked.host)
        with answering(session, access, own_socket) as thread:
            for line in _greeting(session, access):
                say(console, line)
            if browser:
                webbrowser.open(_address(access))
            _wait_for_signal(thread)
    say(console, f"stopped; {_summary(session)}")
    if session.finishing.stage == "running" and session.finishing.out is not None:
        say(console, f"{session.finishing.out} is not complete; start again and press Finish to continue it")


def _wait_for_signal(thread: threading.Thread) -> None:
    stop = threading.Event()
    with handled_by(lambda number: stop.set()):
        while thread.is_alive() and not stop.wait(0.5):
            pass


def _address(access: AccessControl) -> str:
    host = f"[{access.host}]" if ":" in access.host else access.host
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    return f"http://{host}:{access.port}/?token={access.token}"


def _greeting(session: Session, access: AccessControl) -> list[str]:
    lines = [f"{session.dataset.name}: {len(session.index):,} images to label; {_summary(session)}"]
    lines += session.dataset.notes
    if unreadable := len(session.dataset.unreadable):
        lines.append(f"left out, because they cannot be decoded: {unreadable:,} (cotrain data check lists them)")
    if odd := sum(not is_text(path) for path in session.dataset.paths):
        lines.append(f"left out, because their names are not valid text: {odd:,} (rename them)")
    if access.host not in LOOPBACK:
        lines.append(
            f"--host {access.host}: everybody on the network who has the token can see the images and change the "
            "labels, and the connection is not encrypted; an SSH tunnel is safer (docs/guide/labelling.md)"
        )
    return [*lines, "", f"open {_address(access)}", "stop with Ctrl-C; every label is on disk before the page shows it"]


def _summary(session: Session) -> str:
    labels = session.labels
    if not labels.labelled:
        return "no labels yet"
    count, classes = labels.labelled, len({*labels.classes.values()})
    return (
        f"{count:,} {'label' if count == 1 else 'labels'} of {classes:,} {'class' if classes == 1 else 'classes'} "
        f"in {session.history.table.path}"
    )
