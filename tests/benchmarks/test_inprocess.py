"""The benchmark of in-process restart: what it makes of what the ranks say."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import inprocess
from benchmarks.inprocess import Job, JobError
from benchmarks.table import Result

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ranks:
    """A job whose ranks are played by the test."""

    def __init__(self, job: Job) -> None:
        self._here, job._socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.job = job

    def say(self, **what: Any) -> None:
        self._here.send(json.dumps(what).encode())

    def enter(self, iteration: int, rank: int, at: int) -> None:
        self.say(iteration=iteration, rank=rank, pid=rank, entered=at, ready=at + 1)

    def close(self) -> None:
        self._here.close()
        self.job._socket.close()


@pytest.fixture
def ranks(tmp_path: Any) -> Iterator[Ranks]:
    job = Job("undaunted", "", 2, failing=1)
    job._directory = tmp_path
    (tmp_path / "output").write_text("what it has printed")
    ranks = Ranks(job)
    yield ranks
    ranks.close()


def test_the_last_rank_counts(ranks: Ranks) -> None:
    ranks.enter(0, 1, at=20)
    ranks.enter(0, 0, at=10)
    assert ranks.job.entered(2) == {"entered": 20, "ready": 21}
    assert sorted(ranks.job.pids) == [0, 1]


def test_an_iteration_that_fails_on_the_way_is_not_the_end(ranks: Ranks) -> None:
    ranks.enter(0, 0, at=10)
    ranks.enter(1, 0, at=20)
    ranks.enter(1, 1, at=30)
    assert ranks.job.entered(2)["entered"] == 30


def test_who_does_not_come_is_waited_for_in_vain(ranks: Ranks) -> None:
    ranks.enter(0, 0, at=10)
    with pytest.raises(JobError, match=r"in vain for 2 ranks after iteration -1.*\n.*has printed"):
        ranks.job.entered(2, within_s=0.01)


def test_a_restart_is_measured_from_the_failure(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    monkeypatch.setattr(ranks.job, "_tell", told.append)
    ranks.say(failed=1_000_000_000)
    for rank in range(2):
        ranks.enter(1, rank, at=1_500_000_000)
    assert ranks.job.restart("raise", 2) == {"entered": 0.5, "ready": 0.500000001}
    assert told == ["raise"]


def test_nothing_may_happen_in_a_rest(ranks: Ranks) -> None:
    begun = time.monotonic()
    ranks.job.rest(0.01)
    assert time.monotonic() - begun >= 0.01
    ranks.say(failed=1)
    with pytest.raises(JobError, match="while nothing happens"):
        ranks.job.rest(10)


def test_contestants_take_turns_and_may_fail() -> None:
    result = Result("raise", "", 2)
    seen = []

    def measure(name: str, number: int) -> None:
        seen.append((name, number))
        if name == "b":
            raise JobError("hangs")

    inprocess._in_turns(result, ["a", "b"], 2, measure)
    assert seen == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert result.failures == ["b: hangs"] * 2


@pytest.mark.e2e
@pytest.mark.torch
@pytest.mark.timeout(180)
def test_two_ranks_are_measured() -> None:
    pytest.importorskip("torch")
    with Job("undaunted", "gloo", 2, failing=1) as job:
        job.entered(2)
        first = job.restart("raise", 2)
        killed = job.restart("kill", 1)
    assert 0 < first["entered"] < first["ready"] < 30
    assert 0 < killed["entered"] < 30
