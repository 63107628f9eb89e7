"""Fault plans: which fault happens on which rank, when. Pure values; makes no fault.

A plan is written ``KIND:rank=1,iteration=30;KIND:...`` or as a JSON list of objects with the same
keys. Every rank settles what is random from the seed alone, so that all of them agree
without talking to each other.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from undaunted.base.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Kind = Literal[
    "exception",
    "sigkill",
    "sigterm",
    "sigstop",
    "segfault",
    "abort",
    "gil",
    "sleep",
    "oom",
    "exit",
    "slow",
    "nan",
    "wrong-result",
    "wrong-result-always",
    "deadline",
    "torn-write",
    "bad-save",
    "call",
]
# Of a slot rather than a rank, in every round from its iteration on.
LASTING = "wrong-result-always"
KINDS: tuple[Kind, ...] = get_args(Kind)
# What a `bad-save` makes of the state that is saved.
HOWS = ("nan", "copy", "replica")

_MAX_FAULTS = 256
_MAX_CODE = 255
_MAX_SECONDS = 1e9
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_ID = re.compile(r"[A-Za-z0-9._-]{1,32}")
# Options that not every kind has.
_KINDS_OF = {
    "seconds": ("gil", "sleep", "slow"),
    "code": ("exit",),
    "steps": ("slow",),
    "bytes": ("torn-write",),
    "how": ("bad-save",),
}

_Item = tuple[str, dict[str, str]]


class FaultPlanError(ValueError):
    """A plan that cannot be read; the message names the bad part and what is allowed."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A number, or one of ``low``..``high`` (both included) that the seed picks."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault.

    Attributes:
        kind: what happens, one of ``KINDS``.
        id: name of the fault in its plan, unique; by default kind and position, ``sigkill-1``.
        rank: global rank; ``random`` = one that the seed picks, ``all`` = every rank.
        iteration: it happens in the call ``undaunted.step(i)`` that reaches this iteration.
        after: it happens so many seconds after the rank's program began. Without ``iteration`` and
            ``after`` it happens before the program's first line.
        round: only in this round (0 = before the first restart); None = in any.
        seconds: how long ``sleep`` and ``gil`` last, None = for ever; how long each pause of
            ``slow`` is, None = 0.2.
        code: exit code of ``exit``, 0 to 255.
        steps: in how many steps ``slow`` pauses, from its own on; None = 10.
        bytes: how much ``torn-write`` leaves of the next large file; None = 65536.
        how: what ``bad-save`` makes of the state, one of ``HOWS``; None = the first.
        seed: picks among choices.
        repeat: happens again after restarts; without it a fault happens once per run.
    """

    kind: Kind
    id: str
    rank: Choice | Literal["random", "all"]
    iteration: Choice | None = None
    after: float | None = None
    round: int | None = None
    seconds: float | None = None
    code: int = 1
    steps: int | None = None
    bytes: int | None = None
    how: str | None = None
    seed: int = 0
    repeat: bool = False

    def __str__(self) -> str:
        options = {
            "rank": self.rank,
            "iteration": self.iteration,
            "after": self.after,
            "round": self.round,
            "seconds": self.seconds,
            "code": self.code if self.kind == "exit" else None,
            "steps": self.steps,
            "bytes": self.bytes,
            "how": self.how,
            "seed": self.seed or None,
            "id": self.id,
        }
        parts = [f"{key}={value}" for key, value in options.items() if value is not None]
        return f"{self.kind}:{','.join([*parts, 'repeat'] if self.repeat else parts)}"


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The faults of one run."""

    faults: tuple[Fault, ...] = ()

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """Read a plan.

        Args:
            text: ``kind:key=value,...;...`` or a JSON list of objects; empty means no faults.

        Raises:
            FaultPlanError: names the bad part of ``text``.
        """
        return cls(_read(text))

    def to_env(self) -> str:
        """The plan as text that :meth:`parse` reads back unchanged; "" without faults."""
        return ";".join(map(str, self.faults))

    def without(self, ids: Iterable[str]) -> FaultPlan:
        """The plan for rounds after the faults ``ids`` have happened; ``repeat`` ones stay."""
        gone = set(ids)
        return FaultPlan(tuple(f for f in self.faults if f.repeat or f.id not in gone))

    def check_ranks(self, world_size: int) -> None:
        """Make sure that every fault can happen.

        Args:
            world_size: number of ranks, at least 1.

        Raises:
            FaultPlanError: one is for a rank that does not exist.
        """
        for fault in self.faults:
            if isinstance(fault.rank, Choice) and fault.rank.high >= world_size:
                span = f"ranks 0 to {world_size - 1}" if world_size > 1 else "only rank 0"
                raise FaultPlanError(
                    f"fault {str(fault)!r} is for rank {fault.rank}; this job has {span}"
                )

    def due(
        self, *, rank: int, round_: int, world_size: int, slot: int | None = None
    ) -> tuple[Fault, ...]:
        """The faults that may happen on ``rank`` in ``round_``, with nothing random left.

        Args:
            rank: global rank.
            round_: number of the round, from 0.
            world_size: number of ranks, at least 1.
            slot: which rank is usually on the slot of this one; None = the rank itself.
        """
        on_slot = rank if slot is None else slot
        return tuple(
            fault
            for fault in (settle(one, world_size) for one in self.faults)
            if fault.rank in ("all", _only(on_slot if fault.kind == LASTING else rank))
            and fault.round in (None, round_)
        )


