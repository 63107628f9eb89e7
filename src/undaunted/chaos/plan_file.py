"""Plans as YAML, for people to read, write and keep.

seed: 7
faults:
  - {id: kill-1, kind: kill, rank: 1, iteration: 57, run: 1}
  - {kind: hang}    # on a random rank at a random iteration, in a run of its own
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from undaunted.base.text import one_line
from undaunted.chaos.generator import Wanted, check_how, check_kind
from undaunted.chaos.plan import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from yaml.nodes import MappingNode, Node

    from undaunted.chaos.plan import Plan

_MAX_BYTES = 1 << 20
_MAX_FAULTS = 10_000
_MAX_NUMBER = 10**9
_ID = re.compile(r"[A-Za-z0-9._-]{1,24}")
_RANDOM = "random"


@dataclass(frozen=True)
class Draft:
    """What a file asks for; ``seed`` is None where it gives none."""

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
        PlanError: names the bad part, its line, and what is allowed.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        return _Reader(name, loader.construct_object).plan(loader.get_single_node())
    except yaml.YAMLError as error:
        raise PlanError(f"{name} is not YAML: {one_line(str(error))}") from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, PlanError):
            raise
        raise PlanError(f"{name} cannot be read: {one_line(str(error))}") from None


@dataclass(frozen=True)
class _Reader:
    """Reads the nodes of one document."""

    name: str
    construct: Callable[[Any], Any]

    def plan(self, node: Node | None) -> Draft:
        if node is None:
            raise PlanError(f"{self.name} is empty; write `faults:` and a list of faults below it")
        fields = dict(self.mapping(node, ("seed", "faults"), "a plan"))
        if "faults" not in fields:
            raise PlanError(f"{self.where(node)}there is no list `faults:`")
        faults = fields["faults"]
        items = faults.value if _is(faults, "sequence") else None
        if not items:
            raise PlanError(
                f"{self.where(faults)}`faults` is no list of faults; write one per line, such as "
                "`- {kind: kill, rank: 1, iteration: 57}`"
            )
        if len(items) > _MAX_FAULTS:
            raise PlanError(f"{self.name} has {len(items)} faults; at most {_MAX_FAULTS}")
        wanted = [self.fault(item, place) for place, item in enumerate(items, start=1)]
        seed = fields.get("seed")
        return Draft(
            seed=None if seed is None else self.number(seed, "seed", 0),
            faults=tuple(self.numbered(wanted)),
        )

    def fault(self, node: Node, place: int) -> Wanted:
        where = self.where(node)
        fields = dict(self.mapping(node, tuple(_FIELDS), "a fault"))
        if "kind" not in fields:
            raise PlanError(f"{where}this fault has no `kind`")
        values = {key: _FIELDS[key](self, value, key) for key, value in fields.items()}
        check_kind(values["kind"], where)
        check_how(values["kind"], values.get("how", ""), where)
        values.setdefault("id", f"{values['kind']}-{place}")
        return Wanted(**{"run": 0, **values}, where=where)

    def numbered(self, wanted: list[Wanted]) -> Iterator[Wanted]:
        """Give each fault a run of its own, if none has one."""
        seen: set[str] = set()
        with_run = [fault for fault in wanted if fault.run]
        for place, fault in enumerate(wanted, start=1):
            if fault.id in seen:
                raise PlanError(f"{fault.where}two faults have the id {fault.id!r}")
            if with_run and not fault.run:
                raise PlanError(
                    f"{fault.where}fault {fault.id!r} has no `run`, while {with_run[0].id!r} has "
                    "one; give it to all or to none"
                )
            seen.add(fault.id)
            yield fault if fault.run else replace(fault, run=place)

    def mapping(self, node: Node, known: tuple[str, ...], what: str) -> Iterator[tuple[str, Node]]:
        if not _is(node, "mapping"):
            raise PlanError(f"{self.where(node)}{self.shown(node)} is not {what}, KEY: VALUE")
        mapping: MappingNode = node  # type: ignore[assignment]
        seen = set()
        for key, value in mapping.value:
            text = key.value if _is(key, "scalar") else self.shown(key)
            if text not in known:
                raise PlanError(
                    f"{self.where(key)}{one_line(text, 80)!r} is nothing that {what} has; known: "
                    + ", ".join(known)
                )
            if text in seen:
                raise PlanError(f"{self.where(key)}{text!r} is given twice")
            seen.add(text)
            yield text, value

    def number(self, node: Node, key: str, least: int) -> int:
        value = self.scalar(node)
        if type(value) is not int or not least <= value <= _MAX_NUMBER:
            raise PlanError(
                f"{self.where(node)}{key}: {self.shown(node)} is not a whole number from {least}"
            )
        return value

    def number_or_random(self, node: Node, key: str) -> int | None:
        if self.scalar(node) == _RANDOM:
            return None
        try:
            return self.number(node, key, 0)
        except PlanError as error:
            raise PlanError(f"{error}, nor `{_RANDOM}`") from None

    def run(self, node: Node, key: str) -> int:
        return self.number(node, key, 1)

    def kind(self, node: Node, key: str) -> str:
        value = self.scalar(node)
        if not isinstance(value, str):
            raise PlanError(f"{self.where(node)}{key}: {self.shown(node)} is not a kind of fault")
        return value

    def how(self, node: Node, key: str) -> str:
        value = self.scalar(node)
        if not isinstance(value, str):
            raise PlanError(f"{self.where(node)}{key}: {self.shown(node)} is not a word")
        return value

    def fault_id(self, node: Node, key: str) -> str:
        value = self.scalar(node)
        if not isinstance(value, str) or not _ID.fullmatch(value):
            raise PlanError(
                f"{self.where(node)}{key}: {self.shown(node)} is no id: use 1 to 24 letters, "
                "digits, dots, dashes or underscores"
            )
        return value

    def seconds(self, node: Node, key: str) -> float:
        value = self.scalar(node)
        fine = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not fine or not math.isfinite(value) or not 0 < value <= _MAX_NUMBER:
            raise PlanError(
                f"{self.where(node)}{key}: {self.shown(node)} is not a number of seconds above 0"
            )
        return float(value)

    def scalar(self, node: Node) -> Any:
        return self.construct(node) if _is(node, "scalar") else None

    def shown(self, node: Node) -> str:
        return (
            one_line(str(node.value), 80)
            if _is(node, "scalar")
            else "a " + str(getattr(node, "id", "value"))
        )

    def where(self, node: Node) -> str:
        return f"{self.name}, line {node.start_mark.line + 1}: "


def _is(node: Node, what: str) -> bool:
    return bool(getattr(node, "id", "") == what)


_FIELDS: dict[str, Callable[[_Reader, Node, str], Any]] = {
    "id": _Reader.fault_id,
    "kind": _Reader.kind,
    "rank": _Reader.number_or_random,
    "iteration": _Reader.number_or_random,
    "run": _Reader.run,
    "seconds": _Reader.seconds,
    "how": _Reader.how,
}
