"""Limits calculated by the ranks: a safety factor times the longest that was measured."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from undaunted.progress.snapshot import Maxima

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from undaunted.progress.limits import Limits
    from undaunted.progress.writer import PageWriter

_NS = 1_000_000_000
_OF_THE_NEW = 0.5  # of a limit that replaces a calculated one


class TimeoutsCalcError(Exception):
    """There is not enough to calculate limits from."""


@dataclass(frozen=True)
class HeartbeatTimeouts:
    """Limits of heartbeats, seconds; None = none.

    Attributes:
        initial: until the first one.
        subsequent: between two.
        were_calculated: they come from measurements.
    """

    initial: float | None = None
    subsequent: float | None = None
    were_calculated: bool = False

    @property
    def are_valid(self) -> bool:
        """Return whether both limits are known."""
        return self.initial is not None and self.subsequent is not None


@dataclass(frozen=True)
class SectionTimeouts:
    """Limits of sections, seconds; None = none.

    Attributes:
        section: by name.
        out_of_section: while no section is open.
        calculated_sections: names of those whose limits come from measurements; any collection.
        is_out_of_section_calculated: whether ``out_of_section`` does.
    """

    section: Mapping[str, float | None] = field(default_factory=dict)
    out_of_section: float | None = None
    calculated_sections: frozenset[str] = frozenset()
    is_out_of_section_calculated: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "calculated_sections", frozenset(self.calculated_sections))

    @property
    def are_valid(self) -> bool:
        """Return whether all limits are known."""
        return None not in (self.out_of_section, *self.section.values())

    @property
    def were_calculated(self) -> bool:
        """Return whether all limits come from measurements."""
        return self.is_out_of_section_calculated and self.calculated_sections >= set(self.section)


class TimeoutsCalc:
    """Durations of one rank, as its page has them: of the client, and of `undaunted.step` as well.

    Attributes:
        open_sections: names of the sections that the client has opened, in that order.
    """

    def __init__(self, writer: PageWriter) -> None:
        """Show the page of ``writer``."""
        self._writer = writer
        self.open_sections: dict[str, None] = {}

    def maxima(self) -> Maxima:
        """The longest of everything so far."""
        return self._writer.maxima()


def configured_timeouts(limits: Limits) -> tuple[HeartbeatTimeouts, SectionTimeouts]:
    """Limits in force when monitoring begins; a round before this one may have calculated them."""
    heartbeat = HeartbeatTimeouts(
        limits.initial_heartbeat_s,
        limits.heartbeat_s,
        were_calculated="heartbeat" in limits.sources,
    )
    names = (key.removeprefix("section:") for key in limits.sources if key.startswith("section:"))
    section = SectionTimeouts(
        dict(limits.sections),
        limits.out_of_section_s,
        calculated_sections=frozenset(names),
        is_out_of_section_calculated="out_of_section" in limits.sources,
    )
    return heartbeat, section


def heartbeat_timeouts(
    seen: Maxima, current: HeartbeatTimeouts, safety_factor: float
) -> HeartbeatTimeouts:
    """Return new limits.

    Args:
        seen: on all ranks.
        current: limits so far; those that were calculated are averaged with the new ones.
        safety_factor: limit over longest.

    Raises:
        TimeoutsCalcError: fewer than two heartbeats were sent.
    """
    if not seen.initial_ns or not seen.subsequent_ns:
        raise TimeoutsCalcError("at least two heartbeats are needed")
    calculated = current.were_calculated
    return HeartbeatTimeouts(
        _merged(seen.initial_ns, current.initial, safety_factor, calculated=calculated),
        _merged(seen.subsequent_ns, current.subsequent, safety_factor, calculated=calculated),
        were_calculated=True,
    )


def section_timeouts(
    seen: Maxima,
    current: SectionTimeouts,
    safety_factor: float,
    *,
    sections: Iterable[str],
    out_of_section: bool,
) -> SectionTimeouts:
    """Return new limits; those of sections that are not selected stay.

    Args:
        seen: on all ranks.
        current: limits so far; those that were calculated are averaged with the new ones.
        safety_factor: limit over longest.
        sections: the selected ones.
        out_of_section: whether the limit outside of sections is calculated, too.

    Raises:
        TimeoutsCalcError: a selected section was never closed, or all time was in sections.
    """
    names = sorted(set(sections))
    missing = [name for name in names if not seen.sections_ns.get(name)]
    if missing:
        listed = ", ".join(map(repr, missing))
        raise TimeoutsCalcError(f"no rank has ended section {listed} yet")
    if out_of_section and not seen.out_of_section_ns:
        raise TimeoutsCalcError("no time outside of sections was seen")
    limits = dict(current.section)
    for name in names:
        calculated = name in current.calculated_sections
        limits[name] = _merged(
            seen.sections_ns[name], limits.get(name), safety_factor, calculated=calculated
        )
    found = replace(
        current,
        section=limits,
        calculated_sections=current.calculated_sections | frozenset(names),
    )
    if not out_of_section:
        return found
    limit = _merged(
        seen.out_of_section_ns,
        current.out_of_section,
        safety_factor,
        calculated=current.is_out_of_section_calculated,
    )
    return replace(found, out_of_section=limit, is_out_of_section_calculated=True)


def with_loaded(current: SectionTimeouts, loaded: SectionTimeouts) -> SectionTimeouts:
    """Return the current limits with the calculated ones of a checkpoint put in."""
    limits = dict(current.section)
    limits |= {name: loaded.section[name] for name in loaded.calculated_sections}
    names = current.calculated_sections | loaded.calculated_sections
    found = replace(current, section=limits, calculated_sections=names)
    if not loaded.is_out_of_section_calculated:
        return found
    return replace(found, out_of_section=loaded.out_of_section, is_out_of_section_calculated=True)


def _merged(
    longest_ns: int, current_s: float | None, safety_factor: float, *, calculated: bool
) -> float:
    new_s = safety_factor * longest_ns / _NS
    if not calculated or current_s is None:
        return new_s
    return _OF_THE_NEW * new_s + (1 - _OF_THE_NEW) * current_s


# --- state of a checkpoint ------------------------------------------------------------------------


def to_state(heartbeat: HeartbeatTimeouts, section: SectionTimeouts) -> dict[str, Any]:
    """Return calculated limits as plain values that JSON can hold; the same on all ranks."""
    current: dict[str, Any] = {}
    if heartbeat.were_calculated:
        current["heartbeat"] = {
            "initial": heartbeat.initial,
            "subsequent": heartbeat.subsequent,
            "were_calculated": True,
        }
    if section.calculated_sections or section.is_out_of_section_calculated:
        current["section"] = {
            "section": {name: section.section[name] for name in sorted(section.section)},
            "out_of_section": section.out_of_section,
            "calculated_sections": sorted(section.calculated_sections),
            "is_out_of_section_calculated": section.is_out_of_section_calculated,
        }
    return {"current_timeouts": current}


def from_state(state: object) -> tuple[HeartbeatTimeouts | None, SectionTimeouts | None]:
    """Read what `to_state` made; None for what it does not hold.

    Raises:
        ValueError: it is something else; the message says where.
    """
    current = _mapping(_mapping(state, "the state").get("current_timeouts", {}), "current_timeouts")
    heartbeat, section = current.get("heartbeat"), current.get("section")
    return (
        None if heartbeat is None else _heartbeat(_mapping(heartbeat, "heartbeat")),
        None if section is None else _section(_mapping(section, "section")),
    )


def _heartbeat(state: Mapping[str, Any]) -> HeartbeatTimeouts:
    return HeartbeatTimeouts(
        _limit(state.get("initial"), "heartbeat.initial"),
        _limit(state.get("subsequent"), "heartbeat.subsequent"),
        were_calculated=bool(state.get("were_calculated")),
    )


def _section(state: Mapping[str, Any]) -> SectionTimeouts:
    limits = _mapping(state.get("section", {}), "section.section")
    names = state.get("calculated_sections", [])
    # NVRx writes an empty dict where nothing was calculated.
    if not isinstance(names, (list, tuple, set, frozenset)) and names != {}:
        raise ValueError(f"section.calculated_sections is {names!r}, not a list of names")
    return SectionTimeouts(
        section={str(name): _limit(limit, f"section {name!r}") for name, limit in limits.items()},
        out_of_section=_limit(state.get("out_of_section"), "section.out_of_section"),
        calculated_sections=frozenset(map(str, names)) & limits.keys(),
        is_out_of_section_calculated=bool(state.get("is_out_of_section_calculated")),
    )


def _mapping(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {type(value).__name__}, not a dict")  # noqa: TRY004
    return value


def _limit(value: object, name: str) -> float | None:
    if value is None:
        return None
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value <= 1e9:  # type: ignore[operator]
        raise ValueError(f"{name} is {value!r}, not a number of seconds above 0")
    return float(value)  # type: ignore[arg-type]


class SynchronizationError(Exception):
    """The other ranks could not be asked: they are gone, late, or the group is closed."""


def synchronized(seen: Maxima, group: Any = None, timeout_s: float = 60.0) -> Maxima:
    """Return the largest values of all ranks; every rank of the group has to call this.

    Without torch.distributed this process is alone, and its own values are returned. Whole numbers
    of 64 bits are reduced, which every backend can. Ranks may have used different sections.

    Args:
        seen: on this rank.
        group: process group; None = all ranks.
        timeout_s: for all of it, seconds. Some backends close a group in which time ran out.

    Raises:
        SynchronizationError: it did not work within that time.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return seen
    try:
        if distributed.get_world_size(group) < 0:
            raise SynchronizationError("this rank does not belong to the group")
        return _Exchange(distributed, group, timeout_s).maxima(seen)
    except (RuntimeError, ValueError, AssertionError, OSError) as error:
        raise SynchronizationError(str(error).partition("\n")[0]) from error


