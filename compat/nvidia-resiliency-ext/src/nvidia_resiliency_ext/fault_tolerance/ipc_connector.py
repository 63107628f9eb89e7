"""`IpcConnector`: a mailbox at a path, for messages from other processes of this user."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections import deque
from pathlib import Path
from typing import Any

from nvidia_resiliency_ext.fault_tolerance import _ipc_messages as messages
from undaunted.base.unix_sockets import listen_at

_CONNECTION_S = 10.0  # a sender that is slower is cut off
_WAITING = 64
_MOST = 1024
_OK = b"ok"


class IpcConnector:
    """Receives messages at a path, or sends them there.

    One process calls `start_receiving`, and later `stop_receiving`; others call `send`. What is not
    fetched is kept, up to 1,024 messages; then senders are refused.
    """

    def __init__(self, socket_path: str) -> None:
        """Keep the path of the Unix socket; its file exists while somebody receives."""
        self.socket_path = socket_path
        self._received: deque[Any] = deque()
        self._lock = threading.Lock()
        self._listening: socket.socket | None = None
        self._stop = -1
        self._thread: threading.Thread | None = None

    def start_receiving(self) -> None:
        """Begin to receive, in a thread.

        Raises:
            RuntimeError: it does already.
            OSError: the path cannot be used.
        """
        if self._thread is not None:
            raise RuntimeError(f"messages at {self.socket_path} are received already")
        self._listening = listen_at(self.socket_path, socket.SOCK_STREAM, _WAITING)
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="undaunted-ipc", daemon=True)
        self._thread.start()

    def stop_receiving(self) -> None:
        """Receive no more; does nothing if it does not. Received messages can still be fetched."""
        if self._thread is None or self._listening is None:
            return
        os.eventfd_write(self._stop, 1)
        self._thread.join(2 * _CONNECTION_S)
        self._listening.close()
        os.close(self._stop)
        self._thread = self._listening = None
        with contextlib.suppress(OSError):
            Path(self.socket_path).unlink()

    def send(self, message: object) -> None:
        """Send a message to the receiver at the path, and wait until it is taken, for 10 s.

        Raises:
            TypeError, ValueError: it cannot be sent, see `ipc_messages.encode`.
            OSError: nobody receives there, or it was refused.
        """
        data = messages.encode(message)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(_CONNECTION_S)
            sock.connect(self.socket_path)
            sock.sendall(data)
            if sock.recv(len(_OK)) != _OK:
                raise ConnectionRefusedError(f"a message was refused at {self.socket_path}")

    def fetch_received(self) -> list[Any]:
        """Return the messages received so far, oldest first, and forget them."""
        with self._lock:
            found = list(self._received)
            self._received.clear()
        return found

    def peek_received(self) -> list[Any]:
        """Return the messages received so far, oldest first."""
        with self._lock:
            return list(self._received)

    def clear(self) -> None:
        """Forget the messages received so far."""
        with self._lock:
            self._received.clear()

    def _run(self) -> None:
        assert self._listening is not None
        poll = select.poll()
        poll.register(self._listening, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        while self._stop not in dict(poll.poll()):
            with contextlib.suppress(OSError, ValueError, EOFError):
                self._take(self._listening.accept()[0])

    def _take(self, connection: socket.socket) -> None:
        with connection:
            message = messages.receive(connection, _CONNECTION_S)
            with self._lock:
                if len(self._received) >= _MOST:
                    return
                self._received.append(message)
            connection.sendall(_OK)


__all__ = ["IpcConnector"]
