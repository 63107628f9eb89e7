"""What is concluded about failures, from findings made by hand and journals made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from tests.journal import sample
from undaunted.attribution.decision import Decision, Round
from undaunted.attribution.explain.case import (
    Evidence,
    case_of,
    cause_of,
    failed_rounds,
    told_by,
)
from undaunted.attribution.explain.page import Page, in_words, lines_of
from undaunted.attribution.explain.weigh import Case, explain, joined, said_in
from undaunted.attribution.findings import Finding
from undaunted.journal import events as e
from undaunted.journal.job.launches import launches_of
from undaunted.journal.job.summary import summarize_job
from undaunted.journal.reader import Journal

if TYPE_CHECKING:
    from collections.abc import Sequence

ABOUT = Round(nodes=("a", "b"), iteration=7)
ERROR = Finding("program_error", (1,), ("a",), t=100.0, quote="ValueError: x", source="j:1")
LOST_GPU = Finding("gpu_lost", (), ("a",), t=99.0, quote="Xid 79", source="log:5")
TIMEOUT = Finding("collective_timeout", (0,), t=98.0, quote="Watchdog", source="log:2")


def cases_of(*nodes: Sequence[e.AnyEvent], evidence: Evidence | None = None) -> list[Case]:
    launches = launches_of([Journal(Path("j"), list(events)) for events in nodes])
    job = summarize_job(launches)
    return [
        case_of(job, one, launches, evidence or Evidence(), lambda _: ("a quote", "j:9"))
        for one in failed_rounds(job)
    ]


def lines(case: Case) -> list[str]:
    return list(lines_of(Page(path=Path("run"), rounds=explain([case]))))


@pytest.mark.parametrize(
    ("confidence", "how"), [(0.4, "perhaps "), (0.5, "probably "), (0.65, "probably "), (0.7, "")]
)
def test_how_sure_a_cause_is(confidence: float, how: str) -> None:
    said = in_words(Finding("host_out_of_memory", (3,), confidence=confidence))
    assert said == f"rank 3: {how}a node ran out of memory (host_out_of_memory)"


def test_each_failed_round_of_a_journal_is_a_case() -> None:
    crash, hang = cases_of(sample.RUN)
    assert (crash.name, hang.name) == ("round 0", "round 1")
    assert crash.line == "rank 1 raised ValueError: bad batch"
    (finding,) = crash.findings
    assert (finding.cause, finding.ranks, finding.nodes) == ("program_error", (1,), ("n0",))
    assert (finding.quote, finding.source, finding.confidence) == ("a quote", "j:9", 1.0)
    assert finding.t == pytest.approx(1000.998)
    assert (crash.about.nodes, crash.about.iteration, crash.about.spare) == (("n0",), 27, 0)
    assert crash.did.startswith("restarted the job: 2 ranks ran again ")
    assert "20 steps done again" in crash.did
    (finding,) = hang.findings
    assert (finding.cause, finding.ranks, hang.waiting) == ("host_lag", (0,), (1,))


def test_a_round_that_finished_in_spite_of_a_failure_did_not_end_the_job() -> None:
    """With ``min-healthy`` the others go on, and do the work."""
    end = sample.at(1050, e.JobEnded, outcome="finished", exit_code=0, reason="all exited with 0")
    (one,) = cases_of([*sample.OPENING, *sample.begin(10, 0), *sample.CRASH, end])
    assert one.did.startswith("the others went on: ")
    assert one.did.endswith("exit code 0; all exited with 0")


def test_a_job_without_failures_has_no_case() -> None:
    assert cases_of([*sample.OPENING, *sample.begin(10, 0)]) == []
    assert explain([]) == []


def test_a_hang_that_nobody_has_judged_names_no_rank() -> None:
    """The launcher was killed: whose limit has passed first may only have waited."""
    unjudged = [
        event for event in sample.RUN if not (isinstance(event, e.Verdict) and event.kind == "hang")
    ]
    assert cases_of(unjudged)[1].findings == ()


def test_a_hang_in_which_nobody_waits_is_none_of_a_collective() -> None:
    alone = [
        sample.at(5101, e.Verdict, 1, kind="hang", rank=0, local_rank=0, pid=1, line="it hangs")
        if isinstance(event, e.Verdict) and event.kind == "hang"
        else event
        for event in sample.RUN
    ]
    said = in_words(cases_of(alone)[1].findings[0])
    assert said.startswith("rank 0 on node n0: a rank makes no progress")


def test_ranks_that_are_just_as_suspect_are_named() -> None:
    events = [
        replace(event, suspects=[1]) if isinstance(event, e.Verdict) and event.kind == "hang"
        else event
        for event in sample.RUN
    ]  # fmt: skip
    assert cases_of(events)[1].findings[0].ranks == (0, 1)


def test_a_hang_in_different_collectives_wants_another_program() -> None:
    events = [
        replace(event, cause="mismatch") if isinstance(event, e.Verdict) and event.kind == "hang"
        else event
        for event in sample.RUN
    ]  # fmt: skip
    _, case = cases_of(events)
    (finding,) = case.findings
    assert (finding.cause, finding.ranks) == ("mismatch", (0,))
    (advice,) = [line for line in lines(case) if line.startswith("advice: ")]
    assert "correct the program" in advice


def test_a_missing_recording_does_not_take_the_place_of_a_verdict() -> None:
    gone = Evidence(findings=(Finding("no_dump", (0,), confidence=0.9),))
    assert cases_of(sample.RUN, evidence=gone)[1].findings[0].cause == "host_lag"


def test_the_verdict_of_the_job_names_ranks_cause_and_victims() -> None:
    blamed = sample.at(
        5100, e.RoundBlamed, 1, number=1, line="the job's", victims=["n1"], ranks=[0, 1],
        cause="mismatch",
    )  # fmt: skip
    events = list(sample.RUN)
    place = next(at for at, event in enumerate(events) if isinstance(event, e.EvidenceCollected))
    case = cases_of([*events[:place], blamed, *events[place:]])[1]
    assert (case.line, case.waiting) == ("the job's", ())
    assert [(one.cause, one.ranks) for one in case.findings] == [("mismatch", (0, 1))]
    assert case.victims == ("n1",)


def test_where_the_journal_of_the_node_is_missing_the_advice_names_the_cause() -> None:
    """Each node of a job may have a run directory of its own."""
    told = [
        replace(sample.at(1000, e.RoundBlamed, 0, number=0, line="rank 5 failed"), node="n1"),
        sample.at(1001, e.Decision, 0, action="restart", reason="node n1: rank 5"),
        sample.at(1002, e.RoundStopped, 0),
        sample.at(1003, e.RoundAdvised, 0, number=0, action="restart", reason="seen once",
                  cause="program_error", ranks=[5], confidence=0.4),
    ]  # fmt: skip
    (case,) = cases_of([*sample.OPENING, *sample.begin(10, 0), *told, *sample.begin(1004, 1)])
    (found,) = case.findings
    assert (found.cause, found.ranks, found.nodes) == ("program_error", (5,), ("n1",))
    assert found.confidence == 0.4
    assert "node n1" in case.unknown[0]
    assert case.about.iteration is None  # of the rank that failed it is not known
    (case,) = cases_of([*sample.OPENING, *sample.begin(10, 0), *told[:3], *sample.begin(1004, 1)])
    assert case.findings == ()


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ({"signal": "SIGSEGV"}, "native_crash"),
        ({"signal": "SIGKILL"}, "killed"),
        ({"exit_code": 7}, "program_error"),
        ({"exception": "DistNetworkError: Connection closed by peer"}, "peer_lost"),
        ({"exception": "BrokenPipeError: [Errno 32] Broken pipe"}, "program_error"),
    ],
)
def test_how_a_process_ended_has_a_cause(how: dict[str, Any], cause: str) -> None:
    verdict = sample.at(
        1040, e.Verdict, 0, kind="crash", rank=1, local_rank=1, pid=101, line="it", **how
    )
    events = [verdict if isinstance(one, e.Verdict) else one for one in sample.CRASH]
    (case,) = cases_of([*sample.OPENING, *sample.begin(10, 0), *events])
    assert case.findings[0].cause == cause
    assert case.did == "nothing is recorded after it"


def test_who_raises_an_error_for_a_wrong_collective_is_not_blamed() -> None:
    what = "RuntimeError: Received data size doesn't match expected size"
    events = [
        replace(one, exception=what) if isinstance(one, e.Verdict) else one for one in sample.CRASH
    ]
    (case,) = cases_of([*sample.OPENING, *sample.begin(10, 0), *events])
    (found,) = case.findings
    assert (found.cause, found.ranks, found.nodes) == ("mismatch", (), ())


def test_a_known_message_has_a_remedy_without_logs() -> None:
    what = "RuntimeError: Cannot re-initialize CUDA in forked subprocess."
    events = [
        replace(one, exception=what) if isinstance(one, e.Verdict) else one for one in sample.CRASH
    ]
    (case,) = cases_of([*sample.OPENING, *sample.begin(10, 0), *events])
    (found,) = case.findings
    assert (found.cause, found.message) == ("program_error", "M48")
    shown = lines(case)
    assert any(found.why in line and found.message in line for line in shown)
    assert any(found.remedy in line for line in shown)


def test_a_job_that_was_preempted_did_not_fail_of_itself() -> None:
    end = [
        sample.at(900, e.SignalReceived, 0, signal="SIGTERM"),
        sample.at(950, e.RoundStopped, 0),
        sample.at(960, e.JobEnded, 0, outcome="preempted", exit_code=143, reason="SIGTERM"),
    ]
    (case,) = cases_of([*sample.OPENING, *sample.begin(10, 0), *end])
    (one,) = explain([case])
    assert one.root is not None
    assert (one.root.cause, one.root.ranks, one.advice.action) == ("preempted", (), "restart")
    assert case.did.startswith("ended the job: preempted, exit code 143")


def test_a_launcher_that_was_killed_has_a_last_word_of_who_watched_it() -> None:
    remark = sample.at(900, e.Remark, text="the agent (pid 7) was killed", level="error")
    events = [*sample.OPENING, *sample.begin(10, 0), remark]
    launches = launches_of([Journal(Path("j"), events)])
    job = summarize_job(launches, is_running=lambda *_: False)
    (one,) = failed_rounds(job)
    assert case_of(job, one, launches, Evidence(), lambda _: ("", "")).line == remark.text


def test_a_person_who_presses_ctrl_c_preempts_nothing() -> None:
    reason = "the launcher on node n0 received SIGINT"
    end = [
        sample.at(950, e.RoundStopped, 0),
        sample.at(960, e.JobEnded, 0, outcome="preempted", exit_code=75, reason=reason),
    ]
    (case,) = cases_of([*sample.OPENING, *sample.begin(10, 0), *end])
    assert [found.cause for found in case.findings] == ["cancelled"]
    assert "Ctrl-C" in case.did


def ended(outcome: str, code: int, reason: str) -> list[Case]:
    end = sample.at(6000, e.JobEnded, 0, outcome=outcome, exit_code=code, reason=reason)
    return cases_of([*sample.OPENING, *sample.begin(10, 0), *sample.CRASH, end])


@pytest.mark.parametrize(
    ("outcome", "code", "reason", "action"),
    [
        ("no_restart", 93, "no progress in 3 rounds in a row", "stop"),
        ("invalid", 18, "rank 1 has a result that is not to be used", "stop"),
        ("failed", 1, "rank 1 failed; not restarted: its script is no valid Python", "stop"),
        ("failed", 1, "rank 1 failed; no restart is left of 2", "restart"),
        ("finished", 0, "every rank exited with 0", "restart"),
    ],
)
def test_how_the_job_ended_wins_over_what_its_failures_ask_for(
    outcome: str, code: int, reason: str, action: str
) -> None:
    (one,) = explain(ended(outcome, code, reason))
    assert one.advice.action == action
    assert one.root is not None


def test_a_stop_that_was_asked_for_is_no_failure_and_needs_no_advice() -> None:
    reason = "the launcher on node n0 received SIGINT"
    end = [
        sample.at(950, e.RoundStopped, 0),
        sample.at(960, e.JobEnded, 0, outcome="preempted", exit_code=75, reason=reason),
    ]
    seen = Evidence(findings=(LOST_GPU,), unknown=("what the ranks have printed",))
    (case,) = cases_of([*sample.OPENING, *sample.begin(10, 0), *end], evidence=seen)
    assert [found.cause for found in case.findings] == ["cancelled"]
    said = lines(case)
    assert not any("restart" in line or "not known" in line for line in said)


def test_an_error_of_the_launcher_is_to_be_corrected() -> None:
    error = replace(ERROR, cause="launcher_error", quote="undaunted run: error: no such option")
    (advice,) = [
        line
        for line in lines(Case(about=Round((), progress_known=False), findings=(error,)))
        if line.startswith("advice: ")
    ]
    assert "correct" in advice


@pytest.mark.parametrize("cause", ["disk_full", "quota_exceeded"])
def test_a_full_disk_wants_room_before_another_start(cause: str) -> None:
    full = replace(ERROR, cause=cause, quote="OSError: No space left on device")
    case = Case(about=Round(("a",), iteration=4), findings=(full,))
    first, second = explain([case, case])
    assert [one.advice.action for one in (first, second)] == ["restart", "restart"]
    assert all("make room" in one.advice.reason for one in (first, second))
    (advice,) = [line for line in lines(case) if line.startswith("advice: ")]
    assert "make room" in advice
    assert "restart" not in advice.partition(":")[2].partition(":")[0]
    about = Round(("a", "b"), spare=1, iteration=4)
    *_, elsewhere = explain([Case(about=about, findings=(replace(full, cause="disk_full"),))] * 2)
    assert (elsewhere.advice.action, elsewhere.advice.nodes) == ("exclude", ("a",))


def test_damaged_checkpoints_want_an_older_copy() -> None:
    said = "undaunted.checkpointing.errors.NoCheckpointError: no checkpoint in a can be used: x"
    about = {"local_rank": 0, "pid": 7, "line": f"rank 0 failed: {said}", "exception": said}
    verdict = sample.at(1040, e.Verdict, 0, kind="crash", rank=0, **about)
    events = [*sample.OPENING, *sample.begin(10, 0), sample.CRASH[0], verdict]
    (case,) = cases_of(events)
    (advice,) = [line for line in lines(case) if line.startswith("advice: ")]
    assert advice.startswith("advice: `undaunted checkpoint verify`")
    *_, third = explain([case] * 3)
    assert "undaunted checkpoint verify" in third.advice.reason


def test_an_injected_fault_is_the_cause_whatever_its_traces_look_like() -> None:
    about = {"local_rank": 1, "pid": 7, "line": "rank 1 was ended", "signal": "SIGKILL"}
    verdict = sample.at(1040, e.Verdict, 0, kind="crash", rank=1, fault="sigkill-1", **about)
    events = [*sample.OPENING, *sample.begin(10, 0), sample.CRASH[0], verdict]
    log = Finding("killed", (1,), quote="Killed")
    other = Finding("gpu_lost", (0,), quote="Xid 79")
    (case,) = cases_of(events, evidence=Evidence((log, other)))
    assert [(found.cause, found.ranks) for found in case.findings] == [
        ("injected_fault", (1,)),
        ("gpu_lost", (0,)),
    ]


def test_a_verdict_tells_best_of_a_failure() -> None:
    launches = launches_of([Journal(Path("j"), list(sample.RUN))])
    one = failed_rounds(summarize_job(launches))[0]
    told = told_by(one, launches)
    assert told is not None
    assert told.verdict is told.event
    assert told.verdict is not None
    assert told.verdict.rank == 1


# As torch puts it.
OF_A_WORKER = """RuntimeError: Caught RuntimeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)
  File "storage.py", line 414, in _new_shared
    return cls._new_using_fd_cpu(size)
