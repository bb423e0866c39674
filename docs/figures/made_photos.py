"""Makes a folder of pictures of eight everyday things, labels for a few of them, and the truth about all of them.

python docs/figures/made_photos.py photos/ --images 600 --labels 4

Every pixel is computed here (`scenes.py`), so the pictures are free to use. photos/labels.csv has the class of a few
images of each kind, and photos-truth.csv, next to the folder, has the class of every image.
"""

import argparse
import csv
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from scenes import photograph
from things import KINDS


def make_one(folder: Path, seed: int, side: int, number: int, kind: int) -> None:
    rng = np.random.default_rng([seed, number])
    width, height = (int(side * scale) for scale in rng.uniform(0.77, 1.23, 2))
    photograph(rng, kind, width, height).save(folder / file_name(number), quality=int(rng.integers(80, 91)))


def file_name(number: int) -> str:
    return f"img_{number + 1:04}.jpg"


def write_table(file: Path, rows: Iterable[tuple[int, int]]) -> None:
    with file.open("w", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["path", "label"])
        writer.writerows([file_name(number), KINDS[kind].__name__] for number, kind in rows)


def make(folder: Path, images: int, labels: int, seed: int, side: int) -> None:
    kinds = np.random.default_rng(seed).permutation(np.arange(images) % len(KINDS))
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as workers:
        list(workers.map(partial(make_one, folder, seed, side), range(images), kinds, chunksize=4))
    first = sorted(int(number) for kind in range(len(KINDS)) for number in np.flatnonzero(kinds == kind)[:labels])
    write_table(folder / "labels.csv", [(number, kinds[number]) for number in first])
    write_table(folder.with_name(f"{folder.name}-truth.csv"), enumerate(kinds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=600, help="images in all")
    parser.add_argument("--labels", type=int, default=4, help="labelled images of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--side", type=int, default=260, help="mean width and height in pixels")
    asked = parser.parse_args()
    if not 0 < asked.labels * len(KINDS) <= asked.images:
        parser.error(
            f"{len(KINDS)} kinds need --labels 1 or more, and --images {len(KINDS) * max(asked.labels, 1)} or more"
        )
    make(asked.folder, asked.images, asked.labels, asked.seed, asked.side)


if __name__ == "__main__":
    main()
