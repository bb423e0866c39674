"""CIFAR-10 and CIFAR-100, from small files in exactly the official formats."""

import gzip
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cotrain import UserError
from cotrain.data.formats.cifar import LARGEST_FILE, is_cifar, load_cifar

RNG = np.random.default_rng(0)
TEN_NAMES = [f"kind_{number}".encode() for number in range(10)]
HUNDRED_NAMES = [f"fine_{number}".encode() for number in range(100)]
PLANES = RNG.integers(0, 256, (26, 3, 32, 32), np.uint8)  # 5 batches of 4, and 6 of the test
TEN_LABELS = RNG.permutation(26) % 10
HUNDRED_LABELS = RNG.choice(100, 26, replace=False)
COARSE_LABELS = RNG.integers(0, 20, 26)
ARRAY_HEAD = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR(K\x01"
UINT8 = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


def python2_pickle(value: Any) -> bytes:
    """As the official files were written: protocol 2 by Python 2, in which text is bytes."""

    def ops(value: Any) -> bytes:
        match value:
            case dict():
                return b"}(" + b"".join(ops(key) + ops(value[key]) for key in value) + b"u"
            case list():
                return b"](" + b"".join(map(ops, value)) + b"e"
            case bytes() if len(value) < 256:
                return b"U" + bytes([len(value)]) + value
            case bytes():
                return b"T" + struct.pack("<i", len(value)) + value
            case np.ndarray():
                shape = b"(" + b"".join(map(ops, value.shape)) + b"t"
                return ARRAY_HEAD + shape + UINT8 + b"\x89" + ops(value.tobytes()) + b"tb"
        return b"J" + struct.pack("<i", value)

    return b"\x80\x02" + ops(value) + b"."


def python3_pickle(value: Any) -> bytes:
    return pickle.dumps(value, protocol=2)


def ten_python(dumps: Any = python2_pickle) -> dict[str, bytes]:
    def batch(first: int, last: int, title: bytes) -> bytes:
        labels = TEN_LABELS[first:last].tolist()
        names = [f"image_{row}.png".encode() for row in range(first, last)]
        data = PLANES[first:last].reshape(-1, 3072)
        return dumps({b"batch_label": title, b"labels": labels, b"data": data, b"filenames": names})

    files = {f"data_batch_{n + 1}": batch(4 * n, 4 * n + 4, b"training batch %d of 5" % (n + 1)) for n in range(5)}
    meta = dumps({b"num_cases_per_batch": 4, b"label_names": TEN_NAMES, b"num_vis": 3072})
    return files | {"test_batch": batch(20, 26, b"testing batch 1 of 1"), "batches.meta": meta}


def ten_binary() -> dict[str, bytes]:
    records = [bytes([label]) + planes.tobytes() for label, planes in zip(TEN_LABELS, PLANES, strict=True)]
    files = {f"data_batch_{n + 1}.bin": b"".join(records[4 * n : 4 * n + 4]) for n in range(5)}
    return files | {"test_batch.bin": b"".join(records[20:]), "batches.meta.txt": b"\n".join(TEN_NAMES) + b"\n\n"}


def hundred_python(dumps: Any = python2_pickle) -> dict[str, bytes]:
    def part(rows: slice) -> bytes:
        return dumps(
            {
                b"data": PLANES[rows].reshape(-1, 3072),
                b"fine_labels": HUNDRED_LABELS[rows].tolist(),
                b"coarse_labels": COARSE_LABELS[rows].tolist(),
            }
        )

    meta = dumps({b"fine_label_names": HUNDRED_NAMES, b"coarse_label_names": HUNDRED_NAMES[:20]})
    return {"train": part(slice(20)), "test": part(slice(20, 26)), "meta": meta}


def hundred_binary() -> dict[str, bytes]:
    labels = zip(COARSE_LABELS, HUNDRED_LABELS, PLANES, strict=True)
    records = [bytes([coarse, fine]) + planes.tobytes() for coarse, fine, planes in labels]
    names = b"\n".join(HUNDRED_NAMES) + b"\n"
    return {"train.bin": b"".join(records[:20]), "test.bin": b"".join(records[20:]), "fine_label_names.txt": names}


OFFICIAL = {
    "cifar-10-batches-py": ("cifar-10-python.tar.gz", ten_python),
    "cifar-10-batches-bin": ("cifar-10-binary.tar.gz", ten_binary),
    "cifar-100-python": ("cifar-100-python.tar.gz", hundred_python),
    "cifar-100-binary": ("cifar-100-binary.tar.gz", hundred_binary),
}


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_archive(path: Path, folder: str, files: dict[str, bytes], *more: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        top = tarfile.TarInfo(folder)
        top.type = tarfile.DIRTYPE
        archive.addfile(top)
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in more:
            archive.addfile(member, io.BytesIO())
    return path


def check(path: Path, hundred: bool, layout: str) -> None:
    assert is_cifar(path)
    data = load_cifar(path)
    labels, names = (HUNDRED_LABELS, HUNDRED_NAMES) if hundred else (TEN_LABELS, TEN_NAMES)
    assert data.classes == tuple(name.decode() for name in names)
    np.testing.assert_array_equal(data.labels, labels)
    np.testing.assert_array_equal(data.images[:], np.moveaxis(PLANES, 1, 3))
    assert data.train.tolist() == list(range(20)) and data.test.tolist() == list(range(20, 26)) and not len(data.valid)
    assert data.name == ("cifar100" if hundred else "cifar10") and data.mirror
    assert data.source == str(path.resolve()) and data.layout == layout


def refused(path: Path) -> str:
    assert is_cifar(path)
    with pytest.raises(UserError) as error:
        load_cifar(path)
    message = str(error.value)
    assert str(path) in message and "\n" not in message
    return message


@pytest.mark.parametrize("folder", OFFICIAL)
def test_every_official_form_gives_the_same_images(tmp_path: Path, folder: str) -> None:
    archive, make = OFFICIAL[folder]
    title = "CIFAR-100" if "100" in folder else "CIFAR-10"
    kind = "python" if "py" in folder else "binary"
    hundred = title == "CIFAR-100"
    check(write_folder(tmp_path / "a" / folder, make()), hundred, f"{title}, {kind} folder")
    check(tmp_path / "a", hundred, f"{title}, {kind} folder")
    check(write_folder(tmp_path / "renamed", make()), hundred, f"{title}, {kind} folder")
    (tmp_path / "b").mkdir()
    check(write_archive(tmp_path / "b" / archive, folder, make()), hundred, f"{title}, {kind} archive")
    check(tmp_path / "b", hundred, f"{title}, {kind} archive")
    check(write_archive(tmp_path / "any name.tar", folder, make()), hundred, f"{title}, {kind} archive")
    check(write_archive(tmp_path / "dotted.tar.gz", f"./{folder}", make()), hundred, f"{title}, {kind} archive")


def test_a_folder_unpacked_into_one_of_its_own_name_is_found(tmp_path: Path) -> None:
    write_folder(tmp_path / "cifar-100-python" / "cifar-100-python", hundred_python())
    check(tmp_path / "cifar-100-python", True, "CIFAR-100, python folder")


def test_pickles_by_newer_pythons_are_read(tmp_path: Path) -> None:
    expected = pickle.loads(ten_python()["data_batch_2"], encoding="bytes")
    np.testing.assert_array_equal(expected[b"data"], PLANES[4:8].reshape(-1, 3072))
    check(write_folder(tmp_path / "ten", ten_python(python3_pickle)), False, "CIFAR-10, python folder")
    check(write_folder(tmp_path / "hundred", hundred_python(python3_pickle)), True, "CIFAR-100, python folder")
    check(write_folder(tmp_path / "protocol 5", ten_python(pickle.dumps)), False, "CIFAR-10, python folder")


def test_python_is_preferred_and_both_sets_at_once_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "cifar-10-batches-bin", ten_binary())
    write_archive(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", ten_python())
    check(tmp_path, False, "CIFAR-10, python archive")
    write_folder(tmp_path / "cifar-10-batches-py", ten_python())
    check(tmp_path, False, "CIFAR-10, python folder")
    write_folder(tmp_path / "cifar-100-binary", hundred_binary())
    message = refused(tmp_path)
    assert "has both CIFAR-10 and CIFAR-100; choose one of them" in message and "cifar-100-binary" in message


def test_other_files_and_folders_are_no_cifar(tmp_path: Path) -> None:
    for name in ("train", "test", "cifar-10-batches-py"):
        (tmp_path / "images" / name).mkdir(parents=True)
    (tmp_path / "words.tar.gz").write_text("no archive")
    (tmp_path / "notes.txt").write_text("notes")
    write_archive(tmp_path / "other.tar", "pictures", {"a.png": b"png"})
    for path in (tmp_path / "images", tmp_path / "absent", tmp_path, *tmp_path.iterdir()):
        assert not is_cifar(path), path
        with pytest.raises(UserError, match=r"has no CIFAR files; give cifar-10-python\.tar\.gz"):
            load_cifar(path)


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch '{self.marker}'",)


@pytest.mark.parametrize("file", ["data_batch_3", "test_batch", "batches.meta"])
def test_evil_pickles_do_not_run(tmp_path: Path, file: str) -> None:
    marker = tmp_path / "it ran"
    evil = {file: pickle.dumps({b"data": Evil(marker)}, protocol=2)}
    archive = write_archive(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", ten_python() | evil)
    folder = write_folder(tmp_path / "cifar-10-batches-py", ten_python() | evil)
    for path in (archive, folder):
        message = refused(path)
        assert (
            f": {file} " in message and f"it refers to {os.system.__module__}.system, which is not allowed" in message
        )
    assert not marker.exists()
    pickle.loads(evil[file])
    assert marker.exists()


@pytest.mark.parametrize("name", ["builtins.eval", "numpy.load", "numpy.core.multiarray.scalar", "codecs.encode"])
def test_pickles_may_name_nothing_else(tmp_path: Path, name: str) -> None:
    module, _, attribute = name.rpartition(".")
    evil = {"train": f"c{module}\n{attribute}\n.".encode()}
    message = refused(write_folder(tmp_path / "cifar-100-python", hundred_python() | evil))
    assert f"it refers to {name}, which is not allowed" in message


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "cifar-10-batches-py/../../data_batch_1"])
def test_entries_that_point_out_of_the_archive_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "cifar-10-python.tar.gz"
    write_archive(path, "cifar-10-batches-py", ten_python(), tarfile.TarInfo(name))
    assert f"the entry {name} points outside the archive" in refused(path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    link = tarfile.TarInfo("cifar-10-batches-py/data_batch_5")
    link.type, link.linkname = kind, "/etc/passwd"
    files = ten_python()
    del files["data_batch_5"]
    path = write_archive(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", files, link)
    assert "the entry cifar-10-batches-py/data_batch_5 is a link or device" in refused(path)


def test_an_entry_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    again = tarfile.TarInfo("elsewhere/test.bin")
    path = write_archive(tmp_path / "cifar-100-binary.tar.gz", "cifar-100-binary", hundred_binary(), again)
    assert "has test.bin twice" in refused(path)


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cifar-100-python.tar.gz"
    whole = write_archive(path, "cifar-100-python", hundred_python()).read_bytes()
    wrong_checksum = whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:]
    cuts = [whole[:-100], whole[: len(whole) // 2], whole[:5], b""]
    for content in (wrong_checksum, *cuts, b"no archive", b"\x1f\x8b no gzip"):
        path.write_bytes(content)
        assert "is not a readable archive" in refused(path)


@pytest.mark.parametrize("folder", OFFICIAL)
def test_a_missing_file_is_named(tmp_path: Path, folder: str) -> None:
    archive, make = OFFICIAL[folder]
    for name in make():
        files = make()
        del files[name]
        path = write_folder(tmp_path / name / folder, files)
        assert f"{path} has no {name}; CIFAR-1" in refused(path)
        path = write_archive(tmp_path / name / archive, folder, files)
        assert f"{path} has no {name}; CIFAR-1" in refused(path)


GOOD = {b"data": PLANES[:4].reshape(-1, 3072), b"labels": [0, 1, 2, 3]}
BAD_BATCHES = [
    (b"", "is not a valid CIFAR pickle"),
    (python2_pickle(GOOD)[:-1], "is not a valid CIFAR pickle"),
    (python2_pickle(GOOD)[:5000], "is not a valid CIFAR pickle"),
    (b"plain words", "is not a valid CIFAR pickle"),
    (
        b"\x80\x02}" + b")" + b"\x85" * 200_000 + b"K\x00s.",
        "it has a key that is neither text nor a number",
    ),  # C crashes
    (b"\x80\x02Nr\x00\xc2\xeb\x0b.", "holds a NoneType; expected a dict"),  # memo index 200,000,000: 3.4 GB in C
    (b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".", "is not a valid CIFAR pickle"),
    (b"\x80\x04\x8f(" + b")" + b"\x85" * 1000 + b"\x90.", "is not a valid CIFAR pickle"),
    (b"\x80\x02cnumpy\ndtype\n}U\x0c__defaults__K\x01sb.", "it sets the state of a function"),
    (python2_pickle([1, 2]), "holds a list; expected a dict"),
    (python2_pickle({}), "has no data; it contains nothing"),
    (python2_pickle({b"data": GOOD[b"data"]}), "has no labels; it contains data"),
    (python2_pickle(GOOD | {b"data": 7}), "data is a int; expected an array of shape (N, 3072)"),
    (python2_pickle(GOOD | {b"data": PLANES[:4]}), "data is of shape (4, 3, 32, 32)"),
    (python2_pickle(GOOD | {b"data": PLANES[:4].reshape(8, -1)}), "data is of shape (8, 1536)"),
    (python3_pickle(GOOD | {b"data": GOOD[b"data"].astype(float)}), "it has an array of type 'f8' instead of uint8"),
    (python3_pickle(GOOD | {b"data": GOOD[b"data"].astype(object)}), "it has an array of type 'O8' instead of uint8"),
    (python2_pickle(GOOD | {b"data": PLANES[:3].reshape(3, -1)}), "has 3 images but 4 labels"),
    (python2_pickle(GOOD | {b"labels": [0, 1, 10, 3]}), "row 2 has label 10; labels run from 0 to 9"),
    (python2_pickle(GOOD | {b"labels": [0, -1, 2, 3]}), "row 1 has label -1; labels run from 0 to 9"),
    (python2_pickle(GOOD | {b"labels": [b"0"] * 4}), "labels is not a list of whole numbers"),
    (python2_pickle(GOOD | {b"labels": 3}), "labels is not a list of whole numbers"),
    (python2_pickle({b"data": np.zeros((0, 3072), np.uint8), b"labels": []}), "is empty"),
]


@pytest.mark.parametrize(("content", "why"), BAD_BATCHES)
def test_bad_python_batches_are_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = write_folder(tmp_path / "cifar-10-batches-py", ten_python() | {"data_batch_4": content})
    message = refused(path)
    assert f"{path}: data_batch_4" in message and why in message


def test_a_batch_that_never_seems_to_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotrain.data.pickled.MOST_READS", 1000)
    nothing = b"\x80\x02" + b"N0" * 500 + b"N."
    path = write_folder(tmp_path / "cifar-10-batches-py", ten_python() | {"data_batch_4": nothing})
    assert "data_batch_4 is not a valid CIFAR pickle: it is longer than any of CIFAR's" in refused(path)


@pytest.mark.parametrize(
    ("folder", "file", "content", "why"),
    [
        (
            "cifar-10-batches-bin",
            "data_batch_2.bin",
            bytes(3073 * 2 - 1),
            "has 6145 bytes, not a multiple of the record size",
        ),
        ("cifar-10-batches-bin", "test_batch.bin", b"", "is empty"),
        ("cifar-10-batches-bin", "test_batch.bin", bytes(3073) + b"\x0a" + bytes(3072), "row 1 has label 10"),
        ("cifar-100-binary", "train.bin", bytes(3073), "not a multiple of the record size 3074"),
        ("cifar-100-binary", "train.bin", b"\x00\x64" + bytes(3072), "row 0 has label 100; labels run from 0 to 99"),
        ("cifar-100-binary", "fine_label_names.txt", b"one\ntwo\n", "has 2 different class names; expected 100"),
        ("cifar-10-batches-py", "batches.meta", python2_pickle({b"num_vis": 3072}), "has no label_names"),
        ("cifar-10-batches-py", "batches.meta", python2_pickle({b"label_names": [1]}), "is not a list of names"),
        ("cifar-10-batches-py", "batches.meta", python2_pickle({b"label_names": [b"cat"] * 10}), "1 different class"),
        ("cifar-100-python", "test", python2_pickle(GOOD), "has no fine_labels; it contains data, labels"),
    ],
)
def test_other_bad_files_are_refused(tmp_path: Path, folder: str, file: str, content: bytes, why: str) -> None:
    path = write_folder(tmp_path / folder, OFFICIAL[folder][1]() | {file: content})
    message = refused(path)
    assert f"{path}: {file}" in message and why in message


@pytest.mark.parametrize("extra", ["large", "many"])
def test_an_archive_that_unpacks_to_far_too_much_is_refused(tmp_path: Path, extra: str) -> None:
    """Neither the zeros of the large entry nor the many entries are ever unpacked."""
    path = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for number in range(1 if extra == "large" else 200):
            entry = tarfile.TarInfo(f"cifar-10-batches-py/extra_{number}")
            entry.size = LARGEST_FILE + 1 if extra == "large" else 0
            if extra == "large":
                archive.fileobj.write(entry.tobuf())  # type: ignore[union-attr]
            else:
                archive.addfile(entry)
    with pytest.raises(UserError, match="is not of CIFAR, which has fewer and smaller files"):
        load_cifar(path)


def test_a_file_larger_than_any_of_cifar_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ten_python()
    monkeypatch.setattr("cotrain.data.formats.cifar.LARGEST_FILE", max(map(len, files.values())))
    path = write_folder(tmp_path / "cifar-10-batches-py", files)
    assert len(load_cifar(path).images) == 26
    with open(path / "data_batch_4", "ab") as file:
        file.write(bytes(10_000))
    assert f"{path / 'data_batch_4'} is larger than any file of CIFAR" in refused(path)


def test_an_archive_that_goes_on_after_its_last_entry_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotrain.data.formats.cifar.LARGEST_FILE", 4 << 20)
    path = write_archive(tmp_path / "cifar-10-python.tar.gz", "cifar-10-batches-py", ten_python())
    assert len(load_cifar(path).images) == 26
    path.write_bytes(path.read_bytes() + gzip.compress(bytes(8 << 20), 1))
    assert "it does not end where its entries end" in refused(path)
