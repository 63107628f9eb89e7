"""How long Slurm waits from SIGTERM to SIGKILL."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from undaunted.base.deadline import wait_for
from undaunted.services.slurm.commands import SlurmError, ask

if TYPE_CHECKING:
    from collections.abc import Iterable

_KILL_WAIT = re.compile(r"^KillWait\s*=\s*(\d{1,9})\b", re.MULTILINE)
_GRACE_TIME = re.compile(r"\bGraceTime=(\d{1,9})\b")
_DEADLINE_S = 3.0


async def grace_s(partition: str) -> float:
    """Ask Slurm for the seconds that a job has, 0 = it does not say in time. Never raises.

    Args:
        partition: of the job, "" = not known.
    """
    answers = []
    for words in (("config",), ("partition", partition)):
        if words[-1]:
            with suppress(SlurmError, TimeoutError):
                answers.append(await wait_for(ask("scontrol", "show", *words), _DEADLINE_S))
    return read_grace_s(answers)


def read_grace_s(answers: Iterable[str]) -> float:
    """Return the smallest of KillWait and the partition's GraceTime (0 = it has none).

    Args:
        answers: of ``scontrol show config`` and ``scontrol show partition``.
    """
    found = [
        int(known[1])
        for text in answers
        for known in (_KILL_WAIT.search(text), _GRACE_TIME.search(text))
        if known is not None
    ]
    return float(min((seconds for seconds in found if seconds), default=0))
