"""A new controller learns of a call that had begun before: from what the guards say of its ranks.

The highest record that anybody was told is the last one there is: nobody can have joined a later
epoch without it. All of its members are waited for; then the call goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from undaunted.inprocess.core import messages as m
    from undaunted.inprocess.core.standing import Said


@dataclass(slots=True)
class Takeover:
    """Of one call.

    Attributes:
        resumes: what is known of every rank, by job rank.
        lost: who will not come any more.
    """

    resumes: dict[int, m.Resume] = field(default_factory=dict)
    lost: dict[int, m.Reason] = field(default_factory=dict)

    @property
    def record(self) -> m.Record | None:
        """The highest that anybody was told."""
        records = [each.record for each in self.resumes.values() if each.record is not None]
        return max(records, key=lambda record: record.epoch, default=None)

    @property
    def missing(self) -> set[int]:
        """Members of that record of whom nothing is known yet."""
        record = self.record
        members = set() if record is None else set(record.members)
        return members - self.resumes.keys() - self.lost.keys()

    @property
    def stop(self) -> m.Stop | None:
        """Of the highest record's epoch, if anybody was told."""
        record = self.record
        stops = (each.stop for each in self.resumes.values() if each.record == record)
        return next((stop for stop in stops if stop is not None), None)

    def add(self, resume: m.Resume) -> None:
        """A guard tells of a rank."""
        self.resumes[resume.enter.job_rank] = resume

    def hear(self, message: Said) -> None:
        """One of these ranks says something more."""
        known = self.resumes.get(message.job_rank)
        if known is not None:
            said = (*known.said, message)
            self.resumes[message.job_rank] = msgspec.structs.replace(known, said=said)

    def lose(self, reason: m.Reason) -> None:
        """A rank is gone."""
        self.lost[reason.job_rank] = reason
