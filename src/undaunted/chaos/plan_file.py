"""Plans as YAML, for people to read, write and keep.

seed: 7
faults:
  - {id: kill-1, kind: kill, rank: 1, iteration: 57, run: 1}
  - {kind: hang}    # on a random rank at a random iteration, in a separate run
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from undaunted.base.text import one_line
from undaunted.chaos.generator import Wanted, check_how, check_kind
from undaunted.chaos.plan import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from undaunted.chaos.plan import Plan

_MAX_BYTES = 1 << 20
_MAX_FAULTS = 10_000
_MAX_NUMBER = 10**9


@dataclass(frozen=True)
class Draft:
    """The wishes in a file; ``seed`` is None where it gives none."""

    seed: int | None
    faults: tuple[Wanted, ...]


def write_plan(plan: Plan) -> str:
    """Return a plan as text that `parse_plan` reads back unchanged."""
    lines = [f"seed: {plan.seed}", "faults:" if plan.faults else "faults: []"]
    for fault in plan.faults:
        lasts = "" if fault.seconds is None else f", seconds: {fault.seconds!r}"
        lasts += f", how: {fault.how}" if fault.how else ""
        # The id in quotation marks: without them, YAML takes some for numbers.
        lines.append(
            f'  - {{id: "{fault.id}", kind: {fault.kind}, rank: {fault.rank}, '
            f"iteration: {fault.iteration}, run: {fault.run}{lasts}}}"
        )
    return "\n".join(lines) + "\n"


def read_plan(path: Path) -> Draft:
    """Read a plan file.

    Raises:
        PlanError: it cannot be read, or is no plan; says where and what is allowed.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > _MAX_BYTES:
        raise PlanError(f"{path} is larger than {_MAX_BYTES >> 20} MiB: not a plan of faults")
    try:
        return parse_plan(content.decode(), str(path))
    except UnicodeDecodeError:
        raise PlanError(f"{path} is not text in UTF-8: not a plan of faults") from None


def parse_plan(text: str, name: str = "the plan") -> Draft:
    """Read a plan.

    Args:
        text: YAML.
        name: what messages call it.

    Raises:
        PlanError: names the bad part, and what is allowed.
    """
    import yaml

    try:
        content = yaml.safe_load(text)
        if content is None:
            raise PlanError(f"{name} is empty; write `faults:` and a list of faults below it")
        plan = msgspec.convert(content, _PlanFile)
    except yaml.YAMLError as error:
        raise PlanError(f"{name} is not YAML: {one_line(str(error))}") from None
    except msgspec.ValidationError as error:
        raise PlanError(f"{name}: {one_line(str(error))}") from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(f"{name} cannot be read: {one_line(str(error))}") from None
    return Draft(plan.seed, tuple(_numbered(plan.faults, name)))


_Whole = Annotated[int, msgspec.Meta(ge=0, le=_MAX_NUMBER)]
_OrRandom = _Whole | Literal["random"] | None


class _Fault(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,24}$")] | None = None
    rank: _OrRandom = None
    iteration: _OrRandom = None
    run: Annotated[int, msgspec.Meta(ge=1, le=_MAX_NUMBER)] | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0, le=_MAX_NUMBER)] | None = None
    how: str = ""


class _PlanFile(msgspec.Struct, forbid_unknown_fields=True):
    faults: Annotated[list[_Fault], msgspec.Meta(min_length=1, max_length=_MAX_FAULTS)]
    seed: _Whole | None = None


def _numbered(faults: Sequence[_Fault], name: str) -> Iterator[Wanted]:
    """Give each fault a separate run, if none has one."""
    seen: set[str] = set()
    with_run = any(fault.run for fault in faults)
    for place, fault in enumerate(faults, start=1):
        where = f"{name}, fault {place}: "
        check_kind(fault.kind, where)
        check_how(fault.kind, fault.how, where)
        key = fault.id or f"{fault.kind}-{place}"
        if key in seen:
            raise PlanError(f"{where}two faults have the id {key!r}")
        if with_run and not fault.run:
            raise PlanError(f"{where}it has no `run`, while others have; give it to all or to none")
        seen.add(key)
        yield Wanted(
            key,
            fault.kind,
            fault.run or place,
            rank=_given(fault.rank),
            iteration=_given(fault.iteration),
            seconds=fault.seconds,
            how=fault.how,
            where=where,
        )


def _given(number: int | str | None) -> int | None:
    return number if isinstance(number, int) else None
