"""The text of a job, as a whole."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.journal import sample
from tests.journal.job.moving import moved
from undaunted.base.console import plain
from undaunted.journal.job.launches import launches_of
from undaunted.journal.job.rank_time import Price
from undaunted.journal.job.render import render_job
from undaunted.journal.job.summary import summarize_job
from undaunted.journal.job.values import BootClock, JobSummary
from undaunted.journal.reader import Journal
from undaunted.journal.summary import RunSummary

TEXT = """\
job demo: finished, exit code 0, down 6.4 s of 29.0 s, goodput 27 %, ETTR 17 %
why:      2 crashes, 2 hangs; the last: rank 0 hangs
program:  train.py --fast (2 ranks, 1 node)
started:  1970-01-01 00:16:40 UTC, took 29.0 s in 2 launches, 11.0 s between them
restarts: 4, 6.4 s lost, 220 steps done again
failures: 4, one in 2.9 s (MTTF): 2 crashes, 2 hangs; by node: n0 (4); by rank: 1 (2), 0 (2)
cost:     36.01 EUR, 9.82 EUR of it productive (a rank-hour is 3600 EUR)

round 0.0 1.0 s, 2 ranks, 1 node, iterations 7 to 27, crash
         rank 1 raised ValueError: bad batch
         20 steps done again, all ranks running again 57 ms after the failure
round 0.1 4.1 s, 2 ranks, 1 node, iterations 7 to 47, hang
         rank 0 hangs
         40 steps done again, all ranks running again 124 ms after the failure
round 0.2 3.9 s, 2 ranks, 1 node, iterations 7 to 107, finished
         100 steps done again
round 1.0 1.0 s, 2 ranks, 1 node, iterations 7 to 27, crash
         rank 1 raised ValueError: bad batch
         20 steps done again, all ranks running again 57 ms after the failure
round 1.1 4.1 s, 2 ranks, 1 node, iterations 7 to 47, hang
         rank 0 hangs
         40 steps done again, all ranks running again 124 ms after the failure
round 1.2 3.9 s, 2 ranks, 1 node, iterations 7 to 107, finished

where the time of all ranks went
            rank-time   share    EUR
productive      9.8 s    27 %   9.82  steps done for the first time
recomputed     13.1 s    36 %  13.10  steps done again, and those a failure cut short
spawn           60 ms   0.2 %   0.06  until all workers existed
import          84 ms   0.2 %   0.08  imports for warm workers, and until the program ran
load           276 ms   0.8 %   0.28  until the first step
detect         12.0 s    33 %  12.01  until the failure was noticed (a hang: from its beginning)
evidence       403 ms   1.1 %   0.40  gathered and judged
decide          16 ms  <0.1 %   0.02  until the ranks were told to stop
stop           192 ms   0.5 %   0.19  until all had ended
idle            52 ms   0.1 %   0.05  between rounds, before the first and after the last
all            36.0 s   100 %  36.01
"""


def job() -> JobSummary:
    """The sample, launched again 20 s after its start."""
    again = moved(sample.RUN, 20 * 10**9, 20, pid=43)
    launches = launches_of([Journal(Path("j"), [*sample.RUN, *again])])
    return summarize_job(launches, price=Price(3600, "EUR"))


def test_the_text_of_a_job() -> None:
    assert plain(render_job(job(), times=True)) == TEXT


def test_text_of_the_program_does_no_harm() -> None:
    hostile = msgspec.structs.replace(
        job(), run_id="\x1b[31m", exit_code=1, reason="a\nb", notes=["\x07"]
    )
    text = plain(render_job(hostile))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "reason:   a b" in text


def test_a_long_cause_is_said_once() -> None:
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
    launches = [RunSummary(running=each) for each in running]
    found = JobSummary(run_id="j", launches=launches)
    assert plain(render_job(found)).startswith(f"job j: {text}")


def test_an_empty_job() -> None:
    assert plain(render_job(JobSummary())).startswith("job of unknown name: no end recorded")
