"""The labelling page in a real browser: keys, undo, grid, review, two pages, a killed server, phone and dark mode.

COTRAIN_ARTEFACTS names a folder to keep its screenshots in.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cotrain.labelling.events import STRANGER
from cotrain.labelling.journal import Journal
from cotrain.labelling.labels import Labels, replay
from tests.labelling.served import photos, start, truth
from tests.processes import Running

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path: apt-get install chromium"),
]
PATIENCE = 600_000  # milliseconds, on however busy a machine


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        playwright.expect.set_options(timeout=PATIENCE)
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Person:
    """Somebody with a browser. The console stays empty, and no request leaves the server."""

    def __init__(self, browser: Any, address: str, **settings: Any) -> None:
        # Without animations, which a browser without a graphics card draws at great cost.
        usual = {"viewport": {"width": 1280, "height": 860}, "reduced_motion": "reduce"}
        self.context = browser.new_context(**{**usual, **settings})
        self.context.set_default_timeout(PATIENCE)
        self.address, self.said, self.asked = address, list[str](), list[str]()
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.open()

    def open(self) -> None:
        self.page.goto(self.address)
        playwright.expect(self.page.locator("#labelled")).to_be_visible()

    def close(self) -> None:
        self.context.close()
        own = self.address.split("?")[0]
        assert [url for url in self.asked if not url.startswith(own)] == []
        assert [url for url in self.asked if "token" in url and url != self.address] == []
        assert self.said == []

    def shown(self) -> str:
        return self.page.locator(".one .photo figcaption").inner_text()

    def sees(self, selector: str, text: str) -> None:
        playwright.expect(self.page.locator(selector)).to_have_text(text)

    def press(self, key: str) -> None:
        """Press a key, and wait until another image is shown."""
        before = self.shown()
        self.page.keyboard.press(key)
        playwright.expect(self.page.locator(".one .photo figcaption")).not_to_have_text(before)

    def name_class(self, name: str) -> None:
        self.page.keyboard.press("n")
        self.page.locator("#class-name").fill(name)
        self.page.keyboard.press("Enter")

    def label(self, count: int, done: int) -> dict[str, str]:
        """Label this many images by keys, naming classes as they come; `done` are labelled already."""
        given = {}
        for number in range(done + 1, done + count + 1):
            path = self.shown()
            given[path] = truth(path)
            names = self.page.locator("#classes .name").all_inner_texts()
            if truth(path) in names:
                self.press(str(names.index(truth(path)) + 1))
            else:
                self.name_class(truth(path))
            self.sees("#labelled", str(number))
        return given


def on_disk(folder: Path) -> Labels:
    return replay(Journal.open(folder / "labels-history.jsonl").events)


def stop(process: Running) -> None:
    process.send(signal.SIGINT)
    done = process.wait()
    assert (done.returncode, done.stderr) == (0, "")


def artefacts() -> Path | None:
    if not (name := os.environ.get("COTRAIN_ARTEFACTS")):
        return None
    Path(name).mkdir(parents=True, exist_ok=True)
    return Path(name)


def test_a_walk_through_the_page(browser: Any, tmp_path: Path) -> None:
    """Ten labels by keys, undo, skip, a stranger, grid, reload, a killed server, phone, light and dark."""
    folder = photos(tmp_path / "my photos")
    process, address = start(folder)
    person = Person(browser, address)
    page = person.page
    playwright.expect(page.locator("#learning")).to_have_text("")
    given = person.label(10, done=0)
    assert on_disk(folder).by_name == given

    last = list(given)[-1]
    page.keyboard.press("u")
    person.sees("#labelled", "9")
    person.sees(".one .photo figcaption", last)  # it is asked again
    person.label(1, done=9)
    skipped = person.shown()
    person.press("s")
    stranger = person.shown()
    person.press("x")
    person.sees("#bar .soft", "1 not belonging, 1 skipped")
    assert (set(on_disk(folder).skipped), set(on_disk(folder).having(STRANGER))) == ({skipped}, {stranger})

    playwright.expect(page.locator("#learning")).to_have_text("Learnt from 10 labels")
    guess = page.locator(".guesses .accept .name").inner_text()
    path = person.shown()
    person.press("Enter")
    person.sees("#labelled", "11")
    assert on_disk(folder).by_name[path] == guess

    page.keyboard.press("g")
    tiles = page.locator(".grid-view .tile")
    playwright.expect(tiles.first).to_be_visible()
    count, accepted = tiles.count(), page.locator(".grid-view mark").inner_text()
    exception = tiles.first.locator("img").get_attribute("alt").removeprefix("Image ")
    tiles.first.click()
    playwright.expect(tiles.first).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Enter")
    person.sees("#labelled", str(11 + count - 1))
    labels = on_disk(folder).by_name
    assert exception not in labels
    assert list(labels.values()).count(accepted) >= count - 1

    page.reload()
    person.sees("#labelled", str(len(labels)))
    person.close()
    process.send(signal.SIGKILL)
    process.wait()
    process, address = start(folder)
    person = Person(browser, address)
    person.sees("#labelled", str(len(labels)))
    assert on_disk(folder).by_name == labels
    look_around(person, artefacts())
    person.close()
    stop(process)


def look_around(person: Person, screenshots: Path | None) -> None:
    """Every view fits a laptop and a phone, and its text can be read in light and dark."""
    page = person.page
    playwright.expect(page.locator("#learning")).to_contain_text("Learnt from")
    for view, ready in {"label": ".photo img", "grid": "#stage h2", "review": ".tabs", "progress": "#finish"}.items():
        page.goto(f"{person.address.split('?')[0]}#{view}")
        playwright.expect(page.locator(ready).first).to_be_visible()
        for width in (1280, 375):
            page.set_viewport_size({"width": width, "height": 860})
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (view, width)
                contrasts = page.evaluate(CONTRASTS)
                assert len(contrasts) > 5 and min(contrasts) > 3.5, (view, scheme, min(contrasts))
                if screenshots is not None:
                    page.screenshot(path=screenshots / f"labelling-{view}-{scheme}-{width}.png")
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input, a, img:not([alt=''])")]
        .filter(one => !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.length || one.alt))
        .map(one => one.outerHTML)"""
    )
    assert unnamed == []


