"""Where guards find the controller."""

from __future__ import annotations

import os
import socket
from concurrent.futures import Future
from typing import Any

import pytest

from tests.ports import free_ports
from undaunted.base import threads
from undaunted.inprocess.exception import InternalError
from undaunted.inprocess.guard import meeting as module
from undaunted.inprocess.guard.meeting import KEY, Place, host_for_ranks
from undaunted.inprocess.guard.meeting import meeting as meet

TOKEN = "a token of twenty characters"
TORCHRUN = {
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


class Store:
    """As much of torch's store as is needed."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.waited_s = 0.0

    def set(self, key: str, value: str) -> None:
        self.kept[key] = value.encode()

    def wait(self, keys: list[str], timeout: Any) -> None:
        self.waited_s = timeout.total_seconds()
        if keys[0] not in self.kept:
            raise RuntimeError("wait timeout")

    def get(self, key: str) -> bytes:
        return self.kept[key]


def of(rank: int, size: int = 2, store: Any = None, kwargs: Any = None, **environ: str) -> Any:
    return meet(rank, size, environ, base_store=store, store_kwargs=kwargs or {}, timeout_s=7.0)


def test_one_rank_needs_no_address() -> None:
    where = of(0, 1)
    assert where.find() == Place(hosts=True)
    where.publish(0)


def test_rank_0_says_in_the_store_where_its_guard_listens() -> None:
    store = Store()
    first = of(0, store=store, MASTER_ADDR="localhost")
    place = first.find()
    assert (place.hosts, place.address) == (True, "127.0.0.1:0")
    assert len(place.token) == 64
    first.publish(12345)
    second = of(1, store=store, MASTER_ADDR="localhost")
    assert second.find() == Place(False, "127.0.0.1:12345", "", place.token)
    assert store.waited_s == 7.0
    assert of(0, store=Store(), MASTER_ADDR="localhost").find().token != place.token


def test_a_port_that_was_given_is_used_in_rank_0() -> None:
    where = of(0, store=Store(), kwargs={"port": 1234}, MASTER_ADDR="localhost")
    assert where.find().address == "127.0.0.1:1234"


def test_on_several_nodes_all_interfaces_are_listened_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "own_host", lambda master: "10.0.0.7")
    store = Store()
    where = of(0, store=store, MASTER_ADDR="node0")
    assert where.find().address == ":0"
    where.publish(5)
    assert store.kept[KEY].startswith(b"10.0.0.7:5 ")


def test_rank_0_that_says_nothing_is_named() -> None:
    with pytest.raises(InternalError, match=r"rank 1: rank 0 has not said within 7 s"):
        of(1, store=Store(), MASTER_ADDR="localhost").find()


def test_a_store_that_has_gone_is_an_error_of_ours() -> None:
    class Gone(Store):
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("connection reset")

    with pytest.raises(InternalError, match="connection reset"):
        of(0, store=Gone(), MASTER_ADDR="localhost").publish(1)


def test_torchruns_store_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    asked: list[Any] = []
    monkeypatch.setattr(module, "_agent_store", lambda *args: asked.append(args) or store)
    where = of(0, **TORCHRUN)
    where.find()
    where.publish(9)
    assert KEY in store.kept
    assert asked == [(TORCHRUN, 7.0)]


def test_a_port_that_was_given_is_used_on_several_nodes() -> None:
    environ = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "UNDAUNTED_TOKEN": TOKEN}
    kwargs = {"host_name": "node7", "port": 4}
    assert of(0, kwargs=kwargs, **environ).find() == Place(True, ":4", "....", TOKEN.encode())
    other = of(1, kwargs=kwargs, **environ)
    assert other.find() == Place(False, "node7:4", "....", TOKEN.encode())
    other.publish(4)


@pytest.mark.parametrize(
    "environ",
    [
        {"MASTER_ADDR": "localhost"},
        {"MASTER_ADDR": "127.0.0.1"},
        {"MASTER_ADDR": "node0", "LOCAL_WORLD_SIZE": "2"},
        {"MASTER_ADDR": "node0", "SLURM_STEP_NUM_NODES": "1"},
    ],
)
def test_on_one_machine_no_port_and_no_token_are_needed(environ: dict[str, str]) -> None:
    first, second = (of(rank, MASTER_PORT="29500", **environ).find() for rank in (0, 1))
    assert first == second._replace(hosts=True)
    assert first.address.startswith(f"@undaunted-inprocess-{os.geteuid()}-29500-")
    assert first.token == b""
    other = of(0, MASTER_PORT="29500", SLURM_STEP_ID="2", **environ).find()
    assert other.address != first.address
    given = of(0, kwargs={"port": 29501}, MASTER_PORT="29500", **environ).find()
    assert given.address not in (first.address, other.address)


def test_several_nodes_need_a_token() -> None:
    with pytest.raises(InternalError, match="set UNDAUNTED_TOKEN to the same random text"):
        of(1, MASTER_ADDR="node0", MASTER_PORT="29500").find()
    with pytest.raises(InternalError, match="has 5 characters"):
        of(1, MASTER_ADDR="node0", MASTER_PORT="29500", UNDAUNTED_TOKEN="short").find()


@pytest.mark.parametrize("environ", [{}, {"MASTER_ADDR": "n"}, {"MASTER_PORT": "1"}])
def test_an_address_must_be_known(environ: dict[str, str]) -> None:
    with pytest.raises(InternalError, match="set MASTER_ADDR and MASTER_PORT"):
        of(1, **environ).find()


def test_the_name_by_which_others_reach_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module._reachable("127.0.0.1") == "127.0.0.1"
    assert module._reachable("localhost") == "localhost"
    monkeypatch.setattr(module, "own_host", lambda master: 1 / 0)
    assert module._reachable("node0") == socket.gethostname()


class Meeting:
    """The port at which two ranks of several nodes meet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "on_one_machine", lambda *_: False)
        monkeypatch.setattr(module, "_reachable", lambda master: "10.0.0.7")
        self.environ = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_ports(2)),
            "UNDAUNTED_TOKEN": TOKEN,
        }

    @property
    def port(self) -> int:
        return int(self.environ["MASTER_PORT"])

    def of(self, rank: int, **changes: str) -> Any:
        return of(rank, **{**self.environ, **changes})

    def second_finds(self) -> Future[Place]:
        found: Future[Place] = Future()
        threads.start(lambda: found.set_result(self.of(1).find()), "test")
        return found


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Meeting:
    pytest.importorskip("torch.distributed")
    return Meeting(monkeypatch)


