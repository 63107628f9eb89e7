"""Senders and servers that talk to each other over real sockets."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from tests.fault_tolerance.output.server.serving import DEADLINE_S, root_server, sender
from tests.ports import free_ports
from undaunted.coordinator.wire.connection import WireError
from undaunted.fault_tolerance.output.server import sender as module
from undaunted.fault_tolerance.output.server.sender import SentFile

if TYPE_CHECKING:
    from pathlib import Path


def nothing_behind() -> int:
    return 0


def test_lines_arrive_in_order(tmp_path: Path) -> None:
    server = root_server(tmp_path / "logs")
    try:
        with sender(server.port, tmp_path / "token") as one:
            for number in range(500):
                assert one.put("a/train.log", b"%d\n" % number, DEADLINE_S)
            assert one.put("other.log", b"x\n", DEADLINE_S)
    finally:
        server.stop()
    assert server.complete
    assert (tmp_path / "logs/a/train.log").read_bytes() == b"".join(
        b"%d\n" % number for number in range(500)
    )
    assert (tmp_path / "logs/other.log").read_bytes() == b"x\n"
    assert (tmp_path / "logs/a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "logs/other.log").stat().st_mode & 0o777 == 0o600


def test_what_is_put_before_there_is_a_server_waits(tmp_path: Path) -> None:
    port = free_ports(1)
    said: list[str] = []
    with sender(port, tmp_path / "token", said=said) as one:
        assert one.put("log", b"early\n", DEADLINE_S)
        server = root_server(tmp_path / "logs", port)
        one.close(DEADLINE_S)
    server.stop()
    assert (tmp_path / "logs/log").read_bytes() == b"early\n"
    assert len(said) <= 1


def test_lines_of_two_launchers_are_each_in_order(tmp_path: Path) -> None:
    root = root_server(tmp_path / "logs")
    try:
        with (
            sender(root.port, tmp_path / "token", "n1") as one,
            sender(root.port, tmp_path / "token", "n2") as two,
        ):
            for number in range(200):
                assert one.put("log", b"one %d\n" % number, DEADLINE_S)
                assert two.put("log", b"two %d\n" % number, DEADLINE_S)
            assert one.put("big", b"y" * 400_000 + b"\n", DEADLINE_S)
    finally:
        root.stop()
    lines = (tmp_path / "logs/log").read_bytes().splitlines()
    for name in (b"one", b"two"):
        assert [x for x in lines if x.startswith(name)] == [
            b"%s %d" % (name, n) for n in range(200)
        ]
    assert (tmp_path / "logs/big").stat().st_size == 400_001


def test_a_path_that_leads_out_is_refused(tmp_path: Path) -> None:
    said: list[str] = []
    server = root_server(tmp_path / "logs", said=said)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/link").symlink_to(tmp_path)
    (tmp_path / "logs/file").symlink_to(tmp_path / "outside")
    with sender(server.port, tmp_path / "token") as one:
        for path in ("../outside", "/outside", "link/outside", "file", "a//b", "", ".", "a\0b"):
            assert one.put(path, b"bad\n", DEADLINE_S)
        assert one.put("good", b"good\n", DEADLINE_S)
    server.stop()
    assert not (tmp_path / "outside").exists()
    assert (tmp_path / "logs/good").read_bytes() == b"good\n"
    assert any("../outside" in line for line in said)


def test_a_queue_that_is_full_is_said_to_be(tmp_path: Path) -> None:
    with socket.socket() as silent:  # accepts in the kernel, says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        said: list[str] = []
        with sender(silent.getsockname()[1], tmp_path / "token", said=said) as one:
            data = b"x" * 500_000 + b"\n"
            count = 0
            while one.put("log", data, 0.0):
                count += 1
            assert 1 <= count <= module.QUEUE_BYTES // len(data) + 1
            one.close(0.1)
    assert said[-1].startswith(f"{count} lines of logs did not reach the log server")


def test_garbage_ends_that_connection_alone(tmp_path: Path) -> None:
    server = root_server(tmp_path / "logs")
    with sender(server.port, tmp_path / "token") as one:
        for content in (b"\0\0\0\5hello", b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", server.port)) as peer:
                peer.sendall(content)
                peer.settimeout(DEADLINE_S)
                while peer.recv(4096):
                    pass
            assert one.put("log", b"fine\n", DEADLINE_S)
    server.stop()
    assert (tmp_path / "logs/log").read_bytes() == b"fine\n" * 3


# --- a file that is sent ------------------------------------------------------------------------


class Room:
    """A sender whose queue has room or not."""

    def __init__(self) -> None:
        self.has_room = True
        self.taken: list[bytes] = []
        self.stall_s = 0.0

    def put(self, path: str, data: bytes, timeout_s: float) -> bool:
        assert (path, timeout_s > 0) == ("log", True)
        if self.has_room:
            self.taken.append(data)
        return self.has_room

    def stalled_s(self) -> float:
        return self.stall_s


@pytest.fixture
def room() -> Room:
    return Room()


def test_only_whole_lines_are_sent(room: Room) -> None:
    file = SentFile(room, "log", nothing_behind)
    file.write([b"0: ", b"a\n0: b"])
    file.write([memoryview(b"c\n0: d")])
    assert room.taken == [b"0: a\n", b"0: bc\n"]
    assert not file.blocked


def test_much_is_cut_between_lines(room: Room) -> None:
    file = SentFile(room, "log", nothing_behind)
    data = b"".join(b"%06d" % number + b"x" * 93 + b"\n" for number in range(20_000))
    file.write([data])
    assert b"".join(room.taken) == data
    assert len(room.taken) == 4
    assert all(piece.endswith(b"\n") and len(piece) <= 512 * 1024 for piece in room.taken)


def test_a_long_line_comes_in_pieces(room: Room) -> None:
    file = SentFile(room, "log", nothing_behind)
    for _ in range(10):
        file.write([b"z" * 100_000])
    file.write([b"\n"])
    assert b"".join(room.taken).replace(b"\n", b"") == b"z" * 1_000_000
    assert all(len(piece) < 512 * 1024 for piece in room.taken)


def test_without_room_it_is_blocked_and_keeps_what_it_has(room: Room) -> None:
    file = SentFile(room, "log", nothing_behind)
    room.has_room = False
    file.write([b"a\n"])
    assert file.blocked
    assert file.error
    room.has_room = True
    file.flush()
    assert not file.blocked
    assert room.taken == [b"a\n"]


@pytest.mark.parametrize("reason", ["away", "behind"])
def test_lines_are_lost_rather_than_kept_for_ever(room: Room, reason: str) -> None:
    behind = module.BEHIND_BYTES + 1 if reason == "behind" else 0
    room.stall_s = module.AWAY_S + 1 if reason == "away" else 0.0
    file = SentFile(room, "log", lambda: behind)
    room.has_room = False
    file.write([b"a\nb\n"])
    assert not file.blocked
    room.has_room = True
    file.write([b"c\n"])
    assert room.taken == [b"[undaunted] 2 lines (4 bytes) lost here\nc\n"]


def test_a_loss_at_the_end_is_told(room: Room) -> None:
    room.stall_s = module.AWAY_S + 1
    file = SentFile(room, "log", nothing_behind)
    room.has_room = False
    file.write([b"a\n"])
    room.has_room = True
    file.close()
    assert room.taken == [b"[undaunted] 1 lines (2 bytes) lost here\n"]


def test_who_waits_for_room_goes_on_when_there_is_some(tmp_path: Path) -> None:
    server = root_server(tmp_path / "logs")
    data = b"x" * 99 + b"\n"
    with sender(server.port, tmp_path / "token") as one:
        files = [SentFile(one, f"log{number}", nothing_behind) for number in range(2)]

        def write(file: SentFile) -> None:
            for _ in range(40):
                file.write([data * 5000])
                while file.blocked:
                    file.flush()

        threads = [threading.Thread(target=write, args=(file,)) for file in files]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    server.stop()
    for number in range(2):
        assert (tmp_path / f"logs/log{number}").stat().st_size == 40 * 5000 * 100


@pytest.mark.parametrize(("quietly_s", "lines"), [(1000.0, 0), (0.0, 1)])
def test_a_server_that_is_not_there_yet_is_worth_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quietly_s: float, lines: int
) -> None:
    attempts = threading.Semaphore(0)

    async def refuse(*_: object, **__: object) -> None:
        attempts.release()
        raise WireError("connection refused")

    monkeypatch.setattr(module.client, "connect", refuse)
    monkeypatch.setattr(module, "_RETRY_S", 0.001)
    monkeypatch.setattr(module, "_QUIETLY_S", quietly_s)
    said: list[str] = []
    with sender(1, tmp_path / "token", said=said):
        for _ in range(3):
            assert attempts.acquire(timeout=DEADLINE_S)
        assert len(said) == lines
