"""The API as the page uses it: every answer is the state that is on disk."""

import csv
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

from cotrain.labelling.journal import Journal
from cotrain.labelling.labels import replay
from cotrain.types import UserError
from tests.data.photos import by_class, save
from tests.labelling.served import CLASSES, Client, Served, photos, serving, truth


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(photos(tmp_path / "my photos é")) as one:
        yield one


def in_table(one: Served) -> dict[str, str]:
    with open(one.session.history.table.path, newline="", encoding="utf-8") as file:
        return {row["path"]: row["label"] for row in csv.DictReader(file)}


def label_truly(client: Client, count: int) -> None:
    numbers = client.name(*CLASSES)
    for _ in range(count):
        (card,) = client.get("/api/next?page=1&count=1")
        client.label(numbers[truth(card["path"])], card["row"])


def test_a_label_is_on_disk_when_the_answer_comes(served: Served) -> None:
    (red,) = served.client.name("red").values()
    state = served.client.label(red, 4)
    on_disk = replay(Journal.open(served.session.history.journal.path).events)
    assert on_disk.by_name == {"004.png": "red"}
    assert (state["labelled"], state["classes"][0]["count"]) == (1, 1)
    served.client.wait(lambda _: served.session.history.table.path.exists())
    assert in_table(served) == {"004.png": "red"}


def test_the_model_learns_guesses_and_the_order_follow(served: Served) -> None:
    label_truly(served.client, 9)
    served.client.wait(lambda state: state["model"] and state["model"]["labels"] == 9)
    cards = served.client.get("/api/next?page=1&count=30")
    assert len(cards) == 24 - 9
    names = {one["class"]: one["name"] for one in served.client.state["classes"]}
    right = [names[card["guesses"][0]["class"]] == truth(card["path"]) for card in cards]
    assert sum(right) > len(right) / 2
    assert all(abs(sum(guess["probability"] for guess in card["guesses"]) - 1) < 0.01 for card in cards)
    state = served.client.state
    assert sum(one["guessed"] for one in state["classes"]) == state["unasked"] == 15


def test_a_grid_shows_one_class_and_accepts_it_at_once(served: Served) -> None:
    label_truly(served.client, 9)
    state = served.client.wait(lambda state: state["model"] and state["model"]["labels"] == 9)
    most = max(state["classes"], key=lambda one: one["guessed"])
    cards = served.client.get(f"/api/grid?class={most['class']}")
    assert len(cards) == most["guessed"]
    assert {card["guesses"][0]["class"] for card in cards} == {most["class"]}
    confidence = [card["guesses"][0]["probability"] for card in cards]
    assert confidence == sorted(confidence, reverse=True)
    after = served.client.label(most["class"], *[card["row"] for card in cards[1:]], how="grid")
    assert after["labelled"] == 9 + len(cards) - 1
    undone = served.client.post("/api/undo")
    assert (undone["labelled"], undone["undone"]) == (9, "label")


def test_pages_get_different_images_until_none_are_left(served: Served) -> None:
    first = {card["row"] for card in served.client.get("/api/next?page=a&count=10")}
    other = {card["row"] for card in served.visitor().get("/api/next?page=b&count=10")}
    assert (len(first), len(other), first & other) == (10, 10, set())
    rest = served.visitor().get("/api/next?page=c&count=24")
    assert {card["row"] for card in rest} == set(range(24)) - first - other
    assert len(served.visitor().get("/api/next?page=d&count=24")) == 24  # better twice than nothing to do


def test_two_people_see_each_other_and_their_conflict(served: Served) -> None:
    other = served.visitor()
    numbers = served.client.name("red", "green")
    served.client.label(numbers["red"], 3)
    assert other.state["labelled"] == 1
    state = other.label(numbers["green"], 3)  # without having seen it
    assert (state["labelled"], state["conflicts"]) == (0, 1)
    (card,) = served.client.get("/api/look/conflicts")["cards"]
    assert (card["row"], card["seen"], {one["class"] for one in card["said"]}) == (3, -1, set(numbers.values()))
    assert served.client.label(numbers["green"], 3, seen=-1)["conflicts"] == 0
    assert served.client.get("/api/look/gallery?class=2")["total"] == 1


def test_a_name_is_kept_with_the_labels_and_shown_where_people_disagree(served: Served) -> None:
    other, numbers = served.visitor(), served.client.name("red", "green")
    assert served.client.post("/api/name", name="  Zoë \t Q ")["you"] == "Zoë Q"
    served.client.label(numbers["red"], 3)
    other.label(numbers["green"], 3)
    (card,) = other.get("/api/look/conflicts")["cards"]
    assert [one["person"] for one in card["said"]] == ["Zoë Q", ""]
    lines = [json.loads(line) for line in served.session.history.journal.path.read_text().splitlines()]
    assert [line.get("person") for line in lines if line["kind"] == "label"] == ["Zoë Q", None]
    assert served.client.refused("/api/name", name="x" * 101) == (409, "a name has at most 100 characters")
    assert served.client.post("/api/name", name="")["you"] == ""
    assert served.client.post("/api/undo")["conflicts"] == 0, "a name is not undone, a label is"