@pytest.mark.torch
@pytest.mark.leaves("threads", "fds")
def test_on_several_nodes_they_meet_at_the_masters_port(meeting: Meeting) -> None:
    second = meeting.second_finds()  # comes first
    first = meeting.of(0)
    assert first.find() == Place(True, ":0", "....", TOKEN.encode())
    first.publish(5)
    assert second.result(7.0) == Place(False, "10.0.0.7:5", "....", TOKEN.encode())
    del first
    with socket.socket() as free:  # for the function, at once
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("", meeting.port))


@pytest.mark.torch
@pytest.mark.leaves("threads", "fds")
def test_a_store_that_is_at_the_masters_port_is_used(meeting: Meeting) -> None:
    dist = pytest.importorskip("torch.distributed")
    store = dist.TCPStore("127.0.0.1", meeting.port, is_master=True, wait_for_workers=False)
    first = meeting.of(0)
    first.publish(5)  # which waits for nobody: the store stays
    assert meeting.of(1).find().address == "10.0.0.7:5"
    del store


@pytest.mark.torch
@pytest.mark.leaves("threads", "fds")
def test_another_job_that_meets_there(meeting: Meeting) -> None:
    first = meeting.of(0)
    with pytest.raises(
        InternalError, match=r"another job meet at .*; give each job another MASTER_PORT"
    ):
        meeting.of(0, UNDAUNTED_TOKEN=TOKEN[::-1])
    del first


@pytest.mark.torch
@pytest.mark.leaves("threads", "fds")
def test_another_program_that_has_the_masters_port(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TAKEN_S", 0.2)
    with socket.socket() as taken:
        taken.bind(("", meeting.port))
        with pytest.raises(InternalError, match=r"taken.*give the job another MASTER_PORT"):
            meeting.of(0)


@pytest.mark.torch
@pytest.mark.leaves("threads", "fds")  # torch gives them back when it likes
def test_a_real_store_of_torchrun() -> None:
    dist = pytest.importorskip("torch.distributed")
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environ = {**TORCHRUN, "MASTER_PORT": str(server.port)}
    first = of(0, **environ)
    place = first.find()
    first.publish(77)
    assert of(1, **environ).find() == Place(False, "127.0.0.1:77", "", place.token)
    with pytest.raises(InternalError, match="rank 0 has not said"):
        meet(
            1,
            2,
            {**environ, "TORCHELASTIC_RESTART_COUNT": "3"},
            store_kwargs={},
            timeout_s=0.5,
        ).find()


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        ({}, "127.0.0.1"),
        ({"MASTER_ADDR": "localhost"}, "127.0.0.1"),
        ({"MASTER_ADDR": "127.0.0.2"}, "127.0.0.1"),
        ({"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0"}, "127.0.0.1"),
        ({"SLURM_STEP_NUM_NODES": "1", "MASTER_ADDR": "node0"}, "127.0.0.1"),
        ({"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "node0"}, "10.0.0.7"),
        # What restarts have made of it does not count.
        ({"LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "1", "MASTER_ADDR": "node0"}, "10.0.0.7"),
    ],
)
def test_under_which_address_others_reach_this_machine(
    environ: dict[str, str], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "own_address", lambda master: "10.0.0.7")
    assert host_for_ranks(environ, 2) == host
    assert host_for_ranks(environ, 1) == ""


def test_a_master_whose_name_leads_to_loopback_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "own_address", lambda master: "127.0.0.1")
    assert (
        host_for_ranks({"MASTER_ADDR": "node0"}, 2) == "node0"
    )  # as /etc/hosts of some systems has it


def test_a_master_that_nobody_knows() -> None:
    with pytest.raises(InternalError, match="MASTER_ADDR"):
        host_for_ranks({"MASTER_ADDR": "no.such.host.invalid"}, 2)
