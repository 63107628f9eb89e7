"""Who says after which iteration to stop: the launcher, through a page, or the rank alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from undaunted.progress import layout
from undaunted.progress.area import PageArea
from undaunted.progress.writer import PageWriter
from undaunted.training import stopping
from undaunted.training.stopping import Alone, ByLauncher, StopReason, tell_launcher

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def area() -> Iterator[PageArea]:
    with PageArea.create(1) as made:
        yield made


@pytest.fixture
def page(area: PageArea) -> Iterator[PageWriter]:
    attached = PageWriter.attach(area.env_value(0))
    yield attached
    attached.detach()


def never() -> bool:
    return False


def test_the_launcher_answers(area: PageArea, page: PageWriter) -> None:
    answers = ByLauncher(page)
    assert area.asked() == [-1]
    assert answers.ask(4) == 0
    area.stop_after(6, "straggler")
    assert answers.ask(5)
    answer = answers.after(60.0, never)
    assert answer is not None
    assert (answer.after, answer.reason) == (6, StopReason.STRAGGLER)
    answers.close()
    assert not area.asks(0)


def test_a_launcher_that_does_not_answer_is_given_up(area: PageArea, page: PageWriter) -> None:
    answers = ByLauncher(page)
    area.have_wait()
    assert answers.after(0.0, never) is None
    assert answers.after(60.0, lambda: True) is None


def test_a_wish_reaches_the_launcher(area: PageArea, page: PageWriter) -> None:
    ByLauncher(page).want(StopReason.DEADLINE, 3)
    assert area.snapshot(0).wish == layout.Wish("deadline", 3)


@pytest.mark.parametrize("rank", [None, 2])
def test_the_launcher_is_told_why_all_ranks_end(
    area: PageArea, page: PageWriter, monkeypatch: pytest.MonkeyPatch, rank: int | None
) -> None:
    monkeypatch.setattr(stopping, "current_writer", lambda: page)
    area.have_wait()  # it knows
    tell_launcher(StopReason.INVALID, rank, "loss is nan")
    told = [(event.name, event.text) for event in area.drain_events(0)[0]]
    assert told == ([] if rank is None else [("stop_invalid", "loss is nan")])
    assert area.snapshot(0).wish == (None if rank is None else layout.Wish("invalid", rank))
    assert area.asked() == [layout.STOPPED_ALONE]


def test_a_launcher_that_does_not_hear_is_not_waited_for(area: PageArea, page: PageWriter) -> None:
    ByLauncher(page).leave()
    assert area.asked() == [layout.STOPPED_ALONE]


def test_without_a_launcher_nobody_is_told() -> None:
    tell_launcher(StopReason.INVALID, 0, "loss is nan")  # there is no page


def test_a_rank_alone_answers_itself() -> None:
    answers = Alone()
    assert answers.ask(3) == 0
    assert answers.after(60.0, never) is None
    answers.want(StopReason.REQUESTED)
    assert answers.ask(4)
    answer = answers.after(60.0, never)
    assert answer is not None
    assert (answer.after, answer.reason) == (4, StopReason.REQUESTED)
