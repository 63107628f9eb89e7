from __future__ import annotations

from typing import Any

from tests.journal import sample
from tests.journal.sample import at
from undaunted.journal.events import InProcessPhase
from undaunted.journal.inprocess import InProcessRestart, inprocess_restarts
from undaunted.journal.render import plain, render_round, render_run
from undaunted.journal.restarts import summarize

CAUSES = ["rank 1: ValueError('x')", "rank 3: TERMINATED"]


def phase(name: str, took_s: float, epoch: int = 1, **fields: Any) -> Any:
    return at(500 + epoch, InProcessPhase, 0, call=0, epoch=epoch, phase=name, took_s=took_s,
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
    assert inprocess_restarts(restart()) == [
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
    (one,) = inprocess_restarts([phase("detect", 9.0, reasons=CAUSES)])
    assert (one.causes, one.members, one.total_ns) == (CAUSES, 0, None)


def test_the_report_shows_them_beside_the_others() -> None:
    run = summarize([*sample.RUN, *restart(1), phase("detect", 1.0, 2)])
    text = plain(render_run(run))
    assert "restarts: 2 of 3, 3.2 s lost; 2 in-process, 40 ms lost\n" in text
    assert "in-process restart 1: 3 ranks (without 3) again after rank 1: ValueError('x')" in text
    assert "in-process restart 2: no rank again after it was stopped" in text
    table = text[text.index("in-process restarts, milliseconds") :].splitlines()
    titles = "abort  stop  finalize  health  collect  agree  total"
    assert table[1] == f"round, call, restart  {titles}"
    assert " ".join(table[2].split()) == "0, 0, 1 30 1.0 - - - 4.0 40"


def test_of_many_the_last_ones_are_shown() -> None:
    run = summarize([*sample.RUN, *(event for n in range(1, 31) for event in restart(n))])
    text = plain(render_run(run))
    assert "(the last 20 of 30)" in text
    assert "... 25 earlier in-process restarts" in text
    assert "in-process restart 25:" not in text
    assert "in-process restart 25:" in plain(render_round(run, 0))
