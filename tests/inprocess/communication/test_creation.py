"""Groups that are being made when all are aborted; with several ranks: test_job."""

from __future__ import annotations

import socket
import sys
import threading
from datetime import timedelta
from typing import Any

import pytest

from undaunted.inprocess.communication import c10d, creation, gloo, stores

pytestmark = pytest.mark.torch
dist = pytest.importorskip("torch.distributed")
TIMEOUT = timedelta(seconds=30)
needs_names_of_keys = pytest.mark.skipif(
    not hasattr(dist.TCPStore, "list_keys"), reason="a store of torch 2.8 cannot name its keys"
)


@pytest.fixture(scope="module", autouse=True)
def first_store() -> None:
    """The first store that serves opens a pipe for all stores of the process, and keeps it."""
    dist.TCPStore("127.0.0.1", 0, None, True, TIMEOUT)


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found: int = server.getsockname()[1]
        return found


@pytest.fixture
def environment(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "1"}
    for name, value in {**variables, "RANK": "0"}.items():
        monkeypatch.setenv(name, value)


def test_hooks_are_taken_back() -> None:
    rendezvous = sys.modules["torch.distributed.rendezvous"]
    originals = c10d.module()._new_process_group_helper, rendezvous._create_c10d_store  # type: ignore[attr-defined]
    hook = sys.excepthook
    with creation.watch():
        assert c10d.module()._new_process_group_helper is not originals[0]
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()
    assert originals == (
        c10d.module()._new_process_group_helper,
        rendezvous._create_c10d_store,  # type: ignore[attr-defined]
    )
    assert sys.excepthook is hook


def test_what_an_abort_keeps_open_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = socket.socketpair()
    monkeypatch.setattr(gloo, "_kept", [near])
    with far, creation.watch():
        assert far.recv(1) == b""


def test_abort_without_a_watch_does_nothing() -> None:
    assert not creation.forbid()
    creation.abort()


@needs_names_of_keys
@pytest.mark.usefixtures("environment")
def test_a_group_by_the_environment_has_keys_of_this_run_only() -> None:
    for run in ("call/0", "call/1"):
        with creation.watch(run):
            dist.init_process_group("gloo", timeout=TIMEOUT)
            keys = c10d.groups()[0][1]._underlying_non_prefix_store.list_keys()
            dist.destroy_process_group()
        assert f"{run}/undaunted/ranks" in keys
        assert [key for key in keys if not key.startswith((f"{run}/", "init/"))] == []


def test_a_store_at_another_address_than_the_agents_is_served_by_rank_0(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun's agent serves at MASTER_ADDR and MASTER_PORT only."""
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with creation.watch("call/0"):
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", address, TIMEOUT, world_size=1, rank=0)
        assert stores.is_served("127.0.0.1", port)
        dist.destroy_process_group()


@needs_names_of_keys
def test_groups_in_a_store_of_the_user_have_keys_of_this_run_only() -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, TIMEOUT)
    for run in ("call/0", "call/1"):
        before = {*store.list_keys()}
        with creation.watch(run):
            dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=TIMEOUT)
            dist.new_group([0])
            new = {*store.list_keys()} - before
            dist.destroy_process_group()
        assert new
        assert [key for key in new if not key.startswith(f"{run}/")] == []


def test_after_an_abort_no_group_is_made_until_the_watch_is_left() -> None:
    def make() -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    with creation.watch():
        creation.forbid()
        with pytest.raises(creation.CreationAbortedError, match="restarted"):
            make()
    assert not dist.is_initialized()
    with creation.watch():
        make()
        assert c10d.module()._world.pg_names[dist.group.WORLD] == "0"
        dist.destroy_process_group()


def test_groups_are_numbered_from_0_in_every_run() -> None:
    """Or ranks of which one has failed before do not find each other."""
    with creation.watch(), pytest.raises(RuntimeError, match="rank < size"):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=7, world_size=1)
    assert c10d.module()._world.group_count == 1
    with creation.watch():
        assert c10d.module()._world.group_count == 0


@pytest.mark.usefixtures("environment")
def test_who_waits_for_the_server_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    asked = threading.Event()
    ask = stores.is_served

    def is_served(*address: Any) -> bool:
        asked.set()
        return ask(*address)

    monkeypatch.setattr(stores, "is_served", is_served)
    with creation.watch():
        aborter = threading.Thread(target=lambda: asked.wait(30) and creation.forbid())
        aborter.start()
        with pytest.raises(creation.CreationAbortedError):
            dist.init_process_group("gloo", timeout=TIMEOUT)
        aborter.join()


def test_a_torch_with_other_functions_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(c10d.module(), "_new_process_group_helper", lambda size: size)
    with creation.watch():
        assert c10d.module()._new_process_group_helper(3) == 3
    assert "cannot be aborted while they are made" in caplog.text
