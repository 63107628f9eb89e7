"""One row per rank, from pages and from journals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.journal import sample
from tests.journal.sample import at
from tests.top.pages import SECOND, look, section, stepping
from undaunted.journal import events as e
from undaunted.journal.launch import LaunchState
from undaunted.progress.snapshot import ErrorRecord, PageSnapshot, Phase
from undaunted.top.ranks import Rank, Speeds, rank_rows

if TYPE_CHECKING:
    from undaunted.top.pages import Look

NOW = 20 * SECOND


def node_after(*events: e.Event) -> LaunchState:
    return LaunchState.of([*sample.OPENING, *events])


def rows_of(node: LaunchState, *looks: Look) -> list[Rank]:
    return rank_rows(node, looks, Speeds(), NOW)


RUNNING = sample.begin(10, 0)


def test_a_rank_in_a_section() -> None:
    node = node_after(*RUNNING, at(9, e.LimitsChanged, 0, limits={"heartbeat": 9.0}))
    opened = section("data", 17 * SECOND, max_ns=SECOND)
    page = stepping(5, 15 * SECOND, sections=opened | section("old", None))
    (row, _) = rows_of(node, look(page), look(page))
    assert (row.rank, row.node, row.phase, row.live, row.watched) == (
        0,
        "n0",
        "stepping",
        True,
        True,
    )
    assert (row.section, row.section_s, row.section_longest_s) == ("data", 3.0, 1.0)
    assert (row.iteration, row.step_s) == (5, pytest.approx(3.0))
    assert (row.silent_s, row.limit_s, row.still_s) == (5.0, 9.0, 3.0)


def test_the_innermost_section_is_shown() -> None:
    page = stepping(5, SECOND, sections=section("in", 3 * SECOND) | section("out", 2 * SECOND))
    assert rows_of(node_after(*RUNNING), look(page))[0].section == "in"


def test_the_work_of_a_rank_is_counted_since_it_stands_still() -> None:
    speeds, node = Speeds(), node_after(*RUNNING)

    def cpu(iteration: int, now_s: int, used_s: float) -> float | None:
        page = stepping(iteration, iteration * SECOND)
        return rank_rows(node, [look(page, cpu_s=used_s)], speeds, now_s * SECOND)[0].cpu

    assert cpu(5, 6, 50.0) is None
    assert cpu(5, 7, 51.0) is None
    assert cpu(5, 10, 52.0) == pytest.approx(0.5)
    assert cpu(5, 106, 100.0) == pytest.approx(0.5)
    assert cpu(6, 107, 101.0) is None  # it goes on
    assert cpu(6, 110, 101.0) == 0.0


def test_a_page_of_garbage() -> None:
    row = rows_of(node_after(*RUNNING), look(PageSnapshot(problem="damaged")))[0]
    assert (row.phase, row.note, row.live, row.watched) == ("unreadable", "damaged", False, False)
    far = stepping(2**63, 2**64 - 1, sections=section("x", 2**64 - 1))
    assert rows_of(node_after(*RUNNING), look(far))[0].still_s == 0.0


def test_a_rank_that_has_failed() -> None:
    error = ErrorRecord(at_ns=1, type="ValueError", message="bad batch", traceback="", pid=100)
    row = rows_of(node_after(*RUNNING), look(stepping(5, 1, phase=Phase.FAILED, error=error)))[0]
    assert (row.phase, row.note, row.watched) == ("failed", "ValueError: bad batch", False)


def test_nobody_is_watched_while_the_round_is_stopped() -> None:
    node = node_after(*RUNNING, *sample.CRASH[:3])
    assert not rows_of(node, look(stepping(5, 1)))[0].watched
    assert not rows_of(node_after(*RUNNING), look(stepping(5, 1), state=""))[0].watched


def test_from_the_journal_alone() -> None:
    node = node_after(at(10, e.RoundStarted, 0, world_size=4, ranks=[2, 3]))
    assert [row.phase for row in rows_of(node)] == ["not started"] * 2
    node.take(at(15, e.WorkersSpawned, 0, mode="warm", pids=[100, 101]))
    assert [(row.phase, row.pid) for row in rows_of(node)] == [("spawned", 100), ("spawned", 101)]
    for name, iteration in (("first_line", None), ("first_step", 7)):
        node.take(at(20, e.RankMilestone, 0, rank=2, name=name, at_ns=1, iteration=iteration))
    first, second = rows_of(node)
    assert (first.rank, first.phase, first.iteration, first.note) == (
        2,
        "stepping",
        7,
        "last known",
    )
    assert second.phase == "spawned"
    node.take(sample.reached(30, 0, 27, 29))
    assert rows_of(node)[0].iteration == 27
    assert not first.live


def test_ends_and_failures() -> None:
    node = node_after(*RUNNING, *sample.CRASH)
    rows = rows_of(node, look(stepping(5, 1)))
    assert [(row.phase, row.failures) for row in rows] == [("SIGTERM", 0), ("exit 1", 1)]


def test_another_process_has_a_speed_of_its_own() -> None:
    speeds = Speeds()
    node = node_after(*RUNNING)
    rank_rows(node, [look(stepping(5, SECOND))], speeds, NOW)
    (row, _) = rank_rows(node, [look(stepping(9, 9 * SECOND, pid=200))], speeds, NOW)
    assert row.step_s == pytest.approx(1.0)  # not 2 s
