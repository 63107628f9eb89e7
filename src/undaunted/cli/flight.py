"""`undaunted flight`: who keeps the others waiting, from dumps of torch's Flight Recorder."""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import msgspec

from undaunted.attribution.findings import CAUSES, SURE
from undaunted.attribution.flight.culprits import (
    MOST_CULPRITS,
    Analysis,
    Culprit,
    GroupState,
    analyse,
)
from undaunted.attribution.flight.files import Dumps, read_directory, read_files, read_folders
from undaunted.attribution.flight.recording import MOST_RANKS
from undaunted.base import values
from undaunted.base.console import plain, table
from undaunted.base.options import Kind, Opt
from undaunted.base.streams import take_any_text
from undaunted.base.text import count, format_ranks, name_ranks, one_line
from undaunted.base.values import Flag
from undaunted.cli.command import Command, Parsed
from undaunted.cli.messages import UsageError, json_text, printing

_MOST_LINES = 20  # of a kind, for people
_MOST_RANGES = 32  # of ranks in a line
_MOST_IN_CELL = 4096  # ranks, as NVRx prints them
_NVRX = ("PGID", "Process Group Desc", "Op Type", "Size", "Dtype", "Missing Ranks")


class FlightOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Options of `undaunted flight`."""

    json: Annotated[Flag, Opt("Print what was found as JSON", "Options")] = False
    nvrx: Annotated[Flag, Opt("Print the groups as NVRx's analysis does")] = False
    world_size: Annotated[
        int,
        Kind(values.whole(1, MOST_RANKS), "N"),
        Opt("Ranks of the job, if dumps do not say it: those of gloo do not", shown="not known"),
    ] = 0


FLIGHT = Command(
    "flight",
    FlightOptions,
    "[OPTIONS] DIR",
    """\
Says which rank keeps the others waiting, and why, from the dumps of torch's
Flight Recorder that lie in DIR, one for each rank.

