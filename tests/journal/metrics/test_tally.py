from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.journal.sample import MS, RUN, at, begin
from undaunted.journal import events as e
from undaunted.journal.events import InProcessPhase
from undaunted.journal.goodput import account
from undaunted.journal.metrics.tally import Tally
from undaunted.journal.restarts import summarize


def tally_of(events: list[e.AnyEvent], max_kept: int = 1000) -> Tally:
    tally = Tally(max_kept)
    for event in events:
        tally.take(event)
    return tally


def test_what_is_kept_gives_the_same_summary_as_everything() -> None:
    whole, kept = summarize(RUN), summarize(tally_of(RUN).events())
    assert kept.times == whole.times
    assert kept.goodput == whole.goodput
    assert [one.phases for one in kept.rounds] == [one.phases for one in whole.rounds]
    assert [one.verdict for one in kept.rounds] == [one.verdict for one in whole.rounds]


def progress(ms: float, number: int, iteration: int) -> e.AnyEvent:
    return at(ms, e.RoundProgress, number, first_iteration=0, last_iteration=iteration,
              last_ns=round((ms - 1) * MS))  # fmt: skip


@given(st.lists(st.integers(0, 50)), st.lists(st.integers(0, 50)))
def test_progress_of_months_is_kept_as_few_events_without_a_difference(
    first: list[int], second: list[int]
) -> None:
    run = [*begin(0, 0), *(progress(100 + i, 0, n) for i, n in enumerate(sorted(first)))]
    run += [*begin(1000, 1), *(progress(1100 + i, 1, n) for i, n in enumerate(sorted(second)))]
    tally = tally_of(run)
    kept = [event for event in tally.events() if isinstance(event, e.RoundProgress)]
    assert len(kept) <= 3 + 4
    assert account([*tally.events(), run[-1]]).total == account(run).total


def test_numbers_of_what_happened_on_the_side() -> None:
    tally = tally_of([
        at(1, e.AgentPaused, seconds=1.5), at(2, e.AgentPaused, seconds=2),
        at(3, e.EventsLost, count=7), at(4, e.RankEventsLost, rank=3, count=2),
        at(5, e.NodeChecked, problem="GPU 3 is gone"),
        at(6, InProcessPhase, call=0, epoch=1, phase="re-enter"),
        at(7, InProcessPhase, call=0, epoch=1, phase="abort"),
        at(8, e.JobStarted, run_id="r", argv=[], nproc_per_node=1, max_restarts=1,
           limits={"heartbeat": 600.0, "out_of_section": None}),
        at(9, e.LimitsChanged, limits={"heartbeat": 90.0}),
    ])  # fmt: skip
    assert tally.paused_s == 3.5
    assert tally.lost == 7
    assert tally.rank_events_lost == {3: 2}
    assert tally.healthy is False
    assert tally.inprocess_restarts == 1
    assert tally.limits == {"heartbeat": 90.0, "out_of_section": None}
    assert tally.kinds["agent_paused"] == 2


def told(text: str, name: str = "checkpoint") -> e.AnyEvent:
    return at(1, e.RankEvent, rank=0, name=name, at_ns=1, text=text)


def test_checkpoints_of_single_ranks() -> None:
    tally = tally_of([
        told("saved step=5 bytes=10 stall_s=0.5 write_s=1 total_s=2"),
        told("saved step=9 bytes=10 stall_s=0.25 write_s=1 total_s=2"),
        told("failed step=10 the disk is full: total_s=99"),
        told("loaded step=5 bytes=10 seconds=3.5"),
        told("deleted step=5"), told("saved step=1 stall_s=9", name="mine"),
    ])  # fmt: skip
    assert tally.checkpoints == {"saved": 2, "failed": 1, "loaded": 1}
    assert tally.checkpoint_s == {"stall_s": 0.75, "total_s": 4.0, "seconds": 3.5}


def test_memory_is_bounded() -> None:
    tally = tally_of(RUN * 3, max_kept=20)
    assert not tally.complete
    assert len(tally.events()) <= 20 + 4 * 3
    assert tally.kinds["round_started"] == 9


def test_a_copy_stays_as_it_is() -> None:
    tally = tally_of(RUN)
    copy = tally.copy()
    before = (copy.events(), dict(copy.kinds))
    for event in RUN:
        tally.take(event)
    assert (copy.events(), dict(copy.kinds)) == before
