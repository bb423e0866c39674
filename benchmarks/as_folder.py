"""Turn a .npz file into a folder of image files with a partial labels.csv, as a user might have it.

    python -m benchmarks.as_folder cifar10.npz photos --labels 250 --seed 0

`photos/` gets all training images, and `photos/test/` the test images. labels.csv holds the labels of a few training
images per class and of all test images.
"""

import argparse
import csv
from pathlib import Path

from PIL import Image

from cotrain.data import DataSettings, draw_split, open_data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--labels", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    dataset = open_data(arguments.data)
    split = draw_split(dataset, DataSettings(labels=arguments.labels), arguments.seed)
    labelled, test = {*split.labelled, *split.test}, set(split.test)
    (arguments.folder / "test").mkdir(parents=True)
    with open(arguments.folder / "labels.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "label"])
        for row in [*split.unlabelled, *split.test]:
            path = f"test/{row:05}.png" if row in test else f"{row:05}.png"
            Image.fromarray(dataset.images[row].squeeze(-1).numpy()).save(arguments.folder / path)
            if row in labelled:
                table.writerow([path, dataset.classes[int(dataset.labels[row])]])


if __name__ == "__main__":
    main()
