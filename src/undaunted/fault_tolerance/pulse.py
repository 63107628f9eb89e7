"""The pulse of an agent: what its front looks at, to stop the ranks of one that stands still.

An agent whose machine is well may stand still alone (a debugger, a freezer, swap): others go on
without its node, and nobody stops its ranks but the other half of its launcher.
"""

from __future__ import annotations

import mmap
import struct

# How often the agent says that it lives, and the front looks.
BEAT_S = 0.25
_BEAT = struct.Struct("=qd")
_END = struct.Struct("=q")


class Pulse:
    """Memory that the front and its agent share; made before the fork."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, _BEAT.size + _END.size)
        self._count = 0

    def beat(self, ranks_outlive_s: float) -> None:
        """Say that this process, the agent, lives, and for how long its ranks may without it.

        ``ranks_outlive_s``: 0 = there is no limit.
        """
        self._count += 1
        _BEAT.pack_into(self._page, 0, self._count, ranks_outlive_s)

    def read(self) -> tuple[int, float]:
        """Return how often it has said so, and for how long ranks may live since the last time."""
        count, ranks_outlive_s = _BEAT.unpack_from(self._page)
        return count, ranks_outlive_s

    def end_ranks(self, now_ns: int) -> None:
        """Let the agent see, once it goes on, that its front ends all ranks now (monotonic)."""
        _END.pack_into(self._page, _BEAT.size, now_ns)

    @property
    def ranks_ended_ns(self) -> int:
        """When the front has done so last, 0 = never."""
        ended_ns: int = _END.unpack_from(self._page, _BEAT.size)[0]
        return ended_ns


class Standstill:
    """The front's look at an agent. Time in which the front has stood still as well is left out."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._count = 0
        self._silent_s = 0.0
        self._looked_s = 0.0

    def look(self, now_s: float) -> bool:
        """Look every `BEAT_S`; return whether ranks have outlived their agent: once per standstill.

        ``now_s``: of a clock that never goes back.
        """
        count, limit_s = self._pulse.read()
        since_s, self._looked_s = now_s - self._looked_s, now_s
        if count != self._count:
            self._count, self._silent_s = count, 0.0
            return False
        before_s, self._silent_s = self._silent_s, self._silent_s + min(since_s, 2 * BEAT_S)
        return 0 < limit_s <= self._silent_s and before_s < limit_s