The rank of a dump is the number its name ends with: _dump_3,
nccl_trace_rank_3, rank_3.json. Dumps may be pickles, of which nothing is run,
or JSON. DIR may be a single dump.
""",
    operand="DIR",
)


def main(argv: Sequence[str]) -> int:
    """Print who is to blame.

    Args:
        argv: arguments after ``undaunted flight``.

    Returns:
        0, whatever was found, or 2 if there is no dump.
    """
    return FLIGHT.run(argv, _print)


def _print(parsed: Parsed[FlightOptions]) -> int:
    parsed.refuse_several("json", "nvrx")
    options = parsed.options
    if not parsed.target:
        raise UsageError("name the directory that holds the dumps: undaunted flight DIR")
    take_any_text(for_programs=options.json)
    dumps = _read(Path(parsed.target))
    last = dumps.recordings[-1].rank
    if 0 < options.world_size <= last:
        raise UsageError(
            f"--world-size {options.world_size}: there is a dump of rank {last}, so that the job "
            f"has at least {last + 1} ranks"
        )
    found = analyse(dumps.recordings, options.world_size)
    with printing():
        if options.json:
            about = {**msgspec.to_builtins(found), "problems": msgspec.to_builtins(dumps.problems)}
            sys.stdout.write(json_text(about))
        else:
            lines = nvrx_lines(found) if options.nvrx else lines_of(found, dumps)
            sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _read(path: Path) -> Dumps:
    try:
        dumps = read_directory(path) if path.is_dir() else read_files([_existing(path)])
    except OSError as error:
        raise UsageError(f"{one_line(str(path))}: {error.strerror}") from None
    if dumps.recordings:
        return dumps
    inside = []
    if path.is_dir():
        inside = sorted((one.name for one in path.iterdir() if one.is_dir()), key=_by_number)
        if (of_nodes := _of_nodes([path / name for name in inside])) is not None:
            return Dumps(of_nodes.recordings, [*dumps.problems, *of_nodes.problems])
    if dumps.problems:
        first = dumps.problems[0]
        raise UsageError(
            f"{one_line(str(path))}: none of {count(len(dumps.problems), 'file')} is a dump; "
            f"{one_line(first.file)}: {one_line(first.text)}"
        )
    hint = f"; it holds directories: name one, such as {inside[-1]}" if inside else ""
    raise UsageError(f"{one_line(str(path))}: there are no files{one_line(hint)}")


def _of_nodes(paths: list[Path]) -> Dumps | None:
    """Read directories that nodes have, each with the dumps of its ranks; None: they are others."""
    try:
        dumps = read_folders(paths)
    except OSError:
        return None
    return dumps if dumps is not None and dumps.recordings else None


def _by_number(name: str) -> tuple[int, str]:
    number = name.rpartition("_")[2]
    return (int(number) if number.isdecimal() and len(number) < 10 else -1), name


def _existing(path: Path) -> Path:
    path.stat()
    return path


# --- for people -----------------------------------------------------------------------------------


def lines_of(found: Analysis, dumps: Dumps) -> Iterator[str]:
    """Return what was found, for people."""
    yield f"{count(len(dumps.recordings), 'dump')}, {_absent(found.missing)}"
    yield ""
    if not found.culprits:
        gloo = any(group.backend == "gloo" for one in dumps.recordings for group in one.groups)
        yield from _no_culprit(found, gloo=gloo)
    alike = [list(each) for _, each in groupby(found.culprits, _said)]
    for each in alike[:_MOST_LINES]:
        yield from _culprits(each)
    yield from _more(len(alike))
    if len(found.culprits) == MOST_CULPRITS:
        yield f"at most {MOST_CULPRITS} are named"
    if found.waiting and found.culprits:
        yield f"waiting for them: {name_ranks(found.waiting, _MOST_RANGES)}"
    if found.groups:
        yield ""
        heads = ("GROUP", "OPERATION", "NUMBER", "WAITING", "NOT COME")
        rows = [_row(one) for one in found.groups[:_MOST_LINES]]
        yield from plain(table(heads, rows)).splitlines()
        yield from _more(len(found.groups))
    if dumps.problems:
        yield ""
        yield "not read:"
        for problem in dumps.problems[:_MOST_LINES]:
            yield f"  {one_line(problem.file)}: {one_line(problem.text)}"
        yield from _more(len(dumps.problems))


def _absent(missing: Sequence[int]) -> str:
    return f"none of {name_ranks(missing, _MOST_RANGES)}" if missing else "none is missing"


def _no_culprit(found: Analysis, *, gloo: bool) -> Iterator[str]:
    if any(len(one.waiting) < one.size and not one.absent for one in found.groups):
        yield "it is not known who was waited for: some ranks have left the operation already"
    elif found.groups:
        yield "the ranks wait for each other, and none can be told from the others"
    else:
        yield "nobody waits: every operation that was called has ended"
    if gloo:
        yield (
            "dumps of gloo do not tell whether an operation ended with an error: they say most if "
            "they are made before its timeout has passed"
        )


def _said(one: Culprit) -> tuple[object, ...]:
    return one.node, one.cause, one.confidence, one.evidence


def _culprits(alike: Sequence[Culprit]) -> Iterator[str]:
    one, ranks = alike[0], name_ranks([each.rank for each in alike], _MOST_RANGES)
    where = f" on {one_line(one.node)}" if one.node else ""
    cause = CAUSES[one.cause]
    perhaps = "" if one.confidence >= SURE else "perhaps "
    yield f"{ranks}{where}: {perhaps}{cause.meaning} ({cause.name})"
    yield f"  {one.evidence}"


def _row(one: GroupState) -> tuple[str, ...]:
    number = "" if one.number < 0 else str(one.number)
    call = " ".join(word for word in (one.operation, one.dtype, one.shape) if word)
    waiting, absent = (format_ranks(each, _MOST_RANGES) for each in (one.waiting, one.absent))
    return _name(one), call, number, waiting, absent or "-"


def _name(one: GroupState) -> str:
    if one.description in {"", "undefined"}:
        return one.name or "-"
    return f"{one.name} ({one.description})"


def _more(number: int) -> Iterator[str]:
    if number > _MOST_LINES:
        yield f"... and {number - _MOST_LINES} more: see --json"


def nvrx_lines(found: Analysis) -> Iterator[str]:
    """Return the table as NVRx prints it, and last the line ``hanging ranks: [...]``."""
    yield " | ".join(_NVRX)
    for one in found.groups:
        missing = ", ".join(str(rank) for rank in one.absent[:_MOST_IN_CELL])
        missing += ", ..." if len(one.absent) > _MOST_IN_CELL else ""
        cells = (one.name, one.description, one.operation, one.shape, one.dtype, missing)
        yield " | ".join(cells)
    yield f"hanging ranks: {sorted({one.rank for one in found.culprits})}"
