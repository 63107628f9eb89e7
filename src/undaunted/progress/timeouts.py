"""The limits that a rank has passed, and when to look again: a pure function of page and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from undaunted.progress.layout import STEP_SECTION
from undaunted.progress.snapshot import PageSnapshot, Phase, SectionSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from undaunted.progress.limits import Limits

# The last one is of `inprocess`.
Watch = Literal[
    "initial heartbeat", "heartbeat", "section", "outside sections", "leaving", "soft timeout"
]

# At this part of a limit, and not before so many seconds, a rank is looked at: nothing is ended.
SOFT_PART = 0.25
SOFT_LEAST_S = 30.0
# How long an interpreter may take to shut down, unless the limit between heartbeats is longer: it
# finishes uploads and the last checkpoint, of which nothing is heard meanwhile.
LEAVING_S = 1800.0
_NS = 1_000_000_000
_FOREVER_S = 1e9  # an infinite limit is this one


@dataclass(frozen=True, slots=True)
class Expired:
    """A limit that was passed.

    Attributes:
        watch: which one.
        name: of the section, "" for the others.
        since_ns: when the rank last did what is watched for.
        deadline_ns: when the limit was passed, pauses of the agent included.
        age_s: time since ``since_ns``.
        limit_s: the limit.
        source: where the limit comes from, for messages.
    """

    watch: Watch
    name: str
    since_ns: int
    deadline_ns: int
    age_s: float
    limit_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Check:
    """Result of `check`.

    Attributes:
        expired: limits that were passed, the one passed first in front.
        next_ns: when another limit, or the soft part of one, could be passed at the earliest,
            whatever the rank does until then; None if only a change of phase, which kicks, can
            bring one about.
        silent: the limit whose soft part was passed first, where no whole limit was; None = none.
    """

    expired: tuple[Expired, ...]
    next_ns: int | None
    silent: Expired | None = None


@dataclass(frozen=True, slots=True)
class _Running:
    """A watch that runs: its limit counts from ``since_ns``."""

    watch: Watch
    name: str
    since_ns: int
    limit_s: float
    source: str


def check(
    page: PageSnapshot,
    limits: Limits,
    *,
    now_ns: int,
    started_ns: int,
    anew_ns: int = 0,
    pauses: Sequence[tuple[int, int]] = (),
    siblings_monitored: bool = False,
) -> Check:
    """Hold one rank to its limits.

    Each open section is judged on its own. Heartbeats are watched once a heartbeat was sent; the
    initial one is until then, unless the rank uses sections instead of heartbeats. Time outside
    sections counts once a section was used; if section ``step`` has a limit and warm-up none, once
    section ``step`` was used. A rank whose program has ended has `LEAVING_S`, and nothing else
    counts. No limit applies to a rank that was shut down, has recorded an error,
    or whose page cannot be read.

    Args:
        page: what the rank says.
        limits: what it is held to.
        now_ns: CLOCK_MONOTONIC.
        started_ns: when the process was started.
        anew_ns: limits that began to count before then count from then on.
        pauses: when the agent itself did not run: end and length of each pause, nanoseconds. One
            that ended after a limit began to count moves its deadline.
        siblings_monitored: another rank has initialised monitoring, so this one is expected to:
            the initial limit counts from the start of the process.
    """
    if page.problem or page.phase in (Phase.SHUT_DOWN, Phase.FAILED):
        return Check((), None)
    expired, silent = [], []
    looks = [now_ns + _to_ns(soft_s(limit)) for limit in _limits_that_may_begin(limits)]
    if page.phase is Phase.LEAVING:
        since_ns = page.leaving_ns or now_ns
        watches = [_Running("leaving", "", since_ns, max(LEAVING_S, limits.heartbeat_s or 0), "")]
    else:
        watches = [*_running(page, limits, started_ns, siblings_monitored)]
    for running in watches:
        counts_ns = max(running.since_ns, anew_ns)
        paused_ns = sum(length for end, length in pauses if end > counts_ns)
        deadline_ns = counts_ns + _to_ns(running.limit_s) + paused_ns
        soft_ns = counts_ns + _to_ns(soft_s(running.limit_s)) + paused_ns
        if now_ns >= deadline_ns:
            expired.append(_expire(running, deadline_ns, now_ns))
        elif now_ns >= soft_ns:
            silent.append(_expire(running, soft_ns, now_ns))
            looks.append(deadline_ns)
        else:
            looks.append(soft_ns)
    expired.sort(key=lambda passed: passed.deadline_ns)
    first = min(silent, key=lambda passed: passed.deadline_ns, default=None)
    return Check(tuple(expired), min(looks, default=None), None if expired else first)


def soft_s(limit_s: float) -> float:
    """After how long a rank is looked at that is held to this limit, at the latest as it passes."""
    return min(max(limit_s * SOFT_PART, SOFT_LEAST_S), limit_s)


def _running(
    page: PageSnapshot, limits: Limits, started_ns: int, siblings_monitored: bool
) -> Iterator[_Running]:
    if page.phase in (Phase.EMPTY, Phase.STARTING):
        if siblings_monitored and limits.initial_heartbeat_s is not None:
            source = _source(limits, "initial_heartbeat")
            yield _Running("initial heartbeat", "", started_ns, limits.initial_heartbeat_s, source)
        return
    yield from _heartbeat(page, limits)
    for section in page.sections.values():
        limit = _section_limit(section, page, limits)
        if limit is not None and section.open_since_ns is not None:
            yield _Running("section", section.name, section.open_since_ns, *limit)
    since_ns, limit_s = page.out_of_section_since_ns, limits.out_of_section_s
    if since_ns is not None and limit_s is not None and not _expects_first_step(page, limits):
        source = _source(limits, "out_of_section")
        yield _Running("outside sections", "", since_ns, limit_s, source)


def _expects_first_step(page: PageSnapshot, limits: Limits) -> bool:
    """Before the first ``step``, time outside sections is unlimited if only ``step`` has a limit.

    That is, if ``step`` has one and ``warmup`` has none.
    """
    limited = STEP_SECTION in limits.sections and limits.warmup_s is None
    return limited and STEP_SECTION not in page.sections


def _heartbeat(page: PageSnapshot, limits: Limits) -> Iterator[_Running]:
    if page.heartbeat_ns is not None:
        limit_s = limits.heartbeat_s
        if limit_s is not None:
            source = _source(limits, "heartbeat")
            yield _Running("heartbeat", "", page.heartbeat_ns, limit_s, source)
        return
    limit_s, since_ns = limits.initial_heartbeat_s, page.initialized_ns
    if limit_s is not None and since_ns is not None and not page.sections:
        source = _source(limits, "initial_heartbeat")
        yield _Running("initial heartbeat", "", since_ns, limit_s, source)


def _section_limit(
    section: SectionSnapshot, page: PageSnapshot, limits: Limits
) -> tuple[float, str] | None:
    warmup_s = limits.warmup_s if section.name == STEP_SECTION else None
    if warmup_s is not None and _warming_up(section, page, limits):
        return warmup_s, _source(limits, "warmup")
    limit_s = limits.sections.get(section.name)
    return None if limit_s is None else (limit_s, _source(limits, f"section:{section.name}"))


def _warming_up(section: SectionSnapshot, page: PageSnapshot, limits: Limits) -> bool:
    if page.iteration is None or page.first_iteration is None:
        done = section.count  # a rank that does not say its iteration: count the sections
    else:
        done = page.iteration - page.first_iteration
    given = page.warmup_iterations
    return done < (limits.warmup_iterations if given is None else given)


def _limits_that_may_begin(limits: Limits) -> Iterable[float]:
    """All limits that may come to count from a moment after now, without a kick."""
    every = (
        limits.initial_heartbeat_s,
        limits.heartbeat_s,
        limits.out_of_section_s,
        limits.warmup_s,
        *limits.sections.values(),
    )
    return (limit for limit in every if limit is not None)


def _expire(running: _Running, deadline_ns: int, now_ns: int) -> Expired:
    return Expired(
        watch=running.watch,
        name=running.name,
        since_ns=running.since_ns,
        deadline_ns=deadline_ns,
        age_s=(now_ns - running.since_ns) / _NS,
        limit_s=running.limit_s,
        source=running.source,
    )


def _source(limits: Limits, key: str) -> str:
    return limits.sources.get(key, "default")


def _to_ns(seconds: float) -> int:
    return round(min(seconds, _FOREVER_S) * _NS)
