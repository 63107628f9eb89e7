"""The recording of one rank's Flight Recorder, as finding a culprit needs it. Pure.

torch records each operation of each process group. A dump has thousands of them; a `Recording` has,
for each group, where the rank is, the last few calls, and the transfers that have not ended: some
hundred bytes, whether it came from a file or is sent by the rank itself.

What differs between dumps, as seen with torch 2.5 to 2.13, and in the sources of 2.2 to 2.4:

* Until 2.2 a dump is the bare list of entries, with times in microseconds. Until 2.4 a number
  (``seq_id``) counts all calls of a group, and nothing says what a transfer is but its name.
* Until 2.3 entries do not name their group: they have only the rank's own number of it. Names are
  taken from ``pg_config``, where there is one; else only the first group is the same for all ranks.
* Numbers of a rank's groups (``pg_id``) are the rank's own, names are the job's. An entry has both;
  ``pg_status`` is by number, ``pg_config`` by name.
* ``retired`` entries of gloo have ended, whatever their state says: it stays ``scheduled``. They
  may have ended with an error: nothing in a dump tells. Those of NCCL may have timed out.
* An entry of gloo is retired a moment after its caller goes on, with an error or without: a dump
  that is made at once has it as if it were pending.
* Operations that were batched have separate entries, which stay ``scheduled`` for ever; the
  entry ``coalesced`` with the same number has the state of all.
* The counters of ``pg_status`` count transfers as well where a group has some, and with gloo
  always: they are of use only for a group of collectives.
* After a restart inside the process, groups of the same names have higher numbers.
* The JSON form has numbers as strings.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from undaunted.base.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

UNKNOWN = -2  # as the number of a group's last collective
_NONE = -1

_PARTS: dict[str, type] = {"entries": list, "pg_status": dict, "pg_config": dict}
_PEER = re.compile(r"(send|recv) (\d{1,7})(?:->|<-)(\d{1,7})$")
_MOST_GROUPS = 1024
_MOST_TRANSFERS = 64
_LAST_CALLS = 8  # that have ended
_LEAST_BEFORE, _MOST_BEFORE = 4, 1024  # calls that are looked at for an order to be strange
_MOST_CALLS = 64  # of a group
_MOST_PAUSES = 1024  # calls between which the longest pause is looked for
_LONGEST = 80  # of a name
MOST_RANKS = 1 << 17
_BOUND = 1 << 62

Runs = tuple[tuple[int, int, int], ...]  # of ranks: start, number, step


class NotADumpError(ValueError):
    """It is no dump of a Flight Recorder; the message says why."""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """A call of a rank.

    Attributes:
        name: ``all_reduce``.
        dtype: ``Float``.
        shape: of the input, as far as it is to be shown.
        elements, results: numbers of elements of the input and the output.
    """

    name: str
    dtype: str = ""
    shape: str = ""
    elements: int = 0
    results: int = 0

    def __str__(self) -> str:
        return " ".join(word for word in (self.name, self.dtype, self.shape) if word)


class Group(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The place of a rank in one group. All members number its collectives alike.

    Attributes:
        name: of the process group; the same on all ranks.
        description: ``default_pg``, ``TENSOR_MODEL_PARALLEL_GROUP``; torch says ``undefined`` for
            groups without.
        members: ranks in it, as `runs`; empty = not known.
        enqueued: number of the last collective, -1 = none; -2 = not known, as its entry was
            overwritten by later ones.
        oldest: number of the oldest one that has not ended, -1 = all have.
        started: number of the last one that is known to have started, -1 = not known.
        order: place of `oldest` among all operations of the rank.
        t: when the oldest one that has not ended was called, or else the last; seconds since 1970.
        since: number of the first of `calls`.
        calls: what the rank called in the collectives from `since` on, as places in
            `Recording.calls`; -1 = not known.
        backend: ``nccl``, ``gloo``; "" = not known.
        timeout: of the last collective, seconds; 0 = not known.
    """

    name: str
    description: str = ""
    members: Runs = ()
    enqueued: int = -1
    oldest: int = -1
    started: int = -1
    order: int = -1
    t: float = 0.0
    since: int = 0
    calls: tuple[int, ...] = ()
    backend: str = ""
    timeout: float = 0.0

    def call_at(self, number: int) -> int:
        """Return the place of what was called at this number in `Recording.calls`, -1 = unknown."""
        place = number - self.since
        return self.calls[place] if 0 <= place < len(self.calls) else -1

    def came_to(self, number: int) -> bool:
        """Return whether this collective is called, and all before it have ended."""
        return self.enqueued >= number and not -1 < self.oldest < number

    def ended(self, number: int) -> bool:
        """Return whether this collective has ended here."""
        return self.enqueued >= number and (self.oldest == -1 or number < self.oldest)


