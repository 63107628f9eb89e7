from __future__ import annotations

import dataclasses
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.attribution.crash import CrashVerdict, Origin, RankFailure, judge, origin_of
from undaunted.attribution.error_file import ErrorReport
from undaunted.progress.snapshot import ErrorRecord

from .samples import sample

PEER_LOST = sample("peer-lost-traceback")
TRACEBACK = """\
Traceback (most recent call last):
  File "/home/user/train.py", line 42, in load_batch
    raise ValueError("bad batch 17")
ValueError: bad batch 17
"""
GLOO = "[/x/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:75: Connection reset by peer"


def error(kind: str, message: str, at_ns: int, traceback: str = "") -> ErrorRecord:
    return ErrorRecord(at_ns=at_ns, type=kind, message=message, traceback=traceback, pid=1)


def failure(number: int, at_ns: int = 1000, **fields: object) -> RankFailure:
    given_fields = {"rank": number, "local_rank": number, "pid": 4700 + number, "at_ns": at_ns}
    return RankFailure(**{**given_fields, **fields})  # type: ignore[arg-type]


def verdict(*failures: RankFailure) -> CrashVerdict:
    return judge(failures, node="a")


def victim(number: int, at_ns: int) -> RankFailure:
    record = error("RuntimeError", GLOO, at_ns, PEER_LOST)
    return failure(number, at_ns + 50, exit_code=1, error=record)


def test_an_exception() -> None:
    record = error("ValueError", "bad batch 17", 900, TRACEBACK)
    found = verdict(failure(1, exit_code=1, error=record, iteration=30, fault="exception-1"))
    assert found.line == (
        "rank 1 (node a, pid 4701) failed: ValueError: bad batch 17, at iteration 30, "
        "in load_batch (train.py:42); injected fault exception-1"
    )
    assert found.exception == "ValueError: bad batch 17"
    assert found.traceback == TRACEBACK
    assert found.frame == "load_batch (train.py:42)"
    assert found.certain


FRAME = '  File "/site-packages/torch/utils/data/_utils/fetch.py", line 54, in fetch\n    x\n'


@pytest.mark.parametrize("frames", [1, 20])
def test_an_exception_of_a_loaders_worker_is_told_by_its_own_words(frames: int) -> None:
    message = (
        "Caught FileNotFoundError in DataLoader worker process 1.\n"
        f"Original Traceback (most recent call last):\n{FRAME * frames}"
        "FileNotFoundError: /data/shard-0011.tar: No such file\n"
    )
    record = error("FileNotFoundError", message, 900, TRACEBACK)
    line = verdict(failure(1, exit_code=1, error=record)).line
    assert "in DataLoader worker process 1" in line
    assert "/data/shard-0011.tar: No such file" in line
    assert "fetch.py" not in line


def test_a_save_of_torch_that_failed_on_one_rank_is_told_by_its_words() -> None:
    kind = "torch.distributed.checkpoint.api.CheckpointException"
    message = (
        "CheckpointException ranks:dict_keys([1])\n"
        f"Traceback (most recent call last): (RANK 1)\n{FRAME}"
        "OSError: [Errno 28] No space left on device\n"
    )
    both = [
        failure(rank, 900 + rank, exit_code=1, error=error(kind, message, 900 + rank, TRACEBACK))
        for rank in (0, 1)
    ]
    found = verdict(*both)
    assert (found.root.rank, found.victims) == (1, (0,))
    assert "failed: OSError: [Errno 28] No space left on device, in" in found.line


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"signal": 9}, True),
        ({"signal": 9, "fault": "sigkill-1"}, False),
        ({"signal": 15, "told": ((15, 950),), "error": error("ValueError", "x", 900)}, False),
        ({"error": error("MemoryError", "", 900), "exit_code": 1}, True),
        ({"error": error("ValueError", "x", 900), "exit_code": 1}, False),
        ({"exit_code": 3}, False),
    ],
)
def test_memory_is_told_where_it_may_be_the_cause(fields: dict[str, object], told: bool) -> None:
    line = verdict(failure(1, peak_bytes=3 << 29, **fields)).line
    assert ("; peak memory 1.50 GiB" in line) is told


def test_an_injected_signal_is_nobody_elses() -> None:
    line = verdict(failure(1, signal=9, fault="sigkill-1")).line
    assert "injected fault sigkill-1" in line
    assert "scheduler" not in line


