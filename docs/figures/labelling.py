"""Walks through the labelling page as a person would, and takes the pictures of docs/guide/labelling.md.

python docs/figures/made_photos.py photos/ --images 160 --labels 1 --side 200 && rm photos/labels.csv
cotrain label photos/ --no-browser
python docs/figures/labelling.py "http://127.0.0.1:8417/?token=..." photos-truth.csv docs/figures

Needs playwright and chromium. The person knows the truth about every image, labels 40 by keys, and looks around.
"""

import argparse
import csv
import re
import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import expect, sync_playwright

LABELS = 40
PATIENCE = 120_000  # milliseconds
VIEWS = {"label": ".photo img", "grid": ".grid-view .tile", "review/unsure": ".looks .tile", "progress": ".curve"}


def label(page: Any, truth: dict[str, str]) -> None:
    """Label the image that is shown by the key of its class, or name its class."""
    done = int(page.locator("#labelled").inner_text())
    wanted = truth[page.locator(".one .photo figcaption").inner_text()]
    names = page.locator("#classes .name").all_inner_texts()
    if wanted in names:
        page.keyboard.press(str(names.index(wanted) + 1))
    else:
        page.keyboard.press("n")
        page.fill("#class-name", wanted)
        page.keyboard.press("Enter")
    expect(page.locator("#labelled")).to_have_text(str(done + 1))


def take(page: Any, address: str, name: str, view: str, *, width: int = 1280, scheme: str = "light", out: Path) -> None:
    page.set_viewport_size({"width": width, "height": 880})
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{address.split('?')[0]}#{view}")
    expect(page.locator(VIEWS[view]).first).to_be_visible()
    page.wait_for_timeout(800)  # for all small images
    page.evaluate("document.getElementById('toasts').replaceChildren()")
    page.screenshot(path=out / f"labelling-{name}.jpg", type="jpeg", quality=85)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address")
    parser.add_argument("truth", type=Path)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    with asked.truth.open(newline="") as lines:
        truth = {row["path"]: row["label"] for row in csv.DictReader(lines)}
    with sync_playwright() as started:
        expect.set_options(timeout=PATIENCE)
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 880})
        page.goto(asked.address)
        expect(page.locator(".photo img")).to_be_visible()
        while (done := int(page.locator("#labelled").inner_text())) < LABELS:
            label(page, truth)
            if done % 10 == 9:  # let the model learn, so that the curve has points
                expect(page.locator("#learning")).to_have_text(f"Learnt from {done + 1} labels")
                page.wait_for_timeout(4000)  # without a label, the error is estimated
                expect(page.locator("body:not(.busy)")).to_be_visible()
        expect(page.locator("#learning")).to_have_text(re.compile("Learnt from"))
        for name, view in {"one": "label", "grid": "grid", "review": "review/unsure", "progress": "progress"}.items():
            take(page, asked.address, name, view, out=asked.out)
        take(page, asked.address, "phone", "label", width=375, scheme="dark", out=asked.out)
        browser.close()


if __name__ == "__main__":
    main()
