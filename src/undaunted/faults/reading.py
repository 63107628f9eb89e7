"""Reads fault plans, and says what is wrong with those it cannot read."""

from __future__ import annotations

import difflib
import json
import math
import re
from typing import TYPE_CHECKING, Any, Literal

from undaunted.faults.plan import KINDS, Choice, Fault, FaultPlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
}

_Item = tuple[str, dict[str, str]]


def read_faults(text: str) -> tuple[Fault, ...]:
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
        raise FaultPlanError(
            f"{kind!r} is not a kind of fault{_nearest(kind, KINDS)}; known: {', '.join(KINDS)}"
        )


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
    fields: dict[str, Any] = {"id": f"{kind}-{position}"}
    for key, value in options.items():
        if key not in _READERS:
            known = ", ".join(_READERS)
            raise FaultPlanError(
                f"{key!r} in fault {written!r} is not an option{_nearest(key, _READERS)}; "
                f"known: {known}"
            )
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


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


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
    "seed": _whole,
    "id": _id,
    "repeat": _flag,
}
