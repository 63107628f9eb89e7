"""The findings about a failure: one type, and the table of causes. Data; see the design.

Whoever looks at evidence (recordings, logs, times of steps, stacks) returns findings.
`worst_first` puts them into order: severity before time, causes that follow from others last.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Scope = Literal["rank", "gpu", "node", "link", "job"]
Action = Literal["restart", "exclude", "stop"]
Kind = Literal["fault", "end", "report", "symptom"]
SURE = 0.5  # least confidence of a finding that decides anything
UNSAVED = "state_not_saved"  # a checkpoint cannot be made of the state
UNEQUAL = "unequal_work"  # a rank has ended with 0, and the others wait for it
OUT_OF_MEMORY = "host_out_of_memory"  # of a machine, or of what a job or container may have of it
MISMATCH = "mismatch"  # ranks of one group called different collectives
INJECTED = "injected_fault"  # by `undaunted.faults`
LAUNCHER_ERROR = "launcher_error"  # the last line of a command of undaunted
MISSING = "missing_file"  # before the first iteration
UNREAD = "output_unread"  # ranks cannot print, as nobody reads what the launcher prints
LIKELY = 0.65  # up to here a finding is only probable


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that was found out.

    Attributes:
        cause: its name in `CAUSES`.
        ranks, nodes: who is to blame; empty = not known.
        t: when it happened, seconds since 1970; 0 = not known.
        confidence: from 0 to 1.
        quote: the text that shows it; callers keep it to a line or two.
        source: the place of the quote: ``FILE:LINE``, ``recording of rank 3``.
        inferred: whether the ranks are known only from what other ranks say, as the quote is.
        message: id of a known message in the quote, as in docs/explain.md; "" = there is none.
        why: what the message says has happened.
        remedy: what to do about it.
    """

    cause: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    t: float = 0.0
    confidence: float = 1.0
    quote: str = ""
    source: str = ""
    inferred: bool = False
    message: str = ""
    why: str = ""
    remedy: str = ""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table; its columns are in this order.

    Attributes:
        severity: the greatest wins; 0 = only follows from another cause.
        name: as findings have it.
        kind: an ``end`` was asked for, a ``report`` may come from any rank or node, as an end may.
            A ``symptom`` was seen of a process: what a log names instead is worth more.
        scope: what is broken: a restart elsewhere helps unless it is the job.
        action: what to do once it has happened `after` times; before that: restart. "stop" stands
            only where the cause can be nothing but the program's or its input's.
        after: how often the same failure is seen before `action`, at least 1.
        meaning: for people, in a few words that finish "the cause is: ...".
    """

    severity: int
    name: str
    kind: Kind
    scope: Scope
    action: Action
    after: int
    meaning: str

    @property
    def follows(self) -> bool:
        """Return whether it only follows from another: never the root while any other is known."""
        return self.severity == _FOLLOWS

    @property
    def comes_from_anywhere(self) -> bool:
        """Return whether the rank that reports it need not be to blame, nor on the node that is."""
        return self.kind in {"end", "report"}


# Severities: what hardware says, or who watches it, nothing else explains away (5). Programs fail
# because of memory, disks, and who may end the job (4); then their own errors (3). Networks and
# collectives (2) are mostly a sign of something that failed at the other end. What was seen of a
# rank says not why (1).
_LINK, _FOLLOWS = 2, 0
# Worst first.
_TABLE = """\
5 gpu_lost            fault   node exclude 1 a GPU is lost to its host
5 gpu_memory_error    fault   gpu  exclude 1 memory of a GPU has errors
5 gpu_row_remap       fault   gpu  exclude 1 a GPU must be reset to remap its memory
5 nvlink_error        fault   node exclude 2 links between GPUs of a node have errors
5 gpu_firmware        fault   gpu  exclude 1 the firmware of a GPU does not answer
5 node_failed         report  node exclude 3 a node failed
4 injected_fault      fault   job  restart 1 a fault was injected on purpose
4 preempted           end     job  restart 1 the job was told to stop, usually by a scheduler that wants its nodes
4 time_limit          end     job  restart 1 the time of the job was over
4 cancelled           end     job  restart 1 a person stopped the job (Ctrl-C, scancel)
4 host_out_of_memory  fault   node restart 1 a node ran out of memory
4 shared_memory_full  fault   job  restart 1 shared memory (/dev/shm) is full; docker's --shm-size gives a container more
4 output_unread       fault   job  restart 1 nobody reads the output of the launcher; -r 3 or -t 3 writes it to files
4 disk_full           fault   node exclude 2 a disk is full
4 quota_exceeded      fault   job  stop    3 a quota of disk space is used up
4 storage_error       fault   node exclude 3 files could not be read or written
3 checkpoint_mismatch fault   job  stop    3 a checkpoint is damaged, or does not fit the program
3 state_not_saved     fault   job  stop    3 the state cannot be saved
3 missing_file        fault   job  stop    3 a module or file that the program needs is not there
3 data_error          fault   job  stop    3 input data cannot be used
3 gpu_out_of_memory   fault   job  stop    3 a GPU ran out of memory
3 not_finite          fault   job  stop    3 a loss or gradient is not a finite number
3 device_fault        fault   rank stop    3 a kernel on a device failed
3 native_crash        symptom rank exclude 3 a process crashed outside of Python
3 program_error       symptom job  stop    3 the program raised an error
3 mismatch            report  job  stop    3 ranks called different collectives
3 unequal_work        fault   job  stop    3 ranks end at different iterations: they have unequal work
2 device_lag          fault   gpu  exclude 2 a device does not finish a collective
2 host_lag            symptom rank exclude 3 a rank does not come to a collective
2 no_dump             fault   rank exclude 3 a rank that others wait for left no recording
2 network_setup       report  node exclude 2 the network of a node is not set up
2 network_error       fault   link restart 1 the network between nodes has errors
2 rendezvous_failed   report  job  restart 1 ranks did not find each other
1 launcher_error      fault   job  stop    3 a command of undaunted ended with an error
1 killed              symptom node restart 1 a process was killed (SIGKILL), by somebody or for want of memory
1 slow_rank           fault   rank exclude 3 a rank is slower than its peers
1 no_progress         symptom rank restart 1 a rank makes no progress
0 collective_timeout  fault   job  restart 1 a collective took too long
0 peer_lost           symptom rank restart 1 the connection to another rank ended
0 terminated          symptom rank restart 1 somebody ended the process
0 unexplained         fault   job  restart 1 new lines of logs that no rule knows
"""  # noqa: E501


def _cause(row: str) -> Cause:
    columns = zip(Cause.__struct_fields__, row.split(maxsplit=6), strict=True)
    return msgspec.convert(dict(columns), Cause, strict=False)


CAUSES: Mapping[str, Cause] = {cause.name: cause for cause in map(_cause, _TABLE.splitlines())}

_NO_ROOM = "make room, or write elsewhere, then start again"
REMEDIES: Mapping[str, str] = {  # a restart alone does not help; a message may have a better one
    "disk_full": _NO_ROOM,
    "quota_exceeded": _NO_ROOM,
    LAUNCHER_ERROR: "correct what its text names, then start again",
    MISMATCH: "correct the program, then start again",
    "checkpoint_mismatch": (
        "`undaunted checkpoint verify` says which checkpoints are whole; "
        "restore an older copy, or correct the program"
    ),
}

_FOLLOWING = {name: place for place, name in enumerate(CAUSES) if CAUSES[name].follows}


def severity_of(cause: str) -> int:
    """Return the severity of a cause by name; of one that a newer version named, that of a link."""
    known = CAUSES.get(cause)
    return _LINK if known is None else known.severity


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Put findings into order, the root cause first.

    The severest cause wins, although the timeouts it has caused were mostly seen first; among
    equals the earliest, then the surest. Findings without a time come after those with one. Causes
    that follow from others are in the order of the table: an end says less than a timeout.
    """
    return sorted(
        findings,
        key=lambda one: (
            -severity_of(one.cause),
            _FOLLOWING.get(one.cause, 0),
            one.t or math.inf,
            -one.confidence,
        ),
    )
