"""Launches, and a job of several nodes whose truth is known: benchmarks/simulated_job.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulated_job import Job, simulate
from tests.journal import sample
from tests.journal.job.moving import moved
from tests.journal.sample import MS, at, begin, summary_of
from undaunted.base.console import plain
from undaunted.journal import events as e
from undaunted.journal.goodput import Times
from undaunted.journal.job.launches import launches_of
from undaunted.journal.job.rank_time import Price
from undaunted.journal.job.render import render_launch, render_round
from undaunted.journal.job.summary import job_outcome, summarize_job
from undaunted.journal.job.values import InProcessRestart, LaunchSummary, Phases
from undaunted.journal.reader import Journal
from undaunted.journal.words import words_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.journal.job.values import JobSummary


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
    text = plain(render_launch(run, times=True))
    assert "restarts: 2 of 3, 3.2 s lost; 2 in-process, 40 ms lost\n" in text
    assert "in-process restart 1: 3 ranks (without 3) again after rank 1: ValueError('x')" in text
    assert "in-process restart 2: no rank again after it was stopped" in text
    table = text[text.index("in-process restarts, milliseconds") :].splitlines()
    titles = "abort  stop  finalize  health  collect  agree  total"
    assert table[1] == f"round, call, restart  {titles}"
    assert " ".join(table[2].split()) == "0, 0, 1 30 1.0 - - - 4.0 40"


def test_of_many_the_last_ones_are_shown() -> None:
    run = summary_of([*sample.RUN, *(event for n in range(1, 31) for event in restart(n))])
    text = plain(render_launch(run, times=True))
    assert "(the last 20 of 30)" in text
    assert "... 25 earlier in-process restarts" in text
    assert "in-process restart 25:" not in text
    assert "in-process restart 25:" in plain(render_round(run, 0))


# --- how a job ended


def ended(node: str, start: float, end: float | None, outcome: str = "", code: int = 1):
    if end is None:
        return LaunchSummary(node=node, started_wall=start)
    return LaunchSummary(
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
    finished = ended("b", 0, 9, "finished", 0)
    assert job_outcome([ended("a", 0, None), finished]) == finished


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


S = 1_000_000_000
STEP_S = 2.0


def journals(job: Job) -> list[Journal]:
    return [Journal(Path(node.name), list(node.events)) for node in job.nodes]


def of(*nodes: Sequence[e.AnyEvent]) -> JobSummary:
    return summarize_job(launches_of([Journal(Path("j"), list(events)) for events in nodes]))


@pytest.fixture(scope="module", params=[1, 2, 3])
def job(request: pytest.FixtureRequest) -> Job:
    return simulate(nodes=3, slots=2, restarts=8, seed=request.param, mean_s=300)


@pytest.fixture(scope="module")
def summary(job: Job) -> JobSummary:
    return summarize_job(launches_of(journals(job)))


def test_rounds_failures_and_steps_are_those_of_the_job(job: Job, summary: JobSummary) -> None:
    assert [one.round for one in summary.rounds] == list(range(9))
    assert (summary.attempts, summary.restarts, summary.outcome) == (1, 8, "finished")
    found = [one.failure for one in summary.rounds[:-1]]
    assert [(one.kind, one.node) for one in found if one] == [
        (one.kind, one.node) for one in job.failures
    ]
    ranks = [one.rank for one in job.failures if one.kind != "lost"]
    assert sorted(summary.failures.by_rank) == sorted(set(ranks))
    assert summary.failures.count == 8
    lost = [last - first for last, first in zip(job.last_steps, job.first_steps[1:], strict=False)]
    assert [one.lost_steps for one in summary.rounds] == [*lost, None]
    assert summary.lost_steps == sum(lost)


def test_clocks_are_right_within_what_is_said(job: Job, summary: JobSummary) -> None:
    [reference] = [clock for clock in summary.clocks if clock.method == "reference"]
    for clock in summary.clocks:
        true = job.skews[reference.nodes[0]] - job.skews[clock.nodes[0]]
        found = clock.offset_ns - reference.offset_ns
        assert clock.uncertainty_ns is not None
        assert abs(found - true) <= clock.uncertainty_ns < 20 * S
    assert all("are known to ±" in note for note in summary.notes)


def test_what_is_productive_is_each_step_once(job: Job, summary: JobSummary) -> None:
    steps = max(job.last_steps)
    ranks = 6
    wrong_s = summary.times.productive_ns / S - steps * STEP_S * ranks
    # A step that fails and the first moments of a round are told to the nearest step.
    assert abs(wrong_s) < 2 * STEP_S * ranks * len(job.last_steps)
    assert summary.ettr is not None
    assert summary.ettr == pytest.approx(steps * STEP_S / (summary.duration_ns / S), rel=0.1)


def test_a_hang_of_one_node_is_no_work_of_the_others(job: Job, summary: JobSummary) -> None:
    for one in summary.rounds:
        if one.failure is not None and one.failure.kind == "hang":
            assert all(299 * S < part.times.detect_ns < 301 * S for part in one.parts)


def test_the_classes_add_up(summary: JobSummary) -> None:
    spent = sum(run.times.total_ns * 2 for run in summary.launches)
    assert summary.times.total_ns + summary.spare_ns == spent
    before = sum(
        (span.end_ns - span.start_ns) * 2
        for lane in summary.lanes
        for span in lane
        if span.round < 0
    )
    in_rounds = sum(one.times.total_ns + one.spare_ns for one in summary.rounds)
    assert in_rounds + before == spent


def test_rounds_follow_each_other_on_the_axis(summary: JobSummary) -> None:
    for one, following in zip(summary.rounds, summary.rounds[1:], strict=False):
        assert one.stopped_ns is not None
        assert one.began_ns < one.stopped_ns <= following.began_ns
        for part in following.parts:
            assert part.began_ns >= one.stopped_ns


def test_a_launch_alone_is_told_as_always() -> None:
    summary = of(sample.RUN)
    [run] = summary.launches
    assert run == summary_of(sample.RUN, offset_ns=-sample.MS)  # when the launcher began
    assert summary.times == Times(
        **{name: 2 * getattr(run.times, name) for name in Times.__struct_fields__}
    )
    assert summary.goodput == pytest.approx(run.goodput)
    assert [one.failure.kind for one in summary.rounds if one.failure] == ["crash", "hang"]
    assert summary.rounds[1].failure is not None
    assert summary.rounds[1].failure.limit_ns == 3 * S
    assert [one.restart_ns for one in summary.rounds] == [57_000_000, 124_000_000, None]
    assert summary.lost_ns == run.lost_ns
    assert [one.lost_steps for one in summary.rounds] == [20, 40, None]


def test_a_job_that_was_launched_again_knows_what_was_done_before() -> None:
    again = moved(sample.RUN, 60 * S, 60, pid=43)
    summary = of([*sample.RUN, *again])
    assert (summary.attempts, summary.restarts) == (2, 4)
    assert [(one.attempt, one.round) for one in summary.rounds] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2),
    ]  # fmt: skip
    # The second one comes to 107 again, where the first had ended.
    assert sum(one.times.productive_ns for one in summary.rounds[3:]) <= 2 * S
    assert summary.between_ns == 60 * S - (9004 - 1) * 1_000_000
    assert summary.rounds[2].lost_steps == 100
    assert summary.ettr is not None
    assert summary.goodput is not None
    assert summary.ettr < summary.goodput / 2


def test_attempts_on_other_machines_are_related_by_wall_clocks_and_that_is_said() -> None:
    again = moved(sample.RUN, 77 * 3600 * S, 60, pid=43, boot_id="other")
    again = [msgspec.structs.replace(event, node="n9") for event in again]
    summary = of(sample.RUN, again)
    assert summary.nodes == ["n0", "n9"]
    assert summary.between_ns == pytest.approx(60 * S - 9003 * 1_000_000, abs=S)
    assert [clock.method for clock in summary.clocks] == ["reference", "wall"]
    assert "wall clocks" in summary.notes[0]
    assert "n9" in summary.notes[0]


def test_a_slow_rank_is_a_note_of_the_job_and_said_once() -> None:
    line, over = "rank 1 (node n1) is slow", "rank 1 (node n1) is as fast as the other ranks again"
    job = simulate(nodes=2, slots=2, restarts=0, seed=1, mean_s=300)
    told = [
        [
            e.SlowRank(t=t, node=node.name, round=0, rank=1, on="n1", line=line),
            e.SlowRank(t=t + 9 * S, node=node.name, round=0, rank=1, on="n1", line=over, over=True),
        ]
        for node in job.nodes
        for t in [node.events[-1].t]
    ]
    one, other = ([*node.events[:-1]] for node in job.nodes)
    summary = of([*one, told[0][0]], [*other, *told[1]])  # one of them was lost meanwhile
    assert summary.attempts == 1
    assert summary.slow == [f"round 0, for 9.0 s: {line}"]
    assert summary.notes.count(summary.slow[0]) == 1
    assert [note for run in summary.launches for note in run.notes if "slow" in note] == []
    (alone,) = of([*one, told[0][0]]).slow
    assert alone == f"round 0, up to the end of the round: {line}"


def test_a_node_without_a_seat_is_a_spare() -> None:
    job = simulate(nodes=2, slots=2, restarts=0, seed=1, mean_s=300)
    spare = [
        e.JournalOpened(t=5, node="spare", boot_id="boot of node000", pid=1),
        e.JobStarted(t=5, node="spare", run_id="simulated", argv=[], nproc_per_node=4,
                     max_restarts=0),
    ]  # fmt: skip
    one, two = (node.events for node in job.nodes)
    shift = one[0].t
    spare = moved(spare, shift, 0)
    end = next(event for event in one if isinstance(event, e.JobEnded))
    spare.append(msgspec.structs.replace(end, node="spare", round=-1))
    summary = of(one, two, spare)
    assert summary.attempts == 1
    assert (
        summary.spare_ns == (end.t + summary.clocks[0].offset_ns - summary.rounds[0].began_ns) * 4
    )
    assert summary.goodput == pytest.approx(of(one, two).goodput, abs=0.03)
    assert {span.kind for span in summary.lanes[2]} == {"idle", "spare"}


def test_ranks_no_journal_tells_of_are_named(job: Job) -> None:
    summary = summarize_job(launches_of(journals(job)[:2]))
    assert any("no journal has ranks 4-5 in 9 rounds (0 to 8)" in one for one in summary.notes)
    assert all(one.restart_ns is None for one in summary.rounds)


def test_wall_clocks_do_not_decide_about_the_outcome() -> None:
    job = simulate(nodes=2, slots=1, restarts=1, seed=3)
    one, two = (node.events for node in job.nodes)
    # The wall clock of the second node is days ahead, and its launcher is killed at the end.
    ahead = [msgspec.structs.replace(event, wall=event.wall + 1e6) for event in two]
    summary = of(one, [event for event in ahead if not isinstance(event, e.JobEnded)])
    assert (summary.outcome, summary.exit_code) == ("finished", 0)


def test_a_price_makes_a_cost(job: Job) -> None:
    summary = summarize_job(launches_of(journals(job)), price=Price(3.6, "EUR"))
    cost = summary.cost
    assert cost is not None
    assert cost.total == pytest.approx((summary.times.total_ns + summary.spare_ns) / S / 1000)
    assert cost.productive == pytest.approx(summary.times.productive_ns / S / 1000)
    assert sum(cost.by_class.values()) == pytest.approx(cost.total)


def test_no_journal_is_an_empty_job() -> None:
    assert summarize_job(launches_of([])).rounds == []
    assert of([e.Decision(t=5, action="end", reason="")]).duration_ns == 0


EVENTS = [event for node in simulate(nodes=2, slots=1, restarts=3, seed=5).nodes
          for event in node.events if not isinstance(event, e.RoundProgress)]  # fmt: skip


@settings(max_examples=50)
@given(st.lists(st.sets(st.integers(0, len(EVENTS) - 1), max_size=40), max_size=3))
def test_whatever_is_missing_all_time_has_one_class(chosen: list[set[int]]) -> None:
    summary = of(*([EVENTS[index] for index in sorted(each)] for each in chosen if each))
    lanes = zip(summary.lanes, summary.launches, strict=True)
    for lane, run in lanes:
        assert sum(span.end_ns - span.start_ns for span in lane) == run.times.total_ns
        assert all(span.start_ns < span.end_ns for span in lane)
    assert summary.duration_ns >= 0
    msgspec.json.encode(summary)


def part(node: str, first_rank: int, *rounds: int, ended: str = "") -> list[e.AnyEvent]:
    """What a node with one rank tells of rounds of two ranks, 10 s each."""
    job = {"run_id": "r", "argv": [], "nproc_per_node": 1, "max_restarts": 3}
    order = {"world_size": 2, "master_addr": "a", "master_port": 1, "ranks": [first_rank]}
    told: list[tuple[int, type[e.Event], int, dict[str, Any]]] = [
        (0, e.JournalOpened, -1, {"boot_id": "of all", "pid": 1}),
        (0, e.JobStarted, -1, job),
    ]
    for number in rounds:
        told.append((1 + 10 * number, e.RoundStarted, number, order))
        told.append((9 + 10 * number, e.RoundStopped, number, {}))
    if ended:
        after = 10 * (max(rounds, default=0) + 1)
        told.append((after, e.JobEnded, -1, {"outcome": ended, "exit_code": 75}))
    return [
        kind(t=at * S, wall=float(at), node=node, round=number, **fields)
        for at, kind, number, fields in told
    ]


@pytest.mark.parametrize("ended", ["preempted", "excluded"])
def test_the_end_of_a_node_that_has_left_is_not_that_of_the_job(ended: str) -> None:
    stays, left, spare = part("a", 0, 0, 1), part("b", 1, 0, ended=ended), part("c", 1, 1)
    assert of(stays, left, spare).outcome == ""
    assert of(stays, left, part("c", 1, 1, ended=ended)).outcome == ended
    assert of(part("a", 0, 0), left, part("c", 1)).outcome == ended


def test_a_spare_that_takes_a_place_was_not_lost_before() -> None:
    stays, left = part("a", 0, 0, 1), part("b", 1, 0, ended="excluded")
    opened, started, *spare = part("c", 1, 1)
    why = {"action": "restart", "reason": "rank 1 is slow"}
    heard = e.Decision(t=8 * S, wall=8.0, node="c", round=0, **why)
    first, _ = of(stays, left, [opened, started, heard, *spare]).rounds
    assert first.failure is None


def of_min_healthy(node: str, rank: int, *, victim: bool = False) -> list[e.AnyEvent]:
    """A rank hangs at 20 s, which is noticed at 30 s; the node of the other one goes on until 90 s.

    Then that one crashes, and both begin anew at 92 s.
    """
    order = {"world_size": 2, "master_addr": "a", "master_port": 1, "ranks": [rank]}
    job = {"run_id": "r", "argv": [], "nproc_per_node": 1, "max_restarts": 3}
    told: list[tuple[int, type[e.Event], int, dict[str, Any]]] = [
        (0, e.JournalOpened, -1, {"boot_id": "of all", "pid": 1}),
        (0, e.JobStarted, -1, job),
        (0, e.RoundStarted, 0, order),
        (1, e.WorkersSpawned, 0, {"mode": "fresh", "pids": [1]}),
        *((2, e.RankMilestone, 0, {"rank": rank, "name": name, "at_ns": 2 * S, "iteration": 0})
          for name in ("first_line", "initialized", "first_step")),
        (21, e.RoundProgress, 0, {"first_iteration": 0, "last_iteration": 18, "last_ns": 20 * S}),
    ]  # fmt: skip
    if victim:
        told += [
            (
                90,
                e.RoundProgress,
                0,
                {"first_iteration": 0, "last_iteration": 68, "last_ns": 89 * S},
            ),
            (90, e.FailureDetected, 0, {"kind": "crash", "rank": rank, "since_ns": 90 * S}),
            (90, e.RankExited, 0, {"rank": rank, "pid": 1, "exit_code": 1}),
            (91, e.EvidenceCollected, 0, {"ranks": [rank], "path": "", "duration_ns": S}),
        ]
    else:
        told += [
            (30, e.FailureDetected, 0, {"kind": "hang", "rank": rank, "since_ns": 30 * S}),
            (30, e.Verdict, 0, {"kind": "hang", "rank": rank, "local_rank": 0, "pid": 1,
                                "line": "it hangs", "limit_s": 10.0}),
        ]  # fmt: skip
    stopped = 91 if victim else 31
    told += [
        (stopped, e.StopRequested, 0, {"reason": "", "grace_s": 1.0}),
        (stopped, e.RoundStopped, 0, {}),
        (92, e.RoundStarted, 1, {**order, "master_port": 2}),
        (93, e.RankMilestone, 1, {"rank": rank, "name": "first_line", "at_ns": 93 * S}),
        (100, e.RoundStopped, 1, {}),
        (100, e.JobEnded, -1, {"outcome": "finished", "exit_code": 0}),
    ]
    return [
        kind(t=at * S, wall=float(at), node=node, round=number, **fields)
        for at, kind, number, fields in told
    ]


def test_what_others_do_after_a_failure_that_they_survive_is_work() -> None:
    """With ``min-healthy`` the nodes that are not to blame go on in the same round."""
    summary = of(of_min_healthy("a", 0), of_min_healthy("b", 1, victim=True))
    first = summary.rounds[0]
    culprit, victim = (part.times for part in first.parts)
    assert culprit.productive_ns == victim.productive_ns - 59 * S == 18 * S
    assert (victim.detect_ns, victim.evidence_ns, victim.recomputed_ns) == (10 * S, S, S)
    assert culprit.idle_ns == 61 * S
    assert first.restart_ns == 3 * S
    assert summary.lost_ns == 3 * S + 10 * S
    assert summary.failures.mttf_ns == 98 * S


def test_the_round_of_a_leader_that_stood_still_ended_without_it() -> None:
    """It wakes when the job has long gone on: its word then is not the job's, nor is its time."""

    def begin(node: str, at: int) -> list[e.AnyEvent]:
        return [
            e.JournalOpened(t=at, node=node, boot_id="b"),
            e.JobStarted(t=at, run_id="r", argv=[], nproc_per_node=1, max_restarts=5),
        ]

    def seat(t: int, number: int, rank: int) -> e.RoundStarted:
        return e.RoundStarted(t=t, round=number, ranks=[rank], master_port=number, world_size=2)

    def stop(t: int, why: str, number: int, *, late: int = 0) -> list[e.AnyEvent]:
        return [
            e.Decision(t=t, round=number, action="restart", reason=why, number=number),
            e.StopRequested(t=t, round=number, reason=why, grace_s=2),
            e.RoundBlamed(t=t, round=number, number=number, node="" if late else "a", line=why),
            e.RoundStopped(t=t + 1 * S, round=number),
        ]

    def end(t: int, at: int) -> list[e.AnyEvent]:
        return [e.JobEnded(t=t, round=at, outcome="finished", exit_code=0, last_round=1)]

    paused = e.AgentPaused(t=40 * S, round=0, seconds=25.0)
    late = stop(41 * S, "the job cannot go on: end this launcher", 0, late=1)
    a = [*begin("a", 0), seat(1 * S, 0, 0), paused, *late, *end(60 * S, 0)]
    b = [*begin("b", 0), seat(1 * S, 0, 1), *stop(20 * S, "node a is lost", 0)]
    b += [seat(23 * S, 1, 0), e.RoundStopped(t=59 * S, round=1), *end(60 * S, 1)]
    c = [*begin("c", 0), seat(23 * S, 1, 1), e.RoundStopped(t=59 * S, round=1), *end(60 * S, 1)]
    job = of(a, b, c)
    first, second = job.rounds
    assert first.stopped_ns is not None
    assert first.stopped_ns <= second.began_ns
    assert first.failure is not None
    assert (first.failure.kind, first.failure.node) == ("lost", "a")
    assert "node a is lost" in first.cause
    assert "cannot go on" not in first.cause
    [of_a] = [run for run in job.launches if run.node == "a"]
    assert [one.outcome for one in of_a.rounds] == ["stopped"]
    waits = [span for span in job.lanes[0] if span.kind == "spare"]
    assert (waits[0].start_ns, waits[-1].end_ns) == (23 * S, 60 * S)
    assert sum(span.end_ns - span.start_ns for span in waits) == 37 * S
    assert "went on without it" in of_a.rounds[0].cause
