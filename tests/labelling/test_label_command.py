"""`cotrain label` as a person meets it: a real process that is stopped, killed, and started again."""

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from cotrain.labelling.journal import Journal
from cotrain.labelling.labels import replay
from tests.data.photos import by_class
from tests.labelling.served import CLASSES, Client, command, photos, start, truth, visit
from tests.processes import Done, Running

pytestmark = pytest.mark.system


def run(*words: object, **options: object) -> Done:
    return Running(command, [str(word) for word in words] + ["--no-browser"], **options).wait()


def label(client: Client, count: int) -> dict[str, str]:
    """Label the next images truly, and return what was confirmed."""
    numbers = {one["name"]: one["class"] for one in client.state["classes"]} or client.name(*CLASSES)
    confirmed = {}
    for _ in range(count):
        (card,) = client.get("/api/next?page=1&count=1")
        client.label(numbers[truth(card["path"])], card["row"])
        confirmed[card["path"]] = truth(card["path"])
    return confirmed


def test_killed_at_any_moment_it_starts_again_with_every_confirmed_label(tmp_path: Path) -> None:
    folder, confirmed = photos(tmp_path / "photos ü"), dict[str, str]()
    finishing = ("--out", str(tmp_path / "run"), "--set", "run.checkpoint_every=5")
    for count in (1, 3, 4):
        process, address = start(folder)
        client = visit(address)
        assert client.state["labelled"] == len(confirmed)
        confirmed |= label(client, count)
        process.send(signal.SIGKILL)
        process.wait()
        assert replay(Journal.open(folder / "labels-history.jsonl").events).by_name == confirmed
    process, address = start(folder, *finishing)
    client = visit(address)
    assert client.state["labelled"] == 8
    client.post("/api/finish")
    process.wait_until((tmp_path / "run" / "checkpoint").exists)  # it trains
    process.send(signal.SIGKILL)
    process.wait()
    process, address = start(folder, *finishing)
    client = visit(address)
    assert client.state["finish"] == {"stage": "stopped", "line": str((tmp_path / "run").resolve())}
    client.post("/api/finish")
    state = client.wait(lambda state: state["finish"]["stage"] != "running")
    assert state["finish"] == {"stage": "done", "line": str((tmp_path / "run").resolve())}
    assert (tmp_path / "run" / "predictions.csv").exists()
    assert not (tmp_path / "run-2").exists(), "the killed run continued"
    process.send(signal.SIGINT)
    done = process.wait()
    assert (done.returncode, done.stderr) == (0, "")
    classes, table = len({*confirmed.values()}), folder.resolve() / "labels.csv"
    assert done.stdout.splitlines()[-1] == f"stopped; 8 labels of {classes} classes in {table}"
    lines = (folder / "labels.csv").read_text().splitlines()
    assert sorted(lines[1:]) == sorted(f"{path},{name}" for path, name in confirmed.items())


def test_sigterm_ends_it_cleanly_and_labels_can_be_kept_elsewhere(tmp_path: Path) -> None:
    folder = by_class(tmp_path / "photos")
    process, address = start(folder, "--labels", str(tmp_path / "mine.csv"))
    client = visit(address)
    client.label(client.state["classes"][0]["class"], 19)
    process.send(signal.SIGTERM)
    done = process.wait()
    assert (done.returncode, done.stderr) == (0, "")
    assert "13 labels of 2 classes" in done.stdout
    assert len((tmp_path / "mine.csv").read_text().splitlines()) == 14
    assert (tmp_path / "mine-history.jsonl").exists()
    assert {path.name for path in folder.iterdir()} == {"cat", "dog", "unlabelled"}


def test_a_second_process_for_the_same_folder_is_refused(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 6)
    process, _ = start(folder)
    done = run(folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cotrain: another process is labelling")
    process.send(signal.SIGINT)
    assert process.wait().stdout.splitlines()[-1] == "stopped; no labels yet"


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 6)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"nothing")
    for words, expected in {
        (tmp_path / "missing",): "is not a folder",
        (folder / "000.png",): "is not a folder",
        (tmp_path / "empty",): "there is no image file in",
        (tmp_path / "broken",): "are unreadable",
        (folder, "--labels", tmp_path / "nowhere" / "labels.csv"): "there is no folder",
        (folder, "--port", "99999"): "port",
        (folder, "--order", "best"): "order",
    }.items():
        done = run(*words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert expected in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    (folder / "labels.csv").write_text("path,label\n000.png,a,b,c\n")
    done = run(folder)
    assert "line 2 has 4 cells" in done.stderr and done.returncode == 2
    assert (folder / "labels.csv").read_text() == "path,label\n000.png,a,b,c\n"


def test_a_port_in_use_is_named_and_a_free_one_is_found(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 6)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run(folder, "--port", taken.getsockname()[1])
    assert done.returncode == 2
    assert re.search(r"cannot listen on 127\.0\.0\.1 port \d+ \(.*\); choose another --port", done.stderr)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_one_line(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 6)
    folder.chmod(0o555)
    done = run(folder)
    folder.chmod(0o755)
    assert done.returncode == 2
    assert "use --labels FILE" in done.stderr


def test_a_host_for_others_says_what_it_means(tmp_path: Path) -> None:
    process, address = start(photos(tmp_path / "photos", 6), "--host", "0.0.0.0")
    assert "everybody on the network who has the token" in process.stdout
    assert visit(address).state["total"] == 6
    process.send(signal.SIGINT)
    process.wait()
