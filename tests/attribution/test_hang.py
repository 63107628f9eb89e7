from __future__ import annotations

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.attribution.evidence import RankEvidence, format_full
from undaunted.attribution.flight.recording import Group, Recording, encode
from undaunted.attribution.hang import HangVerdict, RankObservation, judge, look, with_recording
from undaunted.progress.snapshot import PageSnapshot, Phase, SectionSnapshot

from .samples import IN_ALL_REDUCE, IN_LOAD_BATCH, SECOND, late, rank, sample, stack


def verdict(*ranks: RankEvidence, stacks: str = "") -> HangVerdict:
    return judge([seen_of(each) for each in ranks], stacks=stacks)


def seen_of(each: RankEvidence, node: str = "a", now_s: float = 102) -> RankObservation:
    return look(each, node=node, now_ns=int(now_s * SECOND))


def test_the_whole_line() -> None:
    ranks = [rank(n, expired=late()) for n in range(8) if n != 3]
    found = verdict(
        *ranks, rank(3, IN_LOAD_BATCH, expired=late()), stacks="runs/x/stacks-round0.txt"
    )
    assert found.line == (
        "rank 3 (node a, pid 4703) hangs: no heartbeat for 12.0 s (limit 10 s, "
        "--ft-rank-heartbeat-timeout) at iteration 118, in load_batch (train.py:7), sleeping; "
        "7 ranks wait for it in all_reduce; stacks: runs/x/stacks-round0.txt"
    )
    assert found.culprits == (3,)
    assert found.waiting == (0, 1, 2, 4, 5, 6, 7)
    assert found.certain
    assert (found.watch, found.age_s, found.limit_s) == ("heartbeat", 12.0, 10.0)
    assert found.limit_source == "--ft-rank-heartbeat-timeout"
    assert (found.iteration, found.frame) == (118, "load_batch (train.py:7)")


def test_a_rank_that_hangs_as_its_interpreter_shuts_down_is_said_to_leave() -> None:
    seen = rank(0, IN_LOAD_BATCH, expired=late(1801, 1800, watch="leaving"))
    page = dataclasses.replace(seen.page, phase=Phase.LEAVING, leaving_ns=1)
    found = verdict(dataclasses.replace(seen, page=page))
    assert "hangs: leaving (interpreter shutdown) for 30 min" in found.line
    assert found.line.count("leaving") == 1
    # Another one hangs: what this one does is said as well.
    found = verdict(dataclasses.replace(seen, page=page, expired=late()))
    assert found.line.count("leaving (interpreter shutdown)") == 1


def test_ranks_that_wait_to_print_are_not_to_blame() -> None:
    full = [
        dataclasses.replace(rank(n, IN_LOAD_BATCH, expired=late()), prints="standard output")
        for n in range(2)
    ]
    found = verdict(*full, rank(2, expired=late()))
    assert found.line.startswith("ranks 0-1 (node a) wait to print")
    assert "no rank is to blame" in found.line
    assert not found.known
    # One that is stopped is another matter.
    found = verdict(*full, rank(2, None, expired=late(), state="T"))
    assert found.culprits == (2,)
    assert "print" not in found.line


def test_a_rank_within_its_limits_is_to_blame_if_all_others_wait() -> None:
    found = verdict(rank(0, expired=late()), rank(1, IN_LOAD_BATCH))
    assert found.culprits == (1,)
    assert found.waiting == (0,)
    assert not found.certain
    assert found.line == (
        "rank 1 (node a, pid 4701) most likely hangs: sleeping at iteration 118, in load_batch "
        "(train.py:7); 1 rank waits for it in all_reduce, no heartbeat for 12.0 s "
        "(limit 10 s, --ft-rank-heartbeat-timeout)"
    )
    assert found.watch == "heartbeat"  # of the rank that raised the alarm


def test_a_healthy_rank_is_not_blamed_for_working() -> None:
    working = rank(0, IN_LOAD_BATCH, iteration=500)
    found = verdict(working, rank(1, IN_LOAD_BATCH, expired=late()))
    assert found.culprits == (1,)
    assert found.certain


