"""Where guards find the controller."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from undaunted.inprocess.exception import InternalError
from undaunted.inprocess.guard import directory as module
from undaunted.inprocess.guard.directory import KEY, Place, directory

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
    return directory(
        rank, size, environ, base_store=store, store_kwargs=kwargs or {}, timeout_s=7.0
    )


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


def test_without_a_store_the_port_is_next_to_the_masters() -> None:
    environ = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "UNDAUNTED_TOKEN": TOKEN}
    assert of(0, **environ).find() == Place(True, ":29501", "....", TOKEN.encode())
    assert of(1, **environ).find() == Place(False, "node0:29501", "....", TOKEN.encode())
    chosen = of(1, kwargs={"host_name": "node7", "port": 4}, **environ)
    assert chosen.find().address == "node7:4"
    chosen.publish(4)


@pytest.mark.parametrize(
    "environ",
    [
        {"MASTER_ADDR": "localhost"},
        {"MASTER_ADDR": "127.0.0.1"},
        {"MASTER_ADDR": "node0", "LOCAL_WORLD_SIZE": "2"},
        {"MASTER_ADDR": "node0", "SLURM_STEP_NUM_NODES": "1"},
    ],
)
def test_on_one_machine_no_token_is_needed(environ: dict[str, str]) -> None:
    for rank in (0, 1):
        place = of(rank, MASTER_PORT="29500", **environ).find()
        assert (place.address, place.token) == ("127.0.0.1:29501", b"")


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
        directory(
            1,
            2,
            {**environ, "TORCHELASTIC_RESTART_COUNT": "3"},
            store_kwargs={},
            timeout_s=0.5,
        ).find()
