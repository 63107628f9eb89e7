"""Puts what the agent knows before `attribution`, and its verdicts into the journal's form.

A rank that cannot write says at most that there is no room: which file system is full is looked up.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.attribution import crash, error_file, hang
from undaunted.attribution.findings import MISMATCH, UNEQUAL, UNREAD
from undaunted.base.deadline import within
from undaunted.fault_tolerance.agent import core_file, oom
from undaunted.fault_tolerance.agent.round import Judgement
from undaunted.fault_tolerance.output.destinations import in_words, last_lines, without_reader
from undaunted.journal.events import HARD_TIMEOUT, Verdict
from undaunted.progress import learning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from undaunted.attribution.crash import RankFailure
    from undaunted.attribution.evidence import RankEvidence
    from undaunted.attribution.hang import RankObservation
    from undaunted.fault_tolerance.agent.processes import Worker
    from undaunted.fault_tolerance.agent.round import Round
    from undaunted.fault_tolerance.output.destinations import Stream
    from undaunted.fault_tolerance.run_config import RunConfig
    from undaunted.progress.snapshot import PageSnapshot

_LAST_LINES = 5
_READ_DEADLINE_S = 0.1
_WRITE_DEADLINE_S = 2.0
_NS = 1_000_000_000
_WRONG_USAGE = 2  # exit code of argparse and many others
_EARLY_S = 60.0
_NO_PYTHON = frozenset({"SyntaxError", "IndentationError", "TabError"})
_DISK_DEADLINE_S = 0.1
_FULL_BYTES = 64 * 1024
_MOST_MOUNTS = 1000
_LONGEST_TABLE = 1 << 20
# What Python says, and torch.save, which loses the reason on its way out of C++.
_NO_ROOM = re.compile(
    rf"\[Errno (?:{errno.ENOSPC}|{errno.EDQUOT})\]|No space left on device|Disk quota exceeded"
    r"|enforce fail at inline_container\.cc:\d+\] \. unexpected pos|iostream error"
)
_NO_SHARED_MEMORY = "unable to allocate shared memory"
_CANNOT_FLUSH = 120  # exit code of a Python whose last output could not be written
_OCTAL = re.compile(r"\\([0-7]{3})")
_MOUNTS = "/proc/self/mounts"


def judge_crash(
    config: RunConfig, current: Round, workers: Sequence[Worker], pages: Sequence[PageSnapshot]
) -> Judgement:
    """Return which rank failed first, and why."""
    oom_kills = _risen(current.oom_kills_before, oom.read())
    failed = _failed(workers, pages)
    # The logs may lie on a file system that hangs, and the agent has other things to do.
    nothing = [""] * len(failed)
    last = within(
        _READ_DEADLINE_S,
        lambda: [_last_lines(current, each, pages[each.local_rank]) for each in failed],
        nothing,
    )
    failures = [
        _failure(current, worker, pages[worker.local_rank], oom_kills, lines=lines)
        for worker, lines in zip(failed, last, strict=True)
    ]
    verdict = crash.judge(
        failures,
        node=config.node,
        finished=[current.rank(worker.local_rank) for worker in workers if worker.code == 0],
        whole_job=len(workers) == current.start.world_size,
    )
    root, line = verdict.root, verdict.line + full_disk(config, verdict.root)
    unread = _unread(current, workers[root.local_rank], pages[root.local_rank])
    line += unread and f"; nobody reads {unread} of the launcher"
    event = Verdict(
        t=time.monotonic_ns(),
        round=current.number,
        kind="crash",
        rank=root.rank,
        local_rank=root.local_rank,
        pid=root.pid,
        line=line,
        iteration=root.iteration,
        frame=verdict.frame,
        exit_code=root.code,
        signal=verdict.signal,
        exception=verdict.exception,
        traceback=verdict.traceback,
        waiting=list(verdict.victims),
        watch=HARD_TIMEOUT if root.killed else "",
        peak_memory_bytes=root.peak_bytes or None,
        core=root.core,
        cause=UNREAD if unread else verdict.cause,
        fault=root.fault,
    )
    return Judgement(event, (root.local_rank,), verdict.certain, _report(root, line))


def judge_hang(
    current: Round, evidence: Sequence[RankEvidence], seen: Sequence[RankObservation]
) -> Judgement:
    """Return which rank of this node hangs, and which ones wait for it.

    Args:
        current: the round.
        evidence: of each rank.
        seen: what it says.
    """
    whole_job = len(seen) == current.start.world_size
    verdict = hang.judge(seen, whole_job=whole_job, stacks=current.stacks_path)
    of_rank = {each.rank: each for each in evidence}
    foremost = of_rank[verdict.suspects[0].rank]
    fault = current.faults.get(foremost.local_rank, "")
    line, stacks, path = verdict.line.partition("; stacks: ")
    line += f"; injected fault {fault}" if fault else ""
    line += stacks + path
    event = Verdict(
        t=time.monotonic_ns(),
        round=current.number,
        kind="hang",
        rank=foremost.rank,
        local_rank=foremost.local_rank,
        pid=foremost.pid,
        line=line,
        watch=verdict.watch,
        age_s=verdict.age_s,
        limit_s=verdict.limit_s,
        limit_source=verdict.limit_source,
        iteration=verdict.iteration,
        frame=verdict.frame,
        suspects=list(verdict.culprits[1:]),
        waiting=list(verdict.waiting),
        stacks=current.stacks_path,
        distribution=_distribution(foremost),
        cause=verdict.cause if verdict.cause in (MISMATCH, UNEQUAL, UNREAD) else "",
        fault=fault,
    )
    report = error_file.ErrorReport(line, "", int(time.time()))
    culprits = tuple(of_rank[rank].local_rank for rank in verdict.culprits)
    return Judgement(event, culprits, verdict.certain, report)


def could_not_write(worker: Worker, page: PageSnapshot) -> bool:
    """Return whether a rank failed as programs do that write where nobody reads any more."""
    if (error := page.error) is not None:
        broken = error.message.startswith((f"[Errno {errno.EPIPE}]", f"[Errno {errno.EIO}]"))
        return error.type.endswith(("BrokenPipeError", "OSError")) and broken
    return worker.code in (_CANNOT_FLUSH, -signal.SIGPIPE)


def _unread(current: Round, worker: Worker, page: PageSnapshot) -> str:
    """Name the streams of the launcher that a rank could not write to, as nobody reads them."""
    if not could_not_write(worker, page):
        return ""
    spec = current.specs[worker.local_rank]
    ours: dict[Stream, bool] = {"stdout": not spec.stdout, "stderr": not spec.stderr}
    return in_words([stream for stream in without_reader() if ours[stream]])


def is_misuse(
    workers: Sequence[Worker], pages: Sequence[PageSnapshot], *, announced: bool
) -> bool | None:
    """Return whether the ranks of a round ended as programs do that cannot run as they were called.

    They exit with 2, as for wrong arguments, or their script is no valid Python.

    Args:
        workers: all ranks, ended.
        pages: theirs.
        announced: a rank has announced a checkpoint.

    Returns:
        None if no rank ended by itself, and none had begun to train.
    """
    if announced or any(page.initialized_ns is not None or page.problem for page in pages):
        return False
    ended = [worker for worker in workers if not worker.signalled_by_us]
    if not ended:
        return None
    return all(
        _is_no_python(pages[each.local_rank]) or _ended_early_with_2(each, pages[each.local_rank])
        for each in ended
    )


def _is_no_python(page: PageSnapshot) -> bool:
    """Whether the script itself cannot be compiled; what it imports comes after its first line."""
    error = page.error
    return error is not None and error.type in _NO_PYTHON and page.first_line_ns is None


def _ended_early_with_2(worker: Worker, page: PageSnapshot) -> bool:
    lived_ns = worker.exited_ns - (page.first_line_ns or worker.spawned_ns)
    return worker.code == _WRONG_USAGE and not worker.lost and lived_ns <= _EARLY_S * _NS


def _distribution(suspect: RankEvidence) -> str:
    expired = suspect.first_expired
    return learning.distribution(suspect.page, expired) if expired else ""


def serve_error_file(judgement: Judgement) -> None:
    """Leave the root cause for a launcher above this one, which says where in the environment."""
    path, report = os.environ.get("TORCHELASTIC_ERROR_FILE"), judgement.report
    if path and report is not None:
        within(_WRITE_DEADLINE_S, lambda: error_file.write(path, report), None)


def _failed(workers: Sequence[Worker], pages: Sequence[PageSnapshot]) -> Sequence[Worker]:
    """The ranks that failed, later than those that were lost; never none: one was reported."""
    workers = [worker for worker in workers if not worker.lost] or workers
    errors = [pages[worker.local_rank].error for worker in workers]
    failed = [
        worker
        for worker, error in zip(workers, errors, strict=True)
        if worker.code != 0 and (worker.code is not None or error)
    ]
    # One may end with 0 after it has announced its exception: `os._exit` in an atexit handler.
    announced = [worker for worker, error in zip(workers, errors, strict=True) if error]
    return failed or announced or workers


def _failure(
    current: Round, worker: Worker, page: PageSnapshot, oom_kills: int, *, lines: str
) -> crash.RankFailure:
    code = worker.code
    report = error_file.read(current.error_file(worker.local_rank))
    known = page.error is not None or report is not None
    return crash.RankFailure(
        rank=current.rank(worker.local_rank),
        local_rank=worker.local_rank,
        pid=worker.pid,
        at_ns=worker.exited_ns or time.monotonic_ns(),
        exit_code=code if code is not None and code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        told=tuple(worker.signals_sent),
        outlived=worker.outlived,
        error=page.error,
        report=report,
        last_lines="" if known else lines,
        oom_kills=oom_kills,
        fault=current.faults.get(worker.local_rank, ""),
        iteration=page.iteration,
        killed=current.killed.get(worker.local_rank, ""),
        peak_bytes=worker.peak_bytes,
        core=_core(current, worker),
    )


def _core(current: Round, worker: Worker) -> str:
    if not worker.dumped_core:
        return ""
    began = time.time() - (time.monotonic_ns() - worker.spawned_ns) / _NS
    cwd = current.specs[worker.local_rank].cwd
    unknown = "see /proc/sys/kernel/core_pattern"
    return within(_READ_DEADLINE_S, lambda: core_file.find(worker.pid, cwd, began), "") or unknown


def last_error_lines(current: Round, worker: Worker, page: PageSnapshot) -> str:
    """Return the last lines of a rank's standard error, "" if they are in no file."""
    return within(_READ_DEADLINE_S, lambda: _last_lines(current, worker, page), "")