def test_a_rank_that_stopped_at_the_same_time_is_suspect_before_its_limit() -> None:
    """The victim waits in a place without a Python frame; both went silent together."""
    victim = rank(0, sample("asyncwait-rank0"), iteration=118, expired=late())
    cause = rank(1, IN_LOAD_BATCH, iteration=117, heartbeat_s=90.1)
    found = verdict(victim, cause)
    assert found.culprits == (1,)
    assert not found.certain
    assert "most likely" in found.line


@pytest.mark.parametrize("state", ["T", "t"])
def test_stopped_beats_everything(state: str) -> None:
    found = verdict(
        rank(0, IN_LOAD_BATCH, expired=late(), iteration=5),
        rank(1, None, expired=late(), reason="it did not answer"),
        rank(2, IN_ALL_REDUCE, expired=late(), state=state),
    )
    assert found.culprits == (2,)
    assert "stopped by a" in found.line


def test_a_stopped_rank_in_all_reduce_is_no_victim() -> None:
    found = verdict(rank(0, expired=late()), rank(1, IN_ALL_REDUCE, state="T", expired=late()))
    assert found.culprits == (1,)
    assert found.waiting == (0,)


def test_no_answer_beats_code_outside_of_communication() -> None:
    found = verdict(
        rank(0, IN_LOAD_BATCH, expired=late()),
        rank(1, None, state="D", expired=late(), reason="it did not answer"),
    )
    assert found.culprits == (1,)
    assert "in uninterruptible sleep (disk or driver), no stack (it did not answer)" in found.line


def test_a_rank_that_ended_is_missing() -> None:
    found = verdict(rank(0, expired=late()), rank(1, None, state="", reason="it had ended"))
    assert found.culprits == (1,)
    assert "rank 1 (node a, pid 4701) most likely is missing: ended at iteration 118;" in found.line


LEFT = {"stacks": None, "state": "", "reason": "it had ended"}


def left(number: int, iteration: int, exit_code: int = 0) -> RankEvidence:
    return dataclasses.replace(rank(number, iteration=iteration, **LEFT), exit_code=exit_code)


@pytest.mark.parametrize("stacks", [IN_ALL_REDUCE, IN_LOAD_BATCH])
def test_ranks_that_wait_for_one_that_has_left_are_not_blamed(stacks: str) -> None:
    """In communication, or where several are at one spot: waiting may have no frame of Python."""
    found = verdict(
        rank(0, stacks, expired=late()), left(1, 5), rank(2, stacks, expired=late()), left(3, 7)
    )
    assert (found.culprits, found.waiting) == ((1, 3), (0, 2))
    assert found.certain
    assert found.cause == "unequal_work"
    assert "ended with 0 at iteration 5, 7; ranks 0,2 wait for them" in found.line
    assert "limit 10 s" in found.line


def test_a_rank_that_hangs_alone_after_others_have_left_is_blamed() -> None:
    """It may save for ever after the last step, as the others had nothing to save."""
    found = verdict(rank(0, IN_LOAD_BATCH, expired=late()), left(1, 118), left(2, 118))
    assert (found.culprits, found.cause) == ((0,), "")
    assert "hangs" in found.line
    assert "ranks 1-2 ended with 0 at iteration 118 before" in found.line


def test_a_rank_that_was_stopped_is_blamed_though_another_has_left() -> None:
    ranks = [rank(0, expired=late()), rank(1, IN_ALL_REDUCE, state="T", expired=late())]
    found = verdict(*ranks, left(2, 5))
    assert (found.culprits, found.cause) == ((1,), "")


@pytest.mark.parametrize("code", [1, -9])
def test_a_rank_that_failed_has_not_left(code: int) -> None:
    found = verdict(rank(0, expired=late()), left(1, 5, code))
    assert found.cause == ""
    assert "ended with 0" not in found.line


def test_lagging_ranks_are_more_suspect() -> None:
    found = verdict(
        rank(0, IN_LOAD_BATCH, expired=late(), iteration=119),
        rank(1, sample("loader-rank1"), expired=late(), iteration=118),
    )
    assert found.culprits == (1,)
    assert not found.certain
    assert "waiting for the DataLoader" in found.line


