"""Image files of every kind people have, as the network gets them."""

import os
import struct
import subprocess
import sys
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from cotrain import UserError
from cotrain.data import decode
from cotrain.data.decode import Unreadable, peek, read_image, read_images
from cotrain.data.workers import find_images

RAMP = np.tile(np.arange(0, 256, 8, dtype=np.uint8), (32, 1))


def read(image: Image.Image, path: Path, channels: int = 1, **options: object) -> np.ndarray:
    image.save(path, **options)
    return read_image(path, 32, 32, channels)


def test_every_depth_and_mode_shows_the_same_picture(tmp_path: Path) -> None:
    grey = Image.fromarray(RAMP)
    sixteen = Image.fromarray(RAMP.astype(np.uint16) * 257)
    cases = [
        (grey, "png"),
        (grey, "bmp"),
        (grey, "tiff"),
        (sixteen, "png"),
        (sixteen, "tiff"),
        (grey.convert("RGB"), "png"),
        (grey.convert("RGBA"), "webp"),
        (grey.convert("P"), "gif"),
        (grey.convert("LA"), "png"),
    ]
    for number, (image, suffix) in enumerate(cases):
        options = {"lossless": True} if suffix == "webp" else {}
        shown = read(image, tmp_path / f"{number}.{suffix}", **options)
        np.testing.assert_array_equal(shown[..., 0], RAMP, err_msg=f"{image.mode} {suffix}")
    cmyk = read(grey.convert("RGB").convert("CMYK"), tmp_path / "cmyk.jpg", 3, quality=100)
    assert np.abs(cmyk.astype(int) - RAMP[..., None]).max() <= 3


def test_what_is_transparent_shows_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (32, 32), (200, 10, 10, 0))
    assert (read(image, tmp_path / "clear.png", 3) == 255).all()
    palette = Image.new("P", (32, 32))
    assert (read(palette, tmp_path / "palette.png", 3, transparency=bytes([0])) == 255).all()


