"""Bugs to plant in the register: each takes out one of its rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator.register.run import Launcher, Run, Value
from undaunted.coordinator.lead import register
from undaunted.coordinator.lead.register import Member, Vote, Writer

if TYPE_CHECKING:
    import pytest


def the_committee_before_does_not_count(patch: pytest.MonkeyPatch) -> None:
    lacking = register.lacking

    def of_committee(present: Any, value: Any) -> Any:
        return lacking(present, Value(0, 0, value.committee))

    patch.setattr(register, "lacking", of_committee)


def half_is_a_majority(patch: pytest.MonkeyPatch) -> None:
    def half(present: Any, value: Any) -> Any:
        for committee in (value.committee, value.before):
            here = sum(register.voter(each) in present for each in committee)
            if here < len(committee) // 2:
                return committee
        return ()

    patch.setattr(register, "lacking", half)


def an_earlier_epoch_is_taken(patch: pytest.MonkeyPatch) -> None:
    written = Vote.written

    def always(self: Vote[Any], epoch: int, value: Any) -> bool:
        promised, self.promised = self.promised, 0
        taken = written(self, epoch, value)
        self.promised = max(promised, epoch)
        return taken

    patch.setattr(Vote, "written", always)


def a_promise_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def claimed(self: Vote[Any], epoch: int, value: Any) -> bool:
        return epoch > self.promised and not register.is_later(self.value, value)

    patch.setattr(Vote, "claimed", claimed)


def who_knows_less_is_elected(patch: pytest.MonkeyPatch) -> None:
    def claimed(self: Vote[Any], epoch: int, value: Any) -> bool:
        del value
        if epoch <= self.promised:
            return False
        self.promised = epoch
        return True

    patch.setattr(Vote, "claimed", claimed)


def the_committee_before_is_left_too_soon(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Writer, "is_settled", property(lambda _self: True))


def a_disk_that_came_back_old_votes(patch: pytest.MonkeyPatch) -> None:
    def same(self: Run, old: Launcher) -> Member:
        del self
        return old.member

    patch.setattr(Run, "again", same)


BUGS = {
    bug.__name__: bug
    for bug in (
        the_committee_before_does_not_count,
        half_is_a_majority,
        an_earlier_epoch_is_taken,
        a_promise_is_forgotten,
        who_knows_less_is_elected,
        the_committee_before_is_left_too_soon,
        a_disk_that_came_back_old_votes,
    )
}