RuntimeError: unable to allocate shared memory(shm) for file </torch_2_0>: No space left on device
"""


@pytest.mark.parametrize(
    ("exception", "cause"),
    [
        ("ValueError: bad batch 17", "program_error"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
         "gpu_out_of_memory"),
        ("OSError: [Errno 28] No space left on device", "disk_full"),
        ("ValueError: corrupt data in shard 17", "program_error"),
        ("BrokenPipeError: [Errno 32] Broken pipe", "program_error"),  # of its own connection
        (OF_A_WORKER, "shared_memory_full"),
        ("", "program_error"),
    ],
)  # fmt: skip
def test_an_exception_has_the_cause_that_logs_would_give_it(exception: str, cause: str) -> None:
    assert cause_of(exception) == (cause, 1.0)


def test_a_worker_that_was_killed_probably_wanted_memory() -> None:
    about = {"local_rank": 1, "pid": 7, "line": "rank 1 raised RuntimeError"}
    raised = "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed. "
    verdict = sample.at(1040, e.Verdict, 0, kind="crash", rank=1, exception=raised, **about)
    (case,) = cases_of([*sample.OPENING, *sample.begin(10, 0), sample.CRASH[0], verdict])
    said = in_words(case.findings[0])
    assert "probably" in said
    assert "host_out_of_memory" in said


def test_an_error_of_the_program_has_one_name() -> None:
    """The launcher does not read the words of an exception, and has said what it is."""
    line = "ValueError: corrupt data in shard 17"
    told = replace(ERROR, quote=line)
    seen = Finding("data_error", (1,), quote=f"[rank1]: {line}", source="stderr.log:4")
    assert joined(told, [seen]) == (told,)
    raised = replace(seen, quote='raise ValueError("corrupt data in shard 17")')
    assert joined(told, [raised]) == (told,)
    earlier = replace(seen, quote="shard 17 is truncated")
    assert joined(told, [earlier])[0].cause == "data_error"


def test_what_a_log_names_is_worth_more_than_how_the_process_ended() -> None:
    (found, rest) = joined(ERROR, [LOST_GPU, TIMEOUT])
    assert (found.cause, found.ranks, found.nodes, found.t) == ("gpu_lost", (1,), ("a",), 100.0)
    assert (found.quote, found.source) == ("Xid 79", "log:5")
    assert rest is TIMEOUT


def test_of_the_same_thing_the_quote_of_the_log_is_kept() -> None:
    again = Finding("program_error", (1,), quote="ValueError: x", source="stderr.log:4")
    assert joined(ERROR, [again])[0].source == "stderr.log:4"
    assert len(joined(ERROR, [again])) == 1


@pytest.mark.parametrize(
    "seen", [TIMEOUT, Finding("gpu_lost", (5,)), Finding("gpu_lost", confidence=0.2)]
)
def test_what_follows_or_is_of_others_or_unsure_explains_nothing(seen: Finding) -> None:
    assert joined(ERROR, [seen]) == (ERROR, seen)
    assert joined(None, [seen]) == (seen,)


def test_the_line_of_a_rank_that_waited_is_not_put_beside_who_was_killed() -> None:
    killed = Finding("killed", (1,), ("a",), quote="SIGKILL", source="j:1")
    waited = Finding("peer_lost", quote="Connection closed by peer", source="rank0.log:3")
    (one,) = explain([Case(about=ABOUT, findings=joined(killed, [waited]))])
    assert one.root is killed
    named = replace(waited, ranks=(5,))
    assert joined(killed, [named]) == (killed, named)
    guess = replace(killed, confidence=0.4)
    assert joined(guess, [waited]) == (guess, waited)


def test_a_rank_that_notices_a_wrong_collective_need_not_have_called_it() -> None:
    seen = Finding("mismatch", quote="Received data size doesn't match expected size")
    assert joined(ERROR, [seen])[0].ranks == ()


def test_a_rank_that_is_inferred_is_said_to_be() -> None:
    assert "inferred" in in_words(Finding("peer_lost", (2,), inferred=True))
    assert "inferred" not in in_words(Finding("peer_lost", (2,)))


def test_who_is_aborted_in_a_wrong_collective_has_not_called_it() -> None:
    aborted = Finding("native_crash", (2,), ("b",), confidence=0.4)
    seen = Finding("mismatch", quote="Received data size doesn't match expected size")
    assert joined(aborted, [seen])[0].ranks == ()


def test_the_root_is_the_severest_of_the_sure_ones() -> None:
    guess = Finding("gpu_memory_error", nodes=("b",), confidence=0.2)
    (one,) = explain([Case(about=ABOUT, findings=(TIMEOUT, guess, ERROR))])
    assert one.root is ERROR
    assert one.case.findings[1:] == (guess, TIMEOUT)
    (one,) = explain([Case(about=ABOUT, findings=(guess,))])
    assert one.root is guess
    assert one.advice.action == "restart"


def test_a_guess_of_the_launcher_is_worth_more_than_what_follows_from_something() -> None:
    hang = Finding("host_lag", (1,), confidence=0.4)
    vague = Finding("gpu_lost", confidence=0.2)
    (one,) = explain([Case(about=ABOUT, findings=(TIMEOUT, vague, hang))])
    assert one.root is hang


def test_advice_rests_on_the_failures_before() -> None:
    first, _, third = explain([Case(about=Round(("a",), iteration=7), findings=(ERROR,))] * 3)
    assert (first.advice.action, first.times) == ("restart", 1)
    assert (third.advice.action, third.times) == ("stop", 3)


@pytest.mark.parametrize(("reached", "action"), [(100, "restart"), (5, "stop")])
def test_a_round_that_came_further_without_a_failure_is_progress(reached: int, action: str) -> None:
    failed = Case(about=Round(("a",), iteration=7), findings=(ERROR,))
    explained = explain([failed, failed, Round(("a",), iteration=reached), failed])
    assert [one.advice.action for one in explained] == ["restart", "restart", action]
    assert explained[-1].times == 3


def test_a_pause_before_the_next_round_is_shown() -> None:
    text = "waiting 1.0 s: 4 failures were the same, with no progress between them"
    waits = sample.at(1042.5, e.Remark, 0, text=text, pause_s=1.0)
    crash, hang = cases_of([*sample.RUN, waits])
    assert (crash.pause, hang.pause) == (text, "")
    assert any(line.strip().startswith("undaunted: ") and text in line for line in lines(crash))


@pytest.mark.parametrize(
    ("action", "expected"), [("exclude", "exclude"), ("stop", "stop"), ("gremlins", "restart")]
)
def test_what_the_launcher_has_advised_is_the_advice(action: str, expected: str) -> None:
    """Another opinion would only confuse; an action of a later version is none."""
    advised = sample.at(
        5400, e.RoundAdvised, 1, number=1, action=action, reason="why", nodes=["n0"]
    )
    *_, hang = explain(cases_of([*sample.RUN, advised]))
    assert hang.advice.action == expected
    assert (hang.advice.reason == "why") == (action != "gremlins")


def test_advice_about_another_cause_than_logs_show_is_not_the_advice() -> None:
    advised = Decision("stop", "the program raised an error", cause=ERROR)
    case = Case(about=ABOUT, findings=(LOST_GPU,), did="ended the job", advised=advised)
    (one,) = explain([case])
    assert (one.root, one.advice.action) == (LOST_GPU, "restart")
    assert "advised: stop" in one.case.did
    (one,) = explain([replace(case, findings=(ERROR,))])
    assert (one.advice, one.case.did) == (advised, "ended the job")


def test_no_stop_without_advice_of_a_launcher_where_progress_is_not_known() -> None:
    about = replace(ABOUT, iteration=None, progress_known=False)
    *_, last = explain([Case(about=about, findings=(ERROR,))] * 5)
    assert last.advice.action == "restart"


@pytest.mark.parametrize("cause", ["node_failed", "time_limit", "mismatch"])
def test_who_says_that_another_failed_is_not_blamed(cause: str) -> None:
    said = Finding(cause, quote="its node died")
    assert said_in(said, 0, "a") == said
    assert said_in(replace(said, cause="disk_full"), 0, "a").nodes == ("a",)


def test_where_nothing_is_known_a_restart_is_advised() -> None:
    (one,) = explain([Case(about=ABOUT)])
    assert (one.root, one.advice.action) == (None, "restart")


def test_nobody_waits_for_somebody_who_is_not_named() -> None:
    nobody = Finding("collective_timeout", quote="Watchdog")
    assert "  then: ranks 0-1 waited" in lines(
        Case(about=ABOUT, findings=(nobody,), waiting=(0, 1))
    )
    assert "  then: ranks 0-1 waited" in lines(Case(about=ABOUT, waiting=(0, 1)))
    known = lines(Case(about=ABOUT, findings=(ERROR,), waiting=(0, 1)))
    assert "  then: ranks 0-1 waited for it" in known


def test_a_node_that_has_only_waited_has_not_failed() -> None:
    said = lines(Case(about=ABOUT, findings=(ERROR,), victims=("n1", "n2")))
    (text,) = [line for line in said if "n1, n2" in line]
    assert "failed" not in text


def test_a_broken_node_is_to_be_looked_at() -> None:
    (one,) = explain([Case(about=ABOUT, findings=(LOST_GPU,), look=("x",))])
    assert "node a" in one.case.look[0]
    assert one.case.look[1:] == ("x",)