class Transfer(msgspec.Struct, frozen=True, array_like=True):
    """A send or receive that has not ended; peers are ranks inside the group."""

    group: str
    sends: bool
    peer: int
    order: int
    t: float = 0.0
    started: bool = False


class Pair(msgspec.Struct, frozen=True, array_like=True):
    """The number of transfers that a rank has called for, and ended, with a peer."""

    group: str
    sends: bool
    peer: int
    called: int
    ended: int


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """The transfer in which the main thread waits, where it is not recorded (gloo).

    Attributes:
        name: ``recv``.
        peer: global rank; -1 = not known.
    """

    name: str
    peer: int = -1


class Pause(msgspec.Struct, frozen=True, array_like=True):
    """The longest time for which a rank has called nothing.

    Attributes:
        seconds: between the two calls.
        before, after: name of the group and number of the collective that it called.
    """

    seconds: float
    before: tuple[str, int]
    after: tuple[str, int]


class Recording(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The part of the dump of one rank that is kept.

    Attributes:
        rank: -1 = not known.
        groups: the ones it is in.
        calls: what it called, each kind once.
        transfers: sends and receives that have not ended, oldest first; at most 64.
        pairs: numbers of transfers, if the recorder still had the first of them.
        strange: place, among all operations, of the first of those that have not ended that never
            followed the two before it earlier; -1 = none. Who leaves a call out, or calls in
            another order, has one; who waits for that rank does not.
        waits: what its main thread waits in, if somebody has looked.
        world_size: 0 = not known.
        node: name, "" = not known.
        entries: how many there were.
        version: of the dump's form.
        dumped: when, seconds since 1970; 0 = not known: torch does not say it.
        pause: the longest one among the last calls; of gloo only.
    """

    rank: int
    groups: tuple[Group, ...] = ()
    calls: tuple[Call, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    pairs: tuple[Pair, ...] = ()
    strange: int = -1
    waits: Wait | None = None
    world_size: int = 0
    node: str = ""
    entries: int = 0
    version: str = ""
    dumped: float = 0.0
    pause: Pause | None = None

    @property
    def called(self) -> float:
        """The time of the last call that is kept here, seconds since 1970; 0 = not known."""
        times = [group.t for group in self.groups] + [one.t for one in self.transfers]
        return max(times, default=0.0)


def encode(recording: Recording) -> bytes:
    """Return the bytes that travel."""
    return msgspec.msgpack.encode(recording)


def decode(data: bytes) -> Recording:
    """Read what `encode` made.

    Raises:
        NotADumpError: it is something else.
    """
    try:
        return msgspec.msgpack.decode(data, type=Recording)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise NotADumpError(f"no recording: {error}") from None


def reduce(dump: object, rank: int = -1) -> Recording:
    """Reduce a dump.

    Args:
        dump: what the pickle or JSON of torch's recorder holds: a dictionary. The keys ``rank``,
            ``world_size``, ``node``, ``waits`` and ``dumped_ns`` are ours (`recorder`).
        rank: if the dump does not say it.

    Raises:
        NotADumpError: it is no dump.
    """
    if isinstance(dump, list) and dump:
        dump = {"entries": dump}
    if not isinstance(dump, dict):
        raise NotADumpError(f"it holds a {type(dump).__name__}, not a dictionary")
    found = {key: dump[key] for key in _PARTS if key in dump}
    if not found:
        raise NotADumpError(f"it has no {', '.join(_PARTS)}")
    for key, value in found.items():
        if not isinstance(value, _PARTS[key]):
            raise NotADumpError(
                f"its {key} is a {type(value).__name__}, not a {_PARTS[key].__name__}"
            )
    entries = dump.get("entries", [])
    if entries and not any(isinstance(entry, dict) for entry in entries):
        raise NotADumpError("none of its entries is a dictionary")
    if all(map(_is_good, entries[:: max(1, len(entries) // 4)])):  # all are alike, as a rule
        try:
            return _Reduction(dump, entries).recording(rank)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            pass
    return _Reduction(dump, _repaired(entries, _names_without(dump, entries, rank))).recording(rank)


class _Reduction:
    """One dump on its way to a recording."""

    def __init__(self, dump: dict[Any, Any], entries: list[dict[Any, Any]]) -> None:
        self.dump = dump
        self.calls: dict[Call, int] = {}
        self.entries = entries
        self.by_group: dict[str, list[dict[Any, Any]]] = {}
        for entry in self.entries:
            name = entry["process_group"][0]
            if (known := self.by_group.get(name)) is None:
                known = self.by_group[name] = []
            known.append(entry)
        self.by_group = _of_last_start(self.by_group)
        self.transfers: list[Transfer] = []
        self.pairs: list[Pair] = []
        self.whole = _is_whole(self.entries)

    def recording(self, rank: int) -> Recording:
        config = {
            name: one
            for name, one in _dictionary(self.dump.get("pg_config")).items()
            if isinstance(name, str) and name  # those of gloo have one without a name
        }
        status = _dictionary(self.dump.get("pg_status"))
        status_of = self._status_by_name(config, status)
        names = [*self.by_group, *(name for name in config if name not in self.by_group)]
        groups = [
            self._group(name, _dictionary(config.get(name)), status_of.get(name, {}))
            for name in names[:_MOST_GROUPS]
        ]
        self.transfers.sort(key=lambda one: one.order)
        said = _number(self.dump.get("rank"))
        return Recording(
            rank=rank if said < 0 else said,
            groups=tuple(groups),
            calls=tuple(self.calls),
            transfers=tuple(self.transfers[:_MOST_TRANSFERS]),
            pairs=tuple(self.pairs[:_MOST_TRANSFERS]),
            strange=_strange(self.entries, [*groups, *self.transfers]),
            waits=_wait(self.dump.get("waits")),
            world_size=max(0, min(_number(self.dump.get("world_size")), MOST_RANKS)),
            node=_text(self.dump.get("node", "")),
            entries=len(self.entries),
            version=_text(self.dump.get("version", "")),
            dumped=_seconds(self.dump.get("dumped_ns")),
            pause=_pause(self.entries),
        )

    def _status_by_name(
        self, config: dict[Any, Any], status: dict[Any, Any]
    ) -> dict[str, dict[Any, Any]]:
        """Find the name of each number in ``pg_status``."""
        ids = {name: _number(group[-1].get("pg_id")) for name, group in self.by_group.items()}
        by_id = {_number(key): _dictionary(value) for key, value in status.items()}
        linked = {number: name for name, number in ids.items() if number >= 0}
        names = _names_of(sorted(by_id), list(config), linked)
        return {name: by_id[number] for number, name in names.items() if number in by_id}

    def _group(self, name: str, config: dict[Any, Any], status: dict[Any, Any]) -> Group:
        entries = self.by_group.get(name, [])
        collectives = [entry for entry in entries if not entry["is_p2p"]]
        if len(collectives) < len(entries):
            self._add_transfers(name, [entry for entry in entries if entry["is_p2p"]], status)
        place = _Place(entries, collectives, status)
        if place.enqueued == _NONE and entries and not self.whole:
            place.enqueued = UNKNOWN
        calls, since = self._calls(collectives, place)
        return Group(
            name=_text(name),
            description=_text(_description(entries, config)),
            members=runs(_ranks(config.get("ranks"))),
            enqueued=place.enqueued,
            oldest=place.oldest,
            started=place.started,
            order=place.order,
            t=place.t,
            since=since,
            calls=calls,
            backend=_text(entries[-1]["profiling_name"].partition(":")[0]) if entries else "",
            timeout=_timeout(collectives[-1]) if collectives else 0.0,
        )

    def _calls(
        self, collectives: Sequence[dict[Any, Any]], place: _Place
    ) -> tuple[tuple[int, ...], int]:
        """Return what was called last, by number without a gap, and the first number."""
        end = place.enqueued
        first = end if place.oldest < 0 else place.oldest
        since = max(0, first - _LAST_CALLS + 1)
        found: dict[int, list[Call]] = {}
        for entry in reversed(collectives):
            number = _number(entry.get("collective_seq_id"))
            if number < since:
                break
            if number < since + _MOST_CALLS or number == end:
                found.setdefault(number, []).append(_call(entry))
        if not found:
            return (), 0
        numbers = range(min(found), min(max(found), since + _MOST_CALLS - 1) + 1)
        return tuple(self._place_of(found.get(one)) for one in numbers), numbers.start

    def _place_of(self, calls: list[Call] | None) -> int:
        if not calls:
            return -1
        call = calls[-1]  # the first one of a batch
        if len(calls) > 1:
            call = msgspec.structs.replace(call, name=f"{call.name} and {len(calls) - 1} more")
        return self.calls.setdefault(call, len(self.calls))

    def _add_transfers(
        self, group: str, entries: Sequence[dict[Any, Any]], status: dict[Any, Any]
    ) -> None:
        only = all(_number(entry["collective_seq_id"]) <= 0 for entry in entries)
        done = _counters(status)[2] if only else _last_completed(entries, "p2p_seq_id")
        batches = {
            _number(entry.get("p2p_seq_id")): entry
            for entry in entries
            if "coalesced" in entry["profiling_name"]
        }
        pairs: dict[tuple[bool, int], list[int]] = {}
        for entry in entries:
            match = _PEER.search(entry["profiling_name"])
            if match is None:
                continue
            sends, peer, number = (
                match[1] == "send",
                int(match[3]),
                _number(entry.get("p2p_seq_id")),
            )
            batch = batches.get(number)
            # Of a dump of what has not ended, an ended batch is left out, and its parts are not.
            ended = (batch is None and bool(batches)) or _is_over(batch or entry, number, done)
            counts = pairs.setdefault((sends, peer), [0, 0])
            counts[0] += 1
            counts[1] += ended
            if not ended:
                order, started = _number(entry.get("record_id")), (batch or entry)["state"]
                self.transfers.append(
                    Transfer(_text(group), sends, peer, order, _time(entry), started == "started")
                )
        if self.whole:
            self.pairs += [Pair(_text(group), *key, *counts) for key, counts in pairs.items()]


class _Place:
    """Where a rank is in a group, from its entries, or else from its counters."""

    def __init__(
        self,
        entries: Sequence[dict[Any, Any]],
        collectives: Sequence[dict[Any, Any]],
        status: dict[Any, Any],
    ) -> None:
        # Counters count transfers too, and those of gloo are not recorded.
        mixed = len(collectives) < len(entries) or (
            entries and entries[-1]["profiling_name"].startswith("gloo:")
        )
        called, begun, done = (-1, -1, -1) if mixed else _counters(status)
        if mixed:
            done = _last_completed(collectives, "collective_seq_id")
        pending: dict[int, dict[Any, Any]] = {}
        for entry in collectives:
            if entry["state"] != "completed":  # most are
                number = _number(entry["collective_seq_id"])
                if not _is_over(entry, number, done):
                    pending.setdefault(number, entry)
        if pending:  # parts of a batch have its number
            ended = {one["collective_seq_id"] for one in collectives if one["state"] == "completed"}
            pending = {one: entry for one, entry in pending.items() if one not in ended}
        last = _number(collectives[-1]["collective_seq_id"]) if collectives else -1
        self.enqueued = max(last, called)
        self.started = max(
            begun,
            max((one for one, each in pending.items() if each["state"] == "started"), default=-1),
        )
        self.oldest, self.order, self.t = -1, -1, 0.0
        if pending:
            self.oldest = min(pending)
            oldest = pending[self.oldest]
            self.order, self.t = _number(oldest.get("record_id")), _time(oldest)
        elif self.enqueued > max(last, done):  # its entry is not in the dump any more
            self.oldest, self.order = max(last, done) + 1, 0
        if collectives and not self.t:
            self.t = _time(collectives[-1])


def _counters(status: dict[Any, Any]) -> tuple[int, int, int]:
    called = _number(status.get("last_enqueued_collective"))
    begun = _number(status.get("last_started_collective"))
    return called, begun, _number(status.get("last_completed_collective"))


def _is_good(entry: Any) -> bool:
    """Whether an entry is as torch writes it today, so that it needs no repair."""
    try:
        return (
            type(entry) is dict
            and type(entry["process_group"][0]) is str
            and type(entry["profiling_name"]) is str
            and type(entry["state"]) is str
            and type(entry["is_p2p"]) is bool
            and type(entry["retired"]) is bool
            and type(entry["collective_seq_id"]) is int
        )
    except (KeyError, IndexError, TypeError):
        return False


def _names_without(dump: dict[Any, Any], entries: list[Any], rank: int) -> dict[int, str]:
    """Return the names of groups by the rank's own numbers, for entries that have no names.

    Where nothing tells which groups of two ranks are the same, those of another rank have another
    name: only the first group of each is known to be that of all.
    """
    numbers = {_number(entry.get("pg_id")) for entry in entries if isinstance(entry, dict)}
    config = [name for name in _dictionary(dump.get("pg_config")) if isinstance(name, str) and name]
    known = _names_of(sorted(numbers), config, {}) if config else {0: "0"}
    return {each: known.get(each, f"{each} of rank {rank}") for each in numbers}


def _repaired(value: list[Any], names: dict[int, str]) -> list[dict[Any, Any]]:
    good = []
    for entry in value:
        if not isinstance(entry, dict):
            continue
        group = entry.get("process_group")
        if not isinstance(group, (list, tuple)) or not group:
            group = (names.get(_number(entry.get("pg_id")), ""), "")
        name = entry.get("profiling_name")
        name = name if isinstance(name, str) else ""
        is_p2p = entry.get("is_p2p", bool(_PEER.search(name)))
        before = "" if _truth(is_p2p) else "seq_id"  # its name in torch up to 2.3
        good.append(
            {
                **entry,
                "process_group": tuple(_text(word) for word in group[:2]),
                "profiling_name": name,
                "is_p2p": _truth(is_p2p),
                "retired": _truth(entry.get("retired", False)),
                "state": _text(entry.get("state", "")),
                "collective_seq_id": _number(entry.get("collective_seq_id", entry.get(before))),
                "time_created_ns": entry.get(
                    "time_created_ns", _number(entry.get("time_created_us")) * 1000
                ),
            }
        )
    return good


def _strange(entries: Sequence[dict[Any, Any]], pending: Sequence[Group | Transfer]) -> int:
    """Return the place of a call that is in no order that was seen before."""
    first = min((one.order for one in pending if one.order >= 0), default=-1)
    start = first - _number(entries[0].get("record_id")) if entries else -1
    if not _LEAST_BEFORE <= start < len(entries) or entries[start].get("record_id") != first:
        return -1
    begin = max(0, start - _MOST_BEFORE)
    entries, start = entries[begin : start + _MOST_CALLS], start - begin
    names = [(entry["process_group"][0], entry["profiling_name"]) for entry in entries]
    seen = set(zip(names, names[1:], names[2:start], strict=False))
    for place in range(start, len(names)):
        if (names[place - 2], names[place - 1], names[place]) not in seen:
            return _number(entries[place].get("record_id"))
    return -1


def _pause(entries: Sequence[dict[Any, Any]]) -> Pause | None:
    """Return the longest time between two of the last calls, the last one of equals."""
    if not entries or not entries[-1]["profiling_name"].startswith("gloo:"):
        return None
    last = entries[-_MOST_PAUSES:]
    times = [_time(entry) for entry in last]
    seconds = [(after - before, place) for place, (before, after) in enumerate(pairwise(times))]
    if not seconds:
        return None
    longest, place = max(seconds)
    return Pause(longest, _called(last[place]), _called(last[place + 1]))


def _called(entry: dict[Any, Any]) -> tuple[str, int]:
    return _text(entry["process_group"][0]), _number(entry["collective_seq_id"])


def _of_last_start(
    by_group: dict[str, list[dict[Any, Any]]],
) -> dict[str, list[dict[Any, Any]]]:
    """Leave out groups of before a restart inside the process.

    torch counts names up from "0" again then, while its numbers go on. All groups are over that
    have a lower number than the newest "0", or none above that of one which was made anew. (A
    name that is no number may be used again without a restart.)
    """
    over = -1
    for name, entries in by_group.items():
        if name.isdecimal() and entries[0].get("pg_id") != entries[-1].get("pg_id"):
            numbers = sorted({_number(entry.get("pg_id")) for entry in entries})
            over = max(over, *numbers[:-1], numbers[-1] - 1 if name == "0" else -1)
    if over < 0:
        return by_group
    kept = {
        name: [entry for entry in entries if _number(entry.get("pg_id")) > over]
        for name, entries in by_group.items()
    }
    return {name: entries for name, entries in kept.items() if entries}


def _is_whole(entries: Sequence[dict[Any, Any]]) -> bool:
    """Whether the first operation of the rank is there, and none after it is missing."""
    if not entries:
        return False
    first, last = (_number(entries[place].get("record_id")) for place in (0, -1))
    return first == 0 and last == len(entries) - 1


def _names_of(ids: Sequence[int], names: Sequence[str], linked: dict[int, str]) -> dict[int, str]:
    """Return names by number: those that entries link, the others by the order of their making.

    A rank numbers its groups as it makes them, and torch counts names up. Either both tables have
    the groups that were used, or ``pg_config`` has all. If that does not fit with what entries
    say, only these count.
    """
    if not all(name.isdecimal() and len(name) < _LONGEST for name in names):
        return linked
    ordered = sorted(names, key=int)
    same = dict(zip(ids, ordered, strict=False)) if len(ids) == len(ordered) else {}
    whole = max(ids, default=0) < len(ordered) and min(ids, default=0) >= 0
    every = {number: ordered[number] for number in ids} if whole else {}
    for guess in (same, every):
        if guess and all(guess.get(number, name) == name for number, name in linked.items()):
            return {**guess, **linked}
    return linked


def _is_over(entry: dict[Any, Any], number: int, done: int) -> bool:
    """Whether an operation has ended, if `done` is the last that is known to have.

    torch retires what it does not look at any more. That has ended, if a later one has, or if it is
    gloo's; else it has timed out, and may even count as the last one that has ended.
    """
    if entry["state"] == "completed":
        return True
    if entry["retired"]:
        return number < done or entry["profiling_name"].startswith("gloo:")
    return number <= done


def _last_completed(entries: Sequence[dict[Any, Any]], key: str) -> int:
    numbers = (_number(entry.get(key)) for entry in entries if entry["state"] == "completed")
    return max(numbers, default=-1)


def _description(entries: Sequence[dict[Any, Any]], config: dict[Any, Any]) -> object:
    if entries and len(entries[-1]["process_group"]) > 1:
        return entries[-1]["process_group"][1]
    return config.get("desc", "")


def _call(entry: dict[Any, Any]) -> Call:
    name = entry["profiling_name"].partition(":")[2] or entry["profiling_name"]
    sizes = entry.get("input_sizes")
    dtypes = entry.get("input_dtypes")
    kinds = sorted({_text(one) for one in dtypes[:16]}) if isinstance(dtypes, (list, tuple)) else []
    return Call(
        name=_text(name),
        dtype=",".join(kinds)[:_LONGEST],
        shape=_shape(sizes),
        elements=_elements(sizes),
        results=_elements(entry.get("output_sizes")),
    )


def _shape(sizes: object) -> str:
    if not isinstance(sizes, (list, tuple)) or not sizes:
        return ""
    first = sizes[0]
    if not isinstance(first, (list, tuple)):
        return ""
    text = "[" + ", ".join(str(_number(one)) for one in first[:8]) + "]"
    return f"{text} and {len(sizes) - 1} more" if len(sizes) > 1 else text


def _elements(sizes: object) -> int:
    if not isinstance(sizes, (list, tuple)):
        return 0
    total = 0
    for shape in sizes[:4096]:
        if isinstance(shape, (list, tuple)):
            product = 1
            for one in shape[:16]:
                product = min(product * max(0, _number(one)), _BOUND)
            total = min(total + product, _BOUND)
    return total


def _wait(value: object) -> Wait | None:
    if not isinstance(value, dict) or not value.get("name"):
        return None
    return Wait(_text(value["name"]), _number(value.get("peer")))


def _dictionary(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> int:
    """Return a number of a dump, which may be written as text; -1 = none."""
    if value.__class__ is int:
        return value if -1 <= value < _BOUND else -1
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        return min(int(value), _BOUND)
    return -1


def _truth(value: object) -> bool:
    return value.lower() == "true" if isinstance(value, str) else value is True or value == 1


def _text(value: object) -> str:
    if isinstance(value, int):
        value = str(_number(value))
    return one_line(value[:_LONGEST]) if isinstance(value, str) else ""


def _time(entry: dict[Any, Any]) -> float:
    return _seconds(entry.get("time_created_ns"))


def _timeout(entry: dict[Any, Any]) -> float:
    return max(0, _number(entry.get("timeout_ms"))) / 1e3


def _seconds(nanoseconds: object) -> float:
    return max(0, _number(nanoseconds)) / 1e9


# --- ranks of groups ------------------------------------------------------------------------------


def _ranks(value: object) -> tuple[int, ...]:
    if isinstance(value, str):
        return _parse_ranks(value)
    if isinstance(value, (list, tuple)):
        return tuple(one for one in map(_number, value[:MOST_RANKS]) if one >= 0)
    return ()


@lru_cache(maxsize=256)  # the same few texts in each dump
def _parse_ranks(text: str) -> tuple[int, ...]:
    try:
        ranks = msgspec.json.decode(text, type=list[int])
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return ()
    return tuple(one for one in ranks[:MOST_RANKS] if 0 <= one < MOST_RANKS)


@lru_cache(maxsize=256)
def runs(ranks: tuple[int, ...]) -> Runs:
    """Write ranks as runs of equal steps: 0 to 4095 is one, and so is each eighth rank."""
    found: list[tuple[int, int, int]] = []
    place = 0
    while place < len(ranks):
        step = ranks[place + 1] - ranks[place] if place + 1 < len(ranks) else 1
        count = 1
        while place + count < len(ranks) and ranks[place + count] == ranks[place] + count * step:
            count += 1
        found.append((ranks[place], count, step))
        place += count
    return tuple(found)


def ranks_of(members: Iterable[tuple[int, int, int]]) -> tuple[int, ...]:
    """Return the ranks that `runs` has written, at most `MOST_RANKS`."""
    found: list[int] = []
    for start, count, step in members:
        most = min(count, MOST_RANKS - len(found))
        found += [start + place * step for place in range(most)]
    return tuple(found)