def test_the_random_check_measures_the_guess_of_that_time(served: Served) -> None:
    label_truly(served.client, 9)
    served.client.wait(lambda state: state["model"] and state["model"]["labels"] == 9)
    numbers = {one["name"]: one["class"] for one in served.client.state["classes"]}
    cards = served.client.get("/api/next?page=1&count=6&audit=true")
    right = 0
    for card in cards:
        number = numbers[truth(card["path"])]
        right += served.session.guess(card["path"]) == number
        served.client.label(number, card["row"], how="audit")
    assert served.client.state["audited"] == len(cards) == 6
    assert sum(served.session.known().audit.values()) == right


def test_second_looks(served: Served) -> None:
    numbers = served.client.name(*CLASSES)
    for row in range(12):
        served.client.label(numbers["red" if row == 4 else CLASSES[row % 3]], row)  # row 4 is green
    served.client.wait(lambda state: state["model"] and state["model"]["labels"] == 12)
    served.client.post("/api/skip", images=[{"row": 20}])
    served.client.label(0, 21)
    totals = {what: served.client.get(f"/api/look/{what}")["total"] for what in ("skipped", "marked", "confident")}
    assert totals == {"skipped": 1, "marked": 1, "confident": 24 - 12 - 2}
    unsure, sure = (
        [card["guesses"][0]["probability"] for card in served.client.get(f"/api/look/{what}")["cards"]]
        for what in ("unsure", "confident")
    )
    assert unsure == sorted(unsure) and sure == sorted(unsure, reverse=True)
    parts = [served.client.get(f"/api/look/strangers?start={start}&count=4")["cards"] for start in (0, 4, 8)]
    assert [len(part) for part in parts] == [4, 4, 2]
    state = served.client.wait(lambda state: state["curve"])
    disputed = served.client.get("/api/look/disputed")["cards"]
    assert len(disputed) == state["disputed"]
    for card in disputed:
        served.client.label(card["seen"], card["row"], seen=card["seen"], how="review")  # the person insists
    assert served.client.state["disputed"] == 0


def test_classes_are_renamed_merged_and_brought_back(served: Served) -> None:
    numbers = served.client.name("cat", 'a "dog", =big', "\N{CAT FACE}")
    served.client.label(numbers["cat"], 0)
    served.client.label(numbers["\N{CAT FACE}"], 1)
    served.client.post("/api/merge", **{"class": numbers["\N{CAT FACE}"]}, into=numbers["cat"])
    served.client.post("/api/rename", **{"class": numbers["cat"]}, name="=SUM(A1)")
    served.client.wait(lambda _: served.session.history.table.path.exists() and len(in_table(served)) == 2)
    served.session.history.save()
    assert in_table(served) == {"000.png": "'=SUM(A1)", "001.png": "'=SUM(A1)"}
    served.client.post("/api/undo")
    state = served.client.post("/api/undo")
    assert [(one["name"], one["count"]) for one in state["classes"]] == [
        ("cat", 1),
        ('a "dog", =big', 0),
        ("\N{CAT FACE}", 1),
    ]


def test_mistakes_are_named_and_change_nothing(served: Served) -> None:
    served.client.name("cat")
    before = served.session.history.labels
    for path, body, code, words in (
        ("/api/class", {"name": "nan"}, 409, "means unlabelled"),
        ("/api/class", {"name": "CAT"}, 409, "already a class cat"),
        ("/api/rename", {"class": 99, "name": "x"}, 409, "no longer exists"),
        ("/api/label", {"class": 1, "images": [{"row": 99}]}, 404, "no image 99"),
        ("/api/label", {"class": 99, "images": [{"row": 1}]}, 409, "no longer exists"),
        ("/api/label", {"class": 1, "images": []}, 422, "at least 1"),
        ("/api/label", {"class": True, "images": [{"row": 1}]}, 422, "class"),
        ("/api/label", {"class": 1, "images": [{"row": 1}], "how": "magic"}, 422, "how"),
        ("/api/undo", {"more": 1}, 422, "more"),
        ("/api/finish", {}, 409, "at least two classes"),
    ):
        found, problem = served.client.refused(path, **body)
        assert (found, words in problem) == (code, True), (path, problem)
    assert served.session.history.labels == before


def test_two_hundred_classes(served: Served) -> None:
    numbers = served.client.name(*[f"class {number}" for number in range(200)])
    state = served.client.label(numbers["class 199"], 0)
    assert len(state["classes"]) == 200


