"""Phases are measured between recorded milestones and never guessed."""

from __future__ import annotations

from tests.journal import sample
from tests.journal.sample import MS, at, begin
from undaunted.journal import events as e
from undaunted.journal.restarts import Phases, summarize


def test_the_run_as_a_whole() -> None:
    run = summarize(sample.RUN)
    assert (run.run_id, run.node, run.argv) == ("demo", "n0", ["train.py", "--fast"])
    assert (run.outcome, run.exit_code, run.restarts, run.max_restarts) == ("finished", 0, 2, 3)
    assert run.duration_ns == 9003 * MS
    assert run.started_wall == 1000.001
    assert (run.boot_id, run.pid, run.log_dir) == ("boot", 42, "/logs")
    assert [one.outcome for one in run.rounds] == ["crash", "hang", "finished"]
    # A hang also costs the limit that had to pass before anybody could know.
    assert run.lost_ns == (57 + 124 + 3000) * MS
    assert run.untimed_restarts == 0
    assert run.notes == []


def test_phases_after_a_crash() -> None:
    phases = summarize(sample.RUN).rounds[0].phases
    assert phases == Phases(
        detect_ns=2 * MS,
        evidence_ns=None,  # a crash needs none
        verdict_ns=40 * MS,  # goes on while the ranks are stopped
        decide_ns=1 * MS,
        stop_ns=40 * MS,
        spawn_ns=6 * MS,
        first_line_ns=7 * MS,
        first_step_ns=23 * MS,
        total_ns=57 * MS,
        total_to_step_ns=80 * MS,
    )


def test_phases_after_a_hang() -> None:
    phases = summarize(sample.RUN).rounds[1].phases
    assert phases == Phases(
        detect_ns=MS // 5,
        evidence_ns=round(99.8 * MS),
        verdict_ns=1 * MS,
        decide_ns=1 * MS,
        stop_ns=7 * MS,
        spawn_ns=7 * MS,
        first_line_ns=7 * MS,
        first_step_ns=23 * MS,
        total_ns=124 * MS,
        total_to_step_ns=147 * MS,
    )


def test_a_round_knows_its_cause_and_ranks() -> None:
    crash, hang, last = summarize(sample.RUN).rounds
    assert crash.cause == "rank 1 raised ValueError: bad batch"
    assert (crash.ranks, crash.world_size, crash.worker_start) == ([0, 1], 2, "warm")
    assert crash.duration_ns == 1032 * MS
    assert crash.iterations == [7]
    assert [exited.rank for exited in crash.exits] == [1, 0]
    assert hang.stacks == "/run/stacks-round1.txt"
    assert last.cause == "the work is done"
    assert last.phases is None


def test_a_missing_milestone_leaves_its_phases_open() -> None:
    one_rank_late = [
        event
        for event in sample.RUN
        if not (isinstance(event, e.RankMilestone) and event.round == 1 and event.rank == 1)
    ]
    run = summarize(one_rank_late)
    phases = run.rounds[0].phases
    assert phases is not None
    assert phases.spawn_ns == 6 * MS
    assert (phases.first_line_ns, phases.first_step_ns, phases.total_ns) == (None, None, None)
    assert run.untimed_restarts == 1
    assert run.lost_ns == 3124 * MS


def test_each_missing_event_is_survived() -> None:
    whole = summarize(sample.RUN)
    for index in range(len(sample.RUN)):
        run = summarize([*sample.RUN[:index], *sample.RUN[index + 1 :]])
        for before, after in zip(whole.rounds, run.rounds, strict=True):
            assert (before.phases is None) == (after.phases is None)
            for name in Phases.__struct_fields__ if before.phases and after.phases else ():
                old, new = getattr(before.phases, name), getattr(after.phases, name)
                assert new is None or old is None or new >= 0


def test_every_beginning_of_a_journal_is_a_summary() -> None:
    for end in range(len(sample.RUN)):
        run = summarize(sample.RUN[:end])
        assert run.outcome == ""
        assert run.exit_code is None
        assert run.duration_ns is None


def test_time_counts_from_detection_where_nobody_knows_when_it_happened() -> None:
    killed = at(1000, e.FailureDetected, 0, kind="crash", rank=1, detail="SIGKILL")
    run = summarize([*begin(10, 0), killed, at(1042, e.RoundStopped, 0), *begin(1043, 1)])
    phases = run.rounds[0].phases
    assert phases is not None
    assert phases.detect_ns is None
    assert phases.total_ns == 55 * MS
    assert run.rounds[0].cause == "crash of rank 1: SIGKILL"


