"""Folders of images as people have them: layouts, tables, damage, splits, and images that are there twice."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cotrain import UserError, open_data
from cotrain.audit.duplicates import contradicts, duplicates, leaks
from cotrain.data import DataSettings, draw_split
from cotrain.data.decode import read_image
from cotrain.data.workers import find_images, listed, walk
from tests.data.photos import by_class, flat, label_of, open_with, part_of, save


@pytest.mark.parametrize("unlabelled", ["unlabelled", "unlabeled", "_unlabelled"])
def test_a_folder_per_class_beside_the_unlabelled(tmp_path: Path, unlabelled: str) -> None:
    folder = by_class(tmp_path / "photos", each=3)
    (folder / "unlabelled").rename(folder / unlabelled)
    save(folder / "cat" / "more" / "deep.png")
    save(folder / "loose.png")
    dataset = open_data(folder)
    assert dataset.classes == ("cat", "dog")
    assert dataset.layout == (
        f"one folder per class, next to {unlabelled}/ and files outside any folder, which are unlabelled"
    )
    assert label_of(dataset, "cat/more/deep.png") == "cat"
    assert label_of(dataset, "dog/1.png") == "dog"
    assert label_of(dataset, "loose.png") is None
    assert label_of(dataset, f"{unlabelled}/3.png") is None
    assert len(dataset.train) == len(dataset.paths) == 3 + 3 + 8 + 2


def test_pixels_are_those_of_the_files_in_the_order_of_their_paths(tmp_path: Path) -> None:
    folder = by_class(tmp_path / "photos")
    dataset = open_data(folder)
    assert list(dataset.paths) == sorted(dataset.paths)
    for row, path in enumerate(dataset.paths):
        np.testing.assert_array_equal(dataset.images[row].numpy(), np.asarray(Image.open(folder / path)), path)


def test_train_valid_and_test_folders(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for part, each in (("train", 4), ("val", 2), ("test", 3)):
        by_class(folder / part, each=each, unlabelled=0)
    save(folder / "unlabelled" / "u.png")
    save(folder / "train" / "unlabeled" / "v.png")
    save(folder / "test" / "nobody.png")
    dataset = open_data(folder)
    assert "test/, train/, unlabelled/, val/ with one folder per class" in dataset.layout
    assert (len(dataset.train), len(dataset.valid), len(dataset.test)) == (10, 4, 6)
    assert part_of(dataset, "test/dog/0.png") == "test"
    assert label_of(dataset, "val/dog/0.png") == "dog"
    assert label_of(dataset, "train/unlabeled/v.png") is None
    assert part_of(dataset, "unlabelled/u.png") == "train"
    assert part_of(dataset, "test/nobody.png") is None
    assert any("1 validation or test images have no label and are left out" in note for note in dataset.notes)


def test_a_class_named_train_is_a_class(tmp_path: Path) -> None:
    folder = by_class(tmp_path / "vehicles", ("car", "train"), unlabelled=0)
    assert open_data(folder).classes == ("car", "train")


@pytest.mark.parametrize("names", [("train", "test"), ("Train", "Test"), ("training", "test"), ("train", "validation")])
def test_parts_are_parts_however_they_are_written_and_whatever_lies_beside(tmp_path: Path, names) -> None:
    folder = tmp_path / "photos"
    for name in names:
        by_class(folder / name, each=3, unlabelled=0)
    save(folder / "sheet.png")
    dataset = open_data(folder)
    assert dataset.classes == ("cat", "dog")
    assert (len(dataset.train), len(dataset.valid) + len(dataset.test)) == (7, 6)
    assert label_of(dataset, "sheet.png") is None


def test_classes_that_look_like_a_slip_are_noted(tmp_path: Path) -> None:
    dataset = open_data(by_class(tmp_path / "photos", ("car", "train", "01", "1", "Car"), each=2))
    assert dataset.notes == (
        "treated as classes, not as parts, because there are other folders: train",
        "treated as different classes, although the names look alike: 01, 1",
        "treated as different classes, although the names look alike: Car, car",
    )


def test_an_empty_class_is_noted(tmp_path: Path) -> None:
    folder = by_class(tmp_path / "photos")
    (folder / "owl").mkdir()
    (folder / ".git").mkdir()
    assert open_data(folder).notes == ("folders without images: owl",)


def test_images_that_a_list_puts_aside_are_not_trained_on(tmp_path: Path) -> None:
    folder = flat(tmp_path / "photos", 7)
    (folder / "train.csv").write_text("path,label\n0.png,a\n1.png,b\n")
    (folder / "test.csv").write_text("path,label\n2.png,a\n3.png,\n")
    dataset = open_data(folder)
    assert part_of(dataset, "3.png") is None
    assert "1 validation or test images have no label and are left out" in dataset.notes
    (folder / "test.csv").write_text("path,label\n2.png,\n3.png,\n")
    dataset = open_data(folder)
    assert dataset.shape == (12, 12, 3) and len(dataset.test) == 0 and len(dataset.train) == 5


def test_a_table_of_labels(tmp_path: Path) -> None:
    folder = flat(tmp_path / "photos")
    save(folder / "deep er" / "größe.png")
    save(folder / "test" / "t.png")
    (folder / "labels.csv").write_text(
        "file;species;who\n0.png;cat;me\n1.png;dog;you\n2.png;;\ndeep er/größe.png;dog;\ntest/t.png;cat;\n",
        encoding="utf-8-sig",
    )
    dataset = open_data(folder)
    assert dataset.layout == "a folder with labels in labels.csv"
    labels = {path: label_of(dataset, path) for path in dataset.paths if label_of(dataset, path)}
    assert labels == {"0.png": "cat", "1.png": "dog", "deep er/größe.png": "dog", "test/t.png": "cat"}
    assert [dataset.paths[row] for row in dataset.test] == ["test/t.png"]
    assert len(dataset.train) == 9


def test_a_table_elsewhere_with_other_columns(tmp_path: Path) -> None:
    folder = flat(tmp_path / "photos")
    table = tmp_path / "mine.tsv"
    table.write_text("bild\tart\n0.png\t10\n1.png\t9\n2\t9\n")
    dataset = open_with(folder, labels_file=str(table), path_column="bild", label_column="art")
    assert dataset.classes == ("9", "10")
    assert label_of(dataset, "2.png") == "9"
    with pytest.raises(UserError, match=r"mine.tsv.*--data.path_column.*bild, art"):
        open_with(folder, labels_file=str(table))
    with pytest.raises(UserError, match=r"there is no label table absent.csv"):
        open_with(folder, labels_file="absent.csv")


def test_few_shot_lists_are_pooled_as_mini_imagenet(tmp_path: Path) -> None:
    folder = tmp_path / "mini"
    lists: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for name, part in (("n01", "train"), ("n02", "val"), ("n03", "test")):
        for number in range(6):
            save(folder / "images" / f"{name}{number:05}.jpg", (100, 120))
            lists[part].append(f"{name}{number:05}.jpg,{name}")
    for part, rows in lists.items():
        (folder / f"{part}.csv").write_text("\n".join(["filename,label", *rows]))
    dataset = open_data(folder)
    assert dataset.classes == ("n01", "n02", "n03")
    assert dataset.shape == (84, 84, 3)
    assert (len(dataset.train), len(dataset.test)) == (15, 3)
    assert [dataset.paths[row] for row in dataset.test] == [f"images/n0{number}00005.jpg" for number in (1, 2, 3)]


def test_lists_of_the_same_classes_are_what_they_say(tmp_path: Path) -> None:
    folder = flat(tmp_path / "photos", 6)
    (folder / "train.csv").write_text("path,label\n0.png,a\n1.png,b\n")
    (folder / "test.csv").write_text("path,label\n2.png,a\n3.png,b\n")
    dataset = open_data(folder)
    assert [dataset.paths[row] for row in dataset.test] == ["2.png", "3.png"]
    assert len(dataset.train) == 4
    (folder / "test.csv").write_text("path,label\n1.png,a\n3.png,b\n")
    with pytest.raises(UserError, match=r"1\.png is in .*test\.csv and also in another list"):
        open_data(folder)


@pytest.mark.parametrize(
    ("sizes", "modes", "shape"),
    [
        ([(20, 30)], ["RGB"], (20, 30, 3)),
        ([(12, 12)], ["L", "1", "LA"], (12, 12, 1)),
        ([(12, 12)], ["L", "RGB"], (12, 12, 3)),
        ([(100, 80), (90, 200)], ["RGB"], (85, 85, 3)),
        ([(100, 80), (90, 200)], ["L"], (64, 64, 1)),
        ([(40, 50), (44, 60)], ["RGB"], (42, 42, 3)),
        ([(300, 300)], ["RGB"], (224, 224, 3)),
    ],
)
def test_size_and_channels_are_chosen_from_the_images(tmp_path: Path, sizes, modes, shape) -> None:
    for number in range(8):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        save(path, sizes[number // 2 % len(sizes)], modes[number % len(modes)])
    assert open_data(tmp_path / "photos").shape == shape
    assert open_with(tmp_path / "photos", size="16x24").shape[:2] == (16, 24)


def test_images_are_what_predict_would_read(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for number in range(4):
        save(folder / "ab"[number % 2] / f"{number}.jpg", (200, 300))
    dataset = open_data(folder)
    for row, path in enumerate(dataset.paths):
        np.testing.assert_array_equal(dataset.images[row].numpy(), read_image(folder / path, 200, 200, 3))


def test_unreadable_images_are_listed_and_left_out(tmp_path: Path) -> None:
    folder = by_class(tmp_path / "photos", each=10, unlabelled=10)
    whole = (folder / "cat" / "0.png").read_bytes()
    (folder / "cat" / "0.png").write_bytes(whole[: len(whole) // 2])
    (folder / "dog" / "1.png").write_bytes(b"")
    (folder / "unlabelled" / "text.jpg").write_text("my holidays")
    (folder / "readme.txt").write_text("my holidays")
    shutil.copy(folder / "cat" / "5.png", folder / "cat" / "really_a_png.jpg")
    dataset = open_data(folder)
    assert sorted(dataset.unreadable) == ["cat/0.png", "dog/1.png", "unlabelled/text.jpg"]
    assert dataset.unreadable["dog/1.png"] == "the file is empty"
    assert all(part_of(dataset, path) is None for path in dataset.unreadable)
    assert label_of(dataset, "cat/0.png") is None
    assert part_of(dataset, "cat/really_a_png.jpg") == "train"
    assert dataset.notes == ("ignored, because their names are not those of images: readme.txt",)
    (folder / "dog" / "2.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"4 of the 32 images in .*photos are unreadable \(cat/0.png: .*; dog/1.png"):
        open_data(folder)
    assert len(open_with(folder, skip_unreadable=True).unreadable) == 4


def test_a_table_that_names_absent_files_is_refused(tmp_path: Path) -> None:
    folder = flat(tmp_path / "photos")
    (folder / "labels.csv").write_text("path,label\n0.png,a\ngone.png,b\n1.png,b\nlost.png,a\n")
    with pytest.raises(UserError, match=r"labels.csv, line 3: gone.png is not an image in .*\(and 1 more rows\)"):
        open_data(folder)
    dataset = open_with(folder, skip_unreadable=True)
    assert dataset.classes == ("a", "b")
    assert dataset.missing == (f"{folder}/labels.csv, line 3: gone.png", f"{folder}/labels.csv, line 5: lost.png")


def test_folders_that_say_too_little_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"flat \(put labelled .* folder per class, .*\): no training image has a label"
    ):
        draw_split(open_data(flat(tmp_path / "flat")), DataSettings(), seed=0)
    with pytest.raises(UserError, match="all labelled training images have class cat; at least two classes are needed"):
        draw_split(open_data(by_class(tmp_path / "one", ("cat",))), DataSettings(), seed=0)
    with pytest.raises(UserError, match=r"data.path_column and data.label_column need a label table"):
        open_with(by_class(tmp_path / "classes"), path_column="x")


def test_links_are_followed_but_not_in_circles_nor_out_of_the_folder(tmp_path: Path) -> None:
    folder = by_class(tmp_path / "photos", each=2, unlabelled=0)
    flat(tmp_path / "elsewhere", 3)
    (folder / "owl").symlink_to(tmp_path / "elsewhere")
    (folder / "dog" / "away.png").symlink_to(tmp_path / "elsewhere" / "0.png")
    (folder / "dog" / "nothing.png").symlink_to(tmp_path / "nothing.png")
    (folder / "dog" / "again.png").symlink_to(folder / "dog" / "0.png")
    (folder / "cat" / "circle").symlink_to(folder)
    (folder / "cat" / "itself.png").symlink_to(folder / "cat" / "itself.png")
    (folder / ".hidden").mkdir()
    save(folder / ".hidden" / "x.png")

    def found(follow_links: bool) -> set[str]:
        return {file.path for file in walk(folder, follow_links=follow_links) if file.is_image}

    own = {
        *(f"{name}/{number}.png" for name in ("cat", "dog") for number in range(2)),
        "cat/itself.png",
        "dog/again.png",
    }
    assert found(False) == own
    assert found(True) == own | {*(f"owl/{number}.png" for number in range(3)), "dog/away.png", "dog/nothing.png"}
    outside = listed(walk(folder, follow_links=False)).outside
    assert outside == ["dog/away.png", "dog/nothing.png", "owl"]
    os.mkfifo(folder / "cat" / "pipe.png")
    assert found(False) == own, "nothing waits for a pipe"
    assert find_images([folder]) == [str(folder / path) for path in sorted(own)]


def test_one_rule_for_images_behind_links(tmp_path: Path) -> None:
    """What is not shown is not trained on, and its class folder gives no label."""
    folder = by_class(tmp_path / "photos", each=2, unlabelled=0)
    flat(tmp_path / "elsewhere", 3)
    (folder / "owl").symlink_to(tmp_path / "elsewhere")
    (folder / "cat" / "away.png").symlink_to(tmp_path / "elsewhere" / "0.png")
    dataset = open_data(folder)
    assert dataset.classes == ("cat", "dog") and "cat/away.png" not in dataset.paths
    assert any("owl" in note and "cat/away.png" in note for note in dataset.notes)
    dataset = open_with(folder, follow_links=True)
    assert dataset.classes == ("cat", "dog", "owl") and "cat/away.png" in dataset.paths


@pytest.mark.parametrize("name", ["labels.csv", "train.csv"])
def test_a_table_behind_a_link_out_of_the_folder_is_not_read(tmp_path: Path, name: str) -> None:
    folder = flat(tmp_path / "photos", 4)
    (tmp_path / "private.csv").write_text("path,label\n0.png,a\n1.png,b\n")
    (folder / "test.csv").write_text("path,label\n2.png,a\n3.png,b\n")
    (folder / name).symlink_to(tmp_path / "private.csv")
    with pytest.raises(UserError, match=rf"{name} is a link"):
        open_data(folder)
    assert open_with(folder, follow_links=True).classes == ("a", "b")


def test_a_row_whose_image_is_a_link_out_of_the_folder_says_how_to_use_it(tmp_path: Path) -> None:
    folder = flat(tmp_path / "photos", 4)
    flat(tmp_path / "elsewhere", 1)
    (folder / "away.png").symlink_to(tmp_path / "elsewhere" / "0.png")
    (folder / "labels.csv").write_text("path,label\n0.png,a\n1.png,b\naway.png,a\n")
    with pytest.raises(UserError, match=r"line 4: away.png .*--follow-links"):
        open_data(folder)


def test_each_real_folder_is_entered_once_by_its_own_path(tmp_path: Path) -> None:
    """Folders that are linked to each other have as many paths as there are orders of them."""
    for name in "abcdefgh":
        save(tmp_path / "photos" / name / "deep" / "x.png")
    for name in "abcdefgh":
        for other in "abcdefgh":
            (tmp_path / "photos" / name / f"to-{other}").symlink_to(tmp_path / "photos" / other)
            (tmp_path / "photos" / name / f"deeper-{other}").symlink_to(tmp_path / "photos" / other / "deep")
    flat(tmp_path / "elsewhere", 1)
    (tmp_path / "photos" / "1").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "photos" / "2").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "photos" / "a" / "0").symlink_to(tmp_path / "elsewhere")
    found = sorted(file.path for file in walk(tmp_path / "photos", follow_links=True))
    assert found == ["1/0.png", *(f"{name}/deep/x.png" for name in "abcdefgh")]


def nested(folder: Path, depth: int, name: str = "d") -> None:
    """An image under so many folders, of which each is made in the one before: a path has at most 4,096 bytes."""
    save(folder / "x.png")
    inside = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=inside)
        outer, inside = inside, os.open(name, os.O_RDONLY, dir_fd=inside)
        os.close(outer)
    with open(os.open("y.png", os.O_WRONLY | os.O_CREAT, dir_fd=inside), "wb") as file:
        file.write((folder / "x.png").read_bytes())
    os.close(inside)


@pytest.fixture
def emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The current folder, which pytest could not delete if it is deep."""
    monkeypatch.chdir(tmp_path)
    yield
    subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)


