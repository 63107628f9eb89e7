"""`TimeoutsCalc`: limits from measurements of one rank and, synchronized, of all.

The arithmetic is that of `undaunted.fault_tolerance.timeouts_calc`; times here are seconds of the
monotonic clock, which the caller may pass.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nvidia_resiliency_ext.fault_tolerance.data import SectionAction
from undaunted.fault_tolerance.timeouts_calc import (
    HeartbeatTimeouts,
    SectionTimeouts,
    SynchronizationError,
    TimeoutsCalcError,
    heartbeat_timeouts,
    section_timeouts,
    synchronized,
)
from undaunted.progress.snapshot import Maxima

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_NS = 1_000_000_000
_SYNC_TIMEOUT_S = 60.0


class TimeoutsCalc:
    """Measures one rank.

    Attributes:
        section_to_max_time: the longest time each section was open, -1 = not seen.
        open_sections: since when each open section is open.
        initial_max_time, subsequent_max_time, out_of_section_max_time: likewise, seconds.
    """

    def __init__(
        self,
        sections: Iterable[str] | None = None,
        start_time: float | None = None,
        safety_factor: float = 5.0,
    ) -> None:
        """Begin.

        Args:
            sections: names of those that may be used.
            start_time: when measuring began, None = now.
            safety_factor: limit over longest.
        """
        self.start_time = time.monotonic() if start_time is None else start_time
        self.safety_factor = safety_factor
        self.prev_hb_time: float | None = None
        self.count = 0
        self.initial_max_time = self.subsequent_max_time = self.out_of_section_max_time = -1.0
        self.open_sections: dict[str, float] = {}
        self.last_section_close_time = self.start_time
        self.section_to_max_time = dict.fromkeys(sections or (), -1.0)

    @property
    def is_out_of_section(self) -> bool:
        """Return whether no section is open."""
        return not self.open_sections

    def reset_start_time(self) -> None:
        """Measuring begins now."""
        self.start_time = self.last_section_close_time = time.monotonic()

    def update_on_heartbeat(self, hb_time: float | None = None) -> None:
        """A heartbeat is sent, now or at ``hb_time``."""
        now = time.monotonic() if hb_time is None else hb_time
        if self.prev_hb_time is None:
            self.initial_max_time = max(self.initial_max_time, now - self.start_time)
        else:
            self.subsequent_max_time = max(self.subsequent_max_time, now - self.prev_hb_time)
        self.prev_hb_time = now
        self.count += 1

    def update_on_section_event(
        self, section: str | None, action: SectionAction, event_time: float | None = None
    ) -> None:
        """A section is opened or closed, or (None) all are closed, now or at ``event_time``.

        Raises:
            TimeoutsCalcError: there is no such section; it is open already, or is not open.
        """
        now = time.monotonic() if event_time is None else event_time
        if action is SectionAction.CLOSE_ALL or section is None:
            for name in list(self.open_sections):
                self._close(name, now)
            return
        if section not in self.section_to_max_time:
            raise TimeoutsCalcError(f"section {section!r} is none of those in the configuration")
        if action is SectionAction.OPEN:
            if section in self.open_sections:
                raise TimeoutsCalcError(f"section {section!r} is open already")
            self.maybe_bump_oos_time(now)
            self.open_sections[section] = now
        elif section not in self.open_sections:
            raise TimeoutsCalcError(f"section {section!r} is not open")
        else:
            self._close(section, now)

    def maybe_bump_oos_time(self, curr_time: float | None = None) -> None:
        """Count the time outside of sections until now, if none is open."""
        if self.is_out_of_section:
            now = time.monotonic() if curr_time is None else curr_time
            outside = now - self.last_section_close_time
            self.out_of_section_max_time = max(self.out_of_section_max_time, outside)

    def synchronize_all(self) -> None:
        """Take the longest of all ranks; every rank calls this.

        Raises:
            TimeoutsCalcError: torch.distributed is not initialized, or ranks did not answer within
                60 s.
        """
        import torch

        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise TimeoutsCalcError("the ranks cannot be asked: there is no process group")
        try:
            seen = synchronized(self._maxima(), None, _SYNC_TIMEOUT_S)
        except SynchronizationError as error:
            raise TimeoutsCalcError(str(error)) from None
        self.initial_max_time = _seconds(seen.initial_ns)
        self.subsequent_max_time = _seconds(seen.subsequent_ns)
        self.out_of_section_max_time = _seconds(seen.out_of_section_ns)
        for name, longest in seen.sections_ns.items():
            self.section_to_max_time[name] = _seconds(longest)

    def can_get_hb_timeouts(self) -> bool:
        """Return whether enough heartbeats were sent."""
        return self.initial_max_time > 0 and self.subsequent_max_time > 0

    def get_hb_timeouts(self, current: HeartbeatTimeouts | None = None) -> HeartbeatTimeouts:
        """Return new limits; those in ``current`` that were calculated are averaged with them.

        Raises:
            TimeoutsCalcError: fewer than two heartbeats were sent.
        """
        return heartbeat_timeouts(
            self._maxima(), current or HeartbeatTimeouts(), self.safety_factor
        )

    def can_get_section_timeouts(
        self,
        selected_sections: Collection[str] | None = None,
        calc_out_of_section: bool = True,
    ) -> bool:
        """Return whether each selected section (None = all) was closed once."""
        names = self.section_to_max_time if selected_sections is None else selected_sections
        seen = all(self.section_to_max_time.get(name, -1) > 0 for name in names)
        return seen and (not calc_out_of_section or self.out_of_section_max_time > 0)

    def get_section_timeouts(
        self,
        selected_sections: Collection[str] | None = None,
        calc_out_of_section: bool = True,
        current: SectionTimeouts | None = None,
    ) -> SectionTimeouts:
        """Return new limits; those in ``current`` that were calculated are averaged with them.

        Raises:
            TimeoutsCalcError: a selected section was never closed, or all time was in sections.
        """
        names = self.section_to_max_time if selected_sections is None else selected_sections
        return section_timeouts(
            self._maxima(),
            current or SectionTimeouts(dict.fromkeys(self.section_to_max_time)),
            self.safety_factor,
            sections=names,
            out_of_section=calc_out_of_section,
        )

    def _close(self, section: str, now: float) -> None:
        took = now - self.open_sections.pop(section)
        self.section_to_max_time[section] = max(took, self.section_to_max_time[section])
        self.last_section_close_time = now

    def _maxima(self) -> Maxima:
        return Maxima(
            _nanoseconds(self.initial_max_time),
            _nanoseconds(self.subsequent_max_time),
            _nanoseconds(self.out_of_section_max_time),
            {name: _nanoseconds(longest) for name, longest in self.section_to_max_time.items()},
        )


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * _NS))


def _seconds(nanoseconds: int) -> float:
    return nanoseconds / _NS if nanoseconds else -1.0


__all__ = ["TimeoutsCalc", "TimeoutsCalcError"]
