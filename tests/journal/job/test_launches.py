"""Launches find together that belong together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.journal import sample
from undaunted.journal import events as e
from undaunted.journal.job.launches import Attempt, attempts_of, gaps, launches_of, newest_job
from undaunted.journal.reader import Journal

S = 1_000_000_000


def launch(
    start_s: int,
    *rounds: tuple[int, int, list[int]],
    node: str = "n0",
    pid: int = 1,
    wall: float = 0.0,
    end: dict[str, Any] | None = None,
    **order: Any,
) -> list[e.AnyEvent]:
    """A launch of 100 s; rounds are number, begin in seconds, ranks, and stop after 5 s."""
    order = {"world_size": 4, "master_addr": "a", "master_port": 1, **order}
    told: list[tuple[float, type[e.Event], int, dict[str, Any]]] = [
        (0, e.JournalOpened, -1, {"boot_id": f"of {node}", "pid": pid}),
        (0, e.JobStarted, -1, {"run_id": "r", "argv": [], "nproc_per_node": 2, "max_restarts": 3}),
    ]
    for number, begin, ranks in rounds:
        told.append((begin, e.RoundStarted, number, {"ranks": ranks, **order}))
        told.append((begin + 5, e.RoundStopped, number, {}))
    told.append((100, e.JobEnded, -1, end or {"outcome": "preempted", "exit_code": 75}))
    return [
        kind(t=round((start_s + after) * S), node=node, wall=wall and wall + start_s + after,
             round=number, **fields)
        for after, kind, number, fields in told
    ]  # fmt: skip


def attempts(*journals: list[e.AnyEvent]) -> list[Attempt]:
    return attempts_of(launches_of(Journal(Path("j"), events) for events in journals))[0]


def shown(found: list[Attempt]) -> list[list[tuple[int, list[str]]]]:
    return [
        [(world.number, [one.node for one in world.launches]) for world in attempt.worlds]
        for attempt in found
    ]


def test_nodes_of_a_round_are_one_attempt() -> None:
    found = attempts(launch(0, (0, 10, [2, 3])), launch(900, (0, 11, [0, 1]), node="n1"))
    assert shown(found) == [[(0, ["n1", "n0"])]]


def test_a_launcher_that_comes_back_stays_in_its_attempt() -> None:
    found = attempts(
        launch(0, (0, 10, [0, 1]), (1, 60, [0, 1])),
        [*launch(500, (0, 10, [2, 3]), node="n1"),
         *launch(540, (1, 20, [2, 3]), node="n1", pid=2)],
    )  # fmt: skip
    assert shown(found) == [[(0, ["n0", "n1"]), (1, ["n0", "n1"])]]
    assert len(found[0].launches) == 3


def test_the_same_port_in_each_attempt_is_no_matter() -> None:
    found = attempts(
        [*launch(0, (0, 10, [0, 1])), *launch(200, (0, 10, [0, 1]), pid=2)],
        [*launch(500, (0, 10, [2, 3]), node="n1"),
         *launch(700, (0, 10, [2, 3]), node="n1", pid=2)],
    )  # fmt: skip
    assert shown(found) == [[(0, ["n0", "n1"])], [(0, ["n0", "n1"])]]
    assert found[0].began == 0 < found[1].began


def test_attempts_are_in_the_order_of_time_whatever_the_journals() -> None:
    found = attempts(
        launch(300, (0, 10, [0, 1]), master_port=2, wall=1000, node="a"),
        launch(99, (0, 10, [0, 1]), master_port=3, wall=500, node="b"),
    )
    assert shown(found) == [[(0, ["b"])], [(0, ["a"])]]


def test_who_never_had_a_seat_belongs_to_who_ran_then() -> None:
    twice = launch(0, (0, 10, [0, 1]), wall=500.0) + launch(200, (0, 10, [0, 1]), pid=2, wall=500.0)
    spare = launch(9000, node="n9", wall=500.0 + 200 - 9000)
    found = attempts(twice, spare)
    assert [[one.node for one in attempt.launches] for attempt in found] == [["n0"], ["n0", "n9"]]


def test_who_was_refused_is_no_node_of_the_job() -> None:
    refused = {"outcome": "failed", "exit_code": 1, "alone": True}
    ran, stranger = launch(0, (0, 10, [0, 1])), launch(20, node="w", end=refused)
    (found,) = attempts(stranger, ran)
    assert [(one.index, one.node) for one in found.launches] == [(0, "n0")]
    (found,) = attempts(stranger)
    assert [one.node for one in found.launches] == ["w"], "nothing else is there to be told of"
    unhealthy = launch(20, node="w", end=refused | {"outcome": "excluded"})
    assert [len(each.launches) for each in attempts(ran, unhealthy)] == [2]


def test_a_round_whose_beginning_is_lost_is_taken_in() -> None:
    events = launch(500, (0, 10, [2, 3]), (1, 50, [2, 3]), node="n1")
    events = [x for x in events if not (isinstance(x, e.RoundStarted) and x.round == 1)]
    exited = e.RankExited(t=553 * S, node="n1", round=1, rank=3, pid=1, exit_code=1)
    events.insert(-2, exited)
    found = attempts(launch(0, (0, 10, [0, 1]), (1, 50, [0, 1])), events)
    assert shown(found) == [[(0, ["n0", "n1"]), (1, ["n0", "n1"])]]
    assert found[0].worlds[1].ranks == {0, 1, 3}


def test_the_axis_begins_with_the_first_launcher() -> None:
    found = attempts(launch(7000, (0, 30, [0, 1])), launch(90, (0, 10, [2, 3]), node="n1"))
    starts = sorted(one.on_axis(one.state.began_ns) for one in found[0].launches)
    assert starts[0] == 0
    begins = [one.on_axis(one.state.rounds[0].began_ns) for one in found[0].launches]
    assert all(begin >= start for begin in begins for start in starts)


def test_gaps_take_as_long_as_ranks_are_known() -> None:
    huge = 10**15
    assert gaps(huge, {3, 4, huge + 7}) == (range(3), range(5, huge))
    assert gaps(3, {0, 1, 2}) == ()
    assert gaps(3, {1}) == (range(1), range(2, 3))
    assert gaps(2, ()) == (range(2),)


def test_a_launch_whose_first_line_is_about_another_node_is_not_on_that() -> None:
    blamed = e.RoundBlamed(t=1, node="other", number=0, line="")
    [launch] = launches_of([Journal(Path("journal-n0.jsonl"), [blamed, *sample.begin(2, 0)])])
    assert launch.node == "n0"


def journal(name: str, *runs: tuple[str, float]) -> Journal:
    started = [
        e.JobStarted(t=0, wall=wall, run_id=run_id, argv=[], nproc_per_node=1, max_restarts=0)
        for run_id, wall in runs
    ]
    return Journal(Path(name), [*started])


def test_journals_of_two_jobs_are_not_mixed() -> None:
    old = [journal("a", ("x", 100)), journal("b", ("x", 101))]
    new = [journal("c", ("y", 200)), journal("d", ("y", 201))]
    assert newest_job([new[0], old[0], new[1], old[1]]) == (new, ["x"])
    assert newest_job(old) == (old, [])


def test_launches_into_one_journal_are_of_one_job_whatever_their_names() -> None:
    """A launch in the same directory goes on with the job; its name may be the time it began."""
    chain = [journal("a", ("x", 100), ("y", 200)), journal("b", ("z", 300), ("y", 201))]
    assert newest_job(chain) == (chain, [])
    other = journal("c", ("w", 250))
    assert newest_job([other, *chain]) == (chain, ["w"])


def test_a_journal_without_the_name_of_its_run_is_not_left_out() -> None:
    cut, last = journal("a"), journal("c", ("y", 200))
    assert newest_job([cut, journal("b", ("x", 100)), last]) == ([cut, last], ["x"])
    assert newest_job([]) == ([], [])