def test_exif_orientation_is_honoured(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = read(Image.fromarray(RAMP), tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(turned[..., 0], np.rot90(RAMP, -1))


def test_images_are_resized_as_pillow_does(tmp_path: Path) -> None:
    Image.fromarray(RAMP).save(tmp_path / "ramp.png")
    expected = Image.fromarray(RAMP).resize((9, 5), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(read_image(tmp_path / "ramp.png", 5, 9, 1)[..., 0], np.asarray(expected))


def test_large_jpegs_are_decoded_at_a_smaller_scale(tmp_path: Path) -> None:
    coarse = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8))
    coarse.resize((1200, 800), Image.Resampling.BICUBIC).save(tmp_path / "large.jpg", quality=95)
    shown = read_image(tmp_path / "large.jpg", 64, 64, 3)
    with Image.open(tmp_path / "large.jpg") as file:
        file.draft(None, (96, 96))
        assert file.size == (150, 100), "an eighth, the smallest scale of at least 1.5 times the size"
        np.testing.assert_array_equal(shown, np.asarray(file.resize((64, 64), Image.Resampling.BICUBIC)))
    with Image.open(tmp_path / "large.jpg") as file:
        whole = np.asarray(file.resize((64, 64), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(shown - whole).mean() < 1


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM"])
def test_what_is_no_image_is_unreadable(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file.png").write_bytes(content)
    with pytest.raises(Unreadable):
        read_image(tmp_path / "file.png", 8, 8, 3)


def test_truncated_32_bit_and_absent_files_are_unreadable(tmp_path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(tmp_path / "a.jpg")
    whole = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "a.jpg").write_bytes(whole[: len(whole) // 2])
    Image.fromarray(RAMP.astype(np.float32)).save(tmp_path / "float.tiff")
    for name in ("a.jpg", "float.tiff", "absent.png"):
        with pytest.raises(Unreadable):
            read_image(tmp_path / name, 8, 8, 3)


@pytest.mark.parametrize(
    "kind_and_value", ["0300 01000000 0900", "0200 02000000 3600", "0200 02000000 7800", "0300 ff", ""]
)
def test_a_camera_that_notes_nonsense_does_not_spoil_the_picture(tmp_path: Path, kind_and_value: str) -> None:
    """An orientation of 9, of the letter 6, of the letter x, and a note that breaks off."""
    entry = bytes.fromhex("1201" + kind_and_value)
    exif = b"Exif\0\0II*\0" + bytes.fromhex("08000000 0100") + entry + bytes(6 if len(entry) == 10 else 0)
    Image.fromarray(RAMP).save(tmp_path / "noted.jpg", exif=exif)
    Image.fromarray(RAMP).save(tmp_path / "plain.jpg")
    noted, plain = (read_image(tmp_path / name, 32, 32, 1) for name in ("noted.jpg", "plain.jpg"))
    np.testing.assert_array_equal(noted, plain)
    assert peek(tmp_path / "noted.jpg") == (32, 32, "L")


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp", "tiff", "gif"])
def test_damage_is_survived(tmp_path: Path, suffix: str) -> None:
    """Any change of a few bytes leaves a picture or an unreadable file, and nothing else."""
    rng = np.random.default_rng(0)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(RAMP).convert("RGB").save(tmp_path / f"whole.{suffix}", exif=exif)
    whole = (tmp_path / f"whole.{suffix}").read_bytes()
    for _ in range(60):
        damaged = bytearray(whole)
        for place in rng.integers(0, min(len(whole), 300), 4):
            damaged[place] = rng.integers(256)
        (tmp_path / "a.bin").write_bytes(damaged[: rng.integers(10, len(whole) + 1)])
        for read in (lambda path: read_image(path, 8, 8, 3), peek):
            with suppress(Unreadable):
                read(tmp_path / "a.bin")


def large_png(path: Path, width: int, height: int, bits: int, kind: int) -> None:
    """Of one colour: a few hundred kilobytes."""
    row = bytes(1 + width * {0: 1, 2: 3, 6: 4}[kind] * bits // 8)
    packed = zlib.compressobj(1)
    pixels = b"".join([*(packed.compress(row) for _ in range(height)), packed.flush()])
    parts = {b"IHDR": struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0), b"IDAT": pixels, b"IEND": b""}
    chunks = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts.items()
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


@pytest.mark.parametrize(
    ("width", "height", "bits", "kind"),
    [(70_000, 1, 8, 0), (1, 70_000, 8, 0), (12_000, 11_000, 8, 0), (9_000, 9_000, 16, 6), (12_000, 12_000, 8, 2)],
)
def test_image_bombs_are_refused_before_they_are_decoded(
    width: int, height: int, bits: int, kind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large_png(tmp_path / "large.png", width, height, bits, kind)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it was decoded"))
    for read in (lambda path: read_image(path, 8, 8, 3), peek):
        with pytest.raises(Unreadable, match=rf"it has {width}x{height} pixels; at most 65,535 on a side"):
            read(tmp_path / "large.png")


SIDES = (3000, 2500)


def memory_for(path: Path) -> int:
    """Bytes that decoding takes, in a new process without torch."""
    program = f"""
import resource, sys
sys.path.insert(0, {str(Path(decode.__file__).parent)!r})
import decode
decode.Image.init()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
decode.read_image({str(path)!r}, 224, 224, 3)
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""
    return int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)


@pytest.mark.system
@pytest.mark.parametrize(
    ("suffix", "mode", "options"),
    [
        ("png", "RGB", {}),
        ("png", "RGBA", {}),
        ("png", "LA", {}),
        ("png", "P", {}),
        ("png", "I;16", {}),
        ("png", "RGBA", {"exif": 6}),
        ("webp", "RGB", {"method": 0}),
        ("webp", "RGBA", {"method": 0}),
        ("jpg", "RGB", {"progressive": True, "subsampling": 0}),
        ("jpg", "RGB", {"exif": 6}),
        ("tiff", "RGB", {"compression": "tiff_lzw"}),
        ("tiff", "RGB", {"compression": "tiff_lzw", "tiffinfo": {278: SIDES[1]}}),
        ("bmp", "RGB", {}),
        ("gif", "P", {}),
    ],
)
def test_decoding_takes_no_more_memory_than_is_checked(
    suffix: str, mode: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"image.{suffix}"
    pixels = np.random.default_rng(0).integers(0, 256, (25, 30, 4), dtype=np.uint8)
    image = Image.fromarray(pixels).resize(SIDES)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    if options.get("exif"):
        options = {"exif": Image.Exif()}
        options["exif"][0x0112] = 6
    (image if mode == "I;16" else image.convert(mode)).save(path, **options)
    taken = memory_for(path)
    monkeypatch.setattr(decode, "MOST_BYTES", max(0, taken - 25_000_000))  # one band takes up to 20 MB
    if taken > 25_000_000:
        with pytest.raises(Unreadable, match="of memory are allowed"):
            read_image(path, 224, 224, 3)
    monkeypatch.setattr(decode, "MOST_BYTES", 20 * SIDES[0] * SIDES[1])
    assert read_image(path, 224, 224, 3).shape == (224, 224, 3)
    assert taken < 17 * SIDES[0] * SIDES[1] + 25_000_000


def test_an_image_for_which_there_is_no_memory_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(self: Image.Image, *_: object) -> Image.Image:
        raise MemoryError

    Image.fromarray(RAMP).save(tmp_path / "a.png")
    monkeypatch.setattr(Image.Image, "resize", no_memory)
    assert read_images([str(tmp_path / "a.png")], (8, 8, 1))[1] == ["there is not enough memory to decode it"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders")
def test_pipes_and_loops_are_unreadable_and_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    _, errors = read_images([str(tmp_path / "pipe.png"), str(tmp_path / "loop.png")], (8, 8, 1))
    assert errors == ["It is not a regular file", "Too many levels of symbolic links"]


def test_files_are_sorted_as_paths_are(tmp_path: Path) -> None:
    for name in ("a/b.png", "a-b.png", "a.png", "a b/c.png", "b/a/c.png", "b/a.png", "\u00e9.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert find_images([tmp_path]) == [str(path) for path in sorted(tmp_path.rglob("*.png"))]


def test_folders_are_searched_and_files_taken_as_they_are(tmp_path: Path) -> None:
    for name in ("b.PNG", "a.jpg", "deep/c.webp", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    found = find_images([tmp_path / "notes.txt", tmp_path])
    assert [Path(path).name for path in found] == ["notes.txt", "a.jpg", "b.PNG", "c.webp"]
    with pytest.raises(UserError, match="there is no image file in"):
        find_images([tmp_path / "folder.png"])
