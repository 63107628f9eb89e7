from __future__ import annotations

import socket

import pytest

from nvidia_resiliency_ext.fault_tolerance import _ipc_messages as ipc_messages
from nvidia_resiliency_ext.fault_tolerance import ipc_connector
from nvidia_resiliency_ext.fault_tolerance.ipc_connector import IpcConnector
from undaunted.fault_tolerance import WorkloadAction, WorkloadControlRequest
from undaunted.fault_tolerance.data import RankInfo


@pytest.fixture
def connector(tmp_path):
    receiving = IpcConnector(str(tmp_path / "s"))
    receiving.start_receiving()
    yield receiving
    receiving.stop_receiving()


def test_messages_arrive_in_order(connector, tmp_path):
    request = WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "bad GPU")
    rank = RankInfo(3, 1, "node", 42)
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    sender = IpcConnector(str(tmp_path / "s"))
    for message in ("text", {"a": [1, None]}, [rank, request]):
        sender.send(message)
    expected = ["text", {"a": [1, None]}, [rank, request]]
    assert connector.peek_received() == expected
    assert connector.fetch_received() == expected
    assert connector.fetch_received() == []
    sender.send(1)
    connector.clear()
    assert connector.peek_received() == []


def test_what_json_does_not_hold_is_not_sent(connector):
    with pytest.raises(TypeError, match="JSON does not hold it"):
        connector.send(object())
    with pytest.raises(ValueError, match="too long"):
        connector.send("x" * (1 << 20))


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01", b"\x00\x00\x00\x01{", b"\0\0\0\x02[]"],
)
def test_garbage_is_left_out_and_harms_nobody(connector, garbage):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(connector.socket_path)
        sock.sendall(garbage)
        sock.shutdown(socket.SHUT_WR)
        answer = sock.recv(10)
    assert answer == (b"ok" if garbage.endswith(b"[]") else b"")
    connector.send("still here")
    assert connector.fetch_received()[-1] == "still here"


def test_a_foreign_kind_is_garbage(connector):
    with pytest.raises(ConnectionRefusedError):
        connector.send({"__undaunted__": "request", "action": "Nonsense", "description": ""})
    assert connector.fetch_received() == []


def test_a_full_mailbox_refuses(connector, monkeypatch):
    monkeypatch.setattr(ipc_connector, "_MOST", 1)
    connector.send(1)
    with pytest.raises(ConnectionRefusedError, match="refused"):
        connector.send(2)


def test_start_and_stop(tmp_path):
    connector = IpcConnector(str(tmp_path / "s"))
    connector.stop_receiving()
    connector.start_receiving()
    with pytest.raises(RuntimeError, match="received already"):
        connector.start_receiving()
    connector.stop_receiving()
    assert not (tmp_path / "s").exists()
    with pytest.raises(OSError, match="No such file"):
        connector.send(1)
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "s"))
    left.close()
    connector.start_receiving()
    connector.stop_receiving()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="is no socket"):
        IpcConnector(str(tmp_path / "file")).start_receiving()


class Dripping:
    """A sender that sends a byte just before each deadline of one."""

    def __init__(self, data, clock):
        self._data, self._clock = data, clock

    def settimeout(self, seconds):
        self._timeout = seconds

    def recv(self, count):
        self._clock[0] += min(9.0, self._timeout)
        if self._timeout <= 9.0:
            raise TimeoutError
        byte, self._data = self._data[:1], self._data[1:]
        return byte


def test_a_message_as_a_whole_has_a_deadline(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(ipc_messages.time, "monotonic", lambda: clock[0])
    with pytest.raises(TimeoutError):
        ipc_messages.receive(Dripping(ipc_messages.encode("x" * 1000), clock), timeout_s=10.0)
    assert clock[0] <= 110.0


def test_the_connector_sets_that_deadline(connector, monkeypatch):
    monkeypatch.setattr(ipc_connector, "_CONNECTION_S", 0.05)
    with socket.socket(socket.AF_UNIX) as slow:
        slow.connect(connector.socket_path)
        slow.sendall(b"\0\0\0\5")
        slow.settimeout(20.0)
        assert slow.recv(10) == b"", "cut off"
    monkeypatch.undo()
    connector.send("still here")
    assert connector.fetch_received() == ["still here"]
