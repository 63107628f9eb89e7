"""A trial of directories: can they be written, and how fast."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.deadline import within
from undaunted.base.process import script_command
from undaunted.doctor.facts import FileSystem, Trial
from undaunted.doctor.probe.file_systems import file_system

if TYPE_CHECKING:
    from undaunted.doctor.probe.child import Children

_PROGRAM = Path(__file__).with_name("disk_program.py")
BYTES = 64 * 1024 * 1024
WRITE_S = 5.0
DEADLINE_S = 20.0
_ANSWER_S = 5.0


class _Answer(msgspec.Struct):
    written: int = 0
    seconds: float = 0.0
    direct: bool = False
    problem: str = ""


def of_disk(children: Children, path: str, purpose: str, deadline_s: float = DEADLINE_S) -> Trial:
    """Write to a directory for a trial; where it does not exist, to what will hold it."""
    place = within(_ANSWER_S, lambda: nearest(Path(path)), None)
    if place is None:
        late = f"no answer within {_ANSWER_S:.0f} s"
        return Trial(path=path, purpose=purpose, file_system=FileSystem(path=path), problem=late)
    if not place.is_dir():
        return Trial(
            path=path,
            purpose=purpose,
            file_system=FileSystem(path=path),
            problem=f"{place} is no directory",
        )
    command = script_command(_PROGRAM, str(place), str(BYTES), str(WRITE_S))
    said = children.ask(command, deadline_s)
    try:
        answer = msgspec.json.decode(said.output, type=_Answer)
    except (msgspec.DecodeError, ValueError):
        answer = _Answer(problem=said.problem or "the trial has said nothing")
    return Trial(
        path=path,
        purpose=purpose,
        file_system=file_system(str(place)),
        written=answer.written,
        seconds=answer.seconds,
        direct=answer.direct,
        problem=answer.problem,
    )


def nearest(path: Path) -> Path:
    """Return the path, or the nearest above it that exists."""
    for place in (path, *path.parents):
        if place.exists():
            return place
    return Path("/")
