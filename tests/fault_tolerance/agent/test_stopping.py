"""Ranks of a node wait, are answered, and are told apart from ranks that never ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from undaunted.coordinator.policy import messages as job
from undaunted.fault_tolerance.agent.stopping import Stopping
from undaunted.progress import layout
from undaunted.progress.area import PageArea
from undaunted.progress.attach import attach
from undaunted.progress.layout import STOPPED_ALONE, Wish
from undaunted.progress.writer import PageWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

PREEMPTED = Wish("preempted", None)
STOP = job.Stop("a", 4, "the launcher on node a received SIGTERM", 30.0, agree="preempted")


class Node:
    """The agent's side, and a writer of the page of each of two ranks."""

    def __init__(self, area: PageArea) -> None:
        self.area = area
        self.posted: list[job.NodeEvent] = []
        self.signals: list[tuple[tuple[int, ...], int]] = []
        self.stopping = Stopping("a", area, self, self)  # type: ignore[arg-type] # what it uses
        self.stopping.begin_round(4)
        self.ranks = [writer_of(area, index) for index in range(2)]

    def post(self, event: job.NodeEvent) -> None:
        self.posted.append(event)

    def signal_ranks(self, local_ranks: tuple[int, ...], number: int) -> None:
        self.signals.append((local_ranks, number))


def writer_of(area: PageArea, index: int) -> PageWriter:
    """A writer of the page, also where this process has another one."""
    attachment = attach(area.env_value(index))
    return PageWriter(attachment.memory, attachment)


@pytest.fixture
def node() -> Iterator[Node]:
    with PageArea.create(2) as area:
        made = Node(area)
        for rank in made.ranks:
            rank.will_ask()
        yield made
        for rank in made.ranks:
            rank.detach()


def test_what_has_been_asked_is_reported(node: Node) -> None:
    node.ranks[0].asked(7)
    node.ranks[1].asked(8)
    node.stopping.freeze(STOP)
    assert node.posted == [job.RanksAsked("a", 4, 8)]
    assert node.ranks[0].asked(8) == 1, "it has to wait"
    node.stopping.stop_after(9)
    assert layout.stop_of(node.ranks[0].asked(9)) == (9, "preempted")


def test_nobody_asks(node: Node) -> None:
    for rank in node.ranks:
        rank.asks_no_more()
    node.stopping.freeze(STOP)
    assert node.posted == [job.RanksAsked("a", 4, -1, asks=False)]
    node.stopping.stop_after(-1)
    assert layout.stop_of(node.ranks[0].asked(3)) == (0, "preempted"), "whoever begins late stops"


def test_nothing_was_asked_yet(node: Node) -> None:
    node.stopping.freeze(STOP)
    assert node.posted == [job.RanksAsked("a", 4, -1)]


def test_a_later_leader_hears_what_is_fixed(node: Node) -> None:
    node.stopping.freeze(STOP)
    node.stopping.stop_after(9)
    node.ranks[0].asked(9)
    node.stopping.freeze(STOP)
    assert node.posted[-1] == job.RanksAsked("a", 4, 9, fixed=True)
    assert layout.stop_of(node.ranks[1].asked(8)) == (9, "preempted")


def test_why_is_said_with_the_iteration(node: Node) -> None:
    node.stopping.freeze(msgspec.structs.replace(STOP, agree="restart"))
    node.stopping.stop_after(9)
    assert layout.stop_of(node.ranks[0].stop_word) == (9, "restart")


def test_a_stop_of_another_round_is_none_of_ours(node: Node) -> None:
    node.stopping.freeze(msgspec.structs.replace(STOP, round=3))
    assert node.posted == []
    assert node.ranks[0].asked(1) == 0


