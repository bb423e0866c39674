"""The page in a real browser: it opens from disk, asks for nothing, sorts, and fits laptop and phone.

COTRAIN_ARTEFACTS names a folder to keep its screenshots in.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotrain.report.page import Subject, page, show, write_report
from tests.made_up import made_up_run, some_data

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path: apt-get install chromium")
LONG = "a-class-with-a-very-long-name-in-one-word-that-no-phone-can-show-on-one-line"
UNKNOWN = "\N{EN DASH}"
WIDTHS = (375, 1280)
SCHEMES = ("light", "dark")


@pytest.fixture(scope="module")
def browser() -> Iterator["playwright.Browser"]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("page")
    data = some_data(("cat", "<dog>", LONG, "owl"), test=90)
    run = made_up_run(folder / "run", data, changes={"data.valid_share": 0.2})
    many = some_data(tuple(f"class {number}" for number in range(60)), test=200)
    other = made_up_run(folder / "other", many, right=0.6, alone=None, changes={"method": "fixmatch"})
    several = folder / "several.html"
    several.write_text(page([show(Subject(run, None, "Gone.")), show(Subject(other, many))]))
    return {"one": write_report(run, data), "several": several}


@pytest.fixture
def opened(browser, pages: dict[str, Path]) -> Iterator:
    """Opens a page; in the end nothing was asked for but its file, and the console is empty."""
    contexts, asked, said = [], [], []

    def open_page(name: str, width: int = 1280):
        context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
        contexts.append(context)
        one = context.new_page()
        one.on("request", lambda request: asked.append(request.url))
        one.on("console", lambda message: said.append(message.text))
        one.on("pageerror", lambda error: said.append(str(error)))
        one.goto(pages[name].as_uri())
        return one

    yield open_page
    for context in contexts:
        context.close()
    files = {path.as_uri() for path in pages.values()}
    assert [url for url in asked if url not in files and not url.startswith("data:")] == []
    assert said == []


def kept(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("COTRAIN_ARTEFACTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("name", ["one", pytest.param("several", marks=pytest.mark.system)])
def test_it_opens_from_disk_fits_and_is_readable(name: str, opened, tmp_path: Path) -> None:
    for width in WIDTHS:
        one = opened(name, width)
        for scheme in SCHEMES:
            one.emulate_media(color_scheme=scheme)
            assert one.evaluate("document.documentElement.scrollWidth") <= width
            contrasts = one.evaluate(CONTRASTS)
            assert len(contrasts) > 20 and min(contrasts) > 3.5, scheme
            one.screenshot(path=kept(tmp_path) / f"report-{name}-{scheme}-{width}.png", full_page=name == "one")
        assert one.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
        assert one.locator("h2").count() == 10


# Contrast (WCAG) of visible text, in the page and in its figures, with the page's background.
CONTRASTS = """() => {
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll("p, h1, h2, dd, figcaption, a, th, figure svg text")].map(element => {
    const style = getComputedStyle(element), ink = light(element.closest("svg") ? style.fill : style.color);
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  });
}"""


def test_tables_sort(opened) -> None:
    one = opened("one")
    table = one.locator("table.classes")

    def column(place: int) -> list[str]:
        return table.locator(f"tbody tr td:nth-child({place})").all_inner_texts()

    assert column(1) == ["0", "1", "2", "3"]
    heading = table.get_by_role("columnheader", name="error")
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    errors = column(5)
    numbers = [float(text.split()[0]) for text in errors[:-1]]
    assert numbers == sorted(numbers) and len(set(numbers)) > 1
    assert errors[-1] == UNKNOWN  # unknown stays last, either way
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert column(5) == [*reversed(errors[:-1]), UNKNOWN]
    table.get_by_role("columnheader", name="class").get_by_role("button").click()
    assert heading.get_attribute("aria-sort") is None
    assert column(2) == sorted(column(2), key=str.lower)


@pytest.mark.system
def test_every_table_of_rows_sorts(opened) -> None:
    """By any column, either way. A matrix and the pictures of views are no rows to sort."""
    one = opened("one")
    assert one.locator("table:not(.sortable):not(.confusion):not(.views)").count() == 0
    tables = one.locator("table.sortable")
    assert {*tables.evaluate_all("all => all.map(table => table.dataset.of)")} >= {"answered", "heads", "ece-of-heads"}
    one.locator("details").evaluate_all("all => all.forEach(details => details.open = true)")
    for table in tables.all():
        headings = table.locator("thead th")
        for place in range(headings.count()):
            heading = headings.nth(place)
            rows = []
            for direction in ("ascending", "descending"):
                heading.get_by_role("button").click()
                assert heading.get_attribute("aria-sort") == direction
                cells = table.locator(f"tbody tr > :nth-child({place + 1})")
                values = cells.evaluate_all("all => all.map(cell => cell.dataset.value)")
                known = [value for value in values if value != ""]
                assert values == known + [""] * (len(values) - len(known))
                if heading.get_attribute("data-kind") == "number":
                    assert [float(value) for value in known] == sorted(
                        (float(value) for value in known), reverse=direction == "descending"
                    )
                rows.append(known)
            assert sorted(rows[0]) == sorted(rows[1]) and (len({*rows[0]}) < 2 or rows[0][0] != rows[1][0])


def test_tables_that_people_read_on_a_phone_fit_it(opened) -> None:
    one = opened("one", WIDTHS[0])
    for name in ("answered", "heads", "ece-of-heads"):
        table = one.locator(f"table[data-of={name}]")
        assert table.bounding_box()["width"] <= table.locator("..").bounding_box()["width"] + 1, name


def test_a_script_from_the_data_would_not_run(browser, pages: dict[str, Path]) -> None:
    """The policy of the page allows its own script only."""
    one = browser.new_page()
    one.goto(pages["one"].as_uri())
    one.evaluate("""() => {
      const script = document.createElement("script");
      script.textContent = "window.foreign = true";
      document.body.append(script);
    }""")
    assert one.evaluate("window.foreign") is None
    one.close()
