"""What a rank was told about its call, and what it has said since: enough to tell a new controller.

Also keeps out what is of another call, of an earlier epoch, or said twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from undaunted.inprocess.core import messages as m

if TYPE_CHECKING:
    from collections.abc import Hashable

Said = m.Join | m.Fault | m.Completed | m.Leave


@dataclass(slots=True)
class Standing:
    """Of one rank in one call.

    Attributes:
        enter: the call.
        ended: how the last call ended that has ended for this rank.
        record: the last it was told.
        stop: of that record's epoch.
        said: what the rank has said since the record.
        over: the call is over for this rank: it was told so, or has left.
    """

    enter: m.Enter
    ended: m.Finished | m.End | None = None
    record: m.Record | None = None
    stop: m.Stop | None = None
    said: list[Said] = field(default_factory=list)
    over: bool = False

    @property
    def epoch(self) -> int:
        """The epoch it is in or joins; that of the last record, 0 before the first."""
        return 0 if self.record is None else self.record.epoch

    @property
    def running(self) -> bool:
        """Whether the epoch of the last record is on, as far as the rank knows."""
        return self.record is not None and self.stop is None and not self.over

    @property
    def on(self) -> bool:
        """Whether the call has begun, and was not said to have ended; the rank may have left it.

        One that is to take the place of a lost rank is in the others' call from the beginning.
        """
        ended = self.ended is not None and self.ended.call == self.enter.call
        return (self.record is not None or self.enter.rejoin) and not ended

    def hear(self, message: Said) -> bool:
        """Take what the rank says; return whether it is news."""
        mine = message.call == self.enter.call and message.job_rank == self.enter.job_rank
        late = message.epoch < self.epoch and not isinstance(message, m.Leave)
        if self.over or not mine or late:
            return False
        if any(_kind(message) == _kind(each) for each in self.said):
            return False
        self.said.append(message)
        self.over = isinstance(message, m.Leave)
        return True

    def tell(self, message: m.ToRank) -> bool:
        """Take what the controller says; return whether the rank must hear of it."""
        if self.over or not self._concerns(message):
            return False
        match message:
            case m.Record():
                self.enter = msgspec.structs.replace(self.enter, call=message.call)
                self.record, self.stop = message, None
                self.said.clear()
            case m.Stop():
                self.stop = message
            case m.Finished() | m.End():
                self.ended, self.over = message, True
            case m.Dismissed():
                self.leave(message.text)
        return True

    def leave(self, text: str) -> None:
        """The rank is told to take no part any more: that counts as if it had said so."""
        reason = m.Reason("UNRESPONSIVE", self.enter.job_rank, text=text)
        self.hear(m.Leave(self.enter.call, self.enter.job_rank, self.epoch, reason))

    def resume(self) -> m.Resume:
        """All of it."""
        return m.Resume(self.enter, self.record, self.stop, tuple(self.said), self.ended)

    def has_left(self, epoch: int) -> bool:
        """Whether it has said that it is done with an epoch, for the next one or for good."""
        return any(
            isinstance(each, m.Leave) or (isinstance(each, m.Join) and each.epoch > epoch)
            for each in self.said
        )

    def _concerns(self, message: m.ToRank) -> bool:
        searching = self.enter.rejoin and self.record is None
        if message.call != self.enter.call and not searching:
            return False
        match message:
            case m.Record(epoch=epoch, members=members, joined=joined):
                newer = self.record is None or epoch > self.record.epoch
                # A record that was on its way to the process before means that one.
                return newer and self.enter.job_rank in (joined if searching else members)
            case m.Stop(epoch=epoch):
                return self.running and epoch == self.epoch
            case m.Finished(epoch=epoch):
                return self.record is not None and epoch == self.epoch
            case m.Dismissed(call=call, job_rank=job_rank):
                return (call, job_rank) == (self.enter.call, self.enter.job_rank)
        return True


def _kind(message: Said) -> Hashable:
    """What a rank says once only in an epoch."""
    kind = message.reason.kind if isinstance(message, m.Fault) else ""
    return type(message), message.epoch, kind