def _only(number: int) -> Choice:
    return Choice(number, number)


def settle(fault: Fault, world_size: int) -> Fault:
    """The fault with its random choices made: the same on every rank and every machine."""
    rank = Choice(0, max(world_size, 1) - 1) if fault.rank == "random" else fault.rank
    return replace(
        fault,
        rank=_pick(rank, fault, "rank") if isinstance(rank, Choice) else rank,
        iteration=_pick(fault.iteration, fault, "iteration") if fault.iteration else None,
    )


def _pick(choice: Choice, fault: Fault, what: str) -> Choice:
    # A hash rather than `random`: the same on every version of Python.
    digest = hashlib.blake2b(f"{fault.seed}/{fault.id}/{what}".encode(), digest_size=8).digest()
    number = choice.low + int.from_bytes(digest, "big") % (choice.high - choice.low + 1)
    return Choice(number, number)


# --- reading ------------------------------------------------------------------------------------


def _read(text: str) -> tuple[Fault, ...]:
    """Read a plan, as text or JSON.

    Raises:
        FaultPlanError: names the bad part.
    """
    text = text.strip()
    items = _split_json(text) if text[:1] in ("[", "{") else _split_text(text)
    if len(items) > _MAX_FAULTS:
        raise FaultPlanError(f"{len(items)} faults in one plan; at most {_MAX_FAULTS}")
    faults = tuple(_fault(kind, options, at) for at, (kind, options) in enumerate(items, start=1))
    ids = [fault.id for fault in faults]
    if twice := next((name for name in ids if ids.count(name) > 1), None):
        raise FaultPlanError(f"two faults have the id {twice!r}; give them different ones (id=...)")
    return faults


def check_kind(kind: str) -> None:
    """Refuse a kind that does not exist.

    Raises:
        FaultPlanError: names the known kinds and the nearest one.
    """
    if kind not in KINDS:
        known = f"known: {', '.join(KINDS)}{did_you_mean(kind, KINDS)}"
        raise FaultPlanError(f"{kind!r} is not a kind of fault; {known}")


def _split_text(text: str) -> list[_Item]:
    return [_split_item(item.strip()) for item in text.split(";") if item.strip()]


def _split_item(item: str) -> _Item:
    kind, _, rest = item.partition(":")
    options: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals and key != "repeat":
            raise FaultPlanError(f"{part!r} in fault {item!r} is not KEY=VALUE")
        if key in options:
            raise FaultPlanError(f"{key!r} is given twice in fault {item!r}")
        options[key] = value if equals else "true"
    return kind.strip(), options