@pytest.mark.skipif(os.mkdir not in os.supports_dir_fd, reason="folders cannot be made in an open folder")
@pytest.mark.usefixtures("emptied")
def test_folders_may_be_nested_as_deeply_as_the_system_can_open() -> None:
    nested(Path("deep"), 1500)
    found = [file.path for file in walk(Path("deep"), follow_links=False)]
    assert sorted(found) == ["d/" * 1500 + "y.png", "x.png"]
    assert len(find_images([Path("deep")])) == 2
    nested(Path("deeper"), 60, "d" * 100)
    for read in (lambda: [*walk(Path("deeper"), follow_links=False)], lambda: find_images([Path("deeper")])):
        with pytest.raises(UserError, match="deeper has folders nested too deeply") as error:
            read()
        assert len(str(error.value)) < 300


def test_without_test_images_some_labelled_ones_are_set_aside(tmp_path: Path) -> None:
    folder = by_class(tmp_path / "photos", ("cat", "dog"), each=10)
    save(folder / "owl" / "only.png")
    dataset = open_data(folder)
    split = draw_split(dataset, DataSettings(), seed=0)
    named = [dataset.paths[row].split("/")[0] for row in split.test]
    assert named == ["cat", "cat", "dog", "dog"]
    assert set(split.test).isdisjoint(split.labelled) and set(split.test).isdisjoint(split.unlabelled)
    assert len(split.labelled) == 17 and len(split.unlabelled) == 25
    assert draw_split(dataset, DataSettings(), seed=1).test != split.test
    assert draw_split(dataset, DataSettings(test_share=0), seed=0).test == ()
    both = draw_split(dataset, DataSettings(test_share=0.2, valid_share=0.5), seed=0)
    assert both.test == split.test and len(both.valid) == 8
    assert len({*both.test, *both.valid, *both.labelled}) == 21
    with pytest.raises(UserError, match=r"data.labels=20, but photos has only 17 labelled .* set aside for testing"):
        draw_split(dataset, DataSettings(labels=20), seed=0)


def test_the_same_image_twice_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    by_class(folder / "train", each=4, unlabelled=3)
    by_class(folder / "test", each=3, unlabelled=0)
    save(folder / "train" / "unlabelled" / "x.png", seed=1)
    save(folder / "test" / "cat" / "x.bmp", seed=1)
    save(folder / "train" / "cat" / "y.png", seed=2)
    save(folder / "train" / "dog" / "y.png", seed=2)
    dataset = open_data(folder)
    groups = [[dataset.paths[row] for row in group] for group in duplicates(dataset)]
    assert sorted(groups) == [
        ["test/cat/x.bmp", "train/unlabelled/x.png"],
        ["train/cat/y.png", "train/dog/y.png"],
    ]
    conflicts = [[dataset.paths[row] for row in group] for group in duplicates(dataset) if contradicts(dataset, group)]
    assert conflicts == [["train/cat/y.png", "train/dog/y.png"]]
    leaked = leaks(dataset, draw_split(dataset, DataSettings(), seed=0))
    assert [dataset.paths[row] for row in leaked] == ["test/cat/x.bmp"]
