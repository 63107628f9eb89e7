"""Evidence before anything is killed: process states and stacks of every rank."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import time
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.attribution.evidence import STOPPED, RankEvidence, waits_for_loader
from undaunted.base import process
from undaunted.base.deadline import readable
from undaunted.fault_tolerance.worker import witness

if TYPE_CHECKING:
    from undaunted.fault_tolerance.agent.begun import StackPipes
    from undaunted.fault_tolerance.agent.processes import Worker
    from undaunted.progress.snapshot import PageSnapshot
    from undaunted.progress.timeouts import Expired

# First word of a rank that will answer comes within milliseconds, also on a loaded machine; one
# whose signal mask blocks the signal never answers.
ANSWER_DEADLINE_S = 1.5
_MOST_THREADS = 100
_MOST_CHILDREN = 32
# faulthandler marks no end. It writes one dump in one go, so silence for this long is the end.
QUIET_S = 0.03


async def gather(
    workers: list[Worker],
    ranks: list[int],
    pages: list[PageSnapshot],
    expired: list[tuple[Expired, ...]],
    pipes: StackPipes,
) -> list[RankEvidence]:
    """Ask every living rank for its stacks; takes at most about 1.6 s.

    Args:
        workers: the local ranks; the other lists go by local rank too.
        ranks: their global ranks.
        pages: their pages.
        expired: the limits they have passed.
        pipes: where their stacks come out.
    """
    states = [process.state(w.pid) if w.code is None else "" for w in workers]
    refusals = [
        _ask(worker, page, state, pipes)
        for worker, page, state in zip(workers, pages, states, strict=True)
    ]
    said = await asyncio.gather(
        *(
            _nothing() if refused else _answers(worker, page.evidence_signal, pipes)
            for worker, page, refused in zip(workers, pages, refusals, strict=True)
        )
    )
    return [
        RankEvidence(
            rank=rank,
            local_rank=worker.local_rank,
            pid=worker.pid,
            page=page,
            expired=passed,
            state=state if worker.code is None else "",
            stacks=own or None,
            reason=refused or "it did not answer",
            prints=_waits_to_print(worker.pid) if worker.code is None else "",
            exit_code=worker.code,
            children=children,
        )
        for worker, rank, page, passed, state, (own, children), refused in zip(
            workers, ranks, pages, expired, states, said, refusals, strict=True
        )
    ]


def _ask(worker: Worker, page: PageSnapshot, state: str, pipes: StackPipes) -> str:
    """Ask a rank, or return why it is not asked."""
    armed = page.evidence_signal if page.pid == worker.pid and not page.problem else 0
    if worker.code is not None or state in process.ENDED:
        return "it had ended"
    # One that is stopped stays so: it would catch up, its peers with it, and all would look well.
    if state in STOPPED:
        return "it is stopped"
    if not armed:
        return "it has not armed faulthandler"
    if why := _harms(worker.local_rank, worker.pid, armed, pipes):
        return why
    pipes.drain(worker.local_rank)
    if not _ask_witness(worker.pid, armed):
        os.kill(worker.pid, armed)
    return ""


def _harms(local_rank: int, pid: int, armed: int, pipes: StackPipes) -> str:
    """Why a process must not be asked, "" = it may be.

    It may be another program by now (exec), which the signal would end; or another file may have
    the number of the pipe, and would get the stacks.
    """
    if not process.catches(pid, armed):
        return "the process no longer takes the signal, as after exec"
    if not pipes.is_open_in(local_rank, pid):
        return "the program has closed the descriptor for stacks"
    return ""


def _ask_witness(pid: int, armed: int) -> bool:
    """Send the signal to our own thread of the rank: it interrupts a sleep in C of another one.

    Of more than 100 threads faulthandler leaves out the oldest ones, unless they take the signal:
    then the main thread has to.
    """
    threads = process.threads(pid)
    if len(threads) > _MOST_THREADS:
        return False
    named = (each for each in threads if process.thread_name(pid, each) == witness.THREAD)
    thread = next(named, 0)
    return thread > 0 and process.signal_thread(pid, thread, armed)


async def _answers(
    worker: Worker, armed: int, pipes: StackPipes
) -> tuple[str, tuple[tuple[int, str], ...]]:
    """Return the stacks of a rank, and those of the DataLoader workers that it waits for.

    These are forks of it, which have its handler and its pipe.
    """
    deadline = time.monotonic() + ANSWER_DEADLINE_S
    own, children = await _answer(worker.local_rank, pipes, deadline), []
    forks = process.descendants(worker.pid)[:_MOST_CHILDREN] if waits_for_loader(own) else []
    for pid in forks:
        if time.monotonic() >= deadline or process.state(pid) in (*STOPPED, *process.ENDED):
            continue
        if _harms(worker.local_rank, pid, armed, pipes):
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, armed)
            if said := await _answer(worker.local_rank, pipes, deadline):
                children.append((pid, said))
    return own, tuple(children)


async def _answer(local_rank: int, pipes: StackPipes, deadline: float) -> str:
    fd = pipes.read_fd(local_rank)
    text = b""
    while (left := deadline - time.monotonic()) > 0:
        if not await readable(fd, min(left, QUIET_S) if text else left):
            break
        text += pipes.drain(local_rank)
    return text.decode(errors="replace")


def _waits_to_print(pid: int) -> str:
    """Return which pipe of ours this process waits to write to, as it is full; "" = to none."""
    try:
        waits_in = Path(f"/proc/{pid}/wchan").read_text("utf-8")
        if waits_in not in ("", "0") and "pipe_write" not in waits_in:
            return ""
        for fd, name in ((1, "standard output"), (2, "standard error")):
            pipe = os.readlink(f"/proc/self/fd/{fd}")
            same = pipe.startswith("pipe:") and pipe == os.readlink(f"/proc/{pid}/fd/{fd}")
            if same and not _has_room(fd):
                return name
    except OSError:  # it has ended, or has closed its streams
        pass
    return ""


def _has_room(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(0))


async def _nothing() -> tuple[str, tuple[tuple[int, str], ...]]:
    return "", ()
