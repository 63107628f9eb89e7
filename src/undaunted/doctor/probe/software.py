"""Versions of software."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from undaunted.doctor.probe.child import Children

_PROGRAM = Path(__file__).with_name("software_program.py")
DEADLINE_S = 60.0  # torch on a network file system


class _Line(msgspec.Struct):
    versions: dict[str, str]


def of_software(
    children: Children, python: str, deadline_s: float = DEADLINE_S
) -> tuple[dict[str, str], str, str]:
    """Return versions by component, as the interpreter of the ranks has them, and two problems.

    The first is why torch cannot be imported, the other why there is no answer; "" = none.
    """
    said = children.ask([python, str(_PROGRAM), str(os.getpid())], deadline_s)
    versions, lines = parse_lines(said.output)
    if not lines:
        return versions, "", said.problem or f"{python} has said nothing"
    if lines > 1 or not said.problem:
        return versions, "", said.problem
    if said.late:  # perhaps from a slow disk
        return versions, "", f"import of torch: {said.problem}"
    return versions, said.problem, ""


def parse_lines(output: bytes) -> tuple[dict[str, str], int]:
    """Return the versions in all lines that can be read, and how many these were."""
    versions: dict[str, str] = {}
    count = 0
    for line in output.splitlines():
        try:
            versions |= msgspec.json.decode(line, type=_Line).versions
        except (msgspec.DecodeError, ValueError):
            continue  # something that an import has printed
        count += 1
    return versions, count