def test_ranks_that_the_launcher_has_ended_as_its_agent_stood_still_are_no_others_work() -> None:
    found = verdict(failure(1, signal=9, told=((9, 990),), outlived=True))
    assert "stood still" in found.line
    assert "scheduler" not in found.line
    assert not found.certain


def test_the_error_file_serves_where_the_page_holds_nothing() -> None:
    report = ErrorReport("ValueError: bad batch 17", TRACEBACK)
    found = verdict(failure(1, exit_code=1, report=report))
    assert found.exception == "ValueError: bad batch 17"
    assert "in load_batch (train.py:42)" in found.line


def test_the_killed_rank_is_the_cause_although_its_victims_spoke_first() -> None:
    found = verdict(victim(0, 100), failure(1, 500, signal=signal.SIGKILL), victim(2, 90))
    assert found.root.rank == 1
    assert found.victims == (0, 2)
    assert found.signal == "SIGKILL"
    assert found.line == (
        "rank 1 (node a, pid 4701) was killed by SIGKILL (not sent by this launcher: a person, the "
        "scheduler or the out-of-memory killer); ranks 0,2 failed because a peer had failed"
    )


def test_all_ranks_that_were_killed_are_named() -> None:
    killed = [failure(rank, 500 + rank, signal=signal.SIGKILL) for rank in (0, 1, 3)]
    found = verdict(victim(2, 90), *killed)
    assert found.root.rank == 0
    assert "; 3 ranks of this node were killed by SIGKILL (ranks 0-1,3), which" in found.line
    assert "out-of-memory killer" in found.line
    ended = [failure(rank, 500, signal=signal.SIGTERM) for rank in (0, 1)]
    assert verdict(*ended).line.endswith("killed by SIGTERM (ranks 0-1)")


@pytest.mark.parametrize(
    "other",
    [
        {"signal": signal.SIGKILL, "told": ((signal.SIGKILL, 300),)},  # by this launcher
        {"signal": signal.SIGSEGV},
        {"exit_code": 1},
    ],
)
def test_a_rank_that_ended_otherwise_is_not_said_to_be_killed(other: dict[str, object]) -> None:
    found = verdict(failure(0, 100, signal=signal.SIGKILL), failure(1, 500, **other))
    assert "of this node were killed" not in found.line


def test_the_first_failure_of_its_own_is_the_cause() -> None:
    first = failure(2, 900, exit_code=1, error=error("KeyError", "'x'", 100, TRACEBACK))
    second = failure(1, 200, exit_code=3)
    assert verdict(second, first, victim(0, 50)).root.rank == 2


def teller(number: int, at_ns: int, **fields: object) -> RankFailure:
    """A rank that says what rank 1 has failed with."""
    kind, text = "undaunted.checkpointing.errors.SaveError", "save 3 (step 30): rank 1: disk full"
    record = error(kind, text, at_ns, TRACEBACK)
    return failure(number, at_ns + 50, exit_code=1, error=record, **fields)


STOPPED = ((signal.SIGTERM, 110),)


@pytest.mark.parametrize(
    "ended",
    [
        {"at_ns": 120, "signal": signal.SIGTERM, "told": STOPPED},
        {"at_ns": 120, "exit_code": 1, "error": error("RuntimeError", GLOO, 105, PEER_LOST)},
    ],
)
def test_what_its_peers_say_of_a_rank_is_its_own_failure(ended: dict[str, object]) -> None:
    found = verdict(teller(0, 100), failure(1, iteration=39, **ended), teller(2, 101))  # type: ignore[arg-type]
    assert (found.root.rank, found.victims, found.certain) == (1, (0, 2), True)
    assert found.line == (
        "rank 1 (node a, pid 4701) failed: undaunted.checkpointing.errors.SaveError: save 3 "
        "(step 30): rank 1: disk full, at iteration 39, in load_batch (train.py:42); "
        "ranks 0,2 failed because a peer had failed"
    )
    assert found.traceback == TRACEBACK


def test_what_a_rank_says_itself_counts_more_than_what_its_peers_say() -> None:
    own = failure(1, 500, exit_code=1, error=error("ValueError", "bad batch", 300, TRACEBACK))
    assert verdict(teller(0, 100), own).exception == "ValueError: bad batch"
    assert verdict(teller(0, 100), teller(1, 300)).root.rank == 1
    assert verdict(teller(0, 100), failure(2, 90, exit_code=3)).root.rank == 2


def test_what_a_rank_of_another_node_has_failed_with() -> None:
    found = verdict(teller(0, 100), teller(2, 90))
    assert (found.root.rank, found.victims, found.certain) == (2, (0,), False)
    assert "rank 1: disk full" in found.line
    assert "the cause may be on another node" in found.line


