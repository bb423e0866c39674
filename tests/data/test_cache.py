"""The decoded copy of a folder: made once, by several workers, and again where something changed."""

import io
import os
import shutil
import tracemalloc
from collections.abc import Iterable
from errno import EMFILE
from pathlib import Path
from signal import SIGKILL

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from cotrain import Dataset, UserError, open_data
from cotrain.data import cache as cache_module
from cotrain.data import decode
from cotrain.data.decode import read_image
from cotrain.data.imagefacts import Facts, joined
from cotrain.data.imagefile import ImageFile
from cotrain.data.workers import CRASHED, Found, Workers, listed
from cotrain.storage import rows as rows_module
from cotrain.storage.rows import Rows
from tests.data.photos import by_class, flat, label_of, open_with, save
from tests.processes import Running


def decodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are decoded from now on."""
    seen: list[str] = []
    carry_out = cache_module.Workers.map

    def spy(self: Workers, tasks: Iterable[dict]) -> object:
        tasks = list(tasks)
        seen.extend(path for task in tasks if "into" in task for path in task["paths"])
        return carry_out(self, tasks)

    monkeypatch.setattr(cache_module.Workers, "map", spy)
    return seen


def test_a_second_opening_decodes_nothing_and_a_change_only_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = by_class(tmp_path / "photos")
    first = open_data(folder)
    seen = decodings(monkeypatch)
    assert open_data(folder).fingerprint == first.fingerprint
    assert seen == []
    new = save(folder / "cat" / "00.png")
    changed = save(folder / "dog" / "3.png")
    os.utime(folder / "dog" / "3.png", (1, 1))
    (folder / "dog" / "5.png").unlink()
    second = open_data(folder)
    assert sorted(Path(path).name for path in seen) == ["00.png", "3.png"]
    assert second.fingerprint != first.fingerprint
    np.testing.assert_array_equal(second.images[second.paths.index("cat/00.png")], new)
    np.testing.assert_array_equal(second.images[second.paths.index("dog/3.png")], changed)
    for row, path in enumerate(second.paths):
        np.testing.assert_array_equal(second.images[row], np.asarray(Image.open(folder / path)), path)


def test_pixels_that_were_decoded_in_another_way_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale of at least twice the size decodes these photographs whole, and gives slightly different pixels."""
    folder, places = tmp_path / "photos", [tmp_path / "photos" / name / "0.jpg" for name in ("cat", "dog")]
    for place in places:
        place.parent.mkdir(parents=True)
        coarse = np.random.default_rng(len(place.name)).integers(0, 256, (60, 80, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((400, 300), Image.Resampling.BICUBIC).save(place, quality=95)
    with monkeypatch.context() as before:
        before.setattr(decode, "DRAFT", 2)
        old = open_with(folder, size="80")
    new = open_with(folder, size="80")
    assert set(new.hashes.tolist()).isdisjoint(old.hashes.tolist()), "the bank knows images by their hashes"
    np.testing.assert_array_equal(new.images[0], read_image(places[0], 80, 80, 3))


@pytest.mark.parametrize("name", ["d" * 245, "\U0001f600" * 63])
def test_a_folder_with_a_long_name_has_a_copy(name: str, tmp_path: Path) -> None:
    assert len(open_data(by_class(tmp_path / name)).paths) == 20


def test_new_labels_need_no_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = flat(tmp_path / "photos")
    (folder / "labels.csv").write_text("path,label\n0.png,a\n1.png,b\n")
    open_data(folder)
    seen = decodings(monkeypatch)
    (folder / "labels.csv").write_text("path,label\n0.png,a\n1.png,b\n2.png,b\n")
    assert label_of(open_data(folder), "2.png") == "b"
    assert seen == []


def copied(dataset: Dataset) -> ImageFile:
    assert isinstance(dataset.images, ImageFile)
    return dataset.images


def test_a_damaged_copy_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Truncated, replaced, shifted or missing files: nothing wrong is read, and the next opening finds all whole."""
    folder = by_class(tmp_path / "photos")
    first = open_data(folder, memory=0)
    copy, pixels = copied(first).path.parent, copied(first).resident().clone()
    files = {path: path.read_bytes() for path in copy.iterdir()}
    assert len(files) == 3
    for path, content in files.items():
        for damage in (b"", content[:-20], content[100:], b"x" * 300, None):
            path.unlink() if damage is None else path.write_bytes(damage)
            again = open_data(folder, memory=0)
            assert torch.equal(copied(again).resident(), pixels) and again.fingerprint == first.fingerprint
            with monkeypatch.context() as patch:
                seen = decodings(patch)
                assert torch.equal(copied(open_data(folder, memory=0)).resident(), pixels)
                assert seen == []


@pytest.mark.parametrize("name", ["facts", "12x12x3", "12x12x3.index"])
def test_a_copy_that_cannot_be_opened_is_one_line(name: str, tmp_path: Path) -> None:
    path = copied(open_data(by_class(tmp_path / "photos"), memory=0)).path.with_name(name)
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match="cannot"):
        open_data(tmp_path / "photos")


def test_the_copy_of_another_folder_is_not_used(tmp_path: Path) -> None:
    """Somebody put its files in the place of ours: the images have the same size and other pixels."""
    ours, theirs = (copied(open_data(by_class(tmp_path / name), memory=0)) for name in ("ours", "theirs"))
    pixels = ours.resident().clone()
    assert not torch.equal(pixels, theirs.resident())
    for names in (["facts"], ["12x12x3", "12x12x3.index"], ["12x12x3"], ["12x12x3.index"], ["facts", "12x12x3.index"]):
        for name in names:
            shutil.copy(theirs.path.parent / name, ours.path.parent / name)
        assert torch.equal(copied(open_data(tmp_path / "ours", memory=0)).resident(), pixels)


@pytest.mark.parametrize("memory", [0, 1])
def test_changed_pixels_are_decoded_again_with_one_line(tmp_path: Path, memory: int) -> None:
    folder = by_class(tmp_path / "photos")
    whole = copied(open_data(folder, memory=0))
    content, path = whole.path.read_bytes(), whole.path
    pixels = whole.resident().clone()
    for place in (0, 1000, whole.bytes - 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        console = Console(record=True, file=io.StringIO(), width=300)
        again = open_data(folder, memory=memory, console=console)
        rows = np.arange(len(again.images))
        assert torch.equal(again.images[rows], pixels)
        assert console.export_text().count("is damaged") == 1
        assert path.read_bytes() == content


def test_any_changed_byte_of_what_is_known_of_the_images_is_noticed(tmp_path: Path) -> None:
    folder = by_class(tmp_path / "photos")
    first = open_data(folder, memory=0)
    for path in (copied(first).path.with_name("facts"), copied(first).path.with_name("12x12x3.index")):
        content = path.read_bytes()
        for place in range(0, len(content), 41):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            again = open_data(folder, memory=0)
            assert again.fingerprint == first.fingerprint
            assert torch.equal(copied(again).resident(), copied(first).resident())


def test_what_is_known_of_many_files_takes_little_memory(tmp_path: Path) -> None:
    count = 20_000
    files = (Found(f"unlabelled/{number:06d}.jpg", number, 10**18 + number, 10**18) for number in range(count))
    tracemalloc.start()
    try:
        listing = listed(files)
        facts = Facts((count, 1, 1, 1), joined(listing.paths), listing.stamps, hashes=np.ones(count, np.uint64))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert listing.paths[7] == "unlabelled/000007.jpg" and facts.names.startswith(b"unlabelled/000000.jpg\0")
    assert held < 160 * count  # bytes; a dataclass, a tuple and three numbers each took 500


def test_damage_that_cannot_be_repaired_is_said_and_no_dead_end(tmp_path: Path) -> None:
    folder = by_class(tmp_path / "photos")
    images = copied(open_data(folder, memory=0))
    with open(images.path, "r+b") as file:
        file.write(bytes(3000))
    (folder / "cat" / "0.png").unlink()
    with pytest.raises(UserError, match=r"12x12x3 is damaged, .*cat/0\.png"):
        images[[0]]
    again = open_data(folder, memory=0)
    for row, path in enumerate(again.paths):
        np.testing.assert_array_equal(again.images[row], np.asarray(Image.open(folder / path)), path)


def test_a_file_that_can_be_read_again_is_read_again(tmp_path: Path) -> None:
    folder = by_class(tmp_path / "photos")
    whole = (folder / "cat" / "1.png").read_bytes()
    (folder / "cat" / "1.png").write_bytes(b"")
    assert list(open_data(folder).unreadable) == ["cat/1.png"]
    stored = open_data(folder, memory=0).images
    assert isinstance(stored, ImageFile)
    (folder / "cat" / "1.png").write_bytes(whole)
    dataset = open_data(folder)
    assert dataset.unreadable == {}
    np.testing.assert_array_equal(
        dataset.images[dataset.paths.index("cat/1.png")], Image.open(folder / "cat" / "1.png")
    )


def test_a_replaced_file_of_the_same_size_and_time_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for number in range(4):
        path = folder / "ab"[number % 2] / f"{number}.bmp"
        save(path)
    before = open_data(folder)
    old = (folder / "a" / "0.bmp").stat()
    pixels = save(folder / "a" / "0.bmp")
    os.utime(folder / "a" / "0.bmp", ns=(old.st_atime_ns, old.st_mtime_ns))
    assert (folder / "a" / "0.bmp").stat().st_size == old.st_size
    after = open_data(folder)
    assert after.fingerprint != before.fingerprint
    np.testing.assert_array_equal(after.images[0], pixels)


def open_and_be_killed(folder: Path, images: int) -> None:
    """In a process of its own: it saves every image and is killed after so many."""
    written, cache_module.SAVE_SECONDS = Rows.written, -1.0

    def killed(rows: Rows, place: int, digest: int) -> None:
        if place == images:
            os.kill(os.getpid(), SIGKILL)
        written(rows, place, digest)

    Rows.written = killed
    open_data(folder)


@pytest.mark.system
@pytest.mark.parametrize("images", [0, 7])
def test_what_a_killed_process_decoded_is_not_decoded_again(
    images: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTRAIN_HOME", str(tmp_path / "home"))
    folder = by_class(tmp_path / "photos")
    assert Running(open_and_be_killed, folder, images).wait().returncode == -SIGKILL
    seen = decodings(monkeypatch)
    dataset = open_data(folder)
    assert len(seen) == 20 - images
    for row, path in enumerate(dataset.paths):
        np.testing.assert_array_equal(dataset.images[row], np.asarray(Image.open(folder / path)), path)
    (copy,) = (tmp_path / "home" / "images").iterdir()
    assert sorted(path.name for path in copy.iterdir()) == ["12x12x3", "12x12x3.index", "facts"]


def test_files_of_images_that_are_gone_do_not_pile_up(tmp_path: Path) -> None:
    folder, sizes = by_class(tmp_path / "photos"), []
    for number in range(5):
        for path in sorted(folder.glob("*/*.png")):
            os.utime(path, (number, number))
        sizes.append(len(copied(open_data(folder, memory=0)).rows))
    assert max(sizes) <= 3 * 20
    for path in folder.glob("*/*.png"):
        Image.new("RGB", (16, 16)).save(path)
    copy = copied(open_data(folder, memory=0)).path
    assert sorted(path.name for path in copy.parent.iterdir()) == ["16x16x3", "16x16x3.index", "facts"]


def test_a_disk_that_fills_up_ends_it_and_blames_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = by_class(tmp_path / "photos")
    monkeypatch.setattr(cache_module, "reserve", lambda several, *words: several[0].path.unlink(missing_ok=True))
    with pytest.raises(UserError, match=r"cannot keep the decoded images in .*: No such file or directory"):
        open_data(folder)
    monkeypatch.setattr(cache_module, "worker_count", lambda files: 2)
    with pytest.raises(UserError, match=r"cannot keep the decoded images in .*: No such file or directory"):
        open_data(folder)


def test_workers_give_what_one_process_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = by_class(tmp_path / "photos", each=100, unlabelled=100)
    (folder / "cat" / "broken.png").write_bytes(b"no")
    monkeypatch.setattr(cache_module, "worker_count", lambda files: 0)
    alone = open_with(folder, size="10")
    monkeypatch.setattr(cache_module, "worker_count", lambda files: 2)
    monkeypatch.setenv("COTRAIN_HOME", str(tmp_path / "home"))
    together = open_with(folder, size="10")
    assert together.fingerprint == alone.fingerprint
    assert together.unreadable == alone.unreadable
    assert torch.equal(together.images[together.train], alone.images[alone.train])


def test_a_file_that_ends_the_decoder_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that dies on every file named evil stands for a crashing decoder."""
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    paths = json.loads(line)['paths']\n"
        "    if any('evil' in path for path in paths): os.abort()\n"
        "    print(json.dumps([[1, 1, 'L'] for path in paths]), flush=True)\n"
    )
    from cotrain.data import decode

    monkeypatch.setattr(decode, "__file__", str(worker))
    with Workers(2) as workers:
        answers = list(workers.map([{"paths": ["a", "evil", "b"], "rows": [0, 1, 2]}, {"paths": ["c"], "rows": [3]}]))
    assert answers == [[[1, 1, "L"], {"error": "decoding it crashed the decoder"}, [1, 1, "L"]], [[1, 1, "L"]]]


def test_a_worker_that_could_not_be_started_again_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "a.png")
    with Workers(1) as workers:
        worker = workers.idle.get()
        assert worker is not None
        worker.kill()
        worker.wait()
        workers.idle.put(worker)
        assert next(workers.decode([[str(tmp_path / "a.png")]], (8, 8, 3))).errors == [CRASHED]
        with monkeypatch.context() as lacking, pytest.raises(OSError, match="Too many open files"):
            lacking.setattr(workers, "_start", lambda: fail(OSError(EMFILE, "Too many open files")))
            [*workers.decode([[str(tmp_path / "a.png")]], (8, 8, 3))]
        (decoded,) = workers.decode([[str(tmp_path / "a.png")]], (8, 8, 3))
    assert decoded.errors == [None]


