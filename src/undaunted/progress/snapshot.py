"""The content of one rank's page at one moment: plain immutable values.

All times are CLOCK_MONOTONIC nanoseconds; ``None`` means "has not happened".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.progress.layout import Wish


class Phase(enum.IntEnum):
    """The place of a rank in its life."""

    EMPTY = 0  # nobody has attached since the page was reset
    STARTING = 1  # attached; the user's program is about to run or is importing
    INITIALIZED = 2  # init_workload_monitoring, or the first heartbeat, section or step
    STEPPING = 3  # undaunted.step was called
    SHUT_DOWN = 4  # shutdown_workload_monitoring: no timeouts apply
    FAILED = 5  # an unhandled exception was recorded
    LEAVING = 6  # the user's program has ended; the interpreter is shutting down


@dataclass(frozen=True)
class Maxima:
    """The longest of everything that a rank did, nanoseconds; 0 = was not seen.

    Attributes:
        initial_ns: from the beginning of monitoring to the first heartbeat.
        subsequent_ns: between two heartbeats.
        out_of_section_ns: while no section was open.
        sections_ns: that each section was open.
    """

    initial_ns: int = 0
    subsequent_ns: int = 0
    out_of_section_ns: int = 0
    sections_ns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SectionSnapshot:
    """One section. ``open_since_ns`` is None while it is closed; ``count`` counts closings."""

    name: str
    open_since_ns: int | None = None
    count: int = 0
    last_ns: int = 0
    max_ns: int = 0
    warm_max_ns: int = 0  # of what came after the warm-up
    total_ns: int = 0  # of all entries that were left


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """The last error a rank recorded before it died."""

    at_ns: int
    type: str  # for example "ValueError"
    message: str
    traceback: str  # as printed, shortened in the middle if too long
    pid: int


@dataclass(frozen=True, slots=True)
class PageSnapshot:
    """One page. ``problem`` says why nothing else in it can be trusted, or is empty."""

    pid: int = 0
    pid_start: int = 0  # field 22 of /proc/PID/stat: clock ticks since boot
    phase: Phase = Phase.EMPTY
    evidence_signal: int = 0  # signal for which faulthandler is armed, 0 = not armed
    heartbeat_count: int = 0
    heartbeat_ns: int | None = None  # last heartbeat (steps count as heartbeats)
    heartbeat_max_ns: int = 0  # largest gap between heartbeats
    heartbeat_warm_max_ns: int = 0  # of what came after the warm-up
    first_heartbeat_ns: int | None = None
    iteration: int | None = None
    iteration_ns: int | None = None
    first_iteration: int | None = None
    warmup_iterations: int | None = None  # given to init_workload_monitoring by the rank
    attached_ns: int | None = None
    first_line_ns: int | None = None  # the user's program began
    initialized_ns: int | None = None
    first_step_ns: int | None = None
    leaving_ns: int | None = None  # since when the interpreter is shutting down
    out_of_section_since_ns: int | None = None  # None while a section is open
    outside_count: int = 0  # times between two sections
    outside_max_ns: int = 0  # longest of them
    outside_warm_max_ns: int = 0  # longest of those after the warm-up
    sections: Mapping[str, SectionSnapshot] = field(default_factory=dict)
    error: ErrorRecord | None = None
    wish: Wish | None = None  # that all ranks stop
    problem: str = ""

    @property
    def latest_ns(self) -> int | None:
        """The time of the rank's last act that is watched."""
        times = [self.heartbeat_ns, self.out_of_section_since_ns]
        times += [section.open_since_ns for section in self.sections.values()]
        return max((time for time in times if time is not None), default=None)
