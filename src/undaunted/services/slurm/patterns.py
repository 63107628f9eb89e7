"""The name of a batch job's output file: what sbatch's ``--output`` stands for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_SYMBOL = re.compile(r"%(\d*)([A-Za-z%])")
_NUMBERS = frozenset("AajJntb")
_WIDEST = 10
_NO_TASK = "4294967294"  # what Slurm writes for a job that is no task of an array


def expand(pattern: str, values: Mapping[str, str]) -> str:
    """Return the path that a pattern stands for, as Slurm writes it.

    Args:
        pattern: an absolute path with symbols such as ``%j`` and ``%4a``; those that are not known
            stay. With a backslash anywhere nothing is replaced, and backslashes vanish.
        values: from `symbols`.
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")

    def value(match: re.Match[str]) -> str:
        width, symbol = match.groups()
        if symbol == "%":
            return "%"
        text = values.get(symbol)
        if text is None:
            return match[0]
        wide = min(int(width or 0), _WIDEST) if symbol in _NUMBERS else 0
        return text.zfill(wide)

    return _SYMBOL.sub(value, pattern)


def symbols(*, job_id: str, task_id: str, host: str, user: str, name: str) -> dict[str, str]:
    """Return what the symbols stand for in the batch script of a job.

    Args:
        job_id: the job's own number.
        task_id: the same, or ``12_3`` for a task of an array.
        host: where the batch script runs.
        user: its owner.
        name: of the job.
    """
    array, _, task = task_id.partition("_")
    return {
        "A": array,
        "a": task or _NO_TASK,
        "b": str(int(task) % 10) if task else _NO_TASK,
        "j": job_id,
        "J": job_id,
        "N": host.partition(".")[0],
        "n": "0",
        "s": "batch",
        "t": "0",
        "u": user,
        "x": name,
    }