def _last_lines(current: Round, worker: Worker, page: PageSnapshot) -> str:
    path = current.specs[worker.local_rank].stderr
    return "\n".join(last_lines(path, _LAST_LINES)) if path and page.error is None else ""


def _report(root: crash.RankFailure, line: str) -> error_file.ErrorReport:
    if root.report is not None:
        return root.report
    wall_s = int(time.time())
    if root.error is not None:
        return error_file.from_record(root.error, wall_s=wall_s)
    return error_file.ErrorReport(line, "", wall_s)


def _risen(before: int | None, now: int | None) -> int:
    return 0 if before is None or now is None else max(0, now - before)


def full_disk(config: RunConfig, root: RankFailure) -> str:
    """Return what to add to a verdict, "" = it is about no disk. Bounded: a disk may hang.

    Args:
        config: the run.
        root: the rank that failed first.
    """
    said = f"{root.exception}\n{root.traceback}\n{root.last_lines}"
    own = _own_places(config)
    if _NO_SHARED_MEMORY in said:
        return (
            "; /dev/shm is full: give it more (docker: --shm-size, Kubernetes: an emptyDir of "
            "medium Memory), or use fewer workers"
        )
    if _NO_ROOM.search(said):
        return within(_DISK_DEADLINE_S, lambda: _full_now(own), "; a disk was full")
    if root.exception or root.died_of is not None:
        return ""
    # It ended, and could perhaps not write why.
    return within(_DISK_DEADLINE_S, lambda: "".join(_of_ours(own)), "")


