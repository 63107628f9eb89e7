"""Settings of the Slurm cluster, as its own command tells them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.doctor.probe.child import Children

_DEADLINE_S = 10.0
_WANTED = frozenset(
    {
        "KillOnBadExit",
        "WaitTime",
        "KillWait",
        "UnkillableStepTimeout",
        "MessageTimeout",
        "JobRequeue",
    }
)


def of_slurm(children: Children, environ: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return settings by name, and the problem; both empty outside of a job of Slurm."""
    program = shutil.which("scontrol", path=environ.get("PATH"))
    if "SLURM_JOB_ID" not in environ or program is None:
        return {}, ""
    said = children.ask([program, "show", "config"], _DEADLINE_S)
    return parse_config(said.output.decode("utf-8", "replace")), said.problem


def parse_config(text: str) -> dict[str, str]:
    """Return the settings that checks look at; lines are ``Name = value``."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() in _WANTED:
            found[name.strip()] = value.strip()
    return found
