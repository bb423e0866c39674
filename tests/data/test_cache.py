"""The decoded copy of a folder: made once, by several workers, and again where something changed."""

import io
import json
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

from cotrain import UserError, open_data
from cotrain.data import cache as cache_module
from cotrain.data import decode
from cotrain.data.decode import read_image
from cotrain.data.imagefacts import Facts, joined, unpacked
from cotrain.data.imagefile import ImageFile
from cotrain.data.workers import CRASHED, Found, Workers, listed
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


def test_a_damaged_copy_is_made_anew(tmp_path: Path) -> None:
    folder = by_class(tmp_path / "photos")
    first = open_data(folder, memory=0)
    assert isinstance(first.images, ImageFile)
    path = first.images.path
    for damage in (b"", path.read_bytes()[:-20], path.read_bytes()[100:], b"x" * 300):
        path.write_bytes(damage)
        assert open_data(folder).fingerprint == first.fingerprint


@pytest.mark.parametrize("memory", [0, 1])
def test_changed_pixels_are_decoded_again_with_one_line(tmp_path: Path, memory: int) -> None:
    folder = by_class(tmp_path / "photos")
    whole = open_data(folder, memory=0)
    assert isinstance(whole.images, ImageFile)
    content, path = whole.images.path.read_bytes(), whole.images.path
    for place in (0, 1000, whole.images.bytes - 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        console = Console(record=True, file=io.StringIO(), width=300)
        again = open_data(folder, memory=memory, console=console)
        rows = np.arange(len(again.images))
        assert torch.equal(again.images[rows], whole.images.resident())
        assert console.export_text().count("is damaged: decoding the damaged images again") == 1
        assert path.read_bytes() == content


def test_a_changed_fact_is_noticed(tmp_path: Path) -> None:
    folder = by_class(tmp_path / "photos")
    first = open_data(folder, memory=0)
    assert isinstance(first.images, ImageFile)
    path, content = first.images.path, first.images.path.read_bytes()
    for place in range(first.images.bytes, len(content), 97):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        console = Console(record=True, file=io.StringIO(), width=300)
        assert open_data(folder, console=console).fingerprint == first.fingerprint
        assert "is damaged: decoding all images again" in console.export_text()


FACTS = {
    "plain": json.dumps({"shape": [2, 8, 8, 3], "kinds": [[8, 8, "RGB"]], "errors": {}}).encode(),
    "names": b"a\0b",
    "stamps": np.zeros((2, 3), np.int64),
    "headers": np.zeros(2, np.int32),
    "hashes": np.ones(2, np.uint64),
}
WRONG = [
    *({name: None} for name in FACTS),
    *({"plain": json.dumps(value).encode()} for value in ([], {}, {"shape": [2, 8, 8, 3], "kinds": 1, "errors": {}})),
    {"plain": FACTS["plain"].replace(b"[2,", b"[3,")},
    {"plain": FACTS["plain"].replace(b"8, 8, 3]", b"-8, -8, 3]")},
    {"plain": b"[" * 100_000},
    {"names": b"a"},
    {"names": b""},
    {"stamps": np.zeros(6, np.int64)},
    {"stamps": np.zeros((2, 3))},
    {"headers": np.full(2, 7, np.int32)},
    {"headers": np.full(2, -7, np.int32)},
    {"hashes": np.ones((2, 1), np.uint64)},
    {"hashes": np.ones(2, np.uint64).astype(object)},
]


def packed(**changes: object) -> bytes:
    content = io.BytesIO()
    chosen = {name: value for name, value in {**FACTS, **changes}.items() if value is not None}
    arrays = {name: np.frombuffer(each, np.uint8) if isinstance(each, bytes) else each for name, each in chosen.items()}
    np.savez(content, **arrays)
    return content.getvalue()


@pytest.mark.parametrize("changes", WRONG)
def test_facts_that_do_not_fit_are_no_facts(changes: dict[str, object]) -> None:
    """A digest that is right says nothing about who wrote them."""
    assert unpacked(packed()).paths == ["a", "b"]
    with pytest.raises(ValueError, match=r".+"):
        unpacked(packed(**changes))


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


def test_damage_that_cannot_be_repaired_is_said(tmp_path: Path) -> None:
    folder = by_class(tmp_path / "photos")
    images = open_data(folder, memory=0).images
    assert isinstance(images, ImageFile)
    with open(images.path, "r+b") as file:
        file.write(bytes(3000))
    (folder / "cat" / "0.png").unlink()
    with pytest.raises(
        UserError, match=r"the decoded copy .* is damaged at cat/0\.png; delete it to decode the images"
    ):
        images[[0]]


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


def open_and_be_killed(folder: Path) -> None:
    """In a process of its own: it is killed as soon as there is room for the images, before they are decoded."""
    make_room = cache_module._make_room

    def killed(part: Path, size: int) -> None:
        make_room(part, size)
        os.kill(os.getpid(), SIGKILL)

    cache_module._make_room = killed
    open_data(folder)


@pytest.mark.system
def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTRAIN_HOME", str(tmp_path / "home"))
    folder = by_class(tmp_path / "photos")
    assert Running(open_and_be_killed, folder).wait().returncode == -SIGKILL
    (left,) = (tmp_path / "home").glob("images/*")
    assert left.suffix == ".partial"
    assert len(list((tmp_path / "home" / "images").iterdir())) == 1
    open_data(folder)
    assert [path.suffix for path in (tmp_path / "home" / "images").iterdir()] == [""]


def test_a_disk_that_fills_up_ends_it_and_blames_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = by_class(tmp_path / "photos")
    monkeypatch.setattr(cache_module, "_make_room", lambda part, size: part.chmod(0o400) or part.unlink())
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
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(UserError, match=r"the decoded images need 8.6 kB, but .* has only 100 bytes left"):
        open_data(folder)
    assert list((tmp_path / "home" / "images").iterdir()) == []


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