class _Exchange:
    def __init__(self, distributed: Any, group: Any, timeout_s: float) -> None:
        self._torch = sys.modules["torch"]
        self._distributed = distributed
        self._group = group
        self._deadline = monotonic() + timeout_s
        # For example cpu:gloo,cuda:nccl.
        devices = [
            pair.partition(":")[0]
            for pair in str(distributed.get_backend_config(group)).split(",")
            if ":" in pair
        ]
        self._device = "cpu" if "cpu" in devices or not devices else devices[0]

    def maxima(self, seen: Maxima) -> Maxima:
        import json  # not on the way to a help text
        import zlib

        names = sorted(seen.sections_ns)
        blob = json.dumps(names).encode()
        digest = zlib.crc32(blob)
        # The largest of x and of -x tell whether x is the same everywhere.
        words = [digest, -digest, len(blob)]
        words += [seen.initial_ns, seen.subsequent_ns, seen.out_of_section_ns]
        most, minus_least, longest, *times = self._largest(words)
        if most != -minus_least:
            names = self._all_names(blob, longest)
        sections = self._largest([seen.sections_ns.get(name, 0) for name in names])
        initial_ns, subsequent_ns, outside_ns = times
        by_name = dict(zip(names, sections, strict=True))
        return Maxima(initial_ns, subsequent_ns, outside_ns, by_name)

    def _all_names(self, blob: bytes, longest: int) -> list[str]:
        import json

        padded = blob.ljust(longest)
        mine = self._torch.tensor(list(padded), dtype=self._torch.uint8, device=self._device)
        size = self._distributed.get_world_size(self._group)
        all_of_them = [self._torch.empty_like(mine) for _ in range(size)]
        self._wait(
            self._distributed.all_gather(all_of_them, mine, group=self._group, async_op=True)
        )
        lists = [json.loads(bytes(each.tolist())) for each in all_of_them]
        return sorted({str(name) for names in lists for name in names})

    def _largest(self, values: list[int]) -> list[int]:
        if not values:
            return []
        tensor = self._torch.tensor(values, dtype=self._torch.int64, device=self._device)
        largest = self._distributed.ReduceOp.MAX
        self._wait(
            self._distributed.all_reduce(tensor, op=largest, group=self._group, async_op=True)
        )
        return [int(value) for value in tensor.tolist()]

    def _wait(self, work: Any) -> None:
        left_s = self._deadline - monotonic()
        if left_s <= 0:
            raise SynchronizationError("time ran out")
        if work is not None and work.wait(timedelta(seconds=left_s)) is False:
            raise SynchronizationError("the other ranks did not take part in time")
