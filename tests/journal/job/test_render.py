"""Reports as text: lines that fit, numbers that are whole, control characters written out."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.journal import sample
from tests.journal.job.moving import moved
from tests.journal.sample import at, begin, summary_of
from undaunted.base.console import plain
from undaunted.journal import events as e
from undaunted.journal.goodput import Times
from undaunted.journal.job.launches import launches_of
from undaunted.journal.job.rank_time import Price
from undaunted.journal.job.render import (
    CLASSES,
    PHASES,
    percent,
    render_job,
    render_launch,
    render_round,
)
from undaunted.journal.job.summary import summarize_job
from undaunted.journal.job.values import BootClock, JobSummary, LaunchSummary, NodePart, Phases
from undaunted.journal.reader import Journal


def test_without_times_the_report_is_short() -> None:
    whole = plain(render_launch(summary_of(sample.RUN), times=True))
    short = plain(render_launch(summary_of(sample.RUN)))
    assert "--times" in short
    assert len(short.splitlines()) < 15
    assert set(short.splitlines()) - set(whole.splitlines()) == {
        line for line in short.splitlines() if "--times" in line
    }


def crashes(number: int, *causes: str) -> LaunchSummary:
    rounds = [
        NodePart(round=at, outcome="crash", cause=causes[at % len(causes)].format(pid=1000 + at))
        for at in range(number)
    ]
    return LaunchSummary(rounds=[*rounds, NodePart(round=number, outcome="finished")])


def test_rounds_that_are_alike_are_one_line() -> None:
    run = crashes(1458, "rank 0 (pid {pid}) was killed by SIGKILL, at iteration {pid}")
    lines = plain(render_launch(run)).splitlines()
    assert len(lines) < 12
    assert sum("SIGKILL" in line for line in lines) == 2  # why, and the first round
    assert any(line.startswith("rounds 1 to 1457 ") for line in lines)
    failed = LaunchSummary(rounds=run.rounds[:-1])
    lines = plain(render_launch(failed)).splitlines()
    assert any(line.startswith("rounds 1 to 1456 ") for line in lines)
    assert any(line.startswith("round 1457 ") for line in lines)
    assert len(plain(render_launch(run, everything=True)).splitlines()) > 2 * 1458


def test_of_many_different_rounds_the_first_and_the_last_are_shown() -> None:
    run = crashes(600, "rank 0 raised ValueError", "rank 1 raised TypeError")
    lines = plain(render_launch(run)).splitlines()
    assert len(lines) < 40
    shown = [int(line.split()[1]) for line in lines if line.startswith("round ")]
    assert shown == [0, 1, 2, *range(589, 601)]
    assert any(line.startswith("rounds 3 to 588 ") for line in lines)


def test_two_rounds_that_are_alike_are_shown_as_they_are() -> None:
    lines = plain(render_launch(crashes(2, "rank 0 raised ValueError"))).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("round ")] == ["0", "1", "2"]


def test_restarts_that_were_ordered_are_none_of_the_budget() -> None:
    run = msgspec.structs.replace(summary_of(sample.RUN), restarts_ordered=2)
    text = plain(render_launch(run))
    assert "restarts: 0 of 3, 2 more on request, 3.2 s lost\n" in text


@pytest.mark.parametrize("width", [20, 40, 79, 80, 94, 200])
def test_numbers_are_never_cut_and_lines_keep_to_the_width(width: int) -> None:
    run = summary_of(sample.RUN)
    text = plain(render_launch(run, width=width, times=True))
    for number in ("detect", "124", "0.2", "57", "23", "940", "33 %"):
        assert number.split()[0] in text
    if width >= 60:
        assert max(map(len, text.splitlines())) <= width
    assert ("after round" in text) == (width >= 78)
    assert ("share  " in text) == (width >= 94)
    flat = " ".join(text.split())
    if width < 78:
        assert "round 1: detect 0.2, evidence 101" in flat
    if width < 94:
        assert "round 0: productive 940 ms, recomputed 13 ms" in flat
        assert "share: productive 45 %" in flat


def test_a_long_cause_is_said_once() -> None:
    cause = "rank 0 failed: " + "word " * 80 + "end"
    rounds = [
        NodePart(round=number, outcome="crash", cause=cause.replace("0", f"{number}"))
        for number in range(3)
    ]
    reason = f"{rounds[-1].cause}; no restart is left"
    text = plain(
        render_launch(LaunchSummary(outcome="failed", exit_code=1, reason=reason, rounds=rounds))
    )
    assert text.count("word end") == 1
    assert "reason:   no restart is left\n" in text
    same = LaunchSummary(outcome="failed", exit_code=1, reason=rounds[0].cause, rounds=rounds[:1])
    assert "reason: " not in plain(render_launch(same))


def test_long_reasons_programs_and_notes_are_wrapped_below_their_beginning() -> None:
    words = " ".join(["word"] * 30)
    run = LaunchSummary(outcome="failed", reason=words, argv=["train.py", words], notes=[words])
    lines = plain(render_launch(run, width=50)).splitlines()
    assert max(map(len, lines)) <= 50
    assert "reason:   word word word word word word word word" in lines
    assert "          word word word word word word word word" in lines
    assert "note: word word word word word word word word word" in lines
    assert "      word word word word word word word word word" in lines


def test_the_goodput_is_in_the_first_line_where_it_is_known() -> None:
    steps = [one for one in sample.RUN if getattr(one, "name", "") != "first_step"]
    text = plain(render_launch(summary_of(steps), times=True))
    assert "goodput" not in text.splitlines()[0]
    assert "unknown: the program ran, but never called undaunted.step" in " ".join(text.split())


def test_a_long_verdict_is_wrapped_between_words_only() -> None:
    path = "/a/very/long/path/" * 10
    run = summary_of([*begin(10, 0), at(20, e.Verdict, 0, kind="hang", rank=0, local_rank=0, pid=1,
                                       line=f"rank 0 hangs in {path} since long")])  # fmt: skip
    lines = plain(render_launch(run, width=60)).splitlines()
    assert f"         {path}" in lines


def test_the_file_of_stacks_is_named_once() -> None:
    one = summary_of(sample.RUN).rounds[1]
    said = msgspec.structs.replace(one, cause=f"rank 0 hangs; stacks: {one.stacks}")
    text = plain(render_launch(LaunchSummary(rounds=[said])))
    assert "         rank 0 hangs\n         stacks: /run/stacks-round1.txt\n" in text
    assert text.count("stacks:") == 1


@pytest.mark.parametrize(
    ("about", "line"),
    [
        ({"action": "restart"}, ""),
        ({"action": "gremlins"}, ""),
        ({"action": "stop"}, "advice: end the job: why\\x1b[2J"),
        ({"action": "exclude", "nodes": ["b"], "done": True}, "done: go on without b: why\\x1b[2J"),
    ],
)
def test_advice_is_shown_where_it_is_more_than_a_restart(
    about: dict[str, object], line: str
) -> None:
    advised = at(5400, e.RoundAdvised, 1, number=1, reason="why\x1b[2J", **about)
    run = summary_of([*sample.RUN, advised])
    assert run.rounds[0].advised is None
    assert run.rounds[1].advised == advised
    told = [text.strip() for text in plain(render_launch(run)).splitlines()]
    assert [text for text in told if ": why" in text] == ([line] if line else [])


def test_a_pause_before_the_next_round_is_shown() -> None:
    waits = at(5110.5, e.Remark, 1, text="waiting 1.0 s: 4 failures were the same", pause_s=1.0)
    run = summary_of([*sample.RUN, waits])
    assert [one.pause for one in run.rounds] == ["", waits.text, ""]
    told = [text.strip() for text in plain(render_launch(run)).splitlines()]
    assert told.count(waits.text) == 1
    other = at(5110.5, e.Remark, 1, text="spare nodes: c", level="info")
    assert "spare nodes" not in plain(render_launch(summary_of([*sample.RUN, other])))


def test_pauses_of_the_agent_are_shown_in_the_detail_of_a_round() -> None:
    pauses = [at(5000 + n, e.AgentPaused, 1, seconds=n + 0.5) for n in range(5)]
    run = summary_of([*sample.RUN, *pauses])
    text = plain(render_round(run, 1))
    until = "1970-01-01 00:16:45 UTC"
    last = ", ".join(f"{n}.5 s until {until}" for n in (2, 3, 4))
    assert f"stood still: the agent, or its machine, for {last}, 2 times before\n" in text
    assert "stood still" not in plain(render_round(run, 0)) + plain(render_launch(run))


def test_a_run_without_an_end_says_so() -> None:
    text = plain(render_launch(summary_of(sample.RUN[:-1])))
    assert "UTC, recorded up to 9.0 s later" in text
    assert "no end recorded: it still runs, or was killed" in text
    assert ": still runs" in plain(render_launch(summary_of(sample.RUN[:-1], running=True)))
    assert "its launcher is gone" in plain(
        render_launch(summary_of(sample.RUN[:-1], running=False))
    )
    assert ": finished" in plain(render_launch(summary_of(sample.RUN, running=True)))
    assert "unknown name" in plain(render_launch(summary_of([])))


def test_times_nobody_can_name() -> None:
    text = plain(render_launch(LaunchSummary(started_wall=1e12, restarts=2, untimed_restarts=1)))
    assert "at an unknown time" in text
    assert "1 of unknown duration" in text


def test_text_of_the_program_cannot_act_on_the_terminal() -> None:
    evil = "\x1b[2J\x9b31m\rboo\u202e"
    verdict = at(20, e.Verdict, 0, kind=evil, rank=0, local_rank=0, pid=1, line=evil, frame=evil,
                 traceback=evil, stacks=evil)  # fmt: skip
    started = at(1, e.JobStarted, run_id=evil, argv=[evil], nproc_per_node=1, max_restarts=0,
                 log_dir=evil)  # fmt: skip
    ended = at(30, e.JobEnded, 0, outcome=evil, exit_code=1, reason=evil)
    spawned = at(11, e.WorkersSpawned, 0, mode=evil, pids=[1])
    exited = at(21, e.RankExited, 0, rank=0, pid=1, signal=evil)
    lost = at(22, e.TemplateLost, 0, reason=evil)
    run = summary_of([started, spawned, verdict, exited, lost, ended])
    text = plain(render_launch(run)) + plain(render_round(run, 0))
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "boo" in text


def test_every_phase_and_class_has_its_column() -> None:
    known = {*Phases.__struct_fields__} - {"total_to_step_ns"}  # total and step together
    assert {column.field for column in PHASES} == known
    assert {column.field for column in CLASSES} == {*Times.__struct_fields__}


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (0.0, "0 %"),
        (0.00001, "<0.1 %"),
        (0.0005, "0.1 %"),
        (0.0123, "1.2 %"),
        (0.5, "50 %"),
        (0.99, "99 %"),
        (0.9961, "99.6 %"),
        (0.99999, "99.9 %"),
        (1.0, "100 %"),
    ],
)
def test_a_percentage_says_everything_or_nothing_only_where_that_is_so(
    part: float, said: str
) -> None:
    assert percent(part) == said


def test_classes_that_are_empty_are_left_out() -> None:
    run = summary_of(sample.RUN)
    whole = plain(render_launch(run, times=True))
    table = whole.partition("where the time went")[2]
    assert "initialise" not in table
    assert "recomputed" in table
    assert "EUR" not in table


def job() -> JobSummary:
    """The sample, launched again 20 s after its start."""
    again = moved(sample.RUN, 20 * 10**9, 20, pid=43)
    launches = launches_of([Journal(Path("j"), [*sample.RUN, *again])])
    return summarize_job(launches, price=Price(3600, "EUR"))


def test_text_of_the_program_does_no_harm() -> None:
    hostile = msgspec.structs.replace(
        job(), run_id="\x1b[31m", exit_code=1, reason="a\nb", notes=["\x07"]
    )
    text = plain(render_job(hostile))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "reason:   a b" in text


def test_a_long_cause_of_a_job_is_said_once() -> None:
    cause = "rank 0 failed: " + "word " * 80 + "end"
    found = job()
    rounds = [
        msgspec.structs.replace(one, outcome="crash", cause=cause, round=number)
        for number, one in enumerate(found.rounds[:3])
    ]
    reason = f"{cause}; no restart is left"
    failed = msgspec.structs.replace(found, rounds=rounds, exit_code=1, reason=reason)
    text = plain(render_job(failed))
    assert text.count("word end") == 1
    assert "reason:   no restart is left\n" in text


def test_lines_fit_into_a_terminal() -> None:
    found = job()
    rounds = [msgspec.structs.replace(one, cause="word " * 60) for one in found.rounds]
    found = msgspec.structs.replace(found, rounds=rounds, reason="word " * 60)
    lines = plain(render_job(found, width=80)).splitlines()
    assert all(len(line) <= 80 for line in lines if "word" in line)


def test_how_clocks_are_related() -> None:
    clock = BootClock(boot_id="", nodes=["a"], offset_ns=0, uncertainty_ns=0, method="reference")
    other = msgspec.structs.replace(clock, uncertainty_ns=20_000_000, method="order")
    text = plain(render_job(msgspec.structs.replace(job(), clocks=[clock, other])))
    assert "clocks:   2 machines, related by the order of events to ±20 ms\n" in text


@pytest.mark.parametrize(
    ("running", "text"),
    [
        ([True, False], "still runs"),
        ([False, False], "no end recorded, and its launcher is gone"),
        ([False, None], "no end recorded: it still runs, or was killed"),
    ],
)
def test_a_job_without_an_end(running: list[bool | None], text: str) -> None:
    launches = [LaunchSummary(running=each) for each in running]
    found = JobSummary(run_id="j", launches=launches)
    assert plain(render_job(found)).startswith(f"job j: {text}")


def test_an_empty_job() -> None:
    assert plain(render_job(JobSummary())).startswith("job of unknown name: no end recorded")
