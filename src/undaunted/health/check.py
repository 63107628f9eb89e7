"""A check of a node, and the settings of the checks.

Used by the program that runs the checks, `check_node`, which has the standard library alone, and
which shall start in no time: imports nothing else, and little of that.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

# How long a check may take before its silence is a finding.
DEADLINE_S = 10.0
# The same for GPUs: a driver that nobody has used for a while takes seconds per device to begin.
GPU_DEADLINE_S = 60.0
# The same for a service: it makes checks of its own, which take their time. The longest of all.
SERVICE_DEADLINE_S = 70.0
INFINIBAND = "sys/class/infiniband"  # below the root
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})


class Settings(NamedTuple):
    """The things to check, and their places.

    Attributes:
        gpus: whether GPUs are checked, where there are any.
        visible_devices: ``CUDA_VISIBLE_DEVICES`` of the ranks, None = all.
        nic_link: whether links of NICs that were active must stay so.
        link_state_path: file with the state of a link, ``{nic}`` being the NIC; "" = every port of
            every InfiniBand device.
        nic_monitor: whether the counters of lost links must not rise.
        pci_topology: XML file that says which NICs stand beside GPUs; "" = all NICs count.
        link_down_path: file with a counter, ``{dev_name}`` being the NIC; "" as above.
        mounts: whether Lustre and NFS must answer.
        storage_paths: files and directories that must be readable.
        segment_file: one that excludes this part of the job if it is not empty, "" = none.
        xid: whether errors of GPUs in the kernel's log count.
        ecc: whether counters of uncorrected memory errors must not rise.
        ethernet: whether Ethernet cards must keep their carriers.
        clock_s: by how many seconds the clock may be wrong, 0 = it does not matter.
        disk_bytes: how much must be free where ``disk_paths`` are, 0 = it does not matter.
        disk_paths: what the job writes to.
        commands: programs with their arguments that check the node.
        endpoint: Unix socket of a health service (``nvhcd``), "" = none.
        import_path: where ``grpc`` may be found, for that service.
        root: where ``/dev``, ``/proc`` and ``/sys`` are.
    """

    gpus: bool = True
    visible_devices: str | None = None
    nic_link: bool = True
    link_state_path: str = ""
    nic_monitor: bool = False
    pci_topology: str = ""
    link_down_path: str = ""
    mounts: bool = False
    storage_paths: tuple[str, ...] = ()
    segment_file: str = ""
    xid: bool = False
    ecc: bool = False
    ethernet: bool = False
    clock_s: float = 0.0
    disk_bytes: int = 0
    disk_paths: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    endpoint: str = ""
    import_path: tuple[str, ...] = ()
    root: str = "/"


class Finding(NamedTuple):
    """The result of a check.

    Attributes:
        text: in one line; for people, who know already which check it was.
        failed: whether the node is unhealthy; otherwise it says what could not be checked, and why.
    """

    text: str
    failed: bool = True


def skipped(why: str) -> Finding:
    """Nothing can be said, which is no reason not to run."""
    return Finding(why, failed=False)


class Check:
    """One check of one thing. It may take as long as it likes: it has a thread of its own.

    Attributes:
        name: what is checked, as in "the NAME check of SUBJECT".
        subject: which one, "" where there is only one.
        deadline_s: how long it is waited for.
        periodic: cheap enough, and likely enough to find something, to be repeated in a round.
        must_answer: whether silence until the deadline means that the node is unhealthy.
    """

    name = ""
    subject = ""
    deadline_s = DEADLINE_S
    periodic = False
    must_answer = True

    def run(self, seen: dict[str, Any]) -> Finding | None:
        """Return what is wrong, None if nothing is.

        Args:
            seen: what this check put in there the times before, values of JSON; empty at first.
        """
        raise NotImplementedError


def join(problems: list[str], notes: list[str]) -> Finding | None:
    """One finding of many: of the problems if there are any, else of the notes."""
    if problems:
        return Finding("; ".join(problems))
    return skipped("; ".join(notes)) if notes else None


def needed(settings: Settings) -> bool:
    """Return whether this node has anything to check. Looks only into ``/dev`` and ``/sys``."""
    s = settings
    asked = s.nic_monitor or s.mounts or s.storage_paths or s.endpoint or s.commands
    asked = asked or s.segment_file
    if asked or s.xid or s.ecc or s.ethernet or s.clock_s or s.disk_bytes:
        return True
    if settings.nic_link and (settings.link_state_path or nics(settings.root)):
        return True
    return settings.gpus and has_gpus(settings.root)


def has_gpus(root: str) -> bool:
    """Return whether there is an NVIDIA device a process could use."""
    try:
        return any(
            name.startswith("nvidia") and name[6:].isdecimal()
            for name in os.listdir(Path(root, "dev"))
        )
    except OSError:
        return False


def nics(root: str) -> list[str]:
    """Names of the InfiniBand devices (RoCE devices as well), none where there are none."""
    try:
        return sorted(os.listdir(Path(root, INFINIBAND)))
    except OSError:
        return []


def of_links(
    root: str, devices: Collection[str], file: str, given: str = ""
) -> Iterator[tuple[str, Path]]:
    """Yield the name of every link, and a file about it; nothing of devices that are gone.

    Args:
        root: where the file system begins.
        devices: of InfiniBand.
        file: its place in the directory of a port.
        given: another file for each device, with ``{nic}`` for its name, "" = there is none.
    """
    for nic in devices:
        if given:
            yield nic, Path(given.replace("{nic}", nic))
            continue
        directory = Path(root, INFINIBAND, nic, "ports")
        try:
            ports = sorted(os.listdir(directory))
        except OSError:
            continue
        for port in ports:
            yield f"{nic} port {port}", directory / port / file


def read_text(path: Path, most: int = 256) -> str:
    """Return the beginning of a file, without space around it.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        return (file.read(most) or b"").decode("ascii", "replace").strip()


def reason(error: OSError) -> str:
    """Return why a call failed, in the system's words."""
    return error.strerror or str(error)


def is_gone(error: OSError) -> bool:
    """Return whether an error says that the thing does not exist (any more)."""
    return error.errno in _GONE


def close_quietly(fd: int) -> None:
    """Close a descriptor; a network file system may report an old error now."""
    with contextlib.suppress(OSError):
        os.close(fd)
