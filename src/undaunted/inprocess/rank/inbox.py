"""What the watcher has heard and the user's thread waits for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import msgspec

from undaunted.inprocess.core.messages import Dismissed, End, Finished, Record, Stop

if TYPE_CHECKING:
    from collections.abc import Callable


class Broken(msgspec.Struct, frozen=True):
    """The guard is gone: nobody tells this rank anything any more."""

    text: str


T = TypeVar("T")

# How an epoch ends for a rank.
Verdict = Stop | Finished | End | Dismissed | Broken
# After these, there is no other one.
LAST = (Finished, End, Dismissed, Broken)


class Inbox:
    """Of one call: the record and the verdict of the epoch that is on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._record: Record | None = None
        self._verdict: Verdict | None = None
        self._taken = False

    def begin_epoch(self) -> None:
        """Forget the epoch that is over; an end of the call stays."""
        with self._changed:
            self._record = None
            if isinstance(self._verdict, Stop):
                self._verdict = None

    def put(self, news: Record | Verdict) -> None:
        """A record, or a verdict on the epoch that is on. What comes last counts."""
        with self._changed:
            if isinstance(news, Record):
                self._record = news
                self._taken = False
            elif not isinstance(self._verdict, LAST):
                self._verdict = news
            self._changed.notify_all()

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, None = the epoch is on."""
        return self._verdict

    def wait_for_record(self, timeout_s: float | None) -> Record | Verdict | None:
        """Return the record, or the verdict if the call has ended; None = time is over.

        An epoch that was stopped before this rank has looked is taken up all the same, and left.
        """

        def look() -> Record | Verdict | None:
            return self._verdict if isinstance(self._verdict, LAST) else self._record

        return self._wait(look, timeout_s)

    def wait_for_verdict(self, timeout_s: float | None) -> Verdict | None:
        """Return the verdict; None = time is over."""

        def look() -> Verdict | None:
            return self._verdict

        verdict = self._wait(look, timeout_s)
        self._taken = verdict is not None
        return verdict

    @property
    def is_taken(self) -> bool:
        """Whether the user's thread knows the verdict on the epoch."""
        return self._taken

    def _wait(self, look: Callable[[], T], timeout_s: float | None) -> T:
        with self._changed:
            self._changed.wait_for(look, timeout_s)
            return look()
