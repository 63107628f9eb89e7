"""What is known of a node after each part of its journal."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from tests.journal import sample
from tests.journal.sample import at
from undaunted.journal import events as e
from undaunted.journal.events import InProcessPhase
from undaunted.journal.metrics.tally import Tally
from undaunted.top import nodes
from undaunted.top.nodes import Node

if TYPE_CHECKING:
    import pytest


def after(*events: e.Event) -> Node:
    node = Node()
    for event in events:
        node.take(event)
    return node


def test_a_round_that_runs() -> None:
    node = after(*sample.OPENING, *sample.begin(10, 0))
    assert (node.name, node.round, node.stage) == ("n0", 0, "running")
    assert (node.ranks, node.pids, node.world_size) == ([0, 1], [100, 101], 2)
    assert node.job is not None
    assert node.job.run_id == "demo"
    assert {rank: mark.name for rank, mark in node.milestones.items()} == dict.fromkeys(
        (0, 1), "first_step"
    )


def test_a_crash_and_the_round_after_it() -> None:
    node = after(*sample.OPENING, *sample.begin(10, 0), *sample.CRASH)
    assert node.stage == "stopped"
    assert node.failure == "rank 1 raised ValueError: bad batch"
    assert node.failures == {1: 1}
    assert node.restarts_left == 2
    assert node.exits[0].signal == "SIGTERM"
    assert node.iteration is not None
    assert node.iteration.last_iteration == 27
    for event in sample.begin(1100, 1):
        node.take(event)
    assert (node.round, node.failure, node.exits, node.iteration) == (1, "", {}, None)
    assert node.failures == {1: 1}


def test_the_end() -> None:
    node = after(*sample.RUN)
    assert node.ended is not None
    assert node.notes()[-1].text == "finished: every rank exited with 0"
    assert node.notes()[-1].style == "green"


def test_goodput_is_that_of_the_report() -> None:
    account = after(*sample.RUN).account()
    assert account.goodput is not None
    assert round(account.goodput, 4) == 0.4504


def test_a_journal_of_any_length_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "Tally", partial(Tally, 50))
    node = after(*sample.OPENING)
    rounds = []
    for number in range(100):
        for event in sample.begin(1000 * (number + 1), number):
            node.take(event)
        rounds.append(len(node.account().rounds))

    assert rounds[:5] == [1, 2, 3, 4, 5]
    assert rounds[-1] == rounds[-90] < 10
    assert node.account().goodput is None  # nobody knows it any more


def test_what_pages_say_counts_while_the_round_runs() -> None:
    node = after(*sample.OPENING, *sample.begin(10, 0))
    assert (node.account().goodput or 0.0) < 0.05
    second = 1_000_000_000
    account = node.account(10 * second, (7, 107, 10 * second))
    assert account.goodput is not None
    assert account.goodput > 0.99
    assert account.total.total_ns == 10 * second - 1_000_000


def test_time_goes_on_between_rounds() -> None:
    node = after(*sample.OPENING, *sample.begin(10, 0), *sample.CRASH)
    total_ns = node.account(5_000_000_000, (7, 27, 985_000_000)).total.total_ns
    assert total_ns == 5_000_000_000 - 1_000_000


def test_a_new_launch_forgets_the_one_before() -> None:
    again = at(10_000, e.JournalOpened, boot_id="boot", pid=43)
    node = after(*sample.RUN, again)
    assert (node.job, node.ended, node.round, node.notes()) == (None, None, -1, [])


def test_the_same_writer_may_open_its_file_again() -> None:
    node = after(*sample.OPENING, *sample.begin(10, 0), sample.OPENING[0])
    assert (node.round, node.stage) == (0, "running")


def test_a_journal_read_twice_tells_the_same() -> None:
    node = after(*sample.RUN, *sample.RUN)
    assert node.failures == {0: 1, 1: 1}


def test_a_late_verdict_is_not_of_this_round() -> None:
    late = at(2000, e.Verdict, 0, kind="crash", rank=1, local_rank=1, pid=1, line="late")
    node = after(*sample.OPENING, *sample.begin(10, 1), late)
    assert node.failure == ""
    assert node.failures == {1: 1}


def test_a_node_that_is_blamed_is_not_this_one() -> None:
    blamed = e.RoundBlamed(t=1, node="other", number=0, line="oh")
    assert after(*sample.OPENING, blamed).name == "n0"


def test_limits_and_ranks_that_come_and_go() -> None:
    node = after(
        *sample.OPENING,
        *sample.begin(10, 0),
        at(20, e.LimitsChanged, 0, limits={"heartbeat": 4.0}),
        at(30, e.RankExited, 0, rank=1, pid=101, exit_code=3),
        at(31, e.RankLost, 0, rank=1, detail="exit code 3"),
        at(32, e.RankReplaced, 0, rank=1, pid=109),
    )
    assert node.limits == {"heartbeat": 4.0}
    assert (node.exits, node.pids, node.failures) == ({}, [100, 109], {1: 1})


def test_restarts_inside_of_processes() -> None:
    begin = [*sample.OPENING, *sample.begin(10, 0)]
    detect = at(40, InProcessPhase, 0, call=0, epoch=1, phase="detect", reasons=["rank 1: oh"])
    again = at(50, InProcessPhase, 0, call=0, epoch=1, phase="re-enter", took_s=0.01, lost=[1])
    assert after(*begin, detect).inprocess_now
    node = after(*begin, detect, again)
    assert (node.inprocess, node.inprocess_now) == (1, False)
    assert [note.text for note in node.notes()] == [
        "in-process restart 1: rank 1: oh",
        "in-process restart 1: running again after 10 ms, without rank 1",
    ]


@given(st.lists(st.sampled_from(sample.RUN), max_size=30))
def test_events_in_any_order_are_taken(events: list[e.AnyEvent]) -> None:
    node = after(*events)
    node.account(10**12, (0, 5, 10**11))
