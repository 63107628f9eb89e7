"""A guard and a controller for one rank, in a thread of the test."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.coordinator.wire import frames
from undaunted.inprocess.core import reading
from undaunted.inprocess.core.messages import (
    MAX_MESSAGE_BYTES,
    Completed,
    Enter,
    Fault,
    Finished,
    FromRank,
    Join,
    Leave,
    Reason,
    Record,
    Stop,
)

if TYPE_CHECKING:
    from undaunted.inprocess.core.messages import ToRank

_S = 20.0  # longer than anything here takes


class FakeGuard:
    """Answers as a controller of a job with one rank would; the test may say more.

    Attributes:
        heard: what the rank has said, in order.
        silent: types of messages that are not answered.
    """

    def __init__(self) -> None:
        self.heard: queue.Queue[Any] = queue.Queue()
        self.silent: set[type] = set()
        self.rank_end, self._socket = socket.socketpair()
        self._page = -1
        self._lock = threading.Lock()
        self._ended: set[tuple[int, int]] = set()
        self._frames = frames.FrameDecoder(MAX_MESSAGE_BYTES)
        self._thread = threading.Thread(target=self._run, name="fake-guard")
        self._thread.start()

    def tell(self, message: ToRank) -> None:
        self._socket.sendall(frames.encode(msgspec.msgpack.encode(message)))

    def send_bytes(self, content: bytes) -> None:
        self._socket.sendall(content)

    def stop(self, call: int, epoch: int, kind: str = "TERMINATED", rank: int = 3) -> None:
        self._end(Stop(call, epoch, (Reason(kind, rank, rank),)))

    def _end(self, verdict: Stop | Finished) -> None:
        """An epoch ends once."""
        with self._lock:
            if (verdict.call, verdict.epoch) not in self._ended:
                self._ended.add((verdict.call, verdict.epoch))
                self.tell(verdict)

    def wait_for(self, kind: type, count: int = 1) -> Any:
        """The next message of a type that was not waited for yet."""
        while True:
            message = self.heard.get(timeout=_S)
            if isinstance(message, kind):
                count -= 1
                if not count:
                    return message

    def said(self) -> list[Any]:
        """All that was not waited for yet."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self.heard.get_nowait())
        return found

    def read_page(self) -> reading.Reading:
        content = os.pread(self._page, reading.PAGE_BYTES, 0)
        decoded = reading.decode(content)
        assert decoded is not None
        return decoded

    def hang_up(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(_S)
        self._socket.close()
        self.rank_end.close()
        if self._page >= 0:
            os.close(self._page)

    def _run(self) -> None:
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromRank)
        with contextlib.suppress(OSError):
            while True:
                data, fds, _, _ = socket.recv_fds(self._socket, 65536, 1)
                if not data:
                    return
                for fd in fds:
                    self._page = fd
                self._frames.feed(data)
                while (content := self._frames.next()) is not None:
                    self._answer(decoder.decode(content))

    def _answer(self, message: Any) -> None:
        self.heard.put(message)
        if type(message) in self.silent:
            return
        match message:
            case Enter():
                self._job_rank, self._size = message.job_rank, message.world_size
            case Join(call=call, epoch=epoch):
                self.tell(
                    Record(
                        call, epoch, (message.job_rank,), message.world_size, store=message.store
                    )
                )
            case Fault(call=call, epoch=epoch, reason=reason):
                self._end(Stop(call, epoch, (reason,)))
            case Completed(call=call, epoch=epoch):
                self._end(Finished(call, epoch))
            case Leave():
                pass