# Contrast (WCAG) of the text of every visible element with the first opaque background behind it.
CONTRASTS = """() => {
  const numbers = colour => (colour.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = element => {
    for (let one = element; one; one = one.parentElement) {
      const colour = numbers(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.5) return light(colour);
    }
    return 1;
  };
  return [...document.querySelectorAll("h1, h2, p, a, button, .name, .count, .share, .tag, kbd, text")]
    .filter(one => one.checkVisibility() && one.textContent.trim() && !one.closest(":disabled, .spoken, .jump"))
    .map(one => {
      const style = getComputedStyle(one), ink = light(numbers(one.closest("svg") ? style.fill : style.color));
      const paper = behind(one);
      return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    });
}"""


def test_two_pages_classes_conflicts_and_a_lost_connection(browser: Any, tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    process, address = start(folder)
    mine, yours = Person(browser, address), Person(browser, address)
    mine.name_class('a "cat", =big')
    mine.sees("#labelled", "1")
    yours.sees("#labelled", "1")
    playwright.expect(yours.page.locator("#classes .name")).to_have_text('a "cat", =big')

    yours.page.keyboard.press("n")
    yours.page.locator("#class-name").fill("dog")
    yours.page.keyboard.press("Enter")
    yours.sees("#labelled", "2")
    playwright.expect(mine.page.locator("#classes li")).to_have_count(2)
    mine.page.get_by_role("button", name="Rename or merge dog").click()
    mine.page.locator("#class-name").fill("\N{DOG FACE} <b>wolf</b>")
    mine.page.get_by_role("button", name="Rename", exact=True).click()
    playwright.expect(yours.page.locator("#classes .name").nth(1)).to_have_text("\N{DOG FACE} <b>wolf</b>")

    yours.page.locator("#you").click()
    yours.page.locator("#person-name").fill("Ben")
    yours.page.keyboard.press("Enter")
    yours.sees("#your-name", "Ben")
    path = next(iter(on_disk(folder).by_name))
    disagree(yours.page, path)
    playwright.expect(mine.page.locator("#to-review")).to_have_text("1")
    mine.page.keyboard.press("r")
    playwright.expect(mine.page.locator(".looks .tile")).to_have_count(1)
    playwright.expect(mine.page.locator(".choices button").last).to_have_text("\N{DOG FACE} <b>wolf</b> (Ben)")
    mine.page.locator(".choices button").first.click()
    playwright.expect(mine.page.locator("#to-review")).to_be_hidden()
    assert on_disk(folder).by_name[path] == 'a "cat", =big'

    mine.page.goto(address.split("?")[0] + "#review/gallery")
    mine.page.locator(".looks .tile").first.click()
    mine.page.locator("#close-up").get_by_role("button", name="Does not belong").click()
    playwright.expect(yours.page.locator("#labelled")).to_have_text("1")
    assert set(on_disk(folder).having(STRANGER))

    find_among_many(mine)
    stop(process)
    playwright.expect(yours.page.locator("#banner")).to_contain_text("Connection lost")
    for person in (mine, yours):
        person.said = [text for text in person.said if "ERR_CONNECTION_REFUSED" not in text]
        person.close()


def find_among_many(person: Person) -> None:
    """With more classes than keys, a part of the name is enough, and the box waits for the next one."""
    page = person.page
    add_classes(page, [f"Érable {number}" for number in range(40)])
    page.goto(person.address.split("?")[0] + "#label")
    playwright.expect(page.locator("#classes li")).to_have_count(42)
    playwright.expect(page.locator(".photo img")).to_be_visible()
    page.keyboard.press("/")
    for typed, arrows, found in (("erable 3", 0, "Érable 3"), ("erable 3", 2, "Érable 31"), ("39", 0, "Érable 39")):
        page.keyboard.type(typed)
        for _ in range(arrows):
            page.keyboard.press("ArrowDown")
        playwright.expect(page.locator("#classes .picked .name")).to_have_text(found)
        page.keyboard.press("Enter")
        playwright.expect(page.locator(".recent li").first).to_contain_text(found)
    page.keyboard.type("oak")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#class-name")).to_have_value("oak")
    page.keyboard.press("Escape")


def add_classes(page: Any, names: list[str]) -> None:
    page.evaluate(
        """async names => { for (const name of names) await fetch("/api/class", {method: "POST",
        headers: {"Content-Type": "application/json"}, body: JSON.stringify({name})}); }""",
        names,
    )


def disagree(page: Any, path: str) -> None:
    """Label an image as a page does that has not heard of the label that it has."""
    row = int(path.removesuffix(".png"))
    body = {"class": 2, "how": "key", "images": [{"row": row, "seen": None}]}
    status = page.evaluate(
        """async body => (await fetch("/api/label", {method: "POST", body: JSON.stringify(body),
        headers: {"Content-Type": "application/json"}})).status""",
        body,
    )
    assert status == 200


def test_a_finger_is_enough(browser: Any, tmp_path: Path) -> None:
    """On a phone, by touch: a new class, a label, an undo, a random check, one of many classes."""
    folder = photos(tmp_path / "photos", 12)
    process, address = start(folder)
    person = Person(browser, address, has_touch=True, is_mobile=True)
    page = person.page
    page.set_viewport_size({"width": 375, "height": 700})
    for number, name in enumerate(("one", "two"), start=1):
        page.locator(".one > .actions").get_by_role("button", name="New class").tap()
        page.locator("#class-name").fill(name)
        page.get_by_role("button", name="Add class").tap()
        person.sees("#labelled", str(number))
    page.locator("#classes .choose").first.tap()
    person.sees("#labelled", "3")
    page.locator("#undo").tap()
    person.sees("#labelled", "2")
    playwright.expect(page.locator("#learning")).to_have_text("Learnt from 2 labels")
    page.goto(address.split("?")[0] + "#progress")
    page.locator("#audit").tap()
    playwright.expect(page.locator(".audited")).to_contain_text("Random check, 1 of 20")
    assert page.locator(".guesses").count() == 0  # the guess is hidden
    page.locator("#classes .choose").first.tap()
    playwright.expect(page.locator(".audited")).to_contain_text("2 of 20")
    person.sees("#labelled", "3")
    assert len(on_disk(folder).audit) == 1
    add_classes(page, [f"class {number}" for number in range(198)])
    playwright.expect(page.locator("#classes li")).to_have_count(200)
    assert page.locator("#undo").bounding_box()["y"] < 2 * 700, "two hundred classes leave the buttons within reach"
    page.locator("#filter").fill("197")
    page.locator("#classes .choose").first.tap()
    person.sees("#labelled", "4")
    assert "class 197" in on_disk(folder).by_name.values()
    person.close()
    stop(process)
