"""What a journal tells is kept in bounded memory, whoever asks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal.sample import MS, RUN, at, begin
from undaunted.journal import events as e
from undaunted.journal.goodput import account
from undaunted.journal.job.summary import summarize
from undaunted.journal.launch import LaunchState


def after(*events: e.Event, most: int | None = 1000) -> LaunchState:
    return LaunchState.of(events, most)


def test_what_is_kept_gives_the_same_summary_as_everything() -> None:
    assert summarize(after(*RUN)) == summarize(LaunchState.of(RUN))


def progress(ms: float, number: int, iteration: int) -> e.AnyEvent:
    return at(ms, e.RoundProgress, number, first_iteration=0, last_iteration=iteration,
              last_ns=round((ms - 1) * MS))  # fmt: skip


@given(st.lists(st.integers(0, 50)), st.lists(st.integers(0, 50)))
def test_progress_of_months_is_kept_as_few_events_without_a_difference(
    first: list[int], second: list[int]
) -> None:
    run = [*begin(0, 0), *(progress(100 + i, 0, n) for i, n in enumerate(sorted(first)))]
    run += [*begin(1000, 1), *(progress(1100 + i, 1, n) for i, n in enumerate(sorted(second)))]
    state = after(*run)
    assert all(len(one.progress) <= 4 for one in state.rounds.values())
    assert account(state).total == account(LaunchState.of(run)).total


def test_numbers_of_what_happened_on_the_side() -> None:
    state = after(
        at(1, e.AgentPaused, seconds=1.5), at(2, e.AgentPaused, seconds=2),
        at(3, e.EventsLost, count=7), at(4, e.RankEventsLost, rank=3, count=2),
        at(5, e.NodeChecked, problem="GPU 3 is gone"),
        at(6, e.InProcessPhase, call=0, epoch=1, phase="re-enter"),
        at(7, e.InProcessPhase, call=0, epoch=1, phase="abort"),
        at(8, e.JobStarted, run_id="r", argv=[], nproc_per_node=1, max_restarts=1,
           limits={"heartbeat": 600.0, "out_of_section": None}),
        at(9, e.LimitsChanged, limits={"heartbeat": 90.0}),
    )  # fmt: skip
    assert state.paused_s == 3.5
    assert state.lost == 7
    assert state.rank_events_lost == {3: 2}
    assert state.healthy is False
    assert state.inprocess_restarts == 1
    assert state.limits == {"heartbeat": 90.0, "out_of_section": None}
    assert state.kinds["agent_paused"] == 2


def told(text: str, name: str = "checkpoint") -> e.AnyEvent:
    return at(1, e.RankEvent, rank=0, name=name, at_ns=1, text=text)


def test_which_ranks_of_this_node_are_slow_now() -> None:
    node = at(1, e.NodeChecked).node
    slow = [
        at(1, e.SlowRank, rank=rank, on=on, line="", slower=rank / 10)
        for rank, on in ((1, node), (2, node), (3, "another"))
    ]
    assert after(*slow).slow == {1: 0.1, 2: 0.2}
    over = at(2, e.SlowRank, rank=1, on=node, line="", over=True)
    assert after(*slow, over).slow == {2: 0.2}
    assert after(*slow, *begin(1000, 1)).slow == {}


def test_checkpoints_of_single_ranks() -> None:
    state = after(
        told("saved step=5 bytes=10 stall_s=0.5 write_s=1 total_s=2"),
        told("saved step=9 bytes=10 stall_s=0.25 write_s=1 total_s=2"),
        told("failed step=10 the disk is full: total_s=99"),
        told("loaded step=5 bytes=10 seconds=3.5"),
        told("deleted step=5"), told("saved step=1 stall_s=9", name="mine"),
    )  # fmt: skip
    assert state.checkpoints == {"saved": 2, "failed": 1, "loaded": 1}
    assert state.checkpoint_s == {"stall_s": 0.75, "total_s": 4.0, "seconds": 3.5}


def test_memory_is_bounded_for_a_journal_of_any_length() -> None:
    state = LaunchState(200)
    kept = []
    for number in range(100):
        for event in [
            *begin(1000 * number, number),
            at(1000 * number + 500, e.RoundStopped, number),
        ]:
            state.take(event)
        kept.append(len(state.rounds))
    assert kept[:5] == [1, 2, 3, 4, 5]
    assert kept[-1] == kept[-80] < 20
    assert not state.complete
    assert (state.number, state.current.stage, state.current.ranks) == (99, "stopped", [0, 1])
    assert state.kinds["round_started"] == 100


def test_one_round_that_is_too_large_is_cut_but_its_stage_is_right() -> None:
    many = [at(n, e.RankMilestone, 0, rank=n, name="first_line", at_ns=n) for n in range(300)]
    state = after(*many, at(400, e.RoundStopped, 0), most=100)
    assert len(state.rounds[0].passed) < 100
    assert not state.complete
    assert state.rounds[0].stage == "stopped"


def test_tables_that_outlive_their_rounds_are_bounded() -> None:
    state = LaunchState(20)
    for n in range(50):
        for event in (
            at(n, e.Verdict, rank=n, kind="crash", local_rank=0, pid=1, line=""),
            at(n, e.RankLost, rank=n, detail=""),
            at(n, e.RankEventsLost, rank=n, count=1),
            e.RoundBlamed(t=n, number=n, node="b", line=""),
            at(n, e.LimitsChanged, limits={f"section:{n}": 1.0}),
        ):
            state.take(event)
    state.take(at(50, e.LimitsChanged, limits={"section:0": 2.0}))
    tables = (state.blamed_ranks, state.rank_events_lost, state.blamed_nodes, state.limits)
    assert [len(table) for table in tables] == [20] * 4
    assert state.limits["section:0"] == 2.0


def test_a_copy_stays_as_it_is() -> None:
    state = after(*RUN)
    copy = state.copy()
    before = (summarize(copy), dict(copy.kinds))
    for event in [*RUN, at(9999, e.RankExited, 0, rank=0, pid=1)]:
        state.take(event)
    assert (summarize(copy), dict(copy.kinds)) == before
    assert len(state.rounds[0].exits) == 3 + len(copy.rounds[0].exits)


def test_a_copy_shares_the_rounds_that_do_not_change() -> None:
    state = after(*RUN)
    copy = state.copy()
    state.take(at(9999, e.RankExited, 2, rank=0, pid=1))
    assert state.rounds[0] is copy.rounds[0]
    assert state.rounds[2] is not copy.rounds[2]


def test_as_if_the_journal_had_been_written_until_now() -> None:
    state = after(*RUN[:2], *begin(10, 0))
    now = state.at(10_000 * MS, (7, 107, 10_000 * MS))
    assert account(now).total.total_ns == 9999 * MS
    assert account(now).goodput == pytest.approx(0.9955, abs=0.0001)
    assert (now.current.last_iteration, state.current.last_iteration) == (107, None)
    assert (now.until_ns, state.at(0).until_ns) == (10_000 * MS, state.until_ns)


@given(st.lists(st.sampled_from(RUN), max_size=40), st.integers(20, 60))
def test_events_in_any_order_are_taken(events: list[e.AnyEvent], most: int) -> None:
    for state in (LaunchState.of(events), LaunchState.of(events, most)):
        now = state.at(10**12, (0, 5, 10**11))
        assert account(now).total.total_ns == now.until_ns - now.began_ns
        summarize(now)
        assert state.current.stage in ("starting", "running", "failed", "stopping", "stopped")


@given(st.lists(st.sampled_from(RUN), max_size=40))
def test_all_events_at_once_give_the_same_as_each_alone(events: list[e.AnyEvent]) -> None:
    one_by_one = LaunchState()
    for event in events:
        one_by_one.take(event)
    assert _told(LaunchState.of(events)) == _told(one_by_one)


def _told(state: LaunchState) -> dict[str, object]:
    rounds = {number: vars(one) | {"done": 0} for number, one in state.rounds.items()}
    return vars(state) | {"rounds": rounds, "_kept": 0}


def test_each_stage_of_a_round() -> None:
    state = LaunchState.of(RUN[:2])
    stages = []
    for event in RUN[2:20]:
        state.take(event)
        stages.append(state.current.stage)
    seen = list(dict.fromkeys(stages))
    assert seen == ["starting", "running", "failed", "stopping", "stopped"]


def test_a_rank_that_was_replaced_runs() -> None:
    state = after(
        *RUN[:2],
        *begin(10, 0),
        at(30, e.RankExited, 0, rank=1, pid=101, exit_code=3),
        at(31, e.RankLost, 0, rank=1, detail="exit code 3"),
        at(32, e.RankReplaced, 0, rank=1, pid=109),
    )
    assert (state.current.pids, state.current.exit_of(1)) == ([100, 109], None)
    assert (state.failures_of(1), state.failures_of(0)) == (1, 0)


def test_a_node_that_is_blamed_is_not_this_one() -> None:
    blamed = e.RoundBlamed(t=1, node="other", number=0, line="oh")
    assert after(blamed, *RUN[:2]).node == "n0"


def test_who_was_blamed_last_in_a_round_has_ended_it() -> None:
    hang = e.RoundBlamed(t=30 * MS, round=0, number=0, node="a", line="rank 0 hangs")
    crash = e.RoundBlamed(t=90 * MS, round=0, number=0, node="b", line="exit code 1")
    assert after(*RUN[:2], *begin(10, 0), hang, crash).current.first(e.RoundBlamed) == crash


def test_a_late_verdict_is_not_of_this_round() -> None:
    late = at(2000, e.Verdict, 0, kind="crash", rank=1, local_rank=1, pid=1, line="late")
    state = after(*RUN[:2], *begin(10, 1), late)
    assert state.current.first(e.Verdict) is None
    assert state.failures_of(1) == 1


def test_restarts_that_were_ordered_and_one_that_was_taken_back() -> None:
    about = {"action": "restart", "reason": "", "by": "undaunted ctl (pid 7)"}
    ordered = [at(ms, e.Decision, ms, **about) for ms in (1, 2)]
    rounds = [event for number in range(1, 4) for event in begin(10 * number, number)]
    failed = at(3, e.Decision, 3, action="restart", reason="")
    assert after(*ordered, failed, *rounds).restarts_ordered == 2
    assert after(*ordered, *rounds[: len(rounds) // 3]).restarts_ordered == 0, "none followed"
    taken_back = at(4, e.Decision, 2, action="end", reason="")
    assert after(*ordered, taken_back, *rounds).restarts_ordered == 1


def test_restarts_inside_of_processes() -> None:
    detect = at(40, e.InProcessPhase, 0, call=0, epoch=1, phase="detect", reasons=["rank 1: oh"])
    again = at(50, e.InProcessPhase, 0, call=0, epoch=1, phase="re-enter", took_s=0.01, lost=[1])
    assert after(*begin(10, 0), detect).current.restarts_inside
    state = after(*begin(10, 0), detect, again)
    assert (state.inprocess_restarts, state.current.restarts_inside) == (1, False)
