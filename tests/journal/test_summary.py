"""A launch: its rounds, its restarts, also inside of processes; how it and its job ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.journal import sample
from tests.journal.sample import MS, at, begin, summary_of
from undaunted.base.console import plain
from undaunted.journal import events as e
from undaunted.journal.render import render_round, render_run
from undaunted.journal.summary import InProcessRestart, Phases, RunSummary, job_outcome
from undaunted.journal.words import words_of


def test_the_run_as_a_whole() -> None:
    run = summary_of(sample.RUN)
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


@pytest.mark.parametrize(("victim", "follows"), [("n0", True), ("n2", False)])
def test_a_failure_that_follows_from_that_of_another_node_says_so(
    victim: str, follows: bool
) -> None:
    lost = e.RoundBlamed(
        t=1043 * MS, round=0, number=0, node="n1", line="node n1: lost", victims=[victim]
    )
    first, *_ = summary_of([*sample.RUN, lost]).rounds
    assert first.cause.startswith("rank 1 raised ValueError: bad batch")
    assert first.cause.endswith("node n1: lost") == follows


@pytest.mark.parametrize(
    ("blamed_ms", "node", "follows"),
    [
        (999, "n1", True),  # it was lost, and what its peers met came later
        (999, "n0", False),
        (1001, "n1", False),
        (900, "n1", False),  # this node has gone on after that
    ],
)
def test_what_fails_after_another_node_was_blamed_follows_unless_it_went_on(
    blamed_ms: int, node: str, *, follows: bool
) -> None:
    blamed = e.RoundBlamed(t=blamed_ms * MS, round=0, number=0, node=node, line="node n1: lost")
    of_two_nodes = [
        msgspec.structs.replace(event, world_size=4) if isinstance(event, e.RoundStarted) else event
        for event in sample.RUN
    ]
    first, *_ = summary_of([*of_two_nodes, blamed]).rounds
    assert first.cause.endswith("node n1: lost") == follows


def test_phases_after_a_crash() -> None:
    phases = summary_of(sample.RUN).rounds[0].phases
    assert phases == Phases(
        detect_ns=2 * MS,
        evidence_ns=None,  # a crash needs none
        decide_ns=2 * MS,
        stop_ns=40 * MS,
        idle_ns=1 * MS,
        spawn_ns=5 * MS,
        import_ns=7 * MS,
        initialise_ns=None,
        load_ns=23 * MS,
        total_ns=57 * MS,
        total_to_step_ns=80 * MS,
    )


def test_phases_after_a_hang() -> None:
    phases = summary_of(sample.RUN).rounds[1].phases
    assert phases == Phases(
        detect_ns=MS // 5,  # the limit of 3 s before that is not in here
        evidence_ns=round(100.8 * MS),
        decide_ns=2 * MS,
        stop_ns=7 * MS,
        idle_ns=2 * MS,
        spawn_ns=5 * MS,
        import_ns=7 * MS,
        load_ns=23 * MS,
        total_ns=124 * MS,
        total_to_step_ns=147 * MS,
    )


def test_the_parts_of_a_restart_add_up_to_its_total() -> None:
    parts = ("detect", "evidence", "decide", "stop", "idle", "spawn", "import")
    for one in summary_of(sample.RUN).rounds[:2]:
        assert one.phases is not None
        spent = [getattr(one.phases, f"{name}_ns") or 0 for name in parts]
        assert sum(spent) == one.phases.total_ns
        rest = (one.phases.initialise_ns or 0) + (one.phases.load_ns or 0)
        assert sum(spent) + rest == one.phases.total_to_step_ns


def test_a_round_knows_its_cause_and_ranks() -> None:
    crash, hang, last = summary_of(sample.RUN).rounds
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
    run = summary_of(one_rank_late)
    phases = run.rounds[0].phases
    assert phases is not None
    assert phases.spawn_ns == 5 * MS
    assert (phases.import_ns, phases.load_ns, phases.total_ns) == (None, None, None)
    assert run.untimed_restarts == 1
    assert run.lost_ns == 3124 * MS


def test_each_missing_event_is_survived() -> None:
    whole = summary_of(sample.RUN)
    for index in range(len(sample.RUN)):
        run = summary_of([*sample.RUN[:index], *sample.RUN[index + 1 :]])
        for before, after in zip(whole.rounds, run.rounds, strict=True):
            assert (before.phases is None) == (after.phases is None)
            for name in Phases.__struct_fields__ if before.phases and after.phases else ():
                old, new = getattr(before.phases, name), getattr(after.phases, name)
                assert new is None or old is None or new >= 0


def test_every_beginning_of_a_journal_is_a_summary() -> None:
    for end in range(len(sample.RUN)):
        run = summary_of(sample.RUN[:end])
        assert run.outcome == ""
        assert run.exit_code is None
        assert run.duration_ns is None


def test_time_counts_from_detection_where_nobody_knows_when_it_happened() -> None:
    killed = at(1000, e.FailureDetected, 0, kind="crash", rank=1, detail="SIGKILL")
    run = summary_of([*begin(10, 0), killed, at(1042, e.RoundStopped, 0), *begin(1043, 1)])
    phases = run.rounds[0].phases
    assert phases is not None
    assert phases.detect_ns is None
    assert phases.total_ns == 55 * MS
    assert run.rounds[0].cause == "crash of rank 1: SIGKILL"


def test_a_hang_that_nobody_has_judged_is_not_said_to_be_of_a_rank() -> None:
    hang = at(1000, e.FailureDetected, 0, kind="hang", rank=1, detail="heartbeat: 3.0 s")
    run = summary_of([*begin(10, 0), hang, at(1042, e.RoundStopped, 0)])
    assert run.rounds[0].cause == (
        "hang: rank 1 passed its limit first (heartbeat: 3.0 s); "
        "which rank is to blame is not recorded"
    )


def test_a_rank_that_ran_before_the_agent_knew_is_no_negative_time() -> None:
    early = at(1070, e.WorkersSpawned, 1, mode="warm", pids=[1])
    events = [
        *begin(10, 0),
        *sample.CRASH,
        *(early if isinstance(one, e.WorkersSpawned) else one for one in begin(1043, 1)),
    ]
    phases = summary_of(events).rounds[0].phases
    assert phases is not None
    assert phases.import_ns is None
    assert phases.total_ns is not None


def test_the_failure_that_ends_the_job_has_the_phases_it_went_through() -> None:
    end = at(1050, e.JobEnded, 0, outcome="failed", exit_code=1)
    run = summary_of([*sample.OPENING, *begin(10, 0), *sample.CRASH, end])
    assert (run.outcome, run.restarts, run.lost_ns, run.untimed_restarts) == ("failed", 0, 0, 0)
    phases = run.rounds[0].phases
    assert phases is not None
    assert (phases.stop_ns, phases.spawn_ns, phases.total_ns) == (40 * MS, None, None)


def test_a_round_ended_on_request_or_by_a_signal() -> None:
    asked = at(100, e.ControlRequested, 0, rank=1, action="ShutdownWorkload", description="bye")
    run = summary_of([*begin(10, 0), asked, at(110, e.RoundStopped, 0)])
    assert (run.rounds[0].outcome, run.rounds[0].phases) == ("stopped", None)
    assert run.rounds[0].cause == "rank 1 requests ShutdownWorkload: bye"
    signalled = at(100, e.SignalReceived, 0, signal="SIGTERM")
    run = summary_of([*begin(10, 0), signalled])
    assert run.rounds[0].cause == "the launcher received SIGTERM"
    assert run.rounds[0].outcome == ""  # nothing says that it ended


def test_workers_that_could_not_be_started() -> None:
    failure = at(20, e.FailureDetected, 0, kind="spawn", rank=-1, detail="no such interpreter")
    run = summary_of([failure])
    assert (run.rounds[0].outcome, run.rounds[0].cause) == ("spawn", "spawn: no such interpreter")


def test_results_of_an_attribution_service_are_notes() -> None:
    results = [
        at(21, e.AttributionResult, 0, log_path="/l", action="STOP", text="out of memory"),
        at(22, e.AttributionResult, 1, log_path="/l", text="nothing"),
    ]
    assert summary_of([*begin(10, 0), *results]).notes == [
        "attribution of round 0 (it recommends STOP): out of memory",
        "attribution of round 1: nothing",
    ]


def test_notes_tell_what_else_happened() -> None:
    told = [
        at(20, e.TemplateLost, 0, reason="a thread of numpy"),
        at(21, e.AgentPaused, 0, seconds=10.0),
        at(22, e.EventsLost, count=7, reason="disk full"),
        at(24, e.RoundStopped, 0, unkillable=[5, 6]),
        at(25, e.Remark, 0, text="the agent was killed", level="error"),
    ]
    parts = [
        at(20.5, e.AgentPaused, 0, seconds=4.0),
        at(21, e.AgentPaused, 0, seconds=6.0),
        at(22, e.EventsLost, count=3, reason="disk full"),
        at(23, e.EventsLost, count=4, reason="disk full"),
    ]
    other = [at(26, e.Remark, 0, text="ranks write to files"), at(27, e.RoundStopped, 1)]
    run = summary_of([*begin(10, 0), told[0], *parts, *told[3:], *other])
    assert run.notes == [words_of(event).full for event in told]


def test_no_events_at_all() -> None:
    assert summary_of([]).rounds == []


def test_memory_that_was_waited_for_in_vain_is_noted() -> None:
    held = "GPU 0: 4096 MiB in use"
    events = [
        e.JobStarted(t=0, run_id="x", argv=["a"], nproc_per_node=1, max_restarts=1),
        e.MemoryReclaimed(t=MS, round=0, duration_ns=20 * MS),
        e.MemoryReclaimed(t=2 * MS, round=1, duration_ns=500 * MS, held=held),
    ]
    assert summary_of(events).notes == [words_of(events[-1]).full]


def test_an_unhealthy_node_is_noted_unless_the_end_says_so() -> None:
    problem = "the GPU check failed: GPU 0 needs a reset of the GPU"
    checked = [at(1, e.NodeChecked), at(9, e.NodeChecked, 0, problem=problem)]
    assert summary_of(checked).notes == [words_of(checked[1]).full]
    end = at(10, e.JobEnded, outcome="excluded", exit_code=1, reason=f"node a: {problem}")
    assert summary_of([*checked, end]).notes == []


# --- restarts inside of processes

CAUSES = ["rank 1: ValueError('x')", "rank 3: TERMINATED"]


def phase(name: str, took_s: float, epoch: int = 1, **fields: Any) -> Any:
    return at(500 + epoch, e.InProcessPhase, 0, call=0, epoch=epoch, phase=name, took_s=took_s,
              **fields)  # fmt: skip


def restart(epoch: int = 1) -> list[Any]:
    return [
        phase("detect", 9.0, epoch, reasons=CAUSES[:1]),
        phase("abort", 0.030, epoch, rank=1),
        phase("stop", 0.001, epoch, rank=0),
        phase("something else", 0.001, epoch, rank=0),
        phase("agree", 0.004, epoch, rank=2),
        phase("re-enter", 0.040, epoch, members=3, lost=[3], reasons=CAUSES),
    ]


def test_phases_of_a_restart() -> None:
    assert summary_of(restart()).rounds[0].inprocess == [
        InProcessRestart(
            call=0,
            epoch=1,
            causes=CAUSES,
            members=3,
            lost=[3],
            abort_ns=30_000_000,
            stop_ns=1_000_000,
            agree_ns=4_000_000,
            total_ns=40_000_000,
        )
    ]


def test_a_function_that_did_not_run_again() -> None:
    (one,) = summary_of([phase("detect", 9.0, reasons=CAUSES)]).rounds[0].inprocess
    assert (one.causes, one.members, one.total_ns) == (CAUSES, 0, None)


def test_the_report_shows_them_beside_the_others() -> None:
    run = summary_of([*sample.RUN, *restart(1), phase("detect", 1.0, 2)])
    text = plain(render_run(run, times=True))
    assert "restarts: 2 of 3, 3.2 s lost; 2 in-process, 40 ms lost\n" in text
    assert "in-process restart 1: 3 ranks (without 3) again after rank 1: ValueError('x')" in text
    assert "in-process restart 2: no rank again after it was stopped" in text
    table = text[text.index("in-process restarts, milliseconds") :].splitlines()
    titles = "abort  stop  finalize  health  collect  agree  total"
    assert table[1] == f"round, call, restart  {titles}"
    assert " ".join(table[2].split()) == "0, 0, 1 30 1.0 - - - 4.0 40"


def test_of_many_the_last_ones_are_shown() -> None:
    run = summary_of([*sample.RUN, *(event for n in range(1, 31) for event in restart(n))])
    text = plain(render_run(run, times=True))
    assert "(the last 20 of 30)" in text
    assert "... 25 earlier in-process restarts" in text
    assert "in-process restart 25:" not in text
    assert "in-process restart 25:" in plain(render_round(run, 0))


# --- how a job ended


def ended(node: str, start: float, end: float | None, outcome: str = "", code: int = 1):
    if end is None:
        return RunSummary(node=node, started_wall=start)
    return RunSummary(
        node=node,
        started_wall=start,
        duration_ns=int((end - start) * 1e9),
        outcome=outcome,
        exit_code=code,
        reason=f"of {node}",
    )


def test_nothing_has_ended():
    assert job_outcome([]) is None
    assert job_outcome([ended("a", 0, None)]) is None


def test_lost_nodes_do_not_count():
    found = job_outcome([ended("a", 0, None), ended("b", 0, 9, "finished", 0)])
    assert found == ("finished", 0, "of b", "b")


def test_neither_do_nodes_that_left_before():
    nodes = [ended("a", 0, 9, "failed"), ended("b", 0, 5, "excluded")]
    assert job_outcome(nodes).outcome == "failed"
    nodes = [ended("a", 0, 9, "preempted", 75), ended("b", 0, 8, "failed")]
    assert job_outcome(nodes).exit_code == 75


def test_who_leaves_is_no_end_while_others_run():
    others = msgspec.structs.replace(ended("a", 0, None), running=True)
    assert job_outcome([others, ended("b", 0, 5, "preempted", 75)]) is None
    assert job_outcome([others, ended("b", 0, 5, "finished", 0)]).exit_code == 0


def test_what_holds_for_all_may_be_said_by_one():
    nodes = [ended("a", 0, 9, "failed"), ended("b", 0, 8, "finished", 0)]
    assert job_outcome(nodes).exit_code == 0
    nodes = [ended("a", 0, 9, "failed"), ended("b", 0, 8, "no_restart", 93)]
    assert job_outcome(nodes).exit_code == 93


def test_only_the_job_that_was_started_last():
    first = [ended("a", 0, 5, "finished", 0), ended("c", 0, 5, "finished", 0)]
    assert job_outcome([*first, ended("a", 6, 9, "preempted", 75)]).exit_code == 75
    assert job_outcome([*first, ended("a", 6, None)]) is None


def test_a_node_that_was_cut_off_knows_less_than_the_others():
    ends = [ended("a", 0, 5, "failed"), ended("b", 0, 5, "failed")]
    cut_off = msgspec.structs.replace(ended("c", 0, 9, "failed"), alone=True)
    assert job_outcome([*ends, cut_off]).reason == "of a"
    assert job_outcome([cut_off]).reason == "of c"
    left = ended("d", 0, 3, "preempted", 75)
    assert job_outcome([left, cut_off]).reason == "of c"
