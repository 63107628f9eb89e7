"""Whether a rank makes progress: a reading of its page, limits and the time."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from undaunted.inprocess.core.reading import Phase

if TYPE_CHECKING:
    from undaunted.inprocess.core.messages import Limits
    from undaunted.inprocess.core.reading import Reading

_NS = 1_000_000_000
# A look that comes later than this was not late, the guard stood still.
_STOOD_STILL_NS = 500_000_000
# Timers may be early by their resolution; a look just before a limit would be in vain.
_MARGIN_S = 0.001
# Without its interpreter turning, and without `ping` where the function calls it.
_TURNS = "its Python interpreter has not turned"
_PINGS = "it has not called ping()"


class Ages(msgspec.Struct, frozen=True):
    """How long ago something was, in seconds; None = it was not, and limits nothing.

    Attributes:
        auto: since the interpreter turned.
        ping: since ``ping`` was called.
        atomic: since the outermost ``atomic`` began.
        owed: since the rank was told something that it has not done yet.
    """

    auto: float
    ping: float | None = None
    atomic: float | None = None
    owed: float | None = None


class Passed(enum.Enum):
    """Which limit."""

    NONE = enum.auto()
    SOFT = enum.auto()
    HARD = enum.auto()


class Verdict(msgspec.Struct, frozen=True):
    """What a look came to.

    Attributes:
        passed: the limit.
        look_in_s: when to look next.
        text: what the rank has not done for how long; "" = nothing was passed.
    """

    passed: Passed
    look_in_s: float
    text: str = ""


def judge(reading: Reading, ages: Ages, limits: Limits, *, soft: bool) -> Verdict:
    """Say whether a limit is passed, and when one could be next.

    Args:
        reading: of the rank's page.
        ages: of what it shows.
        limits: of the call.
        soft: whether the soft timeout counts: not if it was reported in this epoch, or the epoch is
            over.
    """
    if reading.unguarded > 0:
        return Verdict(Passed.NONE, limits.soft_timeout / 2)
    stamps = _stamps(reading.phase, ages)
    if soft and reading.phase is Phase.RUNNING:
        age, what = max(stamps)
        if age > limits.soft_timeout:
            return Verdict(Passed.SOFT, _MARGIN_S, f"{what} for {age:.1f} s (soft timeout)")
        return Verdict(Passed.NONE, limits.soft_timeout - age + _MARGIN_S)
    if ages.owed is not None:
        stamps.append((ages.owed, "it has not done what the controller told it"))
    if not stamps:
        return Verdict(Passed.NONE, limits.soft_timeout)
    age, what = max(stamps)
    left = limits.hard_timeout - age
    if reading.atomic > 0 and ages.atomic is not None:
        left = max(left, limits.barrier_timeout - ages.atomic)
    if left < 0:
        return Verdict(Passed.HARD, _MARGIN_S, f"{what} for {age:.1f} s (hard timeout)")
    return Verdict(Passed.NONE, left + _MARGIN_S)


def _stamps(phase: Phase, ages: Ages) -> list[tuple[float, str]]:
    """What limits a rank in this phase."""
    if phase is Phase.RUNNING:
        return [(ages.auto, _TURNS)] + ([(ages.ping, _PINGS)] if ages.ping is not None else [])
    return [(ages.auto, _TURNS)] if phase is Phase.RECOVERING else []


@dataclass(slots=True)
class Patience:
    """Ages of moments, without the time for which the guard itself stood still.

    What stops a guard (a stopped container, a host that swaps) has often stopped its rank as well.
    """

    _due_ns: int | None = None
    _still_ns: int = 0  # all the time for which it stood still
    _still_since_ns: int = 0  # the last time
    _still_before_ns: int = 0  # all the time, without the last
    _known: dict[str, tuple[int, int]] = field(default_factory=dict)

    def expect(self, delay_s: float, now: int) -> None:
        """The guard will look after so long."""
        self._due_ns = now + round(delay_s * _NS)

    def looked(self) -> None:
        """It has looked, and will not before it is expected to again."""
        self._due_ns = None

    def looks_within(self, delay_s: float, now: int) -> bool:
        """Whether it will look no later than after so long anyway."""
        return self._due_ns is not None and self._due_ns <= now + round(delay_s * _NS)

    def wake(self, now: int) -> None:
        """Something happens: notice if a look is overdue by far."""
        due = self._due_ns
        if due is not None and now - due > _STOOD_STILL_NS:
            self._still_before_ns = self._still_ns
            self._still_since_ns = due
            self._still_ns += now - due
            self._due_ns = None  # until it looks again

    def age(self, name: str, moment: int, now: int) -> float:
        """Seconds since a moment, the last of its kind."""
        known = self._known.get(name)
        if known is None or known[0] != moment:
            before = moment <= self._still_since_ns
            known = (moment, self._still_before_ns if before else self._still_ns)
            self._known[name] = known
        return (now - moment - (self._still_ns - known[1])) / _NS
