"""One node as the screen needs it: the newest launch, and what has happened lately. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from undaunted.journal import events as e
from undaunted.journal.goodput import account
from undaunted.journal.launch import MOST_KEPT, LaunchState
from undaunted.top.notes import OF_RANKS, Note, note_of, worth_a_note
from undaunted.top.ranks import Speeds

if TYPE_CHECKING:
    from undaunted.top.pages import Look

_NOTES = 100
# Where the time went is counted anew this often, and with each event.
_ACCOUNT_NS = 5_000_000_000


class Node:
    """One node, in bounded memory.

    Attributes:
        launch: what the journal tells of the newest launch.
        speeds: of its ranks, from one look at their pages to the next.
    """

    def __init__(self) -> None:
        self.launch = LaunchState(MOST_KEPT)
        self.speeds = Speeds()
        self._noteworthy: deque[e.Event] = deque(maxlen=_NOTES)
        self._of_ranks: deque[e.Event] = deque(maxlen=_NOTES)
        self._productive: tuple[float, int] | None = None
        self._count_again_ns = 0

    def take(self, event: e.Event) -> None:
        """Take in the next event of the journal."""
        if self._begins_a_launch(event):
            opened = self.launch.opened
            self.launch = LaunchState(MOST_KEPT)
            if opened is not None and not isinstance(event, e.JournalOpened):
                self.launch.take(opened)
            self._noteworthy.clear()
            self._of_ranks.clear()
        self.launch.take(event)
        self._count_again_ns = 0
        if isinstance(event, e.RankEvent):
            if event.name in OF_RANKS:
                self._of_ranks.append(event)
        elif worth_a_note(event):
            self._noteworthy.append(event)

    def _begins_a_launch(self, event: e.Event) -> bool:
        if isinstance(event, e.JournalOpened):
            opened = self.launch.opened
            return opened is None or opened.writer != event.writer
        # A journal that is read from its beginning again has the same writer.
        return isinstance(event, e.JobStarted) and self.launch.job is not None

    def notes(self) -> list[Note]:
        """Say what has happened lately, in no order."""
        notes = map(note_of, [*self._noteworthy, *self._of_ranks])
        return [note for note in notes if note is not None]

    def productive(self, now_ns: int, looks: list[Look] | None) -> tuple[float, int] | None:
        """Return productive and all time of the node's ranks so far; None if that is not known.

        Args:
            now_ns: CLOCK_MONOTONIC.
            looks: its pages; None where the launcher does not run here.
        """
        if now_ns < self._count_again_ns:
            return self._productive
        self._count_again_ns = now_ns + _ACCOUNT_NS
        launch = self.launch if looks is None else self.launch.at(now_ns, _reached(looks))
        spent = account(launch)
        ranks = max(1, len(launch.current.ranks))
        self._productive = None
        if launch.complete and spent.steps_known and spent.total.total_ns:
            self._productive = (spent.total.productive_ns * ranks, spent.total.total_ns * ranks)
        return self._productive


def _reached(looks: list[Look]) -> tuple[int, int, int] | None:
    """Return the lowest iteration that a rank began with, the highest begun, and when."""
    pages = [look.page for look in looks]
    first = [page.first_iteration for page in pages if page.first_iteration is not None]
    last = [
        (page.iteration, page.iteration_ns)
        for page in pages
        if page.iteration is not None and page.iteration_ns is not None
    ]
    return (min(first), *max(last)) if first and last else None
