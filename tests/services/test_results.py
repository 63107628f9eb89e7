"""Which logs are wanted, which are read, and what is said of each; no clock, no files."""

from __future__ import annotations

import pytest

from undaunted.attribution.findings import Finding
from undaunted.services.results import KEPT_S, FullError, Log, LogResult, Results

STAMP = (1, 10, 100)
LATER = (2, 20, 100)
OOM = Finding("gpu_out_of_memory", (3,), quote="rank 3: CUDA out of memory", source="/a:7")


def told(
    stamp: tuple[int, int, int] = STAMP, *findings: Finding, step: float | None = 5
) -> LogResult:
    return LogResult(stamp, findings, step)


def test_a_log_is_read_once_for_all_who_ask() -> None:
    results = Results()
    results.name("/a", 1.0)
    assert [results.want("/a", STAMP) for _ in range(3)] == ["pending"] * 3
    assert results.queued == 1
    assert results.begin(7.0) == "/a"
    assert results.begin(7.0) is None
    assert results.in_flight == {"/a": 7.0}
    assert results.want("/a", STAMP) == "in_flight"
    log = results.end("/a", told())
    assert log == Log("/a", 1.0, told=told())
    assert results.want("/a", STAMP) == "completed"
    assert (results.queued, results.in_flight) == (0, {})


def test_a_file_that_has_changed_is_read_again() -> None:
    results = Results()
    results.name("/a", 1.0)
    results.want("/a", STAMP)
    results.begin(1.0)
    results.end("/a", told())
    assert results.want("/a", LATER) == "pending"
    assert results.get("/a") == Log("/a", 1.0, wanted=True, told=told())


def test_logs_are_read_in_the_order_of_asking() -> None:
    results = Results()
    for path in ("/c", "/a", "/b"):
        results.name(path, 1.0)
        results.want(path, STAMP)
    assert [results.begin(1.0) for _ in range(3)] == ["/c", "/a", "/b"]


def test_what_is_said_of_a_log_is_kept_unless_something_else_is_said() -> None:
    results = Results()
    results.name("/a", 1.0, user="me", job="7", cycle=0)
    results.name("/a", 2.0)
    assert results.get("/a") == Log("/a", 1.0, "me", "7", 0)
    results.name("/a", 2.0, job="8", cycle=1)
    assert results.get("/a") == Log("/a", 1.0, "me", "8", 1)


def test_a_ledger_brings_back_what_was_wanted() -> None:
    now = KEPT_S + 100
    logs = [
        Log("/old", 50.0, told=told()),
        Log("/old-wanted", 50.0, wanted=True),
        Log("/a", now, wanted=True),
        Log("/b", now),
        Log("/a", now, told=told()),
        Log("/c", now, wanted=True),
    ]
    results = Results(logs, now)
    assert [log.path for log in results.logs] == ["/old-wanted", "/a", "/b", "/c"]
    assert [results.begin(1.0), results.begin(1.0), results.begin(1.0)] == [
        *("/old-wanted", "/c"),
        None,
    ]
    assert results.want("/a", STAMP) == "completed"
    few = Results(logs, now, most=1)
    assert [log.path for log in few.logs] == ["/old-wanted", "/c"]


def test_the_oldest_with_an_answer_makes_room() -> None:
    results = Results(most=3)
    results.name("/a", 1.0)
    results.want("/a", STAMP)
    results.begin(1.0)
    for path in ("/b", "/c"):
        results.name(path, 1.0)
    with pytest.raises(FullError, match="3 logs"):
        results.name("/d", 1.0)
    results.end("/a", told())
    results.name("/d", 1.0)
    assert [log.path for log in results.logs] == ["/b", "/c", "/d"]


def test_logs_that_nobody_asked_about_are_forgotten_after_a_while() -> None:
    results = Results()
    results.name("/a", 1.0, job="7", cycle=0)
    results.name("/b", 2.0)
    results.want("/b", STAMP)
    results.name("/c", 3.0)
    results.name("/d", KEPT_S + 10)
    assert [log.path for log in results.logs] == ["/b", "/c", "/d"]


def failed(results: Results, cycle: int, *, step: float = 5, path: str = "", **about: str) -> Log:
    path = path or f"/cycle{cycle}"
    results.name(path, 1.0, **{"job": "7", **about}, cycle=cycle)
    results.want(path, STAMP)
    results.begin(1.0)
    return results.end(path, told(STAMP, OOM, step=step))


def action(results: Results, log: Log) -> str:
    found = results.explained(log)
    assert found is not None
    return found.advice.action


def test_the_third_time_in_a_row_the_advice_is_to_stop() -> None:
    results = Results()
    assert [action(results, failed(results, cycle)) for cycle in range(3)] == [
        *("restart", "restart"),
        "stop",
    ]


def test_a_round_counts_once_and_only_those_before() -> None:
    results = Results()
    for node in range(4):
        log = failed(results, 0, path=f"/node{node}")
    assert action(results, log) == "restart"
    failed(results, 2)
    assert action(results, failed(results, 1)) == "restart"


def test_rounds_of_others_do_not_count() -> None:
    results = Results()
    failed(results, 0, job="8")
    failed(results, 1, user="you")
    results.name("/cycle2", 1.0)
    assert action(results, failed(results, 2)) == "restart"


def test_progress_in_between_counts_anew() -> None:
    results = Results()
    failed(results, 0)
    results.name("/cycle1", 1.0, job="7", cycle=1)
    results.want("/cycle1", STAMP)
    results.begin(1.0)
    results.end("/cycle1", told(STAMP, step=50))
    failed(results, 2)
    assert action(results, failed(results, 3)) == "restart"


def test_nothing_is_explained_where_nothing_has_failed() -> None:
    results = Results()
    log = results.name("/a", 1.0)
    assert results.explained(log) is None
    results.want("/a", STAMP)
    results.begin(1.0)
    assert results.explained(results.end("/a", told())) is None
