"""The time that Slurm waits from SIGTERM to SIGKILL."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from undaunted.base.deadline import wait_for
from undaunted.services.slurm.commands import SlurmError, ask

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.services.slurm.allocation import Allocation

_DEADLINE_S = 3.0
_KILL_WAIT = re.compile(r"^KillWait\s*=\s*(\d{1,9})\b", re.MULTILINE)
_GRACE_TIME = re.compile(r"\bGraceTime=(\d{1,9})\b")
_TIME = re.compile(r"(?:(\d{1,5})-)?(\d\d):(\d\d):(\d\d)\s*")  # as sacctmgr writes it
_SIGNAL = re.compile(r"\s--signal[= ]+[\"']?(?:[RB]+:)?(?:SIGTERM|TERM|15)(?:@(\d{1,5}))?\b")
_SIGNAL_S = 60  # of --signal without a time


async def grace_s(here: Allocation, environ: Mapping[str, str]) -> float:
    """Ask Slurm for the seconds that a job has, 0 = it does not say in time. Never raises.

    Args:
        here: the allocation.
        environ: of the job.
    """
    qos = environ.get("SLURM_JOB_QOS", "")
    config, partition, of_qos, script = await asyncio.gather(
        _answer("scontrol", "show", "config"),
        _answer("scontrol", "show", "partition", here.partition),
        _answer(
            *("sacctmgr", "--noheader", "--parsable2", "show", "qos"),
            *("where", f"name={qos}" if qos else "", "format=GraceTime"),
        ),
        _answer("scontrol", "write", "batch_script", str(here.job), "-"),
    )
    return read_grace_s(config=config, partition=partition, qos=of_qos, script=script)


async def _answer(*words: str) -> str:
    """Ask Slurm; "" = there is nothing to ask about, or no answer in time."""
    if not all(words):
        return ""
    try:
        return await wait_for(ask(*words), _DEADLINE_S)
    except (SlurmError, TimeoutError):
        return ""


def read_grace_s(
    *, config: str = "", partition: str = "", qos: str = "", script: str = ""
) -> float:
    """Return the smallest of all times that are known and not 0; 0 = none is.

    Args:
        config: of ``scontrol show config``, for KillWait.
        partition: of ``scontrol show partition``, for GraceTime.
        qos: of ``sacctmgr show qos``: GraceTime, alone.
        script: the batch script, for the time of ``#SBATCH --signal=TERM@TIME``.
    """
    found = [
        *(int(known[1]) for known in _KILL_WAIT.finditer(config)),
        *(int(known[1]) for known in _GRACE_TIME.finditer(partition)),
        _signal_s(script),
    ]
    if known := _TIME.fullmatch(qos):
        days, hours, minutes, seconds = (int(part or 0) for part in known.groups())
        found.append(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    return float(min((seconds for seconds in found if seconds), default=0))


def _signal_s(script: str) -> int:
    """Return how long before the time limit the script has Slurm send SIGTERM, 0 = it does not."""
    seconds = 0
    for line in script.splitlines():
        if line.strip() and not line.startswith("#"):
            break  # sbatch reads no further
        if line.startswith("#SBATCH"):
            for known in _SIGNAL.finditer(line.partition(" #")[0]):
                seconds = int(known[1] or _SIGNAL_S)  # the last one counts
    return seconds
