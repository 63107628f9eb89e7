"""The NVLink domain: which nodes share an NVLink network, and so belong into one segment."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.deadline import within

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DOMAIN_VARIABLE = "UNDAUNTED_NVLINK_DOMAIN"
FILE_VARIABLE = "UNDAUNTED_NVLINK_DOMAIN_FILE"
_QUERY = ("nvidia-smi", "-q")
_DEADLINE_S = 10.0
_MOST_BYTES = 4 * 1024 * 1024
_CLUSTER_UUID = re.compile(r"^\s*ClusterUUID\s*:\s*(\S+)\s*$", re.MULTILINE)


def nvlink_domain(
    environ: Mapping[str, str],
    node: str,
    *,
    query: Sequence[str] = _QUERY,
    deadline_s: float = _DEADLINE_S,
) -> str:
    """Return the name of the domain this node is in; "" = a domain of its own.

    The first of these says it:

    1. ``UNDAUNTED_NVLINK_DOMAIN``: the name.
    2. ``UNDAUNTED_NVLINK_DOMAIN_FILE``: a text file with lines of a node and its domain, separated
       by blanks, ``#`` beginning a comment. A node without a line has a domain of its own.
    3. The ``ClusterUUID`` that ``nvidia-smi -q`` shows for this node's GPUs.

    May take up to twice ``deadline_s``, so call it in a thread.

    Args:
        environ: the launcher's environment.
        node: this node's name.
        query: the program that is asked, with its arguments.
        deadline_s: how long a program or a file system may take, in seconds.

    Raises:
        ValueError: the file cannot be used; the text names it.
    """
    name = environ.get(DOMAIN_VARIABLE, "").strip()
    if name:
        return name
    path = environ.get(FILE_VARIABLE, "").strip()
    if path:
        return _from_file(path, node, deadline_s)
    return cluster_uuid(_output(query, deadline_s))


def cluster_uuid(text: str) -> str:
    """Find the one ClusterUUID in what ``nvidia-smi -q`` prints; "" if there is none or several.

    A GPU without fabric shows ``N/A`` or nothing but zeros.
    """
    shown = {uuid.lower() for uuid in _CLUSTER_UUID.findall(text)}
    found = {uuid for uuid in shown if uuid != "n/a" and uuid.strip("0-")}
    return found.pop() if len(found) == 1 else ""


def _from_file(path: str, node: str, deadline_s: float) -> str:
    text = within(deadline_s, lambda: _read(path), None)
    if text is None:
        raise ValueError(
            f"{FILE_VARIABLE}: {path} cannot be read; name a text file of this node, or unset it"
        )
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise ValueError(
                f"{FILE_VARIABLE}: {path}, line {number}: {line.strip()!r} is not a node and its "
                "domain; write them separated by a blank"
            )
        if words[0] == node:
            return words[1]
    return ""


def _read(path: str) -> str:
    with Path(path).open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError("too long")
    return content.decode()


def _output(command: Sequence[str], deadline_s: float) -> str:
    """Return what a program prints, "" if there is none or it takes too long."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return ""
    try:
        output, _ = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        process.kill()
        # A driver that hangs holds it in the kernel: it may end only much later.
        within(1.0, process.communicate, None)
        return ""
    return output.decode(errors="replace")