def test_a_rank_that_ran_before_the_agent_knew_is_no_negative_time() -> None:
    early = at(1070, e.WorkersSpawned, 1, mode="warm", pids=[1])
    events = [
        *begin(10, 0),
        *sample.CRASH,
        *(early if isinstance(one, e.WorkersSpawned) else one for one in begin(1043, 1)),
    ]
    phases = summarize(events).rounds[0].phases
    assert phases is not None
    assert phases.first_line_ns == 0


def test_the_failure_that_ends_the_job_has_the_phases_it_went_through() -> None:
    end = at(1050, e.JobEnded, 0, outcome="failed", exit_code=1)
    run = summarize([*sample.OPENING, *begin(10, 0), *sample.CRASH, end])
    assert (run.outcome, run.restarts, run.lost_ns, run.untimed_restarts) == ("failed", 0, 0, 0)
    phases = run.rounds[0].phases
    assert phases is not None
    assert (phases.stop_ns, phases.spawn_ns, phases.total_ns) == (40 * MS, None, None)


def test_a_round_ended_on_request_or_by_a_signal() -> None:
    asked = at(100, e.ControlRequested, 0, rank=1, action="ShutdownWorkload", description="bye")
    run = summarize([*begin(10, 0), asked, at(110, e.RoundStopped, 0)])
    assert (run.rounds[0].outcome, run.rounds[0].phases) == ("stopped", None)
    assert run.rounds[0].cause == "rank 1 requests ShutdownWorkload: bye"
    signalled = at(100, e.SignalReceived, 0, signal="SIGTERM")
    run = summarize([*begin(10, 0), signalled])
    assert run.rounds[0].cause == "the launcher received SIGTERM"
    assert run.rounds[0].outcome == ""  # nothing says that it ended


def test_workers_that_could_not_be_started() -> None:
    failure = at(20, e.FailureDetected, 0, kind="spawn", rank=-1, detail="no such interpreter")
    run = summarize([failure])
    assert (run.rounds[0].outcome, run.rounds[0].cause) == ("spawn", "spawn: no such interpreter")


def test_results_of_an_attribution_service_are_notes() -> None:
    results = [
        at(21, e.AttributionResult, 0, log_path="/l", action="STOP", text="out of memory"),
        at(22, e.AttributionResult, 1, log_path="/l", text="nothing"),
    ]
    assert summarize([*begin(10, 0), *results]).notes == [
        "attribution of round 0 (it recommends STOP): out of memory",
        "attribution of round 1: nothing",
    ]


def test_notes_tell_what_else_happened() -> None:
    run = summarize(
        [
            *begin(10, 0),
            at(20, e.TemplateLost, 0, reason="a thread of numpy"),
            at(21, e.AgentPaused, 0, seconds=10.0),
            at(22, e.EventsLost, count=3, reason="disk full"),
            at(23, e.EventsLost, count=4, reason="disk full"),
            at(24, e.RoundStopped, 0, unkillable=[5, 6]),
        ]
    )
    assert run.notes == [
        "workers started fresh: a thread of numpy",
        "the launcher itself did not run for 10.0 s; deadlines were moved",
        "7 events missing in the journal: disk full",
        "processes that could not be killed in round 0: 5, 6",
    ]


def test_no_events_at_all() -> None:
    assert summarize([]).rounds == []


def test_memory_that_was_waited_for_in_vain_is_noted() -> None:
    held = "GPU 0: 4096 MiB in use"
    events = [
        e.JobStarted(t=0, run_id="x", argv=["a"], nproc_per_node=1, max_restarts=1),
        e.MemoryReclaimed(t=MS, round=0, duration_ns=20 * MS),
        e.MemoryReclaimed(t=2 * MS, round=1, duration_ns=500 * MS, held=held),
    ]
    assert summarize(events).notes == [f"after round 1, 500 ms in vain for GPU memory: {held}"]


def test_an_unhealthy_node_is_noted_unless_the_end_says_so() -> None:
    problem = "the GPU check failed: GPU 0 needs a reset of the GPU"
    checked = [at(1, e.NodeChecked), at(9, e.NodeChecked, 0, problem=problem)]
    assert summarize(checked).notes == [f"the node was found unhealthy: {problem}"]
    end = at(10, e.JobEnded, outcome="excluded", exit_code=1, reason=f"node a: {problem}")
    assert summarize([*checked, end]).notes == []
