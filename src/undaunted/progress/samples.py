"""The durations that programs have shown: their number, and the longest. Pure; kept on disk.

`Knowledge` is what all rounds with as many ranks have shown, as `Samples` by kind:

* ``heartbeat``: gaps between heartbeats,
* ``section:NAME``: times a section was open,
* ``out_of_section``: times no section was open, between two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from undaunted.base.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

HEARTBEAT = "heartbeat"
OUT_OF_SECTION = "out_of_section"
SECTION = "section:"

_NS = 1_000_000_000
_MOST = 2**62

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Samples(msgspec.Struct, frozen=True, omit_defaults=True):
    """Durations of one kind.

    Attributes:
        count: how many came after the warm-up.
        longest_ns: the longest one of these.
        ever_ns: the longest one of all, warm-up included.
        raised_s: the limit is not less than this; 0 = no rank was ended by a learned limit.
    """

    count: Count = 0
    longest_ns: Count = 0
    ever_ns: Count = 0
    raised_s: Seconds = 0.0

    def summary(self) -> str:
        """Count and longest in words."""
        text = f"{self.count} samples, longest {format_duration(self.longest_ns / _NS)}"
        return f"{text}, raised since it ended a rank" if self.raised_s else text

    def with_longest(self, other: Samples, count: int) -> Samples:
        """Return so many samples, with the longest of both."""
        return Samples(
            bounded(count),
            max(self.longest_ns, other.longest_ns),
            max(self.ever_ns, other.ever_ns),
            max(self.raised_s, other.raised_s),
        )


class Knowledge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The durations that a program has shown with a number of ranks.

    Attributes:
        world_size: the number of ranks.
        observed_ns: how long it was watched after its warm-up.
        samples: by kind, see above. The names of its sections identify a program, so there is an
            entry for each, if only an empty one.
    """

    world_size: int
    observed_ns: Count = 0
    samples: dict[str, Samples] = {}

    def of(self, key: str) -> Samples:
        """Return the samples of a kind, empty ones if there are none."""
        return self.samples.get(key, Samples())

    def sections(self) -> set[str]:
        """Return the names of the sections the program uses."""
        return {key.removeprefix(SECTION) for key in self.samples if key.startswith(SECTION)}

    def fits(self, names: Iterable[str]) -> bool:
        """Tell whether a program with these sections may be the one this is about."""
        return self.sections() >= set(names)

    def raised(self, key: str, limit_s: float) -> Knowledge:
        """Return the same with a lower bound for the limit of a kind, seconds."""
        samples = msgspec.structs.replace(self.of(key), raised_s=limit_s)
        return msgspec.structs.replace(self, samples={**self.samples, key: samples})


def merge(one: Knowledge, other: Knowledge) -> Knowledge:
    """Put together what was learned at different times with the same number of ranks."""
    return Knowledge(
        world_size=one.world_size,
        observed_ns=bounded(one.observed_ns + other.observed_ns),
        samples={
            key: one.of(key).with_longest(other.of(key), one.of(key).count + other.of(key).count)
            for key in sorted(one.samples.keys() | other.samples.keys())
        },
    )


def bounded(count: int) -> int:
    """Keep a number that a page may have made up within what can be written."""
    return min(count, _MOST)
