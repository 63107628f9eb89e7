"""Verdicts about faults: each colour and each finding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.chaos.histories import Fault, Moment, Parts, Run, fault, undisturbed
from undaunted.chaos.checker.verdict import judge
from undaunted.chaos.history import Launch
from undaunted.chaos.outcome import Note, Outcome
from undaunted.digests.record import FORWARD, UPDATE
from undaunted.journal.events import (
    JobEnded,
    JobStarted,
    JournalOpened,
    RoundStarted,
    SignalReceived,
)
from undaunted.training.rerun.table import OPINIONS, RerunDiagnostic

if TYPE_CHECKING:
    from undaunted.chaos.checker.values import Judgement

REFERENCE = undisturbed()
UNTOLD = undisturbed(told=False)


def verdict_of(one: Fault, reference: Any = REFERENCE, **options: Any) -> Judgement:
    return judge(reference, Run(**options).history(one), [one.plan])[0]


def keys(verdict: Judgement) -> list[str]:
    return [finding.key for finding in verdict.findings]


@pytest.mark.parametrize("kind", ["kill", "exception", "exit", "hang", "torn-write"])
def test_a_restart_that_restores_everything_is_green(kind: str) -> None:
    verdict = verdict_of(fault(kind, iteration=12, resume=10))

    assert (verdict.colour, verdict.recovered, verdict.blame.right) == ("green", True, True)
    assert (verdict.iteration, verdict.resumed_at, verdict.steps_lost) == (12, 10, 2)
    assert verdict.identical_from == 10
    assert verdict.findings == ()
    assert verdict.back_s == pytest.approx(0.013, abs=0.0015)
    assert {"detect", "stop", "spawn", "load"} < {*verdict.phases}
    assert sum(verdict.phases.values()) == pytest.approx(verdict.back_s)


def test_scripts_that_do_not_tell_their_steps_are_placed_by_their_parameters() -> None:
    options = {"counted": True, "told": False}

    verdict = verdict_of(fault(iteration=12, resume=10), undisturbed(**options), **options)

    assert (verdict.colour, verdict.resumed_at, verdict.identical_from) == ("green", 10, 10)


def test_a_restart_inside_of_the_processes() -> None:
    verdict = verdict_of(fault("exception", how="inside", iteration=12, resume=5))

    assert (verdict.colour, verdict.steps_lost, verdict.identical_from) == ("green", 7, 5)
    assert verdict.blame.line == "rank 1: something"
    assert verdict.phases["abort"] == 0.5


def test_the_wrong_rank_of_a_restart_inside_of_the_processes() -> None:
    verdict = verdict_of(fault("exception", how="inside", verdict={"rank": 0}))

    assert (verdict.colour, keys(verdict)) == ("red", ["blamed-wrongly"])


def test_a_launcher_that_is_started_again_continues() -> None:
    verdict = verdict_of(fault("sigterm", iteration=12, resume=13))

    assert (verdict.colour, verdict.steps_lost, verdict.identical_from) == ("green", 0, 13)
    assert list(verdict.phases) == ["stop", "idle", "spawn", "import", "load"]
    assert sum(verdict.phases.values()) == pytest.approx(verdict.back_s)


def test_ranks_that_stop_in_order_lose_no_step() -> None:
    verdict = verdict_of(fault("preempt", how="stop", iteration=12, resume=14))

    assert (verdict.colour, verdict.steps_lost, verdict.identical_from) == ("green", 0, 14)
    assert (verdict.findings, verdict.blame.rank, verdict.launch) == ((), -1, 0)
    assert {"stop", "idle"} < {*verdict.phases}


def test_the_end_of_the_time_is_judged_as_a_stop_in_order() -> None:
    stopped = verdict_of(fault("deadline", how="stop", iteration=12, resume=14))
    unheard = verdict_of(fault("deadline", how="nothing"))

    assert (stopped.colour, stopped.steps_lost) == ("green", 0)
    assert (unheard.colour, keys(unheard)) == ("yellow", ["nothing-stopped"])


def test_a_stop_that_is_not_saved_is_worth_a_word() -> None:
    verdict = verdict_of(fault("preempt", how="stop", iteration=12, resume=10))

    assert (verdict.colour, keys(verdict), verdict.steps_lost) == ("yellow", ["stop-not-saved"], 4)


def test_ranks_that_do_not_end_after_a_stop_in_order_make_it_red() -> None:
    verdict = verdict_of(fault("preempt", how="stop", resume=14, killed=(0,)))

    assert (verdict.colour, keys(verdict)) == ("red", ["sigterm-swallowed"])


def test_a_rank_without_a_session_may_crash_by_sigterm() -> None:
    verdict = verdict_of(fault("preempt", iteration=12, resume=10))

    assert (verdict.colour, verdict.steps_lost, verdict.blame.rank) == ("green", 2, 1)


def test_a_rank_that_goes_on_in_spite_of_sigterm_is_worth_a_word() -> None:
    verdict = verdict_of(fault("preempt", how="nothing"))

    assert (verdict.colour, keys(verdict)) == ("yellow", ["nothing-stopped"])


def test_pauses_interrupt_nothing() -> None:
    verdict = verdict_of(fault("slow"))

    assert (verdict.colour, verdict.resumed_at, verdict.steps_lost) == ("green", None, None)
    assert verdict.identical_from == 12
    assert verdict.back_s is None


def test_several_faults_of_a_run_are_judged_each_for_itself() -> None:
    faults = [
        fault("kill", iteration=6, resume=5, id="a"),
        fault("slow", iteration=8, id="b"),
        fault("hang", iteration=9, rank=0, resume=0, id="c"),
        fault("sigterm", iteration=17, resume=15, id="d"),
    ]

    verdicts = judge(REFERENCE, Run().history(*faults), [one.plan for one in faults])

    assert [v.colour for v in verdicts] == ["green", "green", "yellow", "green"]
    assert [v.steps_lost for v in verdicts] == [1, None, 9, 2]
    assert [(v.launch, v.round) for v in verdicts] == [(0, 0), (0, 1), (0, 1), (0, 2)]
    assert keys(verdicts[2]) == ["started-anew"]
    assert [v.identical_from for v in verdicts] == [5, 8, 0, 15]


def test_beginning_anew_early_in_the_run_is_but_a_note() -> None:
    verdict = verdict_of(fault(iteration=3, resume=0))

    assert (verdict.colour, keys(verdict)) == ("green", ["started-anew"])


def test_beginning_anew_in_the_second_half_is_red() -> None:
    verdict = verdict_of(fault(iteration=18, resume=0))

    assert (verdict.colour, keys(verdict)) == ("red", ["started-anew"])


def test_a_run_that_does_not_get_over_a_fault_is_red_and_later_faults_are_skipped() -> None:
    faults = [fault(how="end", id="a"), fault("hang", iteration=15, id="b", happened=False)]

    first, second = judge(REFERENCE, Run().history(*faults), [one.plan for one in faults])

    assert (first.colour, first.recovered, keys(first)) == ("red", False, ["did-not-recover"])
    assert "exit code 1" in first.findings[0].text
    assert "no restarts left" in first.findings[0].text
    assert (second.colour, second.skipped) == (
        "skipped",
        "the run did not get over a and ended before",
    )


def test_a_run_that_passes_its_deadline_is_red() -> None:
    one = fault()
    history = Run().history(one)
    late = replace(history, outcome=Outcome(exit_codes=[-15], in_time=False, deadline_s=90))

    [verdict] = judge(REFERENCE, late, [one.plan])

    assert (verdict.colour, keys(verdict)) == ("red", ["did-not-end"])
    assert "within 1 min 30 s" in verdict.findings[0].text


def test_a_run_that_ends_before_the_last_step_is_red() -> None:
    verdict = verdict_of(fault(), last=18)

    assert (verdict.colour, keys(verdict)) == ("red", ["ended-early"])
    assert "rank 0 came to step 17 only, not to step 19" in verdict.findings[0].text


def test_a_run_that_the_user_ended_is_not_judged() -> None:
    one, never = fault(), fault("hang", id="never", happened=False)
    history = Run(exit_code=130).history(one, never)
    outcome = Outcome(exit_codes=[130], interrupted=True)

    first, second = judge(REFERENCE, replace(history, outcome=outcome), [one.plan, never.plan])

    assert (first.colour, first.recovered) == ("yellow", None)
    assert (second.colour, second.skipped) == ("skipped", "the user ended the run before")


@pytest.mark.parametrize(
    "wrong", [{"rank": 0}, {"kind": "hang"}], ids=["another rank", "another kind"]
)
def test_blaming_another_is_red(wrong: dict[str, Any]) -> None:
    verdict = verdict_of(fault(verdict=wrong))

    assert (verdict.colour, verdict.blame.right, keys(verdict)) == (
        "red",
        False,
        ["blamed-wrongly"],
    )


def test_a_hang_that_became_the_timeout_of_another_rank_is_explained() -> None:
    wrong = {"kind": "crash", "rank": 0, "exception": "RuntimeError: Timed out", "line": "rank 0"}

    verdict = verdict_of(fault("hang", verdict=wrong))

    assert keys(verdict) == ["blamed-wrongly"]
    assert "init_process_group(timeout" in verdict.findings[0].remedy


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("kill", {"signal": "SIGTERM"}),
        ("exception", {"exception": "SystemError: something went wrong"}),
        ("exit", {"exit_code": 7}),
    ],
)
def test_the_right_rank_for_another_cause_is_yellow(kind: str, wrong: dict[str, Any]) -> None:
    verdict = verdict_of(fault(kind, verdict=wrong))

    assert (verdict.colour, verdict.blame.right, keys(verdict)) == (
        "yellow",
        True,
        ["cause-not-named"],
    )


def test_an_exception_that_the_script_swallows_is_red() -> None:
    verdict = verdict_of(fault("exception", how="nothing"))

    assert (verdict.colour, verdict.recovered, keys(verdict)) == (
        "red",
        True,
        ["exception-swallowed"],
    )


def test_what_follows_from_a_swallowed_exception_is_not_explained_otherwise() -> None:
    def change(moment: Moment, parts: Parts) -> Parts:
        if moment.iteration >= 12 and moment.at == UPDATE:
            parts["gradients"] += "x"
        return parts

    verdict = verdict_of(fault("exception", how="nothing"), change=change)

    assert keys(verdict) == ["exception-swallowed"]
    assert verdict.difference is not None


def test_a_difference_without_a_restart_is_not_said_to_be_after_one() -> None:
    def change(moment: Moment, parts: Parts) -> Parts:
        if moment.iteration >= 12 and moment.at == FORWARD:
            parts["rng"] = "x"
        return parts

    verdict = verdict_of(fault("slow"), change=change, told=False, reference=UNTOLD)

    assert keys(verdict) == ["rng-not-restored"]
    assert verdict.findings[0].text.startswith("On ranks 0-1 at step 12, the random state")


def test_a_start_from_the_beginning_after_a_torn_file_may_have_lost_the_old_one() -> None:
    verdict = verdict_of(fault("torn-write", iteration=18, resume=0))

    assert (verdict.colour, keys(verdict)) == ("red", ["started-anew"])
    assert "removed before the next is complete" in verdict.findings[0].text


def test_an_exception_that_is_swallowed_and_leaves_the_others_waiting() -> None:
    verdict = verdict_of(fault("exception", verdict={"kind": "hang", "rank": 0}))

    assert (verdict.colour, keys(verdict)) == ("red", ["exception-swallowed"])


def test_an_exception_that_is_swallowed_before_another_fault_of_the_round() -> None:
    faults = [fault("exception", iteration=8, how="nothing", id="a"), fault("kill", id="b")]

    first, second = judge(REFERENCE, Run().history(*faults), [one.plan for one in faults])

    assert (keys(first), second.colour) == (["exception-swallowed"], "green")


def test_faults_that_overtake_each_other() -> None:
    torn = fault("torn-write", iteration=11, how="nothing", id="torn")
    stopped = fault("stop", iteration=12, rank=0, id="stop")
    stopped.verdict = {"kind": "crash", "rank": 1, "signal": "SIGXFSZ"}  # of the other

    first, second = judge(REFERENCE, Run().history(torn, stopped), [torn.plan, stopped.plan])

    assert (first.blame.rank, first.blame.right, keys(first)) == (1, True, [])
    assert (second.colour, keys(second)) == ("yellow", ["overtaken"])
    assert "torn ended the round" in second.findings[0].text

    hang = fault("hang", iteration=11, how="nothing", id="hang")
    killed = fault("kill", iteration=12, rank=0, id="kill")

    first, second = judge(REFERENCE, Run().history(hang, killed), [hang.plan, killed.plan])

    assert (keys(first), keys(second)) == (["overtaken"], [])


def test_a_kill_that_nobody_notices_is_red() -> None:
    assert keys(verdict_of(fault("kill", how="nothing"))) == ["not-noticed"]


def test_a_restart_without_need_is_red() -> None:
    one = fault("slow", how="restart", verdict={"kind": "hang", "rank": 0})

    verdict = verdict_of(one)

    assert (verdict.colour, keys(verdict)) == ("red", ["failed-without-need"])
    assert "limits" in verdict.findings[0].remedy


def test_ranks_that_sigterm_does_not_end_make_it_red() -> None:
    verdict = verdict_of(fault("sigterm", killed=(0, 1)))

    assert (verdict.colour, keys(verdict)) == ("red", ["sigterm-swallowed"])
    assert "ranks 0-1" in verdict.findings[0].text


@pytest.mark.parametrize(
    ("iteration", "colour", "key", "said"),
    [
        (5, "red", "sigterm-swallowed", "14 more steps"),
        (17, "yellow", "sigterm-too-late", "2 steps after SIGTERM"),
    ],
)
def test_ranks_that_go_on_to_the_end_in_spite_of_sigterm(
    iteration: int, colour: str, key: str, said: str
) -> None:
    one = fault("sigterm", iteration=iteration, how="nothing")
    history = Run().history(one)

    events = list(history.launches[0].events)
    at = next(n for n, event in enumerate(events) if getattr(event, "text", "") == one.plan.id)
    events.insert(at + 1, SignalReceived(t=events[at].t + 1, round=0, signal="SIGTERM"))

    [verdict] = judge(REFERENCE, replace(history, launches=[Launch.of(events)]), [one.plan])

    assert (verdict.colour, keys(verdict)) == (colour, [key])
    assert said in verdict.findings[0].text


def test_ranks_that_go_on_in_spite_of_sigterm_and_of_which_one_dies_as_it_leaves() -> None:
    """The job counts as preempted, and the next launch finds that nothing is left to do."""
    one = fault("sigterm", iteration=5, how="nothing")
    history = Run().history(one)

    events = list(history.launches[0].events)
    at = next(n for n, event in enumerate(events) if getattr(event, "text", "") == one.plan.id)
    events.insert(at + 1, SignalReceived(t=events[at].t + 1, round=0, signal="SIGTERM"))
    begun = [e for e in events[:at] if isinstance(e, JournalOpened | JobStarted | RoundStarted)]
    events[-1] = JobEnded(t=events[-1].t, outcome="preempted", exit_code=75)
    idle = [msgspec.structs.replace(e, t=e.t + events[-1].t) for e in begun]
    idle.append(JobEnded(t=idle[-1].t + 1, outcome="finished", exit_code=0))

    launches = [Launch.of(events), Launch.of(idle)]
    [verdict] = judge(REFERENCE, replace(history, launches=launches), [one.plan])

    assert (verdict.colour, keys(verdict)[0]) == ("red", "sigterm-swallowed")


def test_ranks_that_leave_with_0_on_sigterm_are_green() -> None:
    one = fault("sigterm", iteration=12, resume=13)
    history = Run().history(one)
    first, second = history.launches
    events = list(first.events)
    events[-1] = JobEnded(t=events[-1].t, outcome="finished", exit_code=0)

    launches = [Launch.of(events), second]
    [verdict] = judge(REFERENCE, replace(history, launches=launches), [one.plan])

    assert (verdict.colour, keys(verdict)) == ("green", [])


def test_other_ranks_that_had_to_be_killed_are_worth_a_word() -> None:
    assert keys(verdict_of(fault("kill", killed=(0,)))) == ["killed-after-grace"]
    assert keys(verdict_of(fault("hang", killed=(1,)))) == []


@pytest.mark.parametrize(("kind", "colour"), [("kill", "yellow"), ("torn-write", "red")])
def test_a_start_that_fails_while_it_loads(kind: str, colour: str) -> None:
    verdict = verdict_of(fault(kind), load_fails=1)

    assert (verdict.colour, keys(verdict)) == (colour, ["load-failed"])
    assert "os.replace" in verdict.findings[0].remedy
    assert verdict.identical_from == 10


def bad_checkpoint(way: str = "nan", **more: Any) -> Fault:
    one = fault("bad-checkpoint", **more)
    one.plan = msgspec.structs.replace(one.plan, how=way)
    return one


@pytest.mark.parametrize(
    ("starts", "colour", "found"),
    [
        (0, "green", []),
        (1, "green", ["bad-checkpoint-tried"]),
        (2, "green", ["bad-checkpoint-tried"]),
        (3, "red", ["bad-checkpoint-tried-again"]),
    ],
)
def test_two_restarts_may_be_spent_on_a_bad_checkpoint(
    starts: int, colour: str, found: list[str]
) -> None:
    """What counts is the last start: those before begin with what is bad."""

    def bad(moment: Moment, parts: Parts) -> Parts:
        is_bad = moment.at == FORWARD and 0 < moment.start <= starts
        return parts | {"parameters": "bad"} if is_bad else parts

    verdict = verdict_of(bad_checkpoint(), load_fails=starts, fails_after=1, change=bad)

    assert (verdict.colour, keys(verdict)) == (colour, found)
    assert (verdict.resumed_at, verdict.identical_from) == (10, 10)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize(("way", "remedy"), [("replica", "certify"), ("stale", "checksum")])
def test_a_result_that_stands_on_a_bad_checkpoint(way: str, remedy: str, counted: bool) -> None:
    def bad(moment: Moment, parts: Parts) -> Parts:
        is_bad = moment.at != UPDATE and moment.start > 0
        return parts | {"parameters": f"bad {moment.iteration}"} if is_bad else parts

    options = {"counted": counted, "told": not counted}
    verdict = verdict_of(bad_checkpoint(way), undisturbed(**options), change=bad, **options)

    assert (verdict.colour, keys(verdict)) == ("red", ["bad-checkpoint-kept"])
    assert remedy in verdict.findings[0].remedy


def test_a_random_state_that_is_not_restored_is_no_bad_checkpoint() -> None:
    def anew(moment: Moment, parts: Parts) -> Parts:
        return {n: f"{t} anew" if n in ("rng", "data") and moment.start else t
                for n, t in parts.items()}  # fmt: skip

    assert "bad-checkpoint-kept" not in keys(verdict_of(bad_checkpoint(), change=anew))


@pytest.mark.parametrize(("way", "found"), [("replica", ["nothing-planted"]), ("torn", [])])
def test_a_state_that_is_never_saved_again(way: str, found: list[str]) -> None:
    one = bad_checkpoint(way)
    one.how = "nothing"

    assert keys(verdict_of(one)) == found


def test_a_checkpoint_that_can_never_be_loaded_is_told_before_that_the_run_failed() -> None:
    verdict = verdict_of(fault("kill"), load_fails=2, exit_code=1, last=11)

    assert (verdict.colour, keys(verdict)) == ("red", ["load-failed", "did-not-recover"])
    assert verdict.findings[0].text.startswith("2 starts after the fault failed before their")


def test_starts_that_fail_while_the_disk_is_full_are_no_wonder() -> None:
    one = fault("disk-full", verdict={"kind": "crash", "exception": "OSError: No space left"})
    history = Run(load_fails=2).history(one)
    last = history.launches[0].rounds[3][0].t
    emptied = Note(one.plan.id, "emptied", 0.0, last - 1)
    outcome = Outcome(exit_codes=[0], notes=[emptied])

    [verdict] = judge(REFERENCE, replace(history, outcome=outcome), [one.plan])

    assert (verdict.colour, keys(verdict)) == ("green", ["failed-while-full"])

    early = Outcome(exit_codes=[0], notes=[Note(one.plan.id, "emptied", 0.0, 1)])

    [verdict] = judge(REFERENCE, replace(history, outcome=early), [one.plan])

    assert (verdict.colour, keys(verdict)) == ("red", ["load-failed"])


def test_a_fault_that_tells_only_later_is_timed_from_then_on() -> None:
    early, late = fault("kill"), fault("torn-write")
    for one in (early, late):
        one.delay_s = 5.0

    assert verdict_of(early).back_s == pytest.approx(5.013)
    assert verdict_of(late).back_s == pytest.approx(0.012)


OF_A_SAVE = "undaunted.checkpointing.errors.SaveError: save 5 (step 50): rank {}: File too large"


@pytest.mark.parametrize(
    ("kind", "rank", "exception", "colour"),
    [
        ("torn-write", 1, OF_A_SAVE.format(1), "green"),
        ("torn-write", 0, OF_A_SAVE.format(1), "red"),
        ("torn-write", 0, "OSError: [Errno 27] File too large", "green"),
        ("disk-full", 0, OF_A_SAVE.format(0), "green"),
    ],
)
def test_who_is_to_blame_for_a_save_that_failed(
    kind: str, rank: int, exception: str, colour: str
) -> None:
    """Of the rank whose write is torn the name is known; a full disk is full for all."""
    told = {"kind": "crash", "signal": "", "rank": rank, "exception": exception}
    verdict = verdict_of(fault(kind, iteration=12, resume=10, verdict=told))

    assert verdict.colour == colour
    assert keys(verdict) == (["blamed-wrongly"] if colour == "red" else [])


def test_a_torn_write_that_tore_nothing() -> None:
    verdict = verdict_of(fault("torn-write", how="nothing"))

    assert (verdict.colour, keys(verdict)) == ("yellow", ["nothing-torn"])


def late(moment: Moment) -> bool:
    return moment.iteration >= 12


def keeps_nan(moment: Moment, parts: Parts) -> Parts:
    if late(moment):
        parts["parameters"] = "nan"
        parts["finite"] = "no"
    return parts


def test_nan_to_the_end_is_red() -> None:
    verdict = verdict_of(fault("nan", how="nothing"), change=keeps_nan)

    assert (verdict.colour, keys(verdict)) == ("red", ["nan-kept"])
    assert "of ranks 0-1: nobody" in verdict.findings[0].text


def test_nan_after_which_every_update_is_left_out_is_red() -> None:
    """As a GradScaler does: what was recorded last tells nothing of the parameters."""

    def left_out(moment: Moment, parts: Parts) -> Parts | None:
        if late(moment) and moment.at == UPDATE:
            return (
                {**parts, "parameters": "nan", "finite": "no"} if moment.iteration == 12 else None
            )
        return parts

    verdict = verdict_of(fault("nan", how="nothing"), change=left_out)

    assert verdict.colour == "red"
    assert "nan-kept" in keys(verdict)


def test_nan_that_is_left_out_is_green_although_the_result_differs() -> None:
    def leaves_out(moment: Moment, parts: Parts) -> Parts:
        return {name: f"{digest}'" for name, digest in parts.items()} if late(moment) else parts

    verdict = verdict_of(fault("nan", how="nothing"), change=leaves_out)

    assert (verdict.colour, keys(verdict)) == ("green", ["altered"])


def test_nan_that_ends_in_an_exception_and_a_restart_is_green() -> None:
    verdict = verdict_of(fault("nan", verdict={"rank": 0}))

    assert (verdict.colour, verdict.identical_from) == ("green", 10)


def wrong_from_13(moment: Moment, parts: Parts) -> Parts:
    late = moment.iteration >= 13
    return {name: f"w{text}" for name, text in parts.items()} if late else parts


def test_a_wrong_result_that_nobody_notices() -> None:
    verdict = verdict_of(fault("wrong-result"), change=wrong_from_13)

    assert (verdict.colour, keys(verdict)) == ("yellow", ["wrong-result-kept"])
    assert verdict.findings[0].text == "Not noticed: the results differ from step 13 on."


def test_a_wrong_result_that_ends_in_a_crash_and_is_undone_is_green() -> None:
    verdict = verdict_of(
        fault("wrong-result", how="restart", verdict={"kind": "crash", "exception": "Odd: 3"})
    )

    assert (verdict.colour, keys(verdict)) == ("green", [])


def test_a_wrong_result_that_ends_the_job_was_found() -> None:
    history = Run().history(fault("wrong-result", how="end"))
    (launch,) = history.launches
    end = JobEnded(t=10**12, wall=1000.0, node="n0", outcome="invalid", exit_code=17, reason="odd")
    found = replace(history, launches=[Launch.of([*launch.events[:-1], end])])

    verdict = judge(REFERENCE, found, [fault("wrong-result").plan])[0]

    assert (verdict.colour, keys(verdict)) == ("green", ["wrong-result-found"])
    assert verdict.recovered is False


def with_opinion(one: Fault, rank: int, found: RerunDiagnostic, after_ns: int = 0) -> Judgement:
    """The verdict about a fault after which a session gives a second opinion, and goes on."""
    history = Run().history(one)
    (launch,) = history.launches
    (happened,) = launch.faults()
    text = f"loss is not finite in iteration 12: {OPINIONS[found]}"
    at_ns = happened.at_ns + after_ns
    told = msgspec.structs.replace(happened, rank=rank, name="odd_result", text=text, at_ns=at_ns)
    at = launch.events.index(happened) + (after_ns >= 0)
    events = [*launch.events[:at], told, *launch.events[at:]]
    return judge(REFERENCE, replace(history, launches=[Launch.of(events)]), [one.plan])[0]


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("wrong-result", RerunDiagnostic.TRANSIENT_ERROR),
        ("wrong-result-always", RerunDiagnostic.PERSISTENT_ERROR),
    ],
)
def test_a_second_opinion_names_the_kind_of_error_and_the_rank(
    kind: str, found: RerunDiagnostic
) -> None:
    one = fault(kind, how="nothing", rank=1)

    verdict = with_opinion(one, 1, found)
    assert (verdict.colour, keys(verdict)) == ("green", ["opinion-right"])

    wrong = [with_opinion(one, 0, found)]
    wrong += [with_opinion(one, 1, other) for other in RerunDiagnostic if other is not found]
    for verdict in wrong:
        assert (verdict.colour, keys(verdict)) == ("red", ["opinion-wrong"])


def test_an_opinion_before_a_fault_is_not_about_it() -> None:
    verdict = with_opinion(fault("wrong-result"), 1, RerunDiagnostic.CORRECT_RESULT, after_ns=-1)

    assert keys(verdict) == ["nothing-altered"]


def test_a_wrong_result_that_changes_nothing_is_worth_a_word() -> None:
    verdict = verdict_of(fault("wrong-result"))

    assert (verdict.colour, keys(verdict)) == ("yellow", ["nothing-altered"])


def test_a_program_that_is_not_deterministic_by_itself_is_not_judged_by_its_result() -> None:
    def otherwise(moment: Moment, parts: Parts) -> Parts:
        return {name: f"{digest}'" for name, digest in parts.items()}

    verdict = verdict_of(fault(), change=otherwise)

    assert (verdict.colour, keys(verdict)) == ("yellow", ["not-deterministic"])
    assert verdict.identical_from is None


def test_a_difference_counts_for_the_fault_that_brought_it() -> None:
    def differs(moment: Moment, parts: Parts) -> Parts:
        drawn = {name: "other" for name in ("rng", "data") if name in parts}
        return {**parts, **drawn} if moment.start > 0 else parts

    faults = [fault(iteration=6, id="a"), fault(iteration=12, id="b")]

    first, second = judge(
        REFERENCE, Run(change=differs).history(*faults), [one.plan for one in faults]
    )

    assert (first.colour, keys(first)) == ("red", ["rng-not-restored"])
    assert (second.colour, keys(second)) == ("yellow", ["differed-before"])


def test_without_records_it_is_not_known_whether_the_result_is_the_same() -> None:
    verdict = verdict_of(fault(), digests=False)

    assert (verdict.colour, keys(verdict)) == ("yellow", ["identity-unknown"])
    assert (verdict.resumed_at, verdict.steps_lost) == (10, 2)
    assert "nothing was recorded by ranks 0-1" in verdict.findings[0].text


@pytest.mark.parametrize(
    ("ranks", "said"),
    [((1,), "nothing was recorded by rank 1"), ((0, 1), "up to step 14 of 19")],
    ids=["one rank", "all ranks"],
)
def test_records_that_end_before_the_run_does(ranks: tuple[int, ...], said: str) -> None:
    first = 10 if len(ranks) == 1 else 15

    def lost(moment: Moment, parts: Parts) -> Parts | None:
        gone = moment.start > 0 and moment.rank in ranks and moment.iteration >= first
        return None if gone else parts

    one = fault()
    history = Run(change=lost).history(one)

    [verdict] = judge(REFERENCE, history, [one.plan])

    assert (verdict.colour, keys(verdict)) == ("yellow", ["identity-unknown"])
    assert said in verdict.findings[0].text


def test_ranks_that_resume_apart_are_red() -> None:
    def apart(moment: Moment, parts: Parts) -> Parts | None:
        behind = moment.rank == 1 and moment.start > 0 and moment.iteration < 11
        return None if behind else parts

    verdict = verdict_of(fault(), change=apart)

    assert (verdict.colour, keys(verdict)) == ("red", ["ranks-resume-apart"])
    assert "rank 0 with 10, rank 1 with 11" in verdict.findings[0].text


def test_a_fault_that_did_not_happen() -> None:
    verdict = verdict_of(fault(happened=False))

    assert (verdict.colour, keys(verdict)) == ("yellow", ["did-not-happen"])
    assert "undaunted.step(step)" not in verdict.findings[0].remedy


def test_a_fault_of_a_rank_that_takes_no_steps() -> None:
    verdict = verdict_of(fault(rank=3, happened=False))

    assert (verdict.colour, keys(verdict)) == ("yellow", ["did-not-happen"])
    assert "took no step in the undisturbed run either" in verdict.findings[0].text


def test_a_rank_that_the_others_go_on_without() -> None:
    def differs(moment: Moment, parts: Parts) -> Parts:
        return {name: f"{digest}'" for name, digest in parts.items()} if moment.start else parts

    verdict = verdict_of(fault("kill", how="inside", lost=(1,)), change=differs)

    assert (verdict.colour, keys(verdict)) == ("green", ["fewer-ranks"])


def test_a_round_that_fails_after_a_restart_inside_of_its_processes() -> None:
    faults = [fault("exception", how="inside", id="a"), fault("kill", iteration=15, id="b")]

    first, second = judge(REFERENCE, Run().history(*faults), [one.plan for one in faults])

    assert [first.colour, second.colour] == ["green", "green"]

    [verdict] = judge(REFERENCE, Run().history(*faults), [faults[0].plan])

    assert (verdict.colour, keys(verdict)) == ("yellow", ["failed-again"])
    assert verdict.blame.line == "rank 1: something"


def test_a_fault_that_did_not_happen_as_steps_are_counted_anew() -> None:
    options = {"counted": True, "told": False}

    verdict = verdict_of(fault(happened=False), undisturbed(**options), **options)

    assert "undaunted.step(step)" in verdict.findings[0].remedy


def test_a_run_that_fails_before_its_fault_is_red() -> None:
    verdict = verdict_of(fault(happened=False), exit_code=3)

    assert (verdict.colour, keys(verdict)) == ("red", ["did-not-recover"])


def test_what_the_machine_does_not_allow_is_skipped_with_the_reason() -> None:
    one = fault("disk-full", happened=False)
    outcome = Outcome(exit_codes=[0], skipped={one.plan.id: "no namespaces here"})

    [verdict] = judge(REFERENCE, replace(Run().history(one), outcome=outcome), [one.plan])

    assert (verdict.colour, verdict.skipped) == ("skipped", "no namespaces here")


def test_what_the_nemesis_could_not_do_is_said() -> None:
    one = fault("slow")
    history = Run().history(one)
    note = Note(one.plan.id, "failed", 0.0, 0, text="no file to damage\x1b[2J")
    outcome = Outcome(exit_codes=[0], notes=[note])

    [verdict] = judge(REFERENCE, replace(history, outcome=outcome), [one.plan])

    assert (verdict.colour, keys(verdict)) == ("yellow", ["not-made"])
    assert "\x1b" not in verdict.findings[0].text


def test_a_run_without_journal_and_records_is_red_and_nothing_fails() -> None:
    from undaunted.chaos.history import History

    one = fault()

    [verdict] = judge(REFERENCE, History("1"), [one.plan])

    assert (verdict.colour, keys(verdict)) == ("red", ["did-not-recover"])
