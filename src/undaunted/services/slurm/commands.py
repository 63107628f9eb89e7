"""Questions to Slurm's commands, and their answers."""

from __future__ import annotations

import os
import re
import secrets
import signal
from typing import TYPE_CHECKING

from undaunted.attribution.exits import signal_name
from undaunted.base.child import Program, run_async
from undaunted.base.text import one_line
from undaunted.services.slurm.core import ENDED, LIVE, UNKNOWN, Listed
from undaunted.services.slurm.patterns import expand, symbols

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_DEADLINE_S = 45.0
_MOST_BYTES = 64 << 20
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Names and paths come from users, and may hold anything: they come last.
_FIELDS = (
    *("JobArrayID", "JobID", "BatchFlag", "RestartCnt", "SubmitTime", "State", "Partition"),
    *("BatchHost", "UserName", "StdOut", "StdErr", "Name"),
)
# A job or a task of an array; neither the tasks that still wait together, 12_[3-9], nor the second
# and other parts of a heterogeneous job, 14+1, which write no file.
_ID = re.compile(r"(\d+(?:_\d+)?)(?:\+0)?")
_NO_HOST = frozenset({"", "n/a", "N/A", "(null)"})
_NO_ACCOUNTING = "accounting storage is disabled"


class SlurmError(Exception):
    """A command of Slurm gave no usable answer; the message says why."""


async def list_jobs(users: str, partitions: str) -> list[Listed]:
    """Return the batch jobs that squeue shows, also those that have ended a short while ago.

    Args:
        users: separated by commas, "" = all.
        partitions: likewise.

    Raises:
        SlurmError: it gave no list.
    """
    # Nobody can give a job a name that passes for another job: the mark is another one each time.
    mark = f"={secrets.token_hex(8)}="
    words = [f"--Format={','.join(f'{field}:{mark}' for field in _FIELDS)}"]
    words += [f"--user={users}"] if users else []
    words += [f"--partition={partitions}"] if partitions else []
    return list(read_jobs(await ask("squeue", "--noheader", "--states=all", *words), mark))


def read_jobs(text: str, mark: str) -> Iterator[Listed]:
    """Return the batch jobs in the output of squeue.

    Raises:
        SlurmError: it is something else.
    """
    *values, rest = text.split(mark)
    if len(values) % len(_FIELDS) or (rest and not rest.isspace()):
        beginning = _beginning(text)
        del text, values, rest  # much, and an error keeps what was known when it was raised
        raise SlurmError(f"squeue: this is no list of jobs: {beginning!r}")
    for at in range(0, len(values), len(_FIELDS)):
        job = _read_job([value.strip() for value in values[at : at + len(_FIELDS)]])
        if job is not None:
            yield job


def _read_job(values: Sequence[str]) -> Listed | None:
    listed_id, job_id, batch, restarts, submitted, state, partition, host, user, *paths, name = (
        values
    )
    found = _ID.fullmatch(listed_id)
    if found is None or batch == "0" or not restarts.isdecimal():
        return None  # no separate one, or nothing that writes to a file
    array, _, task = found[1].partition("_")
    if task:  # squeue forgets what the default of arrays is
        default, real = f"/slurm-{job_id}.out", f"/slurm-{array}_{task}.out"
        paths = [
            f"{one.removesuffix(default)}{real}" if one.endswith(default) else one for one in paths
        ]
    known = symbols(job_id=job_id, task_id=found[1], host=host, user=user, name=name)
    written = [
        expand(one, known)
        if host not in _NO_HOST and one.startswith("/") and one != os.devnull
        else ""
        for one in paths
    ]
    log_path, error_path = written if written[0] else (written[1], "")
    return Listed(
        id=found[1],
        restarts=int(restarts),
        submitted=submitted,
        state=state if state in LIVE or state in ENDED else UNKNOWN,
        user=user,
        partition=partition,
        log_path=log_path,
        error_path=error_path if error_path != log_path else "",
        name=name,
    )


async def look_up(ids: Iterable[str]) -> dict[str, str]:
    """Return the states that sacct has of jobs; those it has no account of are left out.

    Raises:
        SlurmError: it gave no answer.
    """
    words = ("--noheader", "--parsable2", "--allocations", "--format=JobID,State")
    try:
        text = await ask("sacct", *words, f"--jobs={','.join(ids)}")
    except SlurmError as error:
        if _NO_ACCOUNTING in str(error):
            return {}
        raise
    return dict(read_states(text))


def read_states(text: str) -> Iterator[tuple[str, str]]:
    """Return ids and states in the output of sacct: the last one of a job that was restarted.

    Raises:
        SlurmError: it is something else.
    """
    for line in text.splitlines():
        id_, bar, state = line.partition("|")
        if not bar:
            raise SlurmError(f"sacct: this is no state of a job: {_beginning(line)!r}")
        if found := _ID.fullmatch(id_):
            yield found[1], state.partition(" ")[0]  # CANCELLED by 1000


def _beginning(text: str, longest: int = 80) -> str:
    """Return the first words of what may be long, and binary, in one line."""
    return one_line(text[: 4 * longest], longest=longest)


def ended(code: int) -> str:
    """Return how a command ended, in words: its exit code, or minus the number of the signal."""
    return f"ended with {code}" if code >= 0 else f"was killed by {signal_name(-code)}"


async def ask(program: str, *words: str, orders: Sequence[str] = ()) -> str:
    """Return what a command prints.

    Args:
        program: its name.
        words: its arguments.
        orders: lines for it to read, one command each.

    Raises:
        SlurmError: it cannot be started, takes too long, prints too much, or complains.
    """
    # Variables such as SQUEUE_STATES would change the question, and others how times are written: a
    # job whose time is another one is another job.
    own = ("SQUEUE_", "SACCT_")
    environ = {name: text for name, text in os.environ.items() if not name.startswith(own)}
    environ |= {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
    # A command may have Slurm end this job, and so signal all of its processes: no signal to stop
    # ends one between two orders, or before it has its answer.
    asked = Program(
        [program, *words],
        _DEADLINE_S,
        env=environ,
        given="".join(f"{order}\n" for order in orders).encode(),
        most=_MOST_BYTES,
        whole=True,
        blocked=_STOPS,
    )
    try:
        end = await run_async(asked)
    except OSError as error:
        raise SlurmError(f"{program} cannot be run: {error.strerror}; is Slurm on PATH?") from None
    if end.cut:
        end = end._replace(output=b"")  # an error keeps what was known when it was raised
        raise SlurmError(f"{program} prints more than {_MOST_BYTES >> 20} MiB")
    if end.code is None:
        raise SlurmError(f"{program} has not answered for {_DEADLINE_S:g} s")
    complaint = _beginning(end.errors.decode(errors="replace"), longest=200)
    # squeue exits with 0 when a user does not exist, and shows nothing.
    if end.code or (complaint and not end.output and program == "squeue"):
        raise SlurmError(f"{program}: {complaint}" if complaint else f"{program} {ended(end.code)}")
    return end.output.decode(errors="replace")
