from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from undaunted.base.unix_sockets import is_answered, listen_at, remove

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_what_a_killed_process_has_left_is_replaced(
    tmp_path: Path, kind: socket.SocketKind
) -> None:
    path = tmp_path / "s"
    for _ in range(2):
        with listen_at(str(path), kind, 1), socket.socket(socket.AF_UNIX, kind) as peer:
            peer.connect(str(path))
            assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="exists and is no socket; remove it"):
        listen_at(str(path), socket.SOCK_STREAM, 1)
    assert path.read_text() == "mine"


def test_a_path_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        listen_at(str(tmp_path / "absent" / "s"), socket.SOCK_STREAM, 1)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_whether_somebody_listens(tmp_path: Path, kind: socket.SocketKind) -> None:
    path = str(tmp_path / "s")
    assert not is_answered(path, kind)
    with listen_at(path, kind, 0):
        assert is_answered(path, kind)
        assert is_answered(path, kind)  # also where no more may wait
    assert not is_answered(path, kind)
    (tmp_path / "file").touch()
    assert not is_answered(str(tmp_path / "file"), kind)


def test_the_file_of_somebody_else_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listen_at(str(path), socket.SOCK_STREAM, 1):
        mine = path.lstat()
        path.rename(tmp_path / "mine")
        with listen_at(str(path), socket.SOCK_STREAM, 1):
            remove(str(path), mine)
            assert path.is_socket()
        remove(str(path), path.lstat())
    assert not path.exists()
    remove(str(path), mine)
