"""Profiling events: recorded by a process, and as a view of the journal."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest

from nvidia_resiliency_ext.shared_utils import profiling
from nvidia_resiliency_ext.shared_utils.profiling import (
    FaultToleranceProfiler,
    ProfilingEvent,
    ProfilingRecord,
    profiling_events,
    record_profiling_event,
)
from tests.journal.sample import RUN, at
from undaunted.journal import events as journal

if TYPE_CHECKING:
    from pathlib import Path


def test_a_failure_begins_a_cycle(caplog: pytest.LogCaptureFixture) -> None:
    profiler = FaultToleranceProfiler(clock=lambda: 1_700_000_000.1234)
    with caplog.at_level(logging.INFO):
        profiler.record_event(ProfilingEvent.WORKER_START_COMPLETED)
        profiler.record_event(ProfilingEvent.FAILURE_DETECTED, "n7", 3)
        profiler.record_event(ProfilingEvent.WORKER_TERMINATED, node_id="n7")
    assert profiler.cycle == 1
    assert caplog.messages == [
        "cycle 0: worker_start_completed at 2023-11-14T22:13:20.123Z",
        "cycle 1: failure_detected, node n7, rank 3 at 2023-11-14T22:13:20.123Z",
        "cycle 1: worker_terminated, node n7 at 2023-11-14T22:13:20.123Z",
    ]


def test_threads_lose_no_cycle() -> None:
    profiler = FaultToleranceProfiler()

    def fail() -> None:
        for _ in range(100):
            profiler.record_event(ProfilingEvent.FAILURE_DETECTED)

    threads = [threading.Thread(target=fail) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert profiler.cycle == 400


def test_process_has_one_profiler_that_knows_its_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "_of_process", [])
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert record_profiling_event(ProfilingEvent.RENDEZVOUS_STARTED).cycle == 2
    assert record_profiling_event(ProfilingEvent.FAILURE_DETECTED, rank=1).cycle == 3
    assert record_profiling_event(ProfilingEvent.WORKER_TERMINATED).cycle == 3


def test_journal_of_a_run_with_two_restarts() -> None:
    found = [(r.cycle, r.event.value, round(r.wall_s * 1000) - 1_000_000) for r in
             profiling_events(RUN)]  # fmt: skip
    assert found == [
        (0, "rendezvous_started", 1),
        (0, "rendezvous_completed", 10),
        (0, "worker_start_started", 10),
        (0, "worker_start_completed", 15),
        (1, "failure_detected", 1000),
        (1, "worker_terminated", 1042),
        (1, "rendezvous_started", 1042),
        (1, "rendezvous_completed", 1043),
        (1, "worker_start_started", 1043),
        (1, "worker_start_completed", 1048),
        (2, "failure_detected", 5000),
        (2, "worker_terminated", 5110),
        (2, "rendezvous_started", 5110),
        (2, "rendezvous_completed", 5112),
        (2, "worker_start_started", 5112),
        (2, "worker_start_completed", 5117),
        (2, "worker_terminated", 9003),
    ]
    failures = [r for r in profiling_events(RUN) if r.event is ProfilingEvent.FAILURE_DETECTED]
    assert [(r.node, r.rank) for r in failures] == [("n0", 1), ("n0", 1)]


def test_a_second_failure_of_a_round_begins_no_cycle() -> None:
    twice = [at(1, journal.FailureDetected, 0, kind="crash", rank=rank) for rank in (0, 1)]
    assert [r.rank for r in profiling_events(twice)] == [0]


def test_damaged_journals_give_what_is_there() -> None:
    assert profiling_events([]) == []
    for missing in range(len(RUN)):
        assert profiling_events(RUN[:missing] + RUN[missing + 1 :])


def test_results_of_an_attribution_service() -> None:
    result = at(5000, journal.AttributionResult, 1, log_path="/l", duration_ns=2_000_000_000)
    started, completed = profiling_events([result])
    assert (started.event.value, completed.event.value) == (
        "attribution_get_started",
        "attribution_get_completed",
    )
    assert started.cycle == completed.cycle == 1
    assert completed.wall_s - started.wall_s == pytest.approx(2.0)


def test_events_of_ranks_are_in_the_view() -> None:
    events = [
        at(2, journal.RankEvent, 1, rank=3, name="profiling", at_ns=1, text="rendezvous_started"),
        at(2, journal.RankEvent, 1, rank=3, name="profiling", at_ns=1, text="something else"),
        at(2, journal.RankEvent, 1, rank=3, name="other", at_ns=1, text="rendezvous_started"),
    ]
    assert profiling_events(events) == [
        ProfilingRecord(ProfilingEvent.RENDEZVOUS_STARTED, 1, 1000.002, "n0", 3)
    ]


@pytest.mark.e2e
def test_event_of_a_rank_reaches_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from undaunted.fault_tolerance.launch import elastic_launch
    from undaunted.fault_tolerance.launch_config import LaunchConfig
    from undaunted.journal.reader import find_journals, read_journal

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "from nvidia_resiliency_ext.shared_utils import profiling\n"
        "profiling.record_profiling_event(profiling.ProfilingEvent.RENDEZVOUS_COMPLETED, rank=0)\n"
    )
    config = LaunchConfig(1, 1, 1, worker_start="fresh", run_dir="run", max_restarts=0)
    elastic_launch(config, "train.py")()
    (path,) = find_journals("run")
    records = profiling_events(read_journal(path).launches()[-1])
    assert [(r.event.value, r.cycle) for r in records if r.rank == 0] == [
        ("rendezvous_completed", 0)
    ]
