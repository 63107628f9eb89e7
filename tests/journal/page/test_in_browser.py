"""The page in a real browser: drawn, zoomed by mouse and keyboard, safe from hostile text."""

from __future__ import annotations

from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.browser import Page, browser, find
from benchmarks.simulated_job import simulate
from tests.journal.page.jobs import hostile, journal, whole
from tests.journal.sample import RUN
from undaunted.journal.job.launches import launches_of
from undaunted.journal.job.summary import summarize_job
from undaunted.journal.page.write import write_page
from undaunted.journal.reader import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        find() is None,
        reason="no Chromium: as root, scripts/system-packages.sh installs chromium-headless-shell",
    ),
]

MANY = (125, 100)  # nodes of 8 ranks, restarts
GUTTER, HEAD = 132, 42


class Timeline:
    """The timeline of an opened page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        page.settle()
        x, y, width, self.height = page.edge("rows")
        self.x, self.y, self.width = x + GUTTER, y + HEAD, width - GUTTER

    def seen(self) -> dict[str, float]:
        return {name: float(value) for name, value in self.page.dataset("timeline").items()}

    def text(self, of: str) -> str:
        return str(self.page.evaluate(f"document.getElementById('{of}').textContent"))

    def focus(self) -> None:
        self.page.evaluate("document.getElementById('rows').focus()")

    def colour(self, x: float, y: float) -> list[int]:
        """Return red, green and blue at a place among the rows."""
        return list(
            self.page.evaluate(
                "[...document.getElementById('rows').getContext('2d').getImageData("
                f"{round(x + GUTTER)}, {round(y + HEAD)}, 1, 1).data].slice(0, 3)"
            )
        )

    def colour_of(self, name: str) -> list[int]:
        """Return the colour of a class in the style sheet."""
        hexadecimal = self.page.evaluate(
            f"getComputedStyle(document.documentElement).getPropertyValue('--{name}')"
        ).strip()
        return [int(hexadecimal[k : k + 2], 16) for k in (1, 3, 5)]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[Path], Timeline]]:
    program = find()
    assert program is not None
    with browser(program, tmp_path / "profile") as page:

        def open_page(file: Path) -> Timeline:
            page.open(file)
            return Timeline(page)

        yield open_page
        assert page.problems() == []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    write_page(*whole(), tmp_path / "small.html")
    return tmp_path / "small.html"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nodes, restarts = MANY
    made = simulate(nodes=nodes, restarts=restarts)
    journals = [Journal(Path(node.name), events=node.events) for node in made.nodes]
    file = tmp_path_factory.mktemp("page") / "large.html"
    launches = launches_of(journals)
    write_page(summarize_job(launches), launches, journals, file)
    return file


def test_a_thousand_ranks_with_a_hundred_restarts_open_and_zoom(opened, large):
    assert large.stat().st_size < 5_000_000
    timeline = opened(large)
    before = timeline.seen()
    assert before["rows"] == MANY[0]
    assert (before["from"], before["frames"]) == (0, 1)
    assert before["first"] < 20_000
    x, y = timeline.x + timeline.width / 4, timeline.y + 100
    timeline.page.click(x, y)
    assert timeline.seen()["rows"] == MANY[0] + 8
    frames = []
    for _ in range(15):
        timeline.page.wheel(x, y, -120)
        frames.append(timeline.seen()["frame"])
    zoomed = timeline.seen()
    span = zoomed["to"] - zoomed["from"]
    assert span < before["to"] / 20
    at = zoomed["from"] + span / 4  # what is below the mouse stays there
    assert at == pytest.approx(before["to"] / 4, rel=0.01)
    assert median(frames) < 200  # 2 ms on an idle machine
    timeline.page.drag(x, y, 200)
    moved = timeline.seen()
    assert moved["from"] == pytest.approx(zoomed["from"] - 200 * span / timeline.width, rel=0.01)
    timeline.page.key("0")
    assert timeline.seen()["to"] == before["to"]


def test_rows_have_the_colours_of_their_classes(opened, small):
    timeline = opened(small)

    def at(ms: float) -> list[int]:
        return timeline.colour(timeline.width * ms / 9003, 8)

    assert at(500) == timeline.colour_of("productive")
    assert at(3500) == timeline.colour_of("detect")
    assert at(1300) == timeline.colour_of("recomputed")


def test_the_wheel_scrolls_the_page_until_the_timeline_is_clicked(opened, large):
    timeline = opened(large)
    x, y = timeline.x + 100, timeline.y + 50
    timeline.page.wheel(x, y, 120)
    whole = timeline.seen()
    assert whole["from"] == 0
    timeline.focus()
    timeline.page.wheel(x, y, -120)
    assert timeline.seen()["to"] < whole["to"]


def test_everything_can_be_done_by_keyboard(opened, small):
    timeline = opened(small)
    page = timeline.page
    timeline.focus()
    page.key("n")
    assert timeline.text("said").startswith("rank 1 on n0; ")
    assert "crash at 00:00.997: rank 1 raised ValueError: bad batch" in timeline.text("said")
    assert "its process ended at 00:01.002: exit code 1" in timeline.text("said")
    assert timeline.seen()["rows"] == 3
    page.key("n")
    assert "rank 0 hangs" in timeline.text("said")
    page.key("p")
    assert "bad batch" in timeline.text("said")
    page.key("Enter")
    assert timeline.seen()["rows"] == 1
    page.key("0")
    whole = timeline.seen()
    page.key("+")
    closer = timeline.seen()
    assert closer["to"] - closer["from"] == pytest.approx(0.7 * whole["to"], rel=0.01)
    page.key("-")
    assert timeline.seen()["to"] == pytest.approx(whole["to"])
    page.key("ArrowRight")
    page.key("ArrowDown")
    assert timeline.text("said").startswith("n0; ")


def test_hovering_tells_what_when_and_how_long(opened, small):
    timeline = opened(small)
    timeline.page.mouse("mouseMoved", timeline.x + timeline.width * 500 / 9003, timeline.y + 8)
    timeline.page.settle()
    told = timeline.text("tip")
    assert told.startswith("n0productive: ")
    assert "round 0, iterations 7 to 27" in told
    assert "ranks 0 to 1" in told


def test_a_failure_in_the_table_leads_to_the_timeline(opened, small):
    timeline = opened(small)
    timeline.page.evaluate("document.querySelectorAll('[data-at]')[1].click()")
    timeline.page.settle()
    seen = timeline.seen()
    assert seen["from"] <= 4999 <= seen["to"] < 9003
    assert "rank 0 on n0" in timeline.text("tip")


def test_ranks_of_all_nodes_are_shown_and_hidden(opened, large):
    timeline = opened(large)
    for rows in (9 * MANY[0], MANY[0]):
        timeline.page.evaluate("document.getElementById('do-ranks').click()")
        timeline.page.settle()
        assert timeline.seen()["rows"] == rows


def test_dark_where_the_reader_wants_it(opened, small):
    timeline = opened(small)
    light = timeline.page.evaluate("getComputedStyle(document.body).backgroundColor")
    dark: dict[str, Any] = {"name": "prefers-color-scheme", "value": "dark"}
    timeline.page.call("Emulation.setEmulatedMedia", features=[dark])
    timeline.page.settle()
    assert timeline.page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    x = timeline.width * 500 / 9003
    assert timeline.colour(x, 8) == timeline.colour_of("productive")


def test_hostile_text_is_only_shown(opened, tmp_path):
    write_page(*hostile(), tmp_path / "hostile.html")
    timeline = opened(tmp_path / "hostile.html")
    timeline.focus()
    timeline.page.key("n")
    assert "</script><img src=x" in timeline.text("said")
    assert timeline.page.evaluate("document.querySelectorAll('img, h1 script').length") == 0
    assert "</script>" in timeline.page.evaluate("document.querySelector('h1').textContent")


@pytest.mark.parametrize("events", [[], RUN[:1], RUN[1:3]], ids=["none", "opened", "begun"])
def test_of_a_journal_with_next_to_nothing(tmp_path, events):
    program = find()
    assert program is not None
    write_page(*whole(journal(events)), tmp_path / "page.html")
    with browser(program, tmp_path / "profile") as page:
        page.open(tmp_path / "page.html")
        page.settle()
        page.evaluate("document.getElementById('rows').focus()")
        for key in ("n", "Enter", "+", "ArrowDown"):
            page.key(key)
        assert "There was none." in page.evaluate("document.body.innerText")
        assert page.problems() == []


@pytest.mark.parametrize("seed", range(5))
def test_of_journals_with_gaps(opened, tmp_path, seed):
    random = Random(seed)
    made = simulate(nodes=3, slots=2, restarts=4, seed=seed)
    journals = [
        Journal(Path(node.name), events=[one for one in node.events if random.random() < 0.8])
        for node in made.nodes
    ]
    launches = launches_of(journals)
    write_page(summarize_job(launches), launches, journals, tmp_path / "page.html")
    timeline = opened(tmp_path / "page.html")
    timeline.page.evaluate("document.getElementById('do-ranks').click()")
    timeline.focus()
    for key in ("n", "n", "+", "ArrowRight", "ArrowDown", "ArrowDown", "p", "Enter", "0"):
        timeline.page.key(key)
    for part in range(10):
        timeline.page.mouse("mouseMoved", timeline.x + timeline.width * part / 10, timeline.y + 30)
    assert timeline.text("said")


def test_on_a_small_screen_with_fine_pixels(opened, small):
    timeline = opened(small)
    page = timeline.page
    page.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=3,
              mobile=True)  # fmt: skip
    page.settle()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    size = "document.getElementById('rows').width / document.getElementById('rows').clientWidth"
    assert page.evaluate(size) == pytest.approx(3, abs=0.02)


def test_a_page_that_is_not_laid_out_yet_is_drawn_when_it_is(tmp_path, small):
    hidden = small.with_name("hidden.html")
    frame = f'<iframe id="frame" style="display: none" src="{small.name}"></iframe>'
    hidden.write_text(f"<!doctype html>{frame}")
    program = find()
    assert program is not None
    with browser(program, tmp_path / "profile") as page:
        page.open(hidden)
        page.settle()
        page.evaluate(
            "Object.assign(document.getElementById('frame').style,"
            " {display: 'block', width: '900px', height: '700px'})"
        )
        for _ in range(3):
            page.settle()
        assert page.problems() == []
        page.picture(tmp_path / "picture.webp")
        assert (tmp_path / "picture.webp").stat().st_size > 5000


def test_without_scripts_the_tables_are_there(tmp_path, small):
    program = find()
    assert program is not None
    with browser(program, tmp_path / "profile") as page:
        page.open(small, scripts=False)
        text = page.evaluate("document.body.innerText")
        assert "Goodput" in text
        assert "bad batch" in text
        assert "which this browser does not run" in text
        assert page.evaluate("document.getElementById('timeline').offsetHeight") == 0
        assert page.problems() == []
