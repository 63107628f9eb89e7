"""The place of this node: the scheduler's order, an NVLink domain, a replacement group."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.child import Program, run
from undaunted.base.deadline import within

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Without SLURM_TOPOLOGY_NODES_PER_BLOCK: more nodes than any block has.
_NODES_PER_BLOCK = 10**10
# How many nodes a job has; Slurm sets both, wrappers may pass on one.
_NODE_COUNTS = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_BLOCK_PATTERN = "block.node"


def infrastructure_rank(
    environ: Mapping[str, str], *, skip_nodename_logic: bool = False
) -> int | None:
    """Return this node's place in the order that the scheduler gives its nodes.

    Neighbours in that order are neighbours in the network, so ranks should follow it. The first of
    these that applies says it:

    1. ``NVRX_INFRA_RANK_FROM_NODENAME`` is set: all digits of ``SLURMD_NODENAME``, as one number.
    2. ``CROSS_SLURM_PROCID``.
    3. ``SLURM_TOPOLOGY_ADDR``, if its pattern is ``block.node``: block times
       ``SLURM_TOPOLOGY_NODES_PER_BLOCK`` (default 10**10) plus node.
    4. In a job array: ``SLURM_ARRAY_TASK_ID`` times ``SLURM_NNODES`` (or ``SLURM_JOB_NUM_NODES``)
       plus ``SLURM_PROCID``, which need not be set where a task has one node.
    5. ``SLURM_PROCID``.
    6. ``GROUP_RANK``; -1 means none.

    Empty variables count as not set.

    Args:
        environ: the launcher's environment.
        skip_nodename_logic: leave out 1 and 3, which read names of nodes.

    Returns:
        The place, from 0; None = nothing says it.

    Raises:
        ValueError: a variable that applies makes no sense.
        RuntimeError: a variable is missing that another one needs, or that Slurm sets for each task
            of ``srun``.
    """
    env = {name: value for name, value in environ.items() if value}
    if not skip_nodename_logic and "NVRX_INFRA_RANK_FROM_NODENAME" in env:
        return _from_node_name(env)
    if "CROSS_SLURM_PROCID" in env:
        return _number(env, "CROSS_SLURM_PROCID")
    in_blocks = env.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").lower() == _BLOCK_PATTERN
    if not skip_nodename_logic and in_blocks and "SLURM_TOPOLOGY_ADDR" in env:
        return _from_block(env)
    if "SLURM_ARRAY_TASK_ID" in env:
        return _in_array(env)
    if "SLURM_PROCID" in env:
        return _number(env, "SLURM_PROCID")
    if "GROUP_RANK" in env and env["GROUP_RANK"].strip() != "-1":
        return _number(env, "GROUP_RANK")
    if "SLURM_JOB_ID" in env:
        raise RuntimeError(
            f"SLURM_JOB_ID is {env['SLURM_JOB_ID']!r}, but SLURM_PROCID is not set, so the "
            "order of the nodes is not known; start the launchers with srun, or set GROUP_RANK on "
            "each node"
        )
    return None


def _from_node_name(env: Mapping[str, str]) -> int:
    wanted = "NVRX_INFRA_RANK_FROM_NODENAME asks for the order of the names of nodes"
    name = env.get("SLURMD_NODENAME")
    if name is None:
        raise RuntimeError(f"{wanted}, but SLURMD_NODENAME is not set; unset the former, or set it")
    digits = _digits(name)
    if not digits:
        raise ValueError(f"{wanted}, but SLURMD_NODENAME {name!r} has no digit; unset the former")
    return int(digits)


def _from_block(env: Mapping[str, str]) -> int:
    address = env["SLURM_TOPOLOGY_ADDR"]
    parts = [_digits(part) for part in address.split(".")]
    if len(parts) != 2 or not all(parts):
        raise ValueError(
            f"SLURM_TOPOLOGY_ADDR {address!r} does not fit its pattern {_BLOCK_PATTERN}: two names "
            "with digits are expected, such as block1.node07"
        )
    block, node = map(int, parts)
    per_block = _NODES_PER_BLOCK
    if "SLURM_TOPOLOGY_NODES_PER_BLOCK" in env:
        per_block = _number(env, "SLURM_TOPOLOGY_NODES_PER_BLOCK", least=1)
    if node >= per_block:
        raise ValueError(
            f"SLURM_TOPOLOGY_ADDR {address!r}: node {node} is not below the number of nodes per "
            f"block, {per_block} (SLURM_TOPOLOGY_NODES_PER_BLOCK)"
        )
    return block * per_block + node


def _in_array(env: Mapping[str, str]) -> int:
    task = _number(env, "SLURM_ARRAY_TASK_ID")
    count = next((name for name in _NODE_COUNTS if name in env), "")
    nodes = _number(env, count, least=1) if count else 0
    if nodes == 1 and "SLURM_PROCID" not in env:
        return task
    for needed, known in (("SLURM_NNODES", bool(count)), ("SLURM_PROCID", "SLURM_PROCID" in env)):
        if not known:
            raise RuntimeError(
                f"SLURM_ARRAY_TASK_ID is {env['SLURM_ARRAY_TASK_ID']!r}, but {needed} is not set, "
                "so the order of the nodes is not known; start the launchers with srun"
            )
    return task * nodes + _number(env, "SLURM_PROCID")


def _number(env: Mapping[str, str], name: str, *, least: int = 0) -> int:
    text = env[name].strip()
    if not text or _digits(text) != text or int(text) < least:
        raise ValueError(f"{name} is {env[name]!r}; expected a whole number, {least} or more")
    return int(text)


def _digits(text: str) -> str:
    return "".join(c for c in text if "0" <= c <= "9")


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
    """Return the name of the domain this node is in; "" = it is alone in its domain.

    Nodes of a domain share an NVLink network, and so belong into one segment.

    The first of these says it:

    1. ``UNDAUNTED_NVLINK_DOMAIN``: the name.
    2. ``UNDAUNTED_NVLINK_DOMAIN_FILE``: a text file with lines of a node and its domain, separated
       by blanks, ``#`` beginning a comment. A node without a line is alone in its domain.
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
        end = run(Program(command, deadline_s, most=_MOST_BYTES))
    except OSError:
        return ""
    return "" if end.code is None else end.output.decode(errors="replace")


def replacement_group(environ: Mapping[str, str]) -> str:
    """Return the name of this node's group, whose nodes are replaced together only; "" = none.

    ``NVRX_REPLACEMENT_GROUP_ID``, or else the task of a Slurm job array.
    """
    explicit = environ.get("NVRX_REPLACEMENT_GROUP_ID", "").strip()
    return explicit or environ.get("SLURM_ARRAY_TASK_ID", "").strip()
