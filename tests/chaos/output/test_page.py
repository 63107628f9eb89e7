"""Verdicts as one HTML file."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.results import result
from undaunted.chaos.checker.values import Blame, Defect
from undaunted.chaos.output.page import to_html
from undaunted.chaos.result import Moment, Result, RoundOf, RunOf

_VOID = ("meta",)


class Reader(HTMLParser):
    """Reads a page strictly: every element is closed in its order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def test_every_fault_and_finding_is_told() -> None:
    text = "".join(read(to_html(result())).text)

    for said in ("kill-1", "exception-1", "hang-1", "disk-full-1", "no namespaces here"):
        assert said in text
    assert 'torch.set_rng_state(saved["rng"])' in text
    assert "4 faults: 1 red, 1 yellow, 1 green, 1 skipped" in text
    assert "run 1: kill-1" in text


def test_it_needs_nothing_else_and_runs_nothing() -> None:
    page = to_html(result())

    assert "<script" not in page
    assert not re.search(r"(?:src|href)=\"(?!#)", page)
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'; style-src 'sha256-" in page
    assert 'style="' not in page  # the policy would forbid it


HOSTILE = '</style></title><script>alert(1)</script>" onload="x\x1b[2J\u2028\udcff'


def hostile(text: str) -> Result:
    whole = result()
    verdicts = [
        msgspec.structs.replace(
            whole.verdicts[0],
            colour="red",
            skipped=text,
            blame=Blame(text, 1, text, False),
            findings=(Defect(text, "red", text, text),),
        )
    ]
    run = RunOf(
        name=text,
        rounds=[RoundOf(0, 0, 0.0, 0.1, 1.0, text, text)],
        moments=[Moment(0.5, text, text, text), Moment(0.5, "fault", text)],
        problems=[text],
    )
    return msgspec.structs.replace(
        whole, argv=[text], directory=text, version=text, verdicts=verdicts, runs=[run]
    )


def test_text_of_programs_stays_text() -> None:
    page = to_html(hostile(HOSTILE))

    tags = set(read(page).tags)
    assert "script" not in tags
    assert page.count("<style>") == 1
    assert not set(page) & {"\x1b", "\u2028", "\udcff"}


@given(st.text(max_size=30))
def test_any_text_leaves_the_page_whole(text: str) -> None:
    read(to_html(hostile(text)))


def test_a_long_plan_stays_below_a_megabyte() -> None:
    whole = result()
    verdicts = [v for number in range(250) for v in (whole.verdicts[0], whole.verdicts[1])]
    runs = whole.runs[1:2] * 250
    long = msgspec.structs.replace(whole, verdicts=verdicts, runs=runs)

    assert len(to_html(long).encode()) < 1_000_000


def test_nothing_found_yet() -> None:
    assert "0 faults; interrupted before the end" in to_html(Result(interrupted=True))
