"""Frames: a 4-byte big-endian length and that many bytes. Pure."""

from __future__ import annotations

HEAD_BYTES = 4
_TLS = b"\x16\x03"  # the beginning of a handshake
# Bytes that have been read are cut off from the buffer when there are so many of them.
_CUT = 64 * 1024


class FrameError(Exception):
    """A peer announces a frame that is longer than it may be; the message says how long."""


def encode(content: bytes) -> bytes:
    """Return the frame of ``content``."""
    return len(content).to_bytes(HEAD_BYTES, "big") + content


class FrameDecoder:
    """Bytes in, as they come; frames out.

    Holds no more than one frame that is not complete and what was fed last.

    Attributes:
        longest: the longest content of a frame, in bytes. It may be changed between two frames.
    """

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._buffer = bytearray()
        self._start = 0  # of the next frame

    @property
    def held(self) -> int:
        """Bytes of the frame that is not complete."""
        return len(self._buffer) - self._start

    def feed(self, data: bytes | memoryview) -> None:
        """Take in what has come."""
        self._buffer += data

    def next(self) -> bytes | None:
        """Return the content of the next frame, None if it is not complete.

        Raises:
            FrameError: it is too long. The stream is of no use from here on.
        """
        body = self._start + HEAD_BYTES
        if len(self._buffer) < body:
            self._cut()
            return None
        length = int.from_bytes(self._buffer[self._start : body], "big")
        if length > self.longest:
            if self._buffer.startswith(_TLS, self._start):
                raise FrameError(
                    "it uses TLS, and this side does not: use it on all nodes or on none"
                )
            raise FrameError(f"a frame of {length} bytes, {self.longest} are allowed")
        if len(self._buffer) < body + length:
            self._cut()
            return None
        self._start = body + length
        content = bytes(self._buffer[body : self._start])
        if self._start >= _CUT:
            self._cut()
        return content

    def _cut(self) -> None:
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
