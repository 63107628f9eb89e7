"""The journal is told how far the ranks are, as long as they run and when they have ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.agent.ranks.progress_file import PageProgress, last_step_ns

if TYPE_CHECKING:
    from undaunted.coordinator.core.progress import Iterations
    from undaunted.fault_tolerance.agent.telling.scribe import Scribe
    from undaunted.progress.area import PageArea

# Of a launcher that is killed, this is known.
_EVERY_S = 60.0


class ProgressNotes:
    """Looks at the pages now and then.

    Args:
        area: the pages.
        scribe: tells the journal.
    """

    def __init__(self, area: PageArea, scribe: Scribe) -> None:
        self._area = area
        self._scribe = scribe
        self._progress = PageProgress()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The ranks run: note how far they are now, and every minute."""
        self.close()
        self._note()
        self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self.begin)

    def end(self) -> Iterations:
        """The ranks have ended: note it once more, and return how far they came."""
        self.close()
        return self._note()

    def close(self) -> None:
        """Note nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _note(self) -> Iterations:
        pages = [self._area.snapshot(index) for index in range(self._area.ranks)]
        seen = self._progress.look(pages)
        self._scribe.round_progress(seen, last_step_ns(pages))
        return seen