def test_an_unknown_error_inside_a_collective_is_doubted() -> None:
    odd = error("RuntimeError", "collective went wrong", 100, PEER_LOST)
    unknown = failure(0, 110, exit_code=1, error=odd)
    assert verdict(unknown, failure(1, 500, exit_code=9)).root.rank == 1
    alone = verdict(unknown, victim(2, 50))
    assert (alone.root.rank, alone.certain) == (0, True)


def test_a_wrong_argument_to_a_collective_is_the_ranks_own_fault() -> None:
    wrong = error("ValueError", "tensor list is empty", 100, PEER_LOST)
    assert origin_of(failure(0, error=wrong)) == Origin.OWN


def test_only_victims_here() -> None:
    found = verdict(victim(0, 100), victim(1, 90))
    assert found.root.rank == 1
    assert found.victims == (0,)
    assert not found.certain
    assert "no rank of this node failed first: the cause may be on another node" in found.line


def test_what_we_ended_ourselves_is_not_the_cause() -> None:
    told = ((signal.SIGTERM, 200),)
    ended = failure(0, 300, signal=signal.SIGTERM, told=told)
    cleanup = failure(2, 310, exit_code=1, told=told, error=error("OSError", "closed", 250))
    late_cause = failure(1, 400, exit_code=1, told=told, error=error("KeyError", "'x'", 150))
    found = verdict(ended, cleanup, late_cause)
    assert found.root.rank == 1
    assert found.victims == ()
    assert verdict(ended).root.rank == 0


def test_a_rank_that_was_ended_for_its_hang_was_not_ended_by_somebody() -> None:
    ended = failure(3, 1000, signal=signal.SIGTERM, killed="it has not turned (hard timeout)")
    found = verdict(ended, victim(0, 1500))
    assert found.root.rank == 3
    assert "hung and was ended: it has not turned (hard timeout)" in found.line
    assert "SIGTERM" not in found.line


def test_who_has_only_lost_a_rank_that_ended_with_0_is_told_so() -> None:
    lost = [failure(1, error=error("RuntimeError", GLOO, 100, PEER_LOST))]
    found = judge(lost, node="a", finished=[5, 2], whole_job=True)
    assert not found.certain
    assert "ranks 2,5 had ended with 0" in found.line
    assert found.cause == "unequal_work"
    alone = judge(lost, node="a", whole_job=True)
    assert "another node" not in found.line + alone.line
    assert alone.cause == ""


def test_a_download_that_lost_its_server_is_no_lost_peer() -> None:
    lost = error("ConnectionResetError", "[Errno 104] Connection reset by peer", 100, TRACEBACK)
    assert origin_of(failure(0, error=lost)) == Origin.OWN
    in_store = error("ConnectionResetError", "[Errno 104] Connection reset by peer", 100, PEER_LOST)
    assert origin_of(failure(0, error=in_store)) == Origin.PEER_LOST


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("RuntimeError", GLOO),
        ("RuntimeError", "Timed out waiting 1800000ms for recv operation to complete"),
        ("torch.distributed.DistBackendError", "NCCL error in: x, ncclRemoteError: A call failed"),
        ("DistNetworkError", "anything"),
        ("RuntimeError", "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)"),
        ("RuntimeError", "failed to recv, got 0 bytes"),
        ("RuntimeError", "Rank 1 failed to pass monitoredBarrier in 100 ms"),
    ],
)
def test_messages_of_lost_peers(kind: str, message: str) -> None:
    assert origin_of(failure(0, error=error(kind, message, 1))) == Origin.PEER_LOST


