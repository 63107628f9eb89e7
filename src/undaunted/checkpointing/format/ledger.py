"""The fate of training after loads of checkpoints, and which of them can be trusted. Pure.

Beside the checkpoints there is one small file, the ledger: which were loaded, in which round, and
how rounds failed soon after that. A checkpoint that leads to failures is passed over for the next
older one, until it turns out that others lead to the same.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from undaunted.base.text import count, name_ranks, one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

# Set by the launcher for its ranks: how the last round failed, and what is too soon after a load.
FAILURE_VARIABLE = "UNDAUNTED_FAILURE"
WITHIN_VARIABLE = "UNDAUNTED_SUSPECT_STEPS"
WITHIN_STEPS = 20
# Causes that a checkpoint may have. Lost nodes, full disks, signals and the like say nothing of it.
SUSPECT_CAUSES = frozenset(
    {
        "not_finite",
        "program_error",
        "data_error",
        "device_fault",
        "native_crash",
        "mismatch",
        "unequal_work",
    }
)
# Errors that come from a program, whatever it has loaded.
_OF_PROGRAM = (
    "ImportError",
    "IndentationError",
    "ModuleNotFoundError",
    "NameError",
    "NotImplementedError",
    "SyntaxError",
    "UnboundLocalError",
)
# One that comes from a checkpoint.
_OF_CHECKPOINT = "DamagedCheckpointError"
# The cause of an error that has no other.
_OWN_ERROR = "program_error"
# One such failure is enough: a state that gives no finite numbers at once gives none ever.
_AT_ONCE = "not_finite"
MOST_ENTRIES = 400
MOST_BYTES = 1 << 20
_MOST_RANKS, _LONGEST = 4, 100  # that a reason names; characters


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The failure of a round of the job; the launcher gives it to the next one.

    Attributes:
        round: its number.
        cause: as attribution names it.
        error: what stays the same of its message when it happens again.
        nodes, ranks: where it came from; empty = not known.
        steps: that the round had done, None = not known.
        run: of the launcher whose round it was; "" = the one that tells of it.
        at: seconds since 1970 when it failed; 0 = in this start of the job.
        entry: which call of a function it was that is restarted inside of its process, see
            `base.reentry`; "" = the whole round has failed.
    """

    round: int
    cause: str
    error: str = ""
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    steps: int | None = None
    run: str = ""
    at: float = 0.0
    entry: str = ""


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded", omit_defaults=True):
    """A checkpoint was loaded.

    Attributes:
        at: seconds since 1970.
        name: of the checkpoint; see `Candidate`.
        step: of it.
        session: what has loaded it; what that saved has the same.
        run, round: of the launcher, "" and -1 without one.
        passed_over: names of newer ones that were not trusted.
        entry: which call of a function has loaded it that is restarted inside of its process.
        program: what loaded it, which may be corrected later; "" = not known.
    """

    at: float
    name: str
    step: int
    session: str
    run: str = ""
    round: int = -1
    passed_over: tuple[str, ...] = ()
    entry: str = ""
    program: str = ""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed", omit_defaults=True):
    """The round failed that had loaded a checkpoint.

    Attributes:
        at: seconds since 1970 when it became known here.
        name: of the checkpoint.
        failure: how.
    """

    at: float
    name: str
    failure: Failure


