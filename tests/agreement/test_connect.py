"""Ranks are processes here, which are killed and stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import warm
from tests.said import lines_of
from undaunted.agreement import connect as connecting
from undaunted.agreement.agreement import Alone
from undaunted.agreement.connect import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).with_name("rank_program.py")
LONG_S = 60.0
SHORT_S = 3.0  # of ranks that answer, on a busy machine too


class Ranks:
    """Some ranks that do what they are told."""

    def __init__(self, count: int, path: Path, *words: str) -> None:
        self.processes = [
            warm.Popen(
                [sys.executable, str(PROGRAM), str(rank), str(count), str(path / "init"), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(count)
        ]
        self.everybody = tuple(range(count))
        for rank in self.everybody:
            assert self.hear(rank) == "ready"

    def tell(self, rank: int, what: str, lane: str = "main", limit_s: float = LONG_S) -> None:
        pipe = self.processes[rank].stdin
        assert pipe is not None
        pipe.write(json.dumps([what, lane, limit_s]) + "\n")
        pipe.flush()

    def hear(self, rank: int) -> Any:
        pipe = self.processes[rank].stdout
        assert pipe is not None
        while not (lines := lines_of(line := pipe.readline())) and line:
            pass
        return json.loads(lines[0])

    def all(self, what: str, lane: str = "main", limit_s: float = LONG_S, but: int = -1) -> Any:
        """What each says; one may be left out."""
        here = [rank for rank in self.everybody if rank != but]
        for rank in here:
            self.tell(rank, what, lane, limit_s)
        return [self.hear(rank) for rank in here]

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.processes[rank].pid, number)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(LONG_S)
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], Ranks]]:
    started: list[Ranks] = []

    def make(count: int, *words: str) -> Ranks:
        ranks = Ranks(count, tmp_path, *words)
        started.append(ranks)
        first = ranks.all("connect")
        assert [one["value"][:2] for one in first] == [[rank, count] for rank in range(count)]
        assert len({one["value"][2] for one in first}) == 1
        return ranks

    yield make
    for ranks in started:
        ranks.end()


def test_without_a_process_group_a_rank_is_alone() -> None:
    one, other = connect(None, LONG_S), connect(None, LONG_S)
    assert isinstance(one.main, Alone)
    assert (one.rank, one.world_size) == (0, 1)
    assert one.session != other.session
    one.abort()
    one.close()
    one.close()


@pytest.mark.e2e
def test_on_one_machine_only_loopback_is_served(start: Any) -> None:
    assert [one["value"] for one in start(2).all("where")] == ["127.0.0.1"] * 2


@pytest.mark.e2e
def test_on_several_machines_the_ranks_find_the_address(start: Any) -> None:
    ranks = start(2, "apart")
    assert [one["value"] for one in ranks.all("round")] == ["0,1"] * 2
    own = connecting.to_serve_at({}, one_machine=False)
    assert ranks.all("where")[0]["value"] == (own or "127.0.0.1")


@pytest.mark.e2e
def test_ranks_agree_in_two_lanes_and_part(start: Any) -> None:
    ranks = start(3)
    for lane in ("main", "background", "main"):
        assert [one["value"] for one in ranks.all("round", lane)] == ["0,1,2"] * 3
    # A wait in one lane does not hold the other up.
    ranks.tell(0, "round", "main")
    for rank in (1, 2):
        ranks.tell(rank, "round", "main")
    assert [ranks.hear(rank)["value"] for rank in range(3)] == ["0,1,2"] * 3
    failed = ranks.all("No space left", but=0)
    ranks.tell(0, "round")
    failed.append(ranks.hear(0))
    assert len({one["error"] for one in failed}) == 1
    assert [one["value"] for one in ranks.all("close")] == ["closed"] * 3
    for process in ranks.processes:
        process.stdin.close()
        assert process.wait(LONG_S) == 0


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_gone_is_named_by_all_others(start: Any, number: int) -> None:
    ranks = start(3)
    ranks.signal(1, number)
    for one in ranks.all("round", limit_s=SHORT_S, but=1):
        assert one["ranks"] == [1]
        assert f"rank 1 of 3 did not answer within {SHORT_S:g} s" in one["error"]
        assert one["seconds"] < LONG_S / 2


@pytest.mark.e2e
def test_a_rank_0_that_is_gone_is_noticed_at_once(start: Any) -> None:
    ranks = start(3)
    for rank in (1, 2):
        ranks.tell(rank, "round")
    ranks.signal(0, signal.SIGKILL)
    for rank in (1, 2):
        said = ranks.hear(rank)
        assert said["ranks"] == [0]
        assert "rank 0, which serves the agreement, is gone" in said["error"]
        assert said["seconds"] < LONG_S / 2


@pytest.mark.e2e
def test_a_rank_0_that_is_stopped_is_noticed_in_time_and_may_come_back(start: Any) -> None:
    ranks = start(3)
    ranks.signal(0, signal.SIGSTOP)
    for one in ranks.all("round", limit_s=SHORT_S, but=0):
        assert one["ranks"] == [0]
        assert "rank 0, whose process serves the agreement, did not answer" in one["error"]
        assert one["seconds"] < LONG_S / 2
    ranks.signal(0, signal.SIGCONT)
    # Its own round of that time is one the others have left.
    ranks.tell(0, "round", limit_s=SHORT_S)
    late = ranks.hear(0)
    assert late.get("value", "0,1,2") == "0,1,2"
    assert [one.get("value") for one in ranks.all("round")] == ["0,1,2"] * 3


# --- where others reach this process --------------------------------------------------------------


def test_the_same_network_has_the_same_name() -> None:
    assert connecting.network()
    assert connecting.network() == connecting.network()


def test_own_hosts_begin_with_what_masters_peers_use() -> None:
    assert connecting.own_hosts({"MASTER_ADDR": "127.0.0.1"})[0] == "127.0.0.1"
    assert connecting.own_hosts({"MASTER_ADDR": "localhost"})[0] == "localhost"
    assert connecting.own_hosts({}) == [socket.gethostname()]


def test_a_master_that_cannot_be_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **named: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert connecting.own_hosts({"MASTER_ADDR": "nowhere"}) == [socket.gethostname()]


def test_where_all_ranks_are_here_loopback_is_served() -> None:
    assert connecting.to_serve_at({"MASTER_ADDR": "192.0.2.7"}, one_machine=True) == "127.0.0.1"


@pytest.mark.parametrize(
    ("routes", "at"),
    [
        ({"node0": "10.0.0.5"}, "10.0.0.5"),
        ({"node0": "127.0.1.1", "here": "10.0.0.6"}, "10.0.0.6"),
        ({"node0": "127.0.1.1", "here": "127.0.1.1"}, ""),
        ({}, ""),
    ],
)
def test_on_several_nodes_the_own_address_is_served(
    routes: dict[str, str], at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own_address(other: str) -> str:
        if other not in routes:
            raise OSError("Name or service not known")
        return routes[other]

    monkeypatch.setattr(connecting, "own_address", own_address)
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    assert connecting.to_serve_at({"MASTER_ADDR": "node0"}, one_machine=False) == at


def test_the_first_host_that_answers_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connecting.reachable(["127.0.0.2", "127.0.0.1"], port, LONG_S) == "127.0.0.1"


def test_no_host_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match=rf"port {port} cannot be reached \(127\.0\.0\.1: "):
        connecting.reachable(["127.0.0.1"], port, LONG_S)
