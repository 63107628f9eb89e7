"""The arenas of a rank: which of them are free, and how large they are."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from undaunted.checkpointing.errors import SaveError
from undaunted.checkpointing.staging.arena import Arena


@dataclass
class Slot:
    """Room for one snapshot.

    Attributes:
        index: its number, from 0.
        arena: the memory, None until it is needed.
    """

    index: int
    arena: Arena | None = None

    def room(self, size: int) -> Arena:
        """Return an arena of at least ``size`` bytes: the present one, or a new one in its place.

        Raises:
            OSError: there is not enough memory.
        """
        if self.arena is not None and self.arena.size < size:
            self.close()
        if self.arena is None:
            self.arena = Arena.create(f"undaunted-checkpoint-{self.index}", size)
        return self.arena

    def close(self) -> None:
        """Give the memory back."""
        arena, self.arena = self.arena, None
        if arena is not None:
            arena.close()


class Slots:
    """All slots of a rank. One thread takes them, another gives them back, any may close them.

    Attributes:
        count: how many there are.
    """

    def __init__(self, count: int) -> None:
        """Make ``count`` slots, all free and without memory."""
        self.count = count
        self._free = [Slot(index) for index in range(count)]
        self._closed = False
        self._changed = threading.Condition()

    def take(self, timeout_s: float) -> Slot:
        """Return a slot that nobody uses; wait for one when all are being written.

        Raises:
            SaveError: none has become free in time, or they are closed.
        """
        with self._changed:
            ready = self._changed.wait_for(lambda: self._free or self._closed, timeout_s)
            if self._closed:
                raise SaveError("this Checkpointer was aborted or closed during a save")
            if not ready:
                raise SaveError(
                    f"the checkpoint before this one is still being written after {timeout_s:g} s: "
                    "save less often, raise timeout=, or look at the speed of the storage"
                )
            return self._free.pop()

    def give_back(self, slot: Slot) -> None:
        """Say that the slot's content is no longer needed."""
        with self._changed:
            if not self._closed:
                self._free.append(slot)
                self._changed.notify_all()
                return
        slot.close()

    def close(self) -> None:
        """Give all memory back; that of a slot in use follows when it is given back."""
        with self._changed:
            self._closed = True
            free, self._free = self._free, []
            self._changed.notify_all()
        for slot in free:
            slot.close()
