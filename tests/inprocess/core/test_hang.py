"""Which rank is to blame when an epoch is stopped for a soft timeout."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from undaunted.attribution.flight.recording import Group, Recording
from undaunted.attribution.hang import RankObservation, Standing
from undaunted.inprocess.core import hang
from undaunted.inprocess.core import messages as m

ENTER = m.Enter(0, 1, 4, 101, "n0", m.Limits(soft_timeout=10.0))


def evidence(rank: int, standing: Standing, *, assigned: int | None = None, **seen: Any) -> Any:
    expired = hang.expired(10.5, 10.0)
    one = RankObservation(rank, "n0", 100 + rank, standing, heard_s=10.5, expired=expired, **seen)
    assigned = rank if assigned is None else assigned
    return m.Evidence(0, rank, 0, assigned, msgspec.msgpack.encode(one))


def waits(rank: int, **seen: Any) -> Any:
    return evidence(rank, Standing.WAITING, waits_in="all_reduce", **seen)


def silent(state: str) -> m.Evidence:
    return m.Evidence(0, 1, 0, 1, hang.no_answer(ENTER, state, 11.5))


@pytest.mark.parametrize(
    "culprit",
    [
        evidence(1, Standing.BUSY, frame="load (train.py:7)"),
        evidence(1, Standing.ENDED),
        silent("S"),
        silent("T"),
    ],
)
def test_who_does_something_else_than_wait(culprit: m.Evidence) -> None:
    reason, waiting = hang.blame([waits(0), culprit, waits(2), waits(3)])
    assert reason is not None
    assert (reason.kind, reason.job_rank, reason.rank) == ("SOFT_TIMEOUT", 1, 1)
    assert reason.named
    assert waiting == {0, 2, 3}


def test_that_a_process_is_stopped_is_said() -> None:
    reason, _ = hang.blame([waits(0), silent("T")])
    assert reason is not None
    assert "stopped by a signal" in reason.text


def test_where_all_wait_nobody_is_known_to_wait_for_another() -> None:
    reason, waiting = hang.blame([waits(0), waits(1)])
    assert reason is not None
    assert reason.named
    assert waiting == frozenset()


def recording(rank: int, number: int) -> Recording:
    group = Group("0", members=((0, 3, 1),), enqueued=number, oldest=number, order=number)
    return Recording(rank=rank, world_size=3, groups=(group,))


@pytest.mark.parametrize(("assigned", "known"), [((0, 1, 2), True), ((2, 1, 0), False)])
def test_recordings_count_where_ranks_are_those_of_the_launcher(
    assigned: tuple[int, ...], known: bool
) -> None:
    numbers = (6, 5, 6)
    everybody = [
        waits(rank, assigned=assigned[rank], recording=recording(rank, numbers[rank]))
        for rank in range(3)
    ]
    reason, waiting = hang.blame(everybody)
    assert reason is not None
    assert bool(waiting) is known
    assert not known or reason.job_rank == 1


@pytest.mark.parametrize("seen", [b"", b"\xc1", msgspec.msgpack.encode({"rank": 7})])
def test_what_is_no_evidence_is_left_out(seen: bytes) -> None:
    nothing = m.Evidence(0, 3, 0, 3, seen)
    assert hang.blame([nothing]) == (None, frozenset())
    reason, _ = hang.blame([nothing, waits(0), evidence(1, Standing.BUSY)])
    assert reason is not None
    assert reason.job_rank == 1


def test_a_rank_speaks_for_itself() -> None:
    other = msgspec.structs.replace(evidence(2, Standing.BUSY), job_rank=3)
    assert hang.blame([other]) == (None, frozenset())


def test_a_restart_without_a_hang_does_not_wait_for_the_judge_to_be_imported() -> None:
    program = (
        "import sys; from undaunted.inprocess.core import hang; "
        "print(hang.blame([]), 'undaunted.attribution.hang' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"(None, frozenset()) False\n"
