"""Finding and ending connections of gloo; with several ranks: test_job."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.inprocess.communication import event_loops, gloo, sockets

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.torch
dist = pytest.importorskip("torch.distributed")


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("named", [True, False])
def test_the_loop_of_a_group_is_found(named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where threads have no names: by how they wait."""
    if not named:
        monkeypatch.setattr(gloo, "_LOOP_NAME", "other")
    (loop,) = gloo.find_loops()
    assert [address[0] for one in loop if (address := sockets.listening_address(one))]
    assert all(sockets.is_tcp_or_pipe(one) for one in loop)


@pytest.mark.usefixtures("group")
def test_a_listening_socket_survives_an_abort() -> None:
    gloo.abort()
    assert len(gloo.find_loops()) == 1


def test_without_groups_there_is_nothing() -> None:
    assert gloo.find_loops() == []
    gloo.abort()
    gloo.visit(4)


@pytest.mark.usefixtures("group")
def test_visitors_have_the_numbers_of_all_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        descriptor = sockets.describe(server.fileno())
        monkeypatch.setattr(gloo, "find_loops", lambda: [[descriptor]])
        gloo.visit(3)
        said = []
        for _ in range(3):
            with server.accept()[0] as visitor:
                said.append(int.from_bytes(visitor.recv(8), "little"))
        assert said == [0, 1, 2]
        gloo.visit(3, timeout_s=0)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.usefixtures("group")
def test_a_loop_that_cannot_be_looked_at_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_waits(*_: Any) -> dict[int, event_loops.Wait]:
        return {}

    caplog.set_level(logging.WARNING, "nvrx")
    monkeypatch.setattr(event_loops, "waits", no_waits)
    assert gloo.find_loops() == []
    assert "1 of 1 event loops" in caplog.text


@pytest.mark.parametrize(("value", "expected"), [("", False), ("0", False), ("1", True)])
def test_late_connections(value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", value)
    assert gloo.connects_late() == expected