def fail(error: Exception) -> None:
    raise error


def test_no_room_for_the_copy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = by_class(tmp_path / "photos")
    monkeypatch.setenv("COTRAIN_HOME", str(folder / "cat" / "0.png"))
    with pytest.raises(UserError, match=r"cannot keep the decoded images in .*; set COTRAIN_HOME to a folder"):
        open_data(folder)
    monkeypatch.setenv("COTRAIN_HOME", str(tmp_path / "home"))
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(rows_module.shutil, "disk_usage", lambda path: usage._replace(free=100))
        with pytest.raises(UserError, match=r"the decoded images need 8.6 kB, but .* has only 100 bytes left"):
            open_data(folder)
    assert len(open_data(folder).paths) == 20


def test_images_on_disk_are_the_images_in_memory(tmp_path: Path) -> None:
    folder = by_class(tmp_path / "photos")
    on_disk, in_memory = open_data(folder, memory=0), open_data(folder, memory=1)
    assert isinstance(on_disk.images, ImageFile)
    assert isinstance(in_memory.images, torch.Tensor)
    rows = np.array([3, 1, 1, 7])
    assert torch.equal(on_disk.images[rows], in_memory.images[rows])
    assert on_disk.fingerprint == in_memory.fingerprint
    assert on_disk.kind.statistics(on_disk.train) == in_memory.kind.statistics(in_memory.train)
    on_disk.images.path.unlink()
    assert torch.equal(on_disk.images[rows], in_memory.images[rows])


def test_scanning_and_decoding_say_how_far_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cotrain import progress

    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    folder = by_class(tmp_path / "photos")
    console = Console(record=True, file=io.StringIO(), width=200)
    open_data(folder, console=console)
    said = console.export_text()
    assert f"scanning {folder}: 20" in said
    assert "decoding images: 10 of 20, 0:00 left" in said