Entry = Loaded | Failed


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that could be loaded.

    Attributes:
        name: of this one content: a step that is saved again has another.
        step: of training.
        session: of what has saved it; "" = not known.
        certified: see `Manifest`.
    """

    name: str
    step: int
    session: str = ""
    certified: bool = False


class Choice(NamedTuple):
    """In which order checkpoints are tried.

    Attributes:
        order: all of them, those that are not trusted last.
        doubts: why some are not trusted, by name.
    """

    order: list[Candidate]
    doubts: dict[str, str]

    @property
    def is_none_trusted(self) -> bool:
        """Return whether all lead to failures, so that it may be nothing that is in them."""
        return bool(self.order) and len(self.doubts) == len(self.order)


def choose(
    candidates: Sequence[Candidate],
    entries: Sequence[Entry],
    within: int = WITHIN_STEPS,
    run: str | None = None,
    program: str = "",
) -> Choice:
    """Return which checkpoint training goes on from.

    A checkpoint is doubted when two rounds that had loaded it failed within a few steps for the
    same cause, on different nodes or with the same error; or one, if a loss or gradient was not
    finite. It is not to blame for a failure to which another one leads as well, if one of the two
    is proven: certified, or training has come that far after it was saved, or after it was loaded.
    Where all are doubted, the newest is the first again.

    Args:
        candidates: the newest first.
        entries: of the ledger, the oldest first.
        within: steps after loading; 0 = none is ever doubted.
        run: of the launcher; None = the last that has loaded one.
        program: that is to load one: what another one has raised may have been its own error.
    """
    failures = _failures(_of_job(entries, run, program), within)
    known = {one.name: one for one in candidates}
    doubts: dict[str, str] = {}
    for one in candidates:
        blamed = _blamed(failures.get(one.name, []))
        if blamed is None:
            continue
        alike = {name for name, some in failures.items() if _has(some, blamed)}
        proven = (
            _is_proven(known.get(name), name, candidates, entries, within, blamed) for name in alike
        )
        if len(alike) == 1 or not any(proven):
            doubts[one.name] = _why(failures[one.name], blamed)
    trusted = [one for one in candidates if one.name not in doubts]
    return Choice([*trusted, *(one for one in candidates if one.name in doubts)], doubts)


def attributed(entries: Sequence[Entry], failure: Failure, run: str, at: float) -> Failed | None:
    """Return the entry about a round that has failed; None = it has not loaded the last checkpoint.

    Args:
        entries: of the ledger, the oldest first.
        failure: of the last round.
        run: of the launcher.
        at: seconds since 1970.
    """
    loads = [
        (place, one)
        for place, one in enumerate(entries)
        if isinstance(one, Loaded) and (not failure.at or one.at < failure.at)
    ]
    if not loads:
        return None
    place, last = loads[-1]
    if (last.run, last.round) != (failure.run or run, failure.round):
        return None
    if failure.entry and failure.entry != last.entry:
        return None
    if any(isinstance(one, Failed) for one in entries[place:]):
        return None  # another process of this round has written it
    return Failed(at=at, name=last.name, failure=failure)


def encode(entries: Sequence[Entry]) -> bytes:
    """Return the content of the ledger: a line with its checksum for each of the newest entries."""
    lines = [msgspec.json.encode(one) for one in entries[-MOST_ENTRIES:]]
    return b"".join(b"%08x %s\n" % (zlib.crc32(line), line) for line in lines)


def decode(content: bytes) -> list[Entry]:
    """Return the entries of a ledger; damaged lines, and those of a later version, are left out."""
    entries: list[Entry] = []
    for line in content.splitlines()[-MOST_ENTRIES:]:
        checksum, _, body = line.partition(b" ")
        if checksum != b"%08x" % zlib.crc32(body):
            continue
        try:
            entries.append(msgspec.json.decode(body, type=Entry))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
    return entries


def _of_job(entries: Sequence[Entry], run: str | None, program: str) -> list[Failed]:
    """Return the failures of one job: before another, the program may have been corrected.

    A start in the same run directory knows how the one before has failed, and belongs to its job.
    If its program is another one, errors of the former program do not count.
    """
    if run is None:
        run = next((one.run for one in reversed(entries) if isinstance(one, Loaded)), "")
    runs, following = {run}, run
    found, after_load = list[Failed](), list[Failed]()
    for one in reversed(entries):
        if isinstance(one, Failed):
            if following in runs:  # who has written the failure has loaded next
                runs.add(one.failure.run or following)
                after_load.append(one)
            continue
        following = one.run
        is_former = bool(program and one.program) and one.program != program
        found += (f for f in after_load if not is_former or f.failure.cause != _OWN_ERROR)
        after_load.clear()
    return [*found, *after_load][::-1]


def _failures(entries: Iterable[Failed], within: int) -> dict[str, list[Failure]]:
    """Return by checkpoint the failures soon after it was loaded."""
    found: dict[str, list[Failure]] = {}
    for one in entries:
        if _is_suspect(one.failure, within):
            found.setdefault(one.name, []).append(one.failure)
    return found


def _is_suspect(failure: Failure, within: int) -> bool:
    """Return whether a failure may be due to the checkpoint that was loaded before it."""
    early = failure.steps is not None and failure.steps < within
    error = failure.error.partition(":")[0]
    if error.endswith(_OF_CHECKPOINT):
        return early
    return early and error not in _OF_PROGRAM and failure.cause in SUSPECT_CAUSES


def _blamed(failures: Sequence[Failure]) -> Failure | None:
    """Return the failure for which a checkpoint is to blame, as far as its own failures tell."""
    for at, one in enumerate(failures):
        if one.cause == _AT_ONCE:
            return one
        for earlier in failures[:at]:
            elsewhere = one.nodes and earlier.nodes and not {*one.nodes} & {*earlier.nodes}
            if one.cause == earlier.cause and (elsewhere or one.error == earlier.error):
                return one
    return None


def _has(failures: Collection[Failure], blamed: Failure) -> bool:
    """Return whether one of them is alike."""
    return any(
        one.cause == blamed.cause and (one.error == blamed.error or one.cause == _AT_ONCE)
        for one in failures
    )


def _is_proven(
    one: Candidate | None,
    name: str,
    candidates: Sequence[Candidate],
    entries: Sequence[Entry],
    within: int,
    blamed: Failure,
) -> bool:
    """Return whether training has come that far after it was saved, or after it was loaded.

    Args:
        one: the checkpoint; None if it is not there any more.
        name: of it.
        candidates: see `choose`.
        entries: see `choose`.
        within: see `choose`.
        blamed: a failure for which it may be to blame.
    """
    if one is not None and one.certified and blamed.cause != _AT_ONCE:
        return True
    loads = [e for e in entries if isinstance(e, Loaded) and e.name == name]
    sessions = {e.session for e in loads}
    if one is not None and blamed.cause != _AT_ONCE:  # such numbers stop none that does not look
        sessions.add(one.session)
    step = one.step if one is not None else loads[-1].step if loads else None
    if step is None:
        return False
    if any(c.session and c.session in sessions and c.step >= step + within for c in candidates):
        return True
    return any(
        isinstance(e, Failed) and e.name == name and (e.failure.steps or 0) >= within
        for e in entries
    )


def _why(failures: Sequence[Failure], blamed: Failure) -> str:
    alike = [one for one in failures if one.cause == blamed.cause]
    steps = max(one.steps or 0 for one in alike)
    ranks = {rank for one in alike for rank in one.ranks}
    where = f" on {name_ranks(ranks, _MOST_RANKS)}" if ranks else ""
    return (
        f"{count(len(alike), 'round')} that loaded it failed within {count(max(steps, 1), 'step')}"
        f"{where}: {one_line(blamed.error, _LONGEST) or blamed.cause}"
    )