def test_several_suspects_are_all_named_the_first_late_one_foremost() -> None:
    found = verdict(
        rank(0, expired=late()),
        rank(1, IN_LOAD_BATCH, expired=late(at_s=101)),
        rank(2, IN_LOAD_BATCH, expired=late(at_s=100)),
    )
    assert found.culprits == (2, 1)
    assert "rank 2 (node a, pid 4702) most likely hangs" in found.line
    assert "rank 1 just as suspect; 1 rank waits for them" in found.line


def test_the_odd_one_out_where_waiting_has_no_python_frame() -> None:
    """With NCCL ranks wait for their device in .item(), which looks like the user's own line."""
    at_item = stack("/home/user/train.py:88:train")
    ranks = [rank(n, at_item, state="R", expired=late()) for n in range(7)]
    found = verdict(*ranks, rank(7, IN_LOAD_BATCH, expired=late()))
    assert found.culprits == (7,)
    assert found.waiting == tuple(range(7))
    assert not found.certain
    assert "7 ranks wait for it in train (train.py:88)" in found.line


def test_all_in_the_same_line_of_user_code_are_all_suspect() -> None:
    found = verdict(*[rank(n, IN_LOAD_BATCH, expired=late()) for n in range(4)])
    assert found.culprits == (0, 1, 2, 3)
    assert found.waiting == ()


def test_all_wait_and_one_lags() -> None:
    found = verdict(rank(0, expired=late()), rank(1, expired=late(), iteration=117))
    assert found.culprits == (1,)
    assert found.waiting == (0,)
    assert "most likely hangs" in found.line
    assert "waiting in all_reduce" in found.line


def test_all_wait_but_one_in_another_operation() -> None:
    found = verdict(
        rank(0, expired=late()),
        rank(1, sample("barrier-rank0"), expired=late()),
        rank(2, expired=late()),
    )
    assert found.culprits == (1,)
    assert found.waiting == (0, 2)
    assert "waiting in barrier" in found.line


def test_all_wait_in_the_same_place_and_the_line_does_not_pretend() -> None:
    found = verdict(*[rank(n, expired=late()) for n in range(4)], stacks="s.txt")
    assert found.culprits == (0,)
    assert not found.certain
    assert found.line == (
        "ranks 0-3 (node a) hang: waiting in all_reduce at iteration 118, no heartbeat for 12.0 s "
        "(limit 10 s, --ft-rank-heartbeat-timeout); no rank of this node is known to be the cause "
        "(a rank of another node, the network or a device may be); stacks: s.txt"
    )


def test_a_single_rank_that_waits() -> None:
    found = verdict(rank(0, expired=late()))
    assert found.line.startswith("rank 0 (node a, pid 4700) hangs: waiting in all_reduce")


@pytest.mark.parametrize(
    ("watch", "words"),
    [
        ("initial heartbeat", "no first heartbeat for 12.0 s (limit 10 s, configured)"),
        ("section", "section 'eval' open for 12.0 s (limit 10 s, configured)"),
        ("outside sections", "outside of sections for 12.0 s (limit 10 s, configured)"),
    ],
)
def test_every_kind_of_limit(watch: str, words: str) -> None:
    assert words in verdict(rank(0, IN_LOAD_BATCH, expired=late(watch=watch))).line


def test_long_limits_are_readable_and_iterations_may_be_unknown() -> None:
    expired = late(2701, 2700)
    line = verdict(rank(0, IN_LOAD_BATCH, iteration=None, expired=expired)).line
    assert "no heartbeat for 45 min 01 s (limit 45 min 00 s" in line
    assert "iteration" not in line


def test_names_from_the_program_cannot_break_the_line() -> None:
    nasty = stack("/home/user/a\x1b[31mb.py:1:f\x1b[2J")
    line = verdict(rank(0, nasty, expired=late()), stacks="s.txt").line
    assert line.isprintable()
    long = stack(f"/home/user/{'x' * 900}.py:1:f")
    assert verdict(rank(0, long, expired=late()), stacks="s.txt").line.endswith("; stacks: s.txt")


