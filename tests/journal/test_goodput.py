"""Each moment of a run belongs to one class; the classes add up whatever the journal holds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal import sample
from tests.journal.sample import MS, account_of, at, begin, reached
from undaunted.journal import events as e
from undaunted.journal.goodput import RoundContext, Span, Times


def milliseconds(times: Times) -> dict[str, float]:
    """The classes that are not empty."""
    fields = msgspec.to_builtins(times)
    return {name.removesuffix("_ns"): value / MS for name, value in fields.items() if value}


def started(ms: float = 0) -> e.AnyEvent:
    return at(ms, e.JobStarted, run_id="x", argv=[], nproc_per_node=2, max_restarts=3)


def ended(ms: float, number: int = 0) -> e.AnyEvent:
    return at(ms, e.JobEnded, number, outcome="failed", exit_code=1)


def mark(ms: float, name: str, rank: int = 0, number: int = 0) -> e.AnyEvent:
    return at(ms, e.RankMilestone, number, rank=rank, name=name, at_ns=round(ms * MS))


def crash(ms: float, number: int = 0) -> list[e.AnyEvent]:
    """Noticed after 1 ms; told to stop after 3 ms; all gone after 10 ms."""
    return [
        at(ms + 1, e.FailureDetected, number, kind="crash", rank=0, since_ns=round(ms * MS)),
        at(ms + 2, e.Decision, number, action="restart", reason="x"),
        at(ms + 3, e.StopRequested, number, reason="x", grace_s=1.0),
        at(ms + 10, e.RoundStopped, number),
    ]


class TestTheSample:
    spent = account_of(sample.RUN)

    def test_a_crash(self) -> None:
        assert milliseconds(self.spent.rounds[0]) == {
            "spawn": 5, "import": 7, "load": 23,  # workers at 15, program at 22, steps at 45
            "productive": 940,  # until iteration 27 began, at 985
            "recomputed": 13,  # which the crash at 998 cut short
            "detect": 2, "decide": 2, "stop": 40, "idle": 1,
        }  # fmt: skip

    def test_a_hang_that_begins_with_steps_done_before(self) -> None:
        assert milliseconds(self.spent.rounds[1]) == {
            "spawn": 5, "import": 7, "load": 23,  # steps at 1078
            "recomputed": 460 + 2,  # iterations 7 to 26 of 7 to 46, which took 920 ms; and the last
            "productive": 460,
            "detect": 3000.2,  # from the last sign of life, at 2000
            "evidence": 100.8,  # with the verdict
            "decide": 2, "stop": 7, "idle": 2,
        }  # fmt: skip

    def test_the_end(self) -> None:
        assert milliseconds(self.spent.rounds[2]) == {
            "spawn": 5, "import": 7, "load": 23,
            "recomputed": 1200,  # 7 to 46 of 7 to 106 in 3000 ms
            "productive": 1800 + 855,  # with what came after the last step, up to the decision
            "stop": 1, "idle": 1,
        }  # fmt: skip

    def test_the_whole(self) -> None:
        assert self.spent.total.total_ns == 9003 * MS
        assert self.spent.goodput == pytest.approx((940 + 460 + 2655) / 9003)


def test_a_first_round_waits_for_the_template() -> None:
    ready = at(500, e.TemplateReady, 0, pid=1, import_ns=400 * MS)
    spawned = at(510, e.WorkersSpawned, 0, mode="warm", pids=[1])
    events = [started(), at(20, e.RoundStarted, 0, world_size=1, ranks=[0]), ready, spawned]
    events += [mark(530, "first_line"), mark(630, "initialized"), mark(730, "first_step")]
    assert milliseconds(account_of([*events, ended(1000)]).total) == {
        "idle": 20,
        "spawn": 80 + 10,
        "import": 400 + 20,
        "initialise": 100,
        "load": 100,
        "productive": 270,
    }


@pytest.mark.parametrize(
    ("milestones", "stage"),
    [([], "import"), (["first_line"], "initialise"), (["first_line", "initialized"], "load")],
)
def test_a_round_that_fails_on_its_way_spent_its_time_there(
    milestones: list[str], stage: str
) -> None:
    first = [*begin(0, 0), *crash(1000), reached(1009, 0, 8, 999)]
    second = [
        at(1010, e.RoundStarted, 1, world_size=1, ranks=[0]),
        at(1020, e.WorkersSpawned, 1, mode="warm", pids=[1]),
        *(mark(1030, name, number=1) for name in milestones),
        *crash(5000, 1),
    ]
    spent = account_of([started(), *first, *second]).rounds[1]
    assert milliseconds(spent)[stage] >= 3970
    assert spent.productive_ns == 0


def test_a_crash_before_the_workers_exist() -> None:
    failure = at(90, e.FailureDetected, 0, kind="spawn", rank=-1)
    round_started = at(10, e.RoundStarted, 0, world_size=1, ranks=[0])
    spent = account_of([started(), round_started, failure, ended(100)])
    assert milliseconds(spent.total) == {"idle": 20, "spawn": 80}
    assert spent.goodput is None


def test_the_step_that_was_cut_short_is_done_again_once() -> None:
    """Exact: rounds of 0..10 and 5..10, 10 ms a step, both fail 4 ms into iteration 10."""
    events = [started()]
    for number, first in enumerate((0, 5)):
        ms = 1000 * number
        steps = (10 - first) * 10
        events += [
            at(ms, e.RoundStarted, number, world_size=1, ranks=[0]),
            mark(ms, "first_step", number=number),
            at(ms + steps, e.RoundProgress, number, first_iteration=first, last_iteration=10,
               last_ns=(ms + steps) * MS),
            *crash(ms + steps + 4, number),
        ]  # fmt: skip
    one, two = account_of(events).rounds.values()
    assert (one.productive_ns, one.recomputed_ns) == (100 * MS, 4 * MS)
    assert (two.productive_ns, two.recomputed_ns) == (0, 50 * MS + 4 * MS)


def test_a_round_that_does_not_get_as_far_as_the_one_before_only_repeats() -> None:
    events = [*begin(0, 0), reached(999, 0, 50, 990), *crash(1000)]
    events += [*begin(1010, 1), reached(1999, 1, 20, 1900), *crash(2000, 1)]
    spent = account_of(events).rounds[1]
    assert (spent.productive_ns, spent.recomputed_ns) == (0, 955 * MS)


def test_reports_of_every_minute_make_the_share_of_repeated_steps_exact() -> None:
    events = [*begin(0, 0), reached(999, 0, 17, 990), *crash(1000)]
    # The repeated steps 7 to 16 take 100 ms each, the others 10 ms.
    events += [*begin(1010, 1), reached(2050, 1, 17, 2045), reached(3000, 1, 107, 2945)]
    spent = account_of([*events, ended(3000, 1)]).rounds[1]
    assert (spent.recomputed_ns, spent.productive_ns) == (1000 * MS, 955 * MS)


def test_a_run_that_never_steps_is_not_judged() -> None:
    events = [e_ for e_ in begin(0, 0) if getattr(e_, "name", "") != "first_step"]
    spent = account_of([started(), *events, *crash(1000), ended(1020)])
    assert milliseconds(spent.total)["unknown"] == 988
    assert spent.goodput is None


def test_ranks_that_do_not_step_do_not_hide_those_that_do() -> None:
    events = [one for one in sample.RUN if not (isinstance(one, e.RankMilestone) and one.rank == 0)]
    assert account_of(events).goodput == pytest.approx(account_of(sample.RUN).goodput, abs=0.01)


def test_a_run_that_goes_on_is_told_up_to_its_last_event() -> None:
    events = [*begin(0, 0), reached(60_000, 0, 99, 59_999)]
    assert account_of([started(), *events]).total.total_ns == 60_000 * MS
    assert account_of([started(), *events]).goodput == pytest.approx(1 - 35 / 60_000)
    assert account_of([]).total == Times()


def works(number: int = 0) -> list[e.AnyEvent]:
    """A round of one node whose ranks step from 10 ms on; at 100 ms it is stopped."""
    return [
        started(),
        at(0, e.RoundStarted, number, world_size=4, ranks=[0, 1]),
        at(0, e.WorkersSpawned, number, mode="warm", pids=[1, 2]),
        mark(0, "first_line"),
        mark(0, "initialized"),
        mark(10, "first_step"),
        at(99, e.RoundProgress, number, first_iteration=0, last_iteration=8, last_ns=50 * MS),
        at(100, e.Decision, number, action="restart", reason="another node"),
        at(100, e.StopRequested, number, reason="another node", grace_s=1.0),
        at(110, e.RoundStopped, number),
        ended(110, number),
    ]


def test_a_failure_on_another_node_ends_work_here_too() -> None:
    alone = account_of(works())
    assert milliseconds(alone.total) == {"load": 10, "productive": 90, "stop": 10}
    elsewhere = RoundContext(broke_ns=60 * MS, noticed_ns=80 * MS, judged_ns=95 * MS)
    told = account_of(works(), {0: elsewhere})
    assert milliseconds(told.rounds[0]) == {
        "load": 10, "productive": 40, "recomputed": 10, "detect": 20, "evidence": 15, "decide": 5,
        "stop": 10,
    }  # fmt: skip


# Noticed after 30 ms on another node, whose ranks had failed after 20.
ELSEWHERE = RoundContext(broke_ns=20 * MS, noticed_ns=30 * MS)


def goes_on(*more: e.AnyEvent, world_size: int = 4) -> dict[str, float]:
    """A node that begins its last step 50 ms after it has heard of a failure elsewhere."""
    events = [
        started(),
        at(0, e.RoundStarted, 0, world_size=world_size, ranks=[0, 1]),
        at(0, e.WorkersSpawned, 0, mode="warm", pids=[1, 2]),
        mark(10, "first_step"),
        *more,
        at(99, e.RoundProgress, 0, first_iteration=0, last_iteration=8, last_ns=80 * MS),
        at(100, e.RoundStopped, 0),
        ended(100, 0),
    ]
    return milliseconds(account_of(events, {0: ELSEWHERE}).total)


def exits(*codes: int) -> list[e.AnyEvent]:
    return [
        at(95, e.RankExited, 0, rank=rank, pid=rank + 1, exit_code=code)
        for rank, code in enumerate(codes)
    ]


@pytest.mark.parametrize(("codes", "again"), [((0, 0), 0), ((0, 1), 20), ((), 20)])
def test_a_node_that_goes_on_after_a_failure_elsewhere(codes: tuple[int, ...], again: int) -> None:
    """The step that was cut short is done again, unless the node has come to the end."""
    spent = {"load": 10, "detect": 10, "productive": 80 - again, "recomputed": again}
    assert goes_on(*exits(*codes)) == {kind: ms for kind, ms in spent.items() if ms}


def test_a_node_whose_own_ranks_fail_does_not_go_on() -> None:
    """Steps of its other ranks are seen after that."""
    spent = {"load": 10, "productive": 10, "detect": 10, "stop": 70}
    assert goes_on(at(25, e.FailureDetected, 0, kind="crash", rank=0)) == spent
    assert goes_on(at(30, e.FailureDetected, 0, kind="crash", rank=0)) == spent
    assert goes_on(world_size=2) == spent, "there is no other node"


def test_a_node_that_has_gone_on_may_fail_later() -> None:
    later = at(90, e.FailureDetected, 0, kind="crash", rank=0, since_ns=85 * MS)
    spent = {"load": 10, "productive": 60, "recomputed": 5, "detect": 15, "stop": 10}
    assert goes_on(later) == spent
    told = at(94, e.EvidenceCollected, 0, ranks=[0], path="x", duration_ns=0)
    assert goes_on(later, told) == {**spent, "evidence": 4, "stop": 6}


def test_steps_that_others_had_done_are_done_again() -> None:
    told = account_of(works(), {0: RoundContext(done=4)})
    assert milliseconds(told.total) == {"load": 10, "recomputed": 20, "productive": 70, "stop": 10}


def test_stretches_of_time_are_what_the_classes_are_made_of() -> None:
    spans = account_of(works()).spans
    assert spans == [
        Span(0, "load", 0, 10 * MS),
        Span(0, "productive", 10 * MS, 50 * MS),
        Span(0, "productive", 50 * MS, 100 * MS),
        Span(0, "stop", 100 * MS, 110 * MS),
    ]


def test_a_node_that_stopped_by_itself_does_not_work_until_it_hears_of_a_decision() -> None:
    events = works()
    late = next(n for n, event in enumerate(events) if isinstance(event, e.Decision))
    events[late:] = [
        *events[late + 1 : -1],
        at(200, e.Decision, 0, action="restart", reason="nodes have joined"),
        ended(200),
    ]
    found = milliseconds(account_of(events).total)
    assert found == {"load": 10, "productive": 90, "stop": 10, "idle": 90}


def test_every_journal_with_one_event_missing_adds_up() -> None:
    for index in range(len(sample.RUN)):
        events = [*sample.RUN[:index], *sample.RUN[index + 1 :]]
        holds(events)


MOMENT = st.integers(0, 3000).map(lambda ms: ms * MS)
NUMBER = st.integers(-1, 3)


def some(of: type[e.Event], /, **fields: Any) -> st.SearchStrategy[e.AnyEvent]:
    return st.builds(of, t=MOMENT, round=NUMBER, **fields)


EVENTS = st.one_of(
    some(e.JobStarted, run_id=st.just("x"), argv=st.just([]), nproc_per_node=st.just(1),
         max_restarts=st.just(1)),
    some(e.RoundStarted, world_size=st.just(1), ranks=st.just([0])),
    some(e.TemplateReady, pid=st.just(1), import_ns=MOMENT),
    some(e.WorkersSpawned, mode=st.just("warm"), pids=st.just([1])),
    some(e.RankMilestone, rank=st.integers(0, 1), at_ns=MOMENT,
         name=st.sampled_from(["first_line", "initialized", "first_step"])),
    some(e.RoundProgress, first_iteration=st.integers(0, 9), last_iteration=st.integers(0, 20),
         last_ns=MOMENT),
    some(e.FailureDetected, kind=st.sampled_from(["crash", "hang"]), rank=st.just(0),
         since_ns=st.none() | MOMENT),
    some(e.EvidenceCollected, ranks=st.just([0])),
    some(e.Verdict, kind=st.just("hang"), rank=st.just(0), local_rank=st.just(0), pid=st.just(1),
         line=st.just(""), limit_s=st.none() | st.floats(0, 1e12)),
    some(e.Decision, action=st.just("restart"), reason=st.just("")),
    some(e.StopRequested, reason=st.just(""), grace_s=st.just(1.0)),
    some(e.RoundStopped),
    some(e.JobEnded, outcome=st.just("failed"), exit_code=st.just(1)),
)  # fmt: skip


def holds(events: list[e.AnyEvent]) -> None:
    """The classes of rounds and run match, none is negative, and they are all of the time."""
    spent = account_of(events)
    together = Times()
    for times in spent.rounds.values():
        assert min(msgspec.to_builtins(times).values()) >= 0
        together.add(times)
    assert spent.total.total_ns - together.total_ns == spent.total.idle_ns - together.idle_ns >= 0
    jobs = [one.t for one in events if isinstance(one, e.JobStarted)]
    ends = [one.t for one in events if isinstance(one, e.JobEnded)]
    begin_ns = jobs[0] if jobs else min((one.t for one in events), default=0)
    end_ns = ends[0] if ends else max((one.t for one in events), default=0)
    assert spent.total.total_ns == max(0, end_ns - begin_ns)
    assert spent.goodput is None or 0 <= spent.goodput <= 1


@given(st.lists(EVENTS, max_size=30))
def test_whatever_the_journal_holds(events: list[e.AnyEvent]) -> None:
    holds(events)


@given(st.lists(st.sampled_from(sample.RUN), unique_by=id), EVENTS)
def test_the_sample_with_gaps_and_nonsense(events: list[e.AnyEvent], odd: e.AnyEvent) -> None:
    holds(sorted([*events, odd], key=lambda event: event.t))