def test_last_lines_tell_why_native_code_aborted() -> None:
    lines = "To avoid data inconsistency, we are taking the entire process down."
    assert origin_of(failure(0, signal=6, last_lines=lines)) == Origin.PEER_LOST
    assert origin_of(failure(0, signal=6, last_lines="Assertion failed")) == Origin.OWN


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"signal": 9, "oom_kills": 1}, "most likely the kernel's out-of-memory killer"),
        ({"signal": 9}, "was killed by SIGKILL (not sent by this launcher"),
        ({"signal": 7}, "was killed by SIGBUS (often /dev/shm is full"),
        ({"signal": 11, "oom_kills": 1}, "was killed by SIGSEGV (invalid memory access"),
        ({"signal": 6}, "was killed by SIGABRT (native code gave up"),
        ({"signal": 40}, "was killed by SIGRTMIN+6"),
        ({"signal": 33}, "was killed by signal 33"),
        ({"exit_code": 7}, "exited with code 7"),
        ({"exit_code": 126}, "exited with code 126 (found, but not executable)"),
        ({"exit_code": 127}, "exited with code 127 (command not found)"),
        ({"exit_code": 137}, "code 137 (as shells report a death by SIGKILL)"),
        ({}, "rank 0 (node a, pid 4700) failed"),
    ],
)
def test_ends_in_words(fields: dict[str, int], words: str) -> None:
    assert words in verdict(failure(0, **fields)).line


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"signal": 9, "oom_kills": 1}, "host_out_of_memory"),
        ({"signal": 9}, ""),
        ({"signal": 11, "oom_kills": 1}, ""),
        ({"signal": 9, "oom_kills": 1, "error": error("ValueError", "bad", 1)}, ""),
    ],
)
def test_the_cause_of_who_was_killed_for_memory(fields: dict[str, object], cause: str) -> None:
    assert verdict(failure(0, **fields)).cause == cause


def test_a_rank_on_its_way_out_with_an_exit_code() -> None:
    leaving = failure(1, 500, error=error("SystemExit", "7", 100, TRACEBACK))
    found = verdict(victim(0, 150), leaving)
    assert "rank 1 (node a, pid 4701) exited with code 7" in found.line
    assert (found.exception, found.traceback, found.victims) == ("", "", (0,))
    negative = failure(1, error=error("SystemExit", "-1", 100, TRACEBACK))
    assert negative.code == 255


def test_a_message_in_the_place_of_an_exit_code() -> None:
    found = verdict(failure(1, 500, error=error("SystemExit", "no\nconfig", 100, TRACEBACK)))
    frame = found.line.partition(", in ")[2]
    assert found.line == f"rank 1 (node a, pid 4701) exited with code 1: no config, in {frame}"
    assert (bool(frame), found.exception, found.traceback) == (True, "SystemExit: no\nconfig", "")
    empty = failure(1, error=error("SystemExit", "", 100))
    assert verdict(empty).line == "rank 1 (node a, pid 4701) exited with code 1"


def test_a_rank_that_was_leaving_is_not_taken_for_killed_by_others() -> None:
    hurried = failure(
        1,
        500,
        signal=signal.SIGTERM,
        told=((signal.SIGTERM, 200),),
        error=error("SystemExit", "3", 100),
    )
    found = verdict(failure(0, 600, exit_code=3, error=error("SystemExit", "3", 150)), hurried)
    assert found.line == "rank 1 (node a, pid 4701) exited with code 3"
    assert (found.signal, found.root.code) == ("", 3)
    by_another = dataclasses.replace(hurried, signal=signal.SIGSEGV)
    assert "was killed by SIGSEGV" in verdict(by_another).line


def test_long_and_nasty_messages_stay_one_line() -> None:
    found = verdict(failure(0, error=error("ValueError", "a\nb\x1b[2J" * 500, 1)))
    assert found.line.isprintable()
    assert len(found.line) < 600


failures = st.lists(
    st.builds(
        failure,
        st.integers(0, 9),
        st.integers(0, 9),
        signal=st.none() | st.integers(1, 64),
        exit_code=st.none() | st.integers(0, 255),
        told=st.just(()) | st.tuples(st.tuples(st.just(15), st.integers(0, 9))),
        error=st.none() | st.builds(error, st.text(), st.text(), st.integers(0, 9), st.text()),
        last_lines=st.text() | st.just(GLOO),
        oom_kills=st.integers(0, 2),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda each: each.rank,
)


@given(failures)
def test_every_set_of_failures_has_a_cause(found: list[RankFailure]) -> None:
    decided = judge(found, node="a")
    assert decided.root in found
    assert decided.root.rank not in decided.victims
    assert decided.line.isprintable()
    assert judge(list(reversed(found)), node="a") == decided


def test_a_rank_killed_by_others_and_told_before_that_was_seen_is_the_cause() -> None:
    failures = [
        RankFailure(0, 0, 10, at_ns=50, told=((15, 30),), error=None, signal=15),
        RankFailure(1, 1, 11, at_ns=40, told=((15, 30),), signal=9),
    ]
    verdict = judge(failures, node="a")
    assert (verdict.root.rank, verdict.certain) == (1, True)
    ours = RankFailure(1, 1, 11, at_ns=40, told=((15, 30), (9, 35)), signal=9)
    assert not judge([failures[0], ours], node="a").certain