def _own_places(config: RunConfig) -> dict[str, str]:
    places = {"--run-dir": config.run_dir}
    if any([*config.stdout, *config.stderr]):
        places["--log-dir"] = config.log_dir
    return places


def _of_ours(places: dict[str, str]) -> list[str]:
    full = [(option, path) for option, path in places.items() if _is_full(path)]
    return [f"; {path} is full: make room, or choose {option}" for option, path in full]


def _full_now(own: dict[str, str]) -> str:
    full = [path for path in _mounted() if _is_full(path)]
    if not full:
        return "".join(_of_ours(own)) or "; a disk was full, or a quota used up"
    return f"; no room is left on {', '.join(map(_room, full))}: make room, or write elsewhere"


def _mounted() -> list[str]:
    """Where file systems are mounted that can be written to."""
    try:
        with Path(_MOUNTS).open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_LONGEST_TABLE).splitlines()[:_MOST_MOUNTS]
    except OSError:
        return []
    words = [line.split(" ") for line in lines]
    writable = [each for each in words if len(each) > 3 and "rw" in each[3].split(",")]
    return list(dict.fromkeys(_OCTAL.sub(_character, each[1]) for each in writable))


def _character(octal: re.Match[str]) -> str:
    return chr(int(octal[1], 8))


def _room(path: str) -> str:
    disk = os.statvfs(path)
    size, free = (blocks * disk.f_frsize / 2**20 for blocks in (disk.f_blocks, disk.f_bavail))
    return f"{path} ({free:.0f} of {size:.0f} MiB free)"


def _is_full(path: str) -> bool:
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    no_more_files = bool(disk.f_files) and disk.f_favail == 0
    no_more_blocks = disk.f_bavail * disk.f_frsize < _FULL_BYTES
    return bool(disk.f_blocks) and (no_more_files or no_more_blocks)