def test_full_evidence() -> None:
    page = PageSnapshot(iteration=3, sections={"eval": SectionSnapshot("eval", open_since_ns=1)})
    ranks = [
        dataclasses.replace(rank(0, expired=late(watch="section")), page=page),
        rank(1, None, state="T", reason="it did not answer"),
        dataclasses.replace(rank(2, None), page=PageSnapshot(problem="wrong version 9")),
    ]
    text = format_full(ranks, line="the verdict")
    assert text.startswith(
        "the verdict\n\nrank 0 (local rank 0, pid 4700); sleeping; iteration 3; "
    )
    assert "in train_step (train.py:9); waits in all_reduce; open sections: eval" in text
    assert "stopped by a signal" in text
    assert "(none: it did not answer)" in text
    assert "page unreadable: wrong version 9" in text
    assert 'distributed_c10d.py", line 3252 in all_reduce' in text


class TestRanksOfAllNodes:
    """Each node says what it has seen; ages, since their clocks differ."""

    def test_the_one_that_others_wait_for_is_named_with_its_node(self) -> None:
        on_a = [seen_of(rank(n, expired=late()), now_s=102) for n in (0, 1)]
        on_b = [
            seen_of(rank(2, IN_LOAD_BATCH, expired=late(at_s=5007), heartbeat_s=5000), "b", 5008),
            seen_of(rank(3, expired=late(at_s=5007)), "b", 5008),
        ]
        found = judge([*on_a, *on_b], whole_job=True)
        assert (found.culprits, found.waiting, found.certain) == ((2,), (0, 1, 3), True)
        assert found.line.startswith("rank 2 (node b, pid 4702) hangs: no heartbeat for 12.0 s")
        assert "in load_batch (train.py:7)" in found.line
        assert "3 ranks on nodes a and b wait for it in all_reduce" in found.line

    def test_one_that_is_within_its_limit_by_a_little_is_late_too(self) -> None:
        victim = seen_of(rank(0, sample("asyncwait-rank0"), iteration=118, expired=late()))
        cause = seen_of(rank(1, IN_LOAD_BATCH, iteration=117, heartbeat_s=7.4), "b", now_s=19)
        assert judge([victim, cause], whole_job=True).culprits == (1,)
        working = seen_of(rank(1, IN_LOAD_BATCH, iteration=117, heartbeat_s=18.9), "b", now_s=19)
        assert judge([victim, working], whole_job=True).culprits == (0,)

    def test_if_all_wait_no_other_node_is_suspected(self) -> None:
        found = judge(
            [seen_of(rank(n, expired=late()), n * "b" or "a") for n in (0, 1)], whole_job=True
        )
        assert not found.known
        assert "no rank is known to be the cause" in found.line
        assert "another node" not in found.line

    def test_many_ranks_are_judged_at_once(self) -> None:
        ranks = [seen_of(rank(n, expired=late()), f"n{n // 8}") for n in range(4096) if n != 7]
        found = judge([*ranks, seen_of(rank(7, IN_LOAD_BATCH), "n0")], whole_job=True)
        assert found.culprits == (7,)
        assert "4095 ranks on 512 nodes wait for it" in found.line


STACKS = [IN_ALL_REDUCE, IN_LOAD_BATCH, sample("barrier-rank0"), "", "garbage", None]


@st.composite
def anything(draw: st.DrawFn) -> list[RankEvidence]:
    count = draw(st.integers(1, 6))
    return [
        rank(
            number,
            draw(st.sampled_from(STACKS)),
            state=draw(st.sampled_from(["R", "S", "D", "T", "t", "Z", "X", "", "I", "?"])),
            iteration=draw(st.none() | st.integers(0, 3)),
            expired=draw(st.sampled_from([(), late(), late(at_s=90)])),
            heartbeat_s=draw(st.sampled_from([None, 89.0, 99.0])),
        )
        for number in range(count)
    ]


