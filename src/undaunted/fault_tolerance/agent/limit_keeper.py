"""The limits of this node: given, calculated by ranks, or learned; the watch is handed them.

What was learned is kept in the run directory, so that a job that was killed teaches the next one
that uses the same directory. Limits that ranks have calculated replace these, and limits that
a person has ordered replace both.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base.deadline import within
from undaunted.fault_tolerance import calculated_limits
from undaunted.journal.events import LimitsChanged
from undaunted.progress import learning
from undaunted.progress.limits import CALCULATED, Limits
from undaunted.progress.observer import Observer
from undaunted.progress.samples import Knowledge, merge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from undaunted.fault_tolerance.agent.watch import PageWatch
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.journal.writer import JournalWriter
    from undaunted.progress.area import PageArea
    from undaunted.progress.timeouts import Expired

# Pages add up by themselves: how often they are looked at decides only how soon a limit changes,
# and how much is lost when the launcher is killed.
LOOK_EVERY_S = 30.0
VERSION = 3
_READ_DEADLINE_S = 1.0
_MOST_BYTES = 1 << 20
_MOST_ENTRIES = 16
# A limit that moved by less than this part is not worth a line in the journal.
_WORTH_RECORDING = 0.1


class _File(msgspec.Struct, frozen=True):
    """Content of the file; newest entry first."""

    version: int
    entries: list[Knowledge] = []


class LimitKeeper:
    """Knows the limits of this node at every moment; gives them to watch, pages and journal."""

    def __init__(
        self,
        config: RunConfig,
        area: PageArea,
        watch: PageWatch,
        journal: JournalWriter,
        say: Callable[[str], None],
    ) -> None:
        self._limits = msgspec.structs.replace(config.limits, safety_factor=config.ft.safety_factor)
        self._area = area
        self._watch = watch
        self._journal = journal
        self._path = path = f"{config.run_dir}/learned-limits-{config.node}.json"
        too_slow: tuple[list[Knowledge], str] = ([], "cannot be read within a second")
        self._entries, problem = within(_READ_DEADLINE_S, lambda: read(path), too_slow)
        if problem:
            say(f"{path}: {problem}; limits are learned anew")
        self._own: dict[int, Knowledge] = {}  # rounds of this launch that are over
        self._world_size = 0
        self._observer: Observer | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._saved = ""
        self._recorded: dict[str, float | None] = {}
        self._ordered: dict[str, str] = {}  # by whom, by name of the limit
        area.set_limits(self._limits)

    # --- rounds ---------------------------------------------------------------------------------

    def begin_round(self, world_size: int) -> None:
        """New processes begin; what is known of as many ranks holds for them."""
        self._world_size = world_size
        self._observer = Observer(world_size)
        self._apply()
        self._schedule()

    def end_round(self) -> None:
        """The processes are gone, their pages not yet cleared: take in what they say."""
        if self._timer is not None:
            self._timer.cancel()
        if self._observer is None:
            return
        self._look_at_pages()
        self._own[self._world_size] = self._own_knowledge()
        self._observer = None
        self._save()

    def limit_ended_rank(self, expired: Expired) -> None:
        """A rank is about to be ended because of this limit."""
        if self._observer is None:
            return
        nothing = Knowledge(world_size=self._world_size)
        own = self._own.get(self._world_size, nothing)
        self._own[self._world_size] = learning.after_kill(own, expired)

    # --- requests -------------------------------------------------------------------------------

    def take(self, payload: bytes) -> bytes | None:
        """Apply limits that a rank has calculated; return the answer, None if it is not about that.

        Every rank sends the same; the first one has an effect.
        """
        if (taken := calculated_limits.take(payload, self._limits)) is None:
            return None
        if taken.limits is not self._limits:
            ordered = {key: _limit_of(self._limits, key) for key in self._ordered}
            self._limits = taken.limits
            for key, limit in ordered.items():
                self._limits = with_ordered(self._limits, {key: limit}, self._ordered[key])
            self._area.set_limits(self._limits)
            self._apply()
        return taken.reply

    def order(self, limits: Mapping[str, float | None], by: str) -> bool:
        """Hold ranks to limits that somebody has ordered, whatever they calculate later.

        Returns:
            Whether that is new.
        """
        known = {key: _limit_of(self._limits, key) for key in self._ordered}
        if limits.items() <= known.items():
            return False
        self._ordered.update(dict.fromkeys(limits, by))
        self._limits = with_ordered(self._limits, limits, by)
        self._watch.configure(with_ordered(self._watch.configured, limits, by))
        self._area.set_limits(self._limits)
        self._apply()
        return True

    # --- below ----------------------------------------------------------------------------------

    def _look(self) -> None:
        self._look_at_pages()
        self._apply()
        self._save()
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)

    def _look_at_pages(self) -> None:
        assert self._observer is not None
        for index in range(self._area.ranks):
            page = self._area.snapshot(index)
            self._observer.look(index, page, self._limits.warmup_iterations)

    def _apply(self) -> None:
        learned = learning.learn(self._knowledge(), self._limits)
        self._record(learned)
        self._watch.apply(self._limits, learned)

    def _record(self, learned: dict[str, learning.Learned]) -> None:
        known = self._limits.sources.items()
        sources = {k: v for k, v in known if v == CALCULATED or k in self._ordered}
        limits = {key: _limit_of(self._limits, key) for key in sources}
        limits |= {key: limit.limit_s for key, limit in learned.items()}
        sources |= {key: limit.source for key, limit in learned.items()}
        if _differ(limits, self._recorded):
            self._recorded = limits
            self._journal.record(LimitsChanged(limits=limits, sources=sources))

    def _own_knowledge(self) -> Knowledge:
        past = self._own.get(self._world_size, Knowledge(world_size=self._world_size))
        return past if self._observer is None else merge(past, self._observer.seen())

    def _predecessor(self, own: Knowledge) -> Knowledge | None:
        """What earlier launches have left of the same program with as many ranks."""
        for entry in self._entries:
            if entry.world_size == self._world_size and entry.fits(own.sections()):
                return entry
        return None

    def _knowledge(self) -> Knowledge:
        own = self._own_knowledge()
        before = self._predecessor(own)
        return own if before is None else merge(before, own)

    def _save(self) -> None:
        before = self._predecessor(self._own_knowledge())
        current = self._knowledge()
        if not current.observed_ns:
            return
        others = [
            entry for entry in (*self._own_of_other_sizes(), *self._entries) if entry is not before
        ]
        entries = [current, *others][:_MOST_ENTRIES]
        text = msgspec.json.encode(_File(VERSION, entries)).decode() + "\n"
        if text != self._saved:
            self._saved = text
            self._journal.write_text(self._path, text)

    def _own_of_other_sizes(self) -> list[Knowledge]:
        return [known for size, known in self._own.items() if size != self._world_size]


def read(path: str) -> tuple[list[Knowledge], str]:
    """Read a file of what was learned.

    Returns:
        Its entries, and why there are none although there is a file, or "".
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return [], ""
    except OSError as error:
        return [], f"cannot be read ({os.strerror(error.errno or 0)})"
    if len(content) > _MOST_BYTES:
        return [], "is too large to be ours"
    try:
        found = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [], "is damaged"
    if found.version != VERSION:
        return [], f"has version {found.version}, this build of undaunted reads {VERSION}"
    return found.entries, ""


def with_ordered(limits: Limits, ordered: Mapping[str, float | None], by: str) -> Limits:
    """Return the limits with others put in, whose source is ``by``."""
    changes: dict[str, Any] = {"sections": dict(limits.sections)}
    for key, limit in ordered.items():
        if key.startswith("section:"):
            changes["sections"][key.removeprefix("section:")] = limit
        else:
            changes[f"{key}_s"] = limit
    sources = {**limits.sources, **dict.fromkeys(ordered, by)}
    return msgspec.structs.replace(limits, sources=sources, **changes)


def _limit_of(limits: Limits, key: str) -> float | None:
    if key.startswith("section:"):
        return limits.sections.get(key.removeprefix("section:"))
    value: float | None = getattr(limits, f"{key}_s")
    return value


def _differ(limits: dict[str, float | None], before: dict[str, float | None]) -> bool:
    if limits.keys() != before.keys():
        return True
    for key, limit in limits.items():
        old = before[key]
        if limit is None or old is None:
            if limit is not old:
                return True
        elif abs(limit - old) > _WORTH_RECORDING * old:
            return True
    return False
