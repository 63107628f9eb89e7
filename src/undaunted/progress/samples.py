"""What programs were seen to do, as counts of durations. Pure; it is kept on disk.

`Knowledge` is what all rounds with as many ranks have shown, as `Samples` by kind:

* ``heartbeat``: gaps between heartbeats,
* ``section:NAME``: times a section was open,
* ``out_of_section``: times no section was open, between two,
* ``initial_heartbeat``: from the start of a round to the first heartbeat of its last rank,
* ``warmup:`` with one of the first three: the longest among the first few of a round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from undaunted.base.text import format_duration
from undaunted.progress.histogram import BUCKETS, quantile

if TYPE_CHECKING:
    from collections.abc import Iterable

QUANTILE = 0.999

HEARTBEAT = "heartbeat"
OUT_OF_SECTION = "out_of_section"
START = "initial_heartbeat"
SECTION = "section:"
WARMUP = "warmup:"

_NS = 1_000_000_000
_MOST = 2**62

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Bucket = Annotated[int, msgspec.Meta(ge=0, lt=BUCKETS)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Samples(msgspec.Struct, frozen=True, omit_defaults=True):
    """Durations of one kind.

    Attributes:
        counts: how many, by bucket of `histogram`.
        longest_ns: the longest one.
        raised_s: the limit is not less than this; 0 = no rank was ended by a learned limit.
    """

    counts: dict[Bucket, Count] = {}
    longest_ns: Count = 0
    raised_s: Seconds = 0.0

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.counts.values())

    def quantile_ns(self, q: float) -> int:
        """Upper bound of a quantile, never above the longest; 0 if there is nothing."""
        found = quantile([self.counts.get(index, 0) for index in range(BUCKETS)], q)
        return min(found or 0, self.longest_ns)

    def summary(self) -> str:
        """Count, quantile and longest in words."""
        quantile_s = format_duration(self.quantile_ns(QUANTILE) / _NS)
        longest = format_duration(self.longest_ns / _NS)
        text = f"{self.total} samples, q99.9 = {quantile_s}, longest {longest}"
        if self.raised_s:
            text += ", raised since it ended a rank"
        return text


class Knowledge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a program has shown with a number of ranks.

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
            key: _add(one.of(key), other.of(key))
            for key in sorted(one.samples.keys() | other.samples.keys())
        },
    )


def bounded(count: int) -> int:
    """Keep a number that a page may have made up within what can be written."""
    return min(count, _MOST)


def _add(one: Samples, other: Samples) -> Samples:
    counts = {
        bucket: bounded(one.counts.get(bucket, 0) + other.counts.get(bucket, 0))
        for bucket in sorted(one.counts.keys() | other.counts.keys())
    }
    longest_ns = max(one.longest_ns, other.longest_ns)
    return Samples(counts, longest_ns, max(one.raised_s, other.raised_s))