def _split_json(text: str) -> list[_Item]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FaultPlanError(f"the fault plan is not valid JSON: {error}") from None
    return [_split_object(item) for item in (value if isinstance(value, list) else [value])]


def _split_object(item: Any) -> _Item:
    if not isinstance(item, dict) or not isinstance(item.get("kind"), str):
        example = '{"kind": "sigkill", "rank": 1, "iteration": 30}'
        raise FaultPlanError(f"{item!r} is not a fault; write {example}")
    options = {key: value for key, value in item.items() if key != "kind" and value is not None}
    return item["kind"], {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in options.items()
    }


def _fault(kind: str, options: dict[str, str], position: int) -> Fault:
    check_kind(kind)
    written = f"{kind}:{','.join(f'{key}={value}' for key, value in options.items())}"
    fields: dict[str, Any] = {"id": f"{kind}-{position}", "repeat": kind == LASTING}
    for key, value in options.items():
        if key not in _READERS:
            known = f"known: {', '.join(_READERS)}{did_you_mean(key, _READERS)}"
            raise FaultPlanError(f"{key!r} in fault {written!r} is not an option; {known}")
        try:
            fields[key] = _READERS[key](value)
        except ValueError as error:
            raise FaultPlanError(f"{key}={value} in fault {written!r}: {error}") from None
    _check_combination(kind, fields, written)
    return Fault(kind=kind, **fields)  # type: ignore[arg-type] # checked: it is in KINDS


def _check_combination(kind: str, fields: dict[str, Any], written: str) -> None:
    if "rank" not in fields:
        problem = "on which rank? Add rank=0, rank=random or rank=all"
    elif "iteration" in fields and "after" in fields:
        problem = "give iteration or after, not both"
    elif foreign := [
        key for key, kinds in _KINDS_OF.items() if key in fields and kind not in kinds
    ]:
        problem = f"{foreign[0]} belongs to {' and '.join(_KINDS_OF[foreign[0]])} only"
    else:
        return
    raise FaultPlanError(f"fault {written!r}: {problem}")


def _rank(text: str) -> Choice | Literal["random", "all"]:
    if text == "random":
        return "random"
    if text == "all":
        return "all"
    try:
        return _choice(text)
    except ValueError:
        raise ValueError("give a rank (3), a range to pick one from (0-3), random or all") from None


def _choice(text: str) -> Choice:
    found = _RANGE.fullmatch(text)
    choice = Choice(int(found[1]), int(found[2] or found[1])) if found else None
    if choice is None or choice.low > choice.high:
        raise ValueError("give a number (30) or a range to pick one from (10-50)")
    return choice


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError("give a whole number from 0")
    return int(text)


def _positive(text: str) -> int:
    number = _whole(text)
    if not number:
        raise ValueError("give a whole number from 1")
    return number


def _code(text: str) -> int:
    code = _whole(text)
    if code > _MAX_CODE:
        raise ValueError(f"exit codes are 0 to {_MAX_CODE}")
    return code


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _MAX_SECONDS:
        raise ValueError("give a number of seconds, such as 12.5")
    return seconds


def _how(text: str) -> str:
    if text not in HOWS:
        raise ValueError(f"give one of {', '.join(HOWS)}")
    return text


def _id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise ValueError("use 1 to 32 letters, digits, dots, dashes or underscores")
    return text


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("write repeat alone, or true or false")
    return text == "true"


_READERS: dict[str, Callable[[str], object]] = {
    "rank": _rank,
    "iteration": _choice,
    "after": _seconds,
    "round": _whole,
    "seconds": _seconds,
    "code": _code,
    "steps": _positive,
    "bytes": _whole,
    "how": _how,
    "seed": _whole,
    "id": _id,
    "repeat": _flag,
}