def test_a_wish_is_reported_once(node: Node) -> None:
    node.stopping.pass_wish(1, 3, None)
    node.stopping.pass_wish(1, 3, PREEMPTED)
    node.stopping.pass_wish(0, 2, PREEMPTED)
    assert node.posted == [job.StopWanted("a", 4, 3, "preempted")]
    node.stopping.begin_round(5)
    node.stopping.pass_wish(0, 2, PREEMPTED)
    assert node.posted[1:] == [job.StopWanted("a", 5, 2, "preempted")]


def test_what_a_rank_says_of_its_wish_is_reported(node: Node) -> None:
    node.stopping.keep_text(1, "loss is nan\n" + 1000 * "x")
    node.stopping.pass_wish(1, 3, PREEMPTED)
    assert node.posted[0].text.startswith("loss is nan x")
    assert len(node.posted[0].text) <= 200
    node.stopping.begin_round(5)
    node.stopping.pass_wish(1, 3, PREEMPTED)
    assert node.posted[1].text == ""


def test_a_wish_for_another_reason_or_because_of_another_rank_is_a_wish_of_its_own(
    node: Node,
) -> None:
    node.stopping.pass_wish(0, 2, PREEMPTED)
    node.stopping.pass_wish(0, 2, Wish("suspect", 2))
    node.stopping.pass_wish(1, 3, Wish("suspect", 3))
    assert [(each.why, each.rank) for each in node.posted] == [
        ("preempted", 2),
        ("suspect", 2),
        ("suspect", 3),
    ]


def test_who_asks(node: Node) -> None:
    assert node.stopping.who_asks((0, 1)) == (0, 1)
    node.ranks[1].asks_no_more()
    assert node.stopping.who_asks((0, 1)) == (0,)


def test_a_session_that_begins_when_the_signal_comes_is_ended(node: Node) -> None:
    node.stopping.over = True
    node.stopping.pass_wish(1, 3, PREEMPTED)
    assert (node.posted, node.signals) == ([], [((1,), 9)])


def test_what_a_rank_has_asked_counts_when_its_loop_is_over(node: Node) -> None:
    """Another rank may not have come so far yet, and has to come there as well."""
    node.ranks[0].asked(7)
    node.ranks[1].asked(6)
    node.ranks[0].asks_no_more()
    assert node.stopping.who_asks((0, 1)) == (1,)
    node.stopping.freeze(STOP)
    assert node.posted == [job.RanksAsked("a", 4, 7)]
    node.stopping.stop_after(8)
    assert not node.stopping.early


def test_who_has_stopped_early(node: Node) -> None:
    node.ranks[0].asked(4)
    assert not node.stopping.early
    node.stopping.freeze(STOP)
    node.stopping.stop_after(5)
    assert not node.stopping.early, "its loop may end here"
    node.ranks[0].asked(5)
    assert node.stopping.early


def test_ranks_whose_loops_are_over_when_it_is_asked_have_not_stopped_early(node: Node) -> None:
    for rank in node.ranks:
        rank.asked(5)
        rank.asks_no_more()
    node.stopping.freeze(STOP)
    assert node.posted == [job.RanksAsked("a", 4, 5, asks=False)]
    node.stopping.stop_after(-1)
    assert not node.stopping.early


def test_who_has_stopped_alone(node: Node) -> None:
    node.ranks[0].stops_alone()
    assert node.stopping.early
    assert node.area.asked() == [STOPPED_ALONE, -1]
    node.ranks[1].asks_no_more()
    assert node.stopping.who_asks((0, 1)) == (0,), "it saves: no signal disturbs it"
    node.ranks[1].will_ask()
    node.stopping.freeze(STOP)
    assert node.posted == [job.RanksAsked("a", 4, -1)]


def test_garbage_in_a_page_is_no_harm(node: Node) -> None:
    words = node.ranks[0]._words
    words[layout.STOP_ASKED] = 2**64 - 1
    words[layout.STOP_WANTED] = 2**64 - 1
    assert node.area.snapshot(0).wish is None
    node.stopping.freeze(STOP)
    (report,) = node.posted
    assert isinstance(report, job.RanksAsked)
    assert report.iteration == -1
