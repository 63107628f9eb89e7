"""Decides which rank failed first, and which ones failed only because they lost it. Pure.

The first failure seen is often a victim's: a rank that is killed says nothing, and its peers report
"connection closed" before the launcher has collected the dead process. A rank whose save failed has
told its peers, and they may say so before it does.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from signal import SIGKILL
from typing import TYPE_CHECKING

from undaunted.attribution import exits
from undaunted.attribution.findings import OUT_OF_MEMORY, UNEQUAL
from undaunted.attribution.peers import (
    failed_rank,
    is_peer_lost,
    names_lost_peer,
    raised_in_communication,
)
from undaunted.attribution.stacks import innermost_user_frame, parse_traceback
from undaunted.base.text import name_ranks, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.attribution.error_file import ErrorReport
    from undaunted.progress.snapshot import ErrorRecord

_NO_MEMORY = "MemoryError"
_LONGEST_MESSAGE = 400
_LONGEST_WORDS = 200
# As torch puts it, before the traceback in the other process.
_ORIGINAL = "\nOriginal Traceback (most recent call last):"
_IN_RANK = "\nTraceback (most recent call last): (RANK "


@dataclass(frozen=True, slots=True)
class RankFailure:
    """The facts about one rank that failed.

    Attributes:
        rank, local_rank, pid: who it is.
        at_ns: when its process ended, or now if it has not ended yet.
        exit_code: its exit code, None if a signal ended it or it has not ended yet.
        signal: the signal that ended it.
        told: signals the launcher sent it, with the moments.
        outlived: one of them was SIGKILL, as the launcher's agent stood still.
        error: the unhandled exception its page holds.
        report: what torch's ``@record`` left.
        last_lines: last lines of its standard error, where they are at hand.
        oom_kills: by how much the counter of out-of-memory kills rose in this round.
        fault: id of an injected fault that happened in it.
        iteration: the one it was at.
        killed: why in-process restart has ended it, as it made no progress; "" = it has not.
        peak_bytes: the most memory that it had, 0 = not known.
        core: where its core file is, for people; "" = there is none.
    """

    rank: int
    local_rank: int
    pid: int
    at_ns: int
    exit_code: int | None = None
    signal: int | None = None
    told: tuple[tuple[int, int], ...] = ()
    outlived: bool = False
    error: ErrorRecord | None = None
    report: ErrorReport | None = None
    last_lines: str = ""
    oom_kills: int = 0
    fault: str = ""
    iteration: int | None = None
    killed: str = ""
    peak_bytes: int = 0
    core: str = ""

    @property
    def failed_ns(self) -> int:
        """Return when it failed: an exception comes before the end of its process."""
        return min(self.error.at_ns, self.at_ns) if self.error else self.at_ns

    @property
    def code(self) -> int | None:
        """Its exit code, also while its process is still on the way out."""
        if self.exit_code is None and self.died_of is None and self._is_leaving:
            assert self.error is not None
            return int(self.error.message) & 0xFF  # what the system keeps of it
        return self.exit_code

    @property
    def died_of(self) -> int | None:
        """The signal it failed by; not one the launcher sent to a rank that was leaving already."""
        hurried = self._is_leaving and self.signal in dict(self.told)
        return None if hurried else self.signal

    @property
    def exits_with_text(self) -> bool:
        """Return whether it ended by ``sys.exit("text")``: Python shows it and exits with 1."""
        error = self.error
        return error is not None and error.type == "SystemExit" and not self._is_leaving

    @property
    def _is_leaving(self) -> bool:
        # ``sys.exit(3)``: an exception to Python, a deliberate end to everybody else.
        error = self.error
        if error is None or error.type != "SystemExit":
            return False
        return error.message.removeprefix("-").isdecimal()

    @property
    def exception(self) -> str:
        """``ValueError: bad batch``, or "" if no exception is known."""
        if self._is_leaving:
            return ""
        if self.error is not None:
            message = self.error.message
            return f"{self.error.type}: {message}" if message else self.error.type
        return self.report.message if self.report is not None else ""

    @property
    def traceback(self) -> str:
        """The traceback of the exception, "" if there is none."""
        if self._is_leaving:
            return ""
        if self.error is not None and self.error.traceback:
            return self.error.traceback
        return self.report.traceback if self.report is not None else ""


class Origin(enum.IntEnum):
    """The origins of a failure, the most telling first."""

    OWN = 0  # nothing else explains it
    IN_COMMUNICATION = 1  # raised inside a collective, in words not known to mean a lost peer
    PEER_LOST = 2  # says that a peer is gone, or what it failed with
    TOLD = 3  # ended after the launcher had told it to


@dataclass(frozen=True, slots=True)
class CrashVerdict:
    """The rank that failed first.

    Attributes:
        root: the first cause.
        victims: global ranks that failed because of it.
        certain: False if no rank here failed first.
        line: all of it in one line.
        signal: name of the signal that ended it, "" if none did.
        exception, traceback: what it raised, "" if nothing is known.
        frame: innermost frame of the user's code in the traceback.
        cause: its name in `findings.CAUSES`, where ranks had ended before; "" = not known.
    """

    root: RankFailure
    victims: tuple[int, ...]
    certain: bool
    line: str
    signal: str = ""
    exception: str = ""
    traceback: str = ""
    frame: str = ""
    cause: str = ""


def judge(
    failures: Sequence[RankFailure],
    *,
    node: str,
    finished: Sequence[int] = (),
    whole_job: bool = False,
) -> CrashVerdict:
    """Find the first cause.

    Args:
        failures: of every rank of this node that failed, at least one.
        node: name of the node, for the line.
        finished: ranks of this node that exited with 0.
        whole_job: no other node has ranks.
    """
    failures = _with_what_peers_say(failures)
    origins = {failure.rank: origin_of(failure) for failure in failures}
    root = min(failures, key=lambda each: (origins[each.rank], each.failed_ns, each.rank))
    victims = [each.rank for each in failures if origins[each.rank] == Origin.PEER_LOST]
    victims = sorted(rank for rank in victims if rank != root.rank)
    certain = origins[root.rank] in (Origin.OWN, Origin.IN_COMMUNICATION)
    frame = innermost_user_frame(parse_traceback(root.traceback))
    line = _line(root, victims, node, str(frame) if frame else "")
    if origins[root.rank] == Origin.PEER_LOST:
        line += _not_its_own(finished, whole_job=whole_job)
    return CrashVerdict(
        root=root,
        victims=tuple(victims),
        certain=certain,
        line=line + _killed_together(root, failures, origins),
        signal=exits.signal_name(root.died_of) if root.died_of is not None else "",
        exception=root.exception,
        traceback="" if root.exits_with_text else root.traceback,
        frame=str(frame) if frame else "",
        cause=_cause(root, origins[root.rank], finished),
    )


def _cause(root: RankFailure, origin: Origin, finished: Sequence[int]) -> str:
    """Return the cause that is known here, "" = it is as its kind says."""
    if finished and origin == Origin.PEER_LOST:
        return UNEQUAL
    if root.exception or root.killed:
        return ""
    return OUT_OF_MEMORY if exits.for_want_of_memory(root.died_of, root.oom_kills) else ""


def origin_of(failure: RankFailure) -> Origin:
    """Return where one failure comes from, judged on its own."""
    told_ns = min((at_ns for _, at_ns in failure.told), default=None)
    # A dead process is told as well, until its end has been seen. Nothing but SIGKILL ends with it.
    killed_by_others = failure.signal == SIGKILL and SIGKILL not in dict(failure.told)
    if told_ns is not None and failure.failed_ns >= told_ns and not killed_by_others:
        return Origin.TOLD
    if not failure.exception:
        return Origin.PEER_LOST if names_lost_peer(failure.last_lines) else Origin.OWN
    kind, _, message = failure.exception.partition(":")
    kind = kind.rpartition(".")[2]
    if _blamed(failure) is not None or is_peer_lost(kind, message, failure.traceback):
        return Origin.PEER_LOST
    if kind == "RuntimeError" and raised_in_communication(failure.traceback):
        return Origin.IN_COMMUNICATION
    return Origin.OWN


def _with_what_peers_say(failures: Sequence[RankFailure]) -> list[RankFailure]:
    """Give a rank that was ended before it could say so what its peers say that it failed with."""
    said: dict[int, RankFailure] = {}
    for failure in sorted(failures, key=lambda each: (each.failed_ns, each.rank)):
        if (rank := _blamed(failure)) is not None:
            said.setdefault(rank, failure)
    return [
        replace(each, error=said[each.rank].error, report=said[each.rank].report)
        if each.rank in said and origin_of(each) in (Origin.PEER_LOST, Origin.TOLD)
        else each
        for each in failures
    ]


def _blamed(failure: RankFailure) -> int | None:
    """Return the other rank that a rank says has failed."""
    rank = failed_rank(failure.exception)
    return None if rank == failure.rank else rank


def _line(root: RankFailure, victims: list[int], node: str, frame: str) -> str:
    line = f"rank {root.rank} (node {node}, pid {root.pid}) {_what(root)}"
    if root.iteration is not None:
        line += f", at iteration {root.iteration}"
    if frame:
        line += f", in {frame}"
    if not root.exception and (last := root.last_lines.strip()):
        line += f"; its last words: {one_line(last.splitlines()[-1], longest=_LONGEST_WORDS)}"
    if root.fault:
        line += f"; injected fault {root.fault}"
    if victims:
        line += f"; {name_ranks(victims)} failed because a peer had failed"
    if root.peak_bytes and (_killed_by_others(root) or _NO_MEMORY in root.exception):
        line += f"; peak memory {root.peak_bytes / 2**30:.2f} GiB"
    return line + (f"; core file: {root.core}" if root.core else "")


def _killed_by_others(root: RankFailure) -> bool:
    """Whether a signal ended it that the launcher had not sent: memory may be why."""
    sent = {signal for signal, _ in root.told}
    return root.died_of is not None and root.died_of not in sent and not root.fault


def _not_its_own(finished: Sequence[int], *, whole_job: bool) -> str:
    """Say where the cause may be, if the ranks that failed have only lost a peer."""
    if finished:
        return f"; none failed first: {name_ranks(sorted(finished))} had ended with 0 before"
    if whole_job:
        return "; none failed first: one has perhaps ended its process group before the others"
    return "; no rank of this node failed first: the cause may be on another node"


def _killed_together(
    root: RankFailure, failures: Sequence[RankFailure], origins: Mapping[int, Origin]
) -> str:
    """Name all ranks that somebody has killed: one alone would look like one bad rank."""
    signal = root.died_of
    killed = [
        each.rank
        for each in failures
        if signal is not None and each.died_of == signal and origins[each.rank] == Origin.OWN
    ]
    if signal is None or len(killed) < 2:
        return ""
    guess = signal == SIGKILL and not any(each.fault for each in failures)
    memory = ", which points to the out-of-memory killer: see `dmesg`" if guess else ""
    name, ranks = exits.signal_name(signal), name_ranks(killed)
    return f"; {len(killed)} ranks of this node were killed by {name} ({ranks}){memory}"


def without_frames(exception: str) -> str:
    """Leave out the traceback in the message of an exception that was raised in another process.

    That is a loader's worker, or the rank whose save or load has failed.
    """
    for begin in (_ORIGINAL, _IN_RANK):
        caught, found, original = exception.partition(begin)
        _, last_frame, rest = original.rpartition('\n  File "')
        said = [line for line in rest.splitlines()[1:] if not line.startswith("    ")]
        if found and last_frame and said:
            text = " ".join(said).rstrip()
            return text if begin == _IN_RANK else f"{caught.rstrip('.')}: {text}"
    return exception


def _what(root: RankFailure) -> str:
    if root.killed:
        return f"hung and was ended: {one_line(root.killed, longest=_LONGEST_WORDS)}"
    if root.exits_with_text:
        text = one_line(root.error.message if root.error else "", longest=_LONGEST_MESSAGE)
        return exits.exit_in_words(1) + (f": {text}" if text else "")
    if root.exception:
        return f"failed: {one_line(without_frames(root.exception), longest=_LONGEST_MESSAGE)}"
    if root.outlived:
        return "was killed by the launcher, as the agent of this node stood still"
    if root.died_of is not None and root.fault:  # nobody needs to guess who it was
        return f"was killed by {exits.signal_name(root.died_of)}"
    if root.died_of is not None:
        return exits.death_in_words(root.died_of, oom_kills=root.oom_kills)
    if root.code is not None:
        return exits.exit_in_words(root.code)
    return "failed"
