"""Names of runs and nodes."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

NODE_VARIABLE = "UNDAUNTED_NODE"
NO_NAME = "none"
"""The run of several launchers that was given no name: none knows when the others were started."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_MAX_NAME = 128  # leaves room for prefixes and suffixes below the usual limit of 255 bytes


def new_run_id() -> str:
    """Name a run by its start (local time) and four random characters: it sorts by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


def node_name(environ: Mapping[str, str]) -> str:
    """Name of this node in messages and file names: Slurm's, else the host's without its domain."""
    name = environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    return file_name(name) or "localhost"


def node_of_rank(environ: Mapping[str, str]) -> str:
    """Name of the node of a rank: what its launcher calls it, else as `node_name`."""
    return environ.get(NODE_VARIABLE) or node_name(environ)


def file_name(text: str) -> str:
    """Turn any text into one safe component of a path; may be empty if the text is."""
    name = _UNSAFE.sub("_", text)[:_MAX_NAME]
    return f"_{name[1:]}" if name.startswith(".") else name