@given(anything())
def test_every_evidence_gets_a_verdict_that_holds_together(ranks: list[RankEvidence]) -> None:
    seen = [seen_of(each) for each in ranks]
    found = judge(seen)
    assert found.suspects
    assert len(set(found.culprits)) == len(found.culprits)
    assert not set(found.culprits) & set(found.waiting)
    assert found.line.isprintable()
    stopped = {e.rank for e in ranks if e.stopped and e.expired}
    if stopped:
        assert set(found.culprits) <= {e.rank for e in ranks if e.stopped}
    assert judge(list(reversed(seen))).culprits == found.culprits
    assert judge(seen, whole_job=True).line.isprintable()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(seen), type=list[RankObservation]) == seen
    assert format_full(ranks)


class TestWithRecordings:
    """What torch's Flight Recorder knows is compared with what stacks show."""

    def of(
        self, number: int, enqueued: int, oldest: int = -1, text: str = IN_ALL_REDUCE
    ) -> RankObservation:
        group = Group("0", "default_pg", enqueued=enqueued, oldest=oldest, order=enqueued)
        recording = encode(Recording(number, (group,), world_size=3))
        seen = seen_of(rank(number, text, expired=late()))
        return with_recording(seen, {seen.pid: recording})

    def test_the_cause_is_known_and_where_it_shows(self) -> None:
        lags = self.of(2, 5, text=IN_LOAD_BATCH)
        found = judge([self.of(0, 6, 6), self.of(1, 6, 6), lags], whole_job=True)
        assert (found.culprits, found.cause) == ((2,), "host_lag")
        assert "number 6 of group 0 (default_pg)" in found.line

    def test_who_is_behind_is_to_blame_where_all_wait(self) -> None:
        found = judge([self.of(0, 6, 6), self.of(1, 6, 6), self.of(2, 5)], whole_job=True)
        assert (found.culprits, found.known) == ((2,), True)
        assert found.waiting == (0, 1)

    def test_a_rank_that_waits_and_had_no_time_to_answer_is_not_blamed(self) -> None:
        late_one = seen_of(rank(2, IN_ALL_REDUCE, expired=late()))
        silent = with_recording(late_one, {late_one.pid: None})
        found = judge([self.of(0, 6, 6), self.of(1, 6, 6), silent], whole_job=True)
        assert not found.known

    def test_ranks_that_are_not_seen_are_on_other_nodes(self) -> None:
        found = judge([self.of(0, 6, 6), self.of(1, 6, 6)])
        assert not found.known

    def test_a_rank_that_does_not_answer_holds_its_interpreter(self) -> None:
        seen = seen_of(rank(0, IN_LOAD_BATCH, expired=late()))
        silent = with_recording(seen, {seen.pid: None})
        assert "its interpreter does not answer" in judge([silent]).line
        assert with_recording(seen, {}) == seen
        assert with_recording(seen, {seen.pid: b"garbage"}) == seen


BEHIND = "it has launched 60 operations, others 64"


def told_by_nccl(seen: RankObservation, said: str = BEHIND) -> RankObservation:
    return msgspec.structs.replace(seen, nccl=said)


def test_where_all_wait_nccl_tells_who_is_behind() -> None:
    waiting = [seen_of(rank(n, expired=late())) for n in range(4)]
    waiting[2] = told_by_nccl(waiting[2])
    found = judge(waiting)
    assert (found.culprits, found.known, found.certain) == ((2,), True, False)
    assert found.cause == "host_lag"
    assert found.waiting == (0, 1, 3)
    assert BEHIND in found.line


def test_nccl_agrees_with_stacks() -> None:
    waiting = [seen_of(rank(n, expired=late())) for n in range(3)]
    busy = [seen_of(rank(n, IN_LOAD_BATCH, expired=late())) for n in (3, 4)]
    found = judge([*waiting, busy[0], told_by_nccl(busy[1])])
    assert found.culprits == (4,)
    assert BEHIND in found.line


def test_stacks_that_are_sure_count_more_than_nccl() -> None:
    """The counts of NCCL may have been asked for while a rank was on its way."""
    waiting = [told_by_nccl(seen_of(rank(n, expired=late()))) for n in range(3)]
    found = judge([*waiting, seen_of(rank(3, IN_LOAD_BATCH, expired=late()))])
    assert found.culprits == (3,)
    assert found.certain