def test_an_image_that_vanishes_is_not_shown_and_its_label_stays(served: Served) -> None:
    (red,) = served.client.name("red").values()
    served.client.label(red, 5)
    (served.session.pictures.folder / "005.png").unlink()
    answer = served.client.request("GET", "/image/5")
    assert (answer.status, answer.json["problem"]) == (404, "the file cannot be read: No such file or directory")
    assert served.client.state["labelled"] == 1


def test_a_folder_that_vanishes_and_comes_back(served: Served) -> None:
    (red,) = served.client.name("red").values()
    folder = served.session.pictures.folder
    shutil.move(folder, folder.with_name("away"))
    code, problem = served.client.refused("/api/label", **{"class": red}, images=[{"row": 5}])
    assert (code, served.client.state["labelled"]) == (507, 0)
    assert "not saved" in problem
    shutil.move(folder.with_name("away"), folder)
    assert served.client.label(red, 5)["labelled"] == 1


def test_a_folder_that_grows_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotrain.labelling.session.FOLDER_EVERY", 0.0)
    with serving(photos(tmp_path / "photos")) as one:
        save(tmp_path / "photos" / "new.png")
        state = one.client.wait(lambda state: state["notices"])
        assert state["notices"] == [
            "1 image came since the start. Restart cotrain label to see the folder as it is now."
        ]


def test_labels_of_class_folders_are_taken_over_and_written_with_the_first_new_one(tmp_path: Path) -> None:
    folder = by_class(tmp_path / "photos")
    with serving(folder) as one:
        assert [(each["name"], each["count"]) for each in one.client.state["classes"]] == [("cat", 6), ("dog", 6)]
        assert one.client.state["total"] == 20
    written = (folder / "labels.csv").read_text()
    assert len(written.splitlines()) == 13 and "cat/0.png,cat" in written
    with serving(folder) as one:
        assert one.client.state["labelled"] == 12


def test_test_images_are_not_asked_and_teach_nothing(tmp_path: Path) -> None:
    for name in ("train", "test"):
        by_class(tmp_path / "photos" / name, unlabelled=2)
    with serving(tmp_path / "photos") as one:
        assert one.client.state["total"] == 14
        assert len(one.session.known().labels) == 12
        row = one.session.dataset.paths.index("test/cat/0.png")
        assert one.client.request("GET", f"/image/{row}").status == 404


def test_lists_that_a_table_would_replace_are_refused(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    for name, rows in {"train": (0, 1, 2), "test": (3, 4, 5)}.items():
        lines = "".join(f"{row:03d}.png,{CLASSES[row % 3]}\n" for row in rows)
        (folder / f"{name}.csv").write_text(f"path,label\n{lines}")
    with pytest.raises(UserError, match=r"which labels\.csv would replace"), serving(folder):
        pass
    assert not (folder / "labels.csv").exists()


def opened(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image


def test_images_are_encoded_again_at_a_bounded_size(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    secret = PngImagePlugin.PngInfo()
    secret.add_text("comment", "secret")
    Image.new("RGB", (3000, 1500), "teal").save(folder / "large.png", pnginfo=secret)
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n<script>alert(1)</script>")
    with serving(folder) as one:
        rows = {path: row for row, path in enumerate(one.session.dataset.paths)}
        large = one.client.request("GET", f"/image/{rows['large.png']}")
        assert large.headers["Content-Type"] == "image/jpeg"
        assert opened(large.body).size == (1280, 640)
        assert b"secret" not in large.body
        small = one.client.request("GET", f"/image/{rows['000.png']}?size=small")
        assert opened(small.body).tobytes() == opened((folder / "000.png").read_bytes()).tobytes()
        assert one.client.request("GET", f"/image/{rows['broken.png']}").status == 404
        assert one.client.state["total"] == 25


def test_finish_writes_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(photos(tmp_path / "photos"), out=tmp_path / "out" / "run") as one:
        label_truly(one.client, 12)
        one.client.post("/api/finish")
        state = one.client.wait(lambda state: state["finish"]["stage"] in ("done", "failed"))
        assert state["finish"] == {"stage": "done", "line": str((tmp_path / "out" / "run").resolve())}
        written = []
        monkeypatch.setattr("cotrain.labelling.finish.finish", lambda folder, out, *_: written.append(out.name) or out)
        for row in (20, None):  # another label needs another folder, and the same labels do not
            if row is not None:
                one.client.label(1, row, seen=None)
            one.client.post("/api/finish")
            one.client.wait(lambda state: state["finish"]["stage"] != "running")
        assert written == ["run-2", "run-2"]
    names = {path.name for path in (tmp_path / "out" / "run").iterdir()}
    assert {"model.safetensors", "predictions.csv", "report.html", "label_next.csv"} <= names
    result = json.loads((tmp_path / "out" / "run" / "result.json").read_text())
    assert (result["labels"] + result["test_images"], result["classes"]) == (12, 3)
