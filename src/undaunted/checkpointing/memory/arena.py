"""The memory into which a rank copies its state: one slot, with a header that says what is in it.

The header is the first page: words of 64 bits, native byte order. A reader trusts the content only
when the state is `COMPLETE` and the description has the checksum the header gives.
"""

from __future__ import annotations

import mmap
import os
import zlib
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.memory import create_memfd
from undaunted.checkpointing.errors import CheckpointError
from undaunted.checkpointing.files.sharing import share
from undaunted.checkpointing.format.image import ALIGNMENT, Image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEADER_BYTES = 4096
_MAGIC = int.from_bytes(b"UNDSLOT1", "little")
# Words of the header.
MAGIC, GENERATION, STATE, IMAGE_BYTES, DESCRIPTION_AT, DESCRIPTION_BYTES, DESCRIPTION_CRC = range(7)

EMPTY, COPYING, COMPLETE = range(3)

_TOUCHED_AT_ONCE = 4 << 20
_TOUCHING = 4  # threads


class ArenaTooSmallError(CheckpointError):
    """The state has no room in the arena; nothing was copied.

    Attributes:
        needed: bytes an arena must have, with room to grow.
    """

    def __init__(self, needed: int, size: int) -> None:
        super().__init__(f"an arena of {size} bytes is too small: {needed} bytes are needed")
        self.needed = needed


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a complete snapshot.

    Attributes:
        step: of training.
        epoch: of the round that took it; 0 without a launcher.
        session: of the run that took it.
        rank: in the job.
        world_size: ranks of the job.
        structure: fingerprint of the structure of the state, hexadecimal.
        files: where the files lie.
        report: where in them the objects lie that are not tensors (``Staged.report``).
        number: of the save in its session, the same on all ranks.
        saved_at: when it was copied, seconds since 1970.
        metadata: on rank 0 what its ``.metadata`` will be, where that is known already.
    """

    step: int
    epoch: int
    session: str
    rank: int
    world_size: int
    structure: str
    files: list[Image]
    report: bytes = b""
    number: int = 0
    saved_at: float = 0.0
    metadata: bytes = b""


class Arena:
    """Shared memory without a name, mapped here. Owns a descriptor and a mapping.

    Attributes:
        fd: of the memory, close-on-exec.
        size: bytes, the header among them.
        memory: all of it.
        occupant: whose heads and tails lie in it, see ``dcp/items.py``; never shared.
        before_close: called when the memory is given back.
    """

    def __init__(self, fd: int) -> None:
        """Map the memory behind ``fd``, which belongs to the arena from now on."""
        self.fd = fd
        self.occupant: object = None
        self.before_close: Callable[[], object] | None = None
        try:
            self.size = os.fstat(fd).st_size
            self.memory = memoryview(mmap.mmap(fd, self.size))
            self._header = self.memory[:HEADER_BYTES]
            self._words = self._header.cast("Q")
        except BaseException:
            self.fd = -1
            os.close(fd)
            raise

    @classmethod
    def create(cls, name: str, size: int) -> Arena:
        """Allocate an arena; its pages are reserved, but not touched yet (see :meth:`touch`).

        Args:
            name: what ``/proc/PID/fd`` shows, for people.
            size: bytes, see ``Planned.arena_bytes``.

        Raises:
            OSError: there is not enough memory.
        """
        arena = cls(create_memfd(name, max(size, HEADER_BYTES)))
        arena._words[STATE] = EMPTY
        arena._words[MAGIC] = _MAGIC
        return arena

    @classmethod
    def open(cls, fd: int) -> Arena:
        """Map an arena that another process has created; the descriptor is the arena's from now on.

        Raises:
            ValueError: this is no arena.
        """
        if os.fstat(fd).st_size >= HEADER_BYTES:
            arena = cls(fd)
            if arena._words[MAGIC] == _MAGIC:
                return arena
            arena.close()
        else:
            os.close(fd)
        raise ValueError("the shared memory is not an arena, or one of another version")

    @property
    def generation(self) -> int:
        """The number of snapshots that have been begun."""
        return int(self._words[GENERATION])

    def touch(self) -> None:
        """Have the pages mapped, by several threads, so that the first snapshot need not wait.

        What is there stays, if nobody writes at the same time. Takes about 0.3 s per GiB and core,
        without holding the interpreter's lock.
        """
        count = -(-(self.size - HEADER_BYTES) // _TOUCHED_AT_ONCE)
        share(count, _TOUCHING, "undaunted-touch", self._touch)

    def _touch(self, parts: Iterator[int]) -> None:
        for part in parts:
            at = HEADER_BYTES + part * _TOUCHED_AT_ONCE
            end = min(at + _TOUCHED_AT_ONCE, self.size)
            with self.memory[at:end] as memory:
                os.preadv(self.fd, [memory], at)  # its own content

    def begin(self) -> None:
        """Say that the content is about to change: until :meth:`complete` it counts for nothing."""
        self._words[STATE] = COPYING
        self._words[GENERATION] += 1

    def complete(self, description: Description) -> None:
        """Say that the content is whole, and what it is.

        Raises:
            ArenaTooSmallError: there is no room for the description.
        """
        body = msgspec.msgpack.encode(description)
        at = max((aligned(i.offset + i.size) for i in description.files), default=HEADER_BYTES)
        if at + len(body) > self.size:
            raise ArenaTooSmallError(aligned(at + len(body) * 2), self.size)
        self.memory[at : at + len(body)] = body
        self._words[IMAGE_BYTES] = at - HEADER_BYTES
        self._words[DESCRIPTION_AT] = at
        self._words[DESCRIPTION_BYTES] = len(body)
        self._words[DESCRIPTION_CRC] = zlib.crc32(body)
        self._words[STATE] = COMPLETE

    def description(self) -> Description | None:
        """Return what lies here, None when no snapshot is complete."""
        if self._words[STATE] != COMPLETE:
            return None
        at, length = self._words[DESCRIPTION_AT], self._words[DESCRIPTION_BYTES]
        if at + length > self.size:
            return None
        body = bytes(self.memory[at : at + length])
        if zlib.crc32(body) != self._words[DESCRIPTION_CRC]:
            return None
        try:
            return msgspec.msgpack.decode(body, type=Description)
        except msgspec.DecodeError:
            return None

    def close(self) -> None:
        """Give the memory back; again and again without harm.

        It goes with the last tensor that lies over it: a thread that still copies harms nothing.
        """
        if self.fd < 0:
            return
        if self.before_close is not None:
            self.before_close()
        os.close(self.fd)
        self.fd = -1
        self.occupant = None
        self._words.release()
        self._header.release()
        # Not unmapped: torch.frombuffer holds the memoryview, but nothing that forbids to unmap.
        del self.memory

    def __del__(self) -> None:
        """Close what was forgotten, as when an exception came from another thread."""
        try:
            if getattr(self, "fd", -1) >= 0:
                self.close()
        except Exception:  # noqa: BLE001, S110 - at the end of the interpreter modules are gone
            pass


def aligned(size: int) -> int:
    """Return the next multiple of 4096."""
    return -(-size // ALIGNMENT) * ALIGNMENT
