"""The kernel: its version, its settings, capabilities, limits, containers."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undaunted.base import system_calls
from undaunted.base.cgroups import keyed, usable_cpus
from undaunted.doctor.facts import Limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT = Path("/")
_MOST_BYTES = 256 * 1024
_SETTINGS = (
    "kernel.yama.ptrace_scope",
    "kernel.core_pattern",
    "vm.overcommit_memory",
    "net.core.somaxconn",
    "net.ipv4.ip_local_port_range",
)
_LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "nproc": resource.RLIMIT_NPROC,
    "stack": resource.RLIMIT_STACK,
    "core": resource.RLIMIT_CORE,
}
# Variables that checks look at, beside those of the known issues.
_VARIABLES = (
    "MASTER_PORT",
    "OMP_NUM_THREADS",
    "KUBERNETES_SERVICE_HOST",
    "SLURM_JOB_ID",
    "SLURM_KILL_BAD_EXIT",
    "SLURM_RLIMIT_NOFILE",
    "SLURM_WAIT",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
)
_FIRST_USER = 1000  # RemoveIPC leaves system users alone


def read_text(path: Path) -> str | None:
    """Return the beginning of a file, None if it cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            return (file.read(_MOST_BYTES) or b"").decode("utf-8", "replace").strip()
    except OSError:
        return None


def of_kernel(root: Path = ROOT) -> dict[str, Any]:
    """Return facts that are in files of the kernel."""
    return {
        "lacking": tuple(system_calls.lacking_names()),
        "refused": tuple(system_calls.refused()),
        "arch": platform.machine(),
        "versions": {"linux": platform.release(), "python": platform.python_version()},
        "cpus": usable_cpus(root),
        "memory": keyed(root / "proc/meminfo", "MemTotal:", 1024),
        "limits": limits(),
        "settings": settings(root, os.getuid()),
        "capabilities": capabilities(read_text(root / "proc/self/status") or ""),
        "oom_score_adj": _number(read_text(root / "proc/self/oom_score_adj")),
        "in_container": in_container(root, os.environ),
        "rdma": _listed(root / "sys/class/infiniband"),
    }


def environ_of(environ: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Return the variables that known issues are about, and no others: they may be secrets."""
    names = {*known, *_VARIABLES}
    return {name: value for name, value in environ.items() if name in names}


def settings(root: Path, user: int) -> dict[str, str]:
    """Return settings of the kernel, and RemoveIPC of logind where that is at work."""
    found = {}
    for name in _SETTINGS:
        text = read_text(root / "proc/sys" / name.replace(".", "/"))
        if text is not None:
            found[name] = text
    if user >= _FIRST_USER and (root / "run/systemd/users").is_dir():
        found["RemoveIPC"] = remove_ipc(root)
    return found


def remove_ipc(root: Path) -> str:
    """Return RemoveIPC of logind: the last file that says something counts; ``yes`` unless said."""
    value = "yes"
    folder = root / "etc/systemd"
    for path in (folder / "logind.conf", *sorted((folder / "logind.conf.d").glob("*.conf"))):
        for line in (read_text(path) or "").splitlines():
            name, equals, text = line.partition("=")
            if equals and name.strip() == "RemoveIPC":
                value = text.strip()
    return value


def limits() -> dict[str, Limit]:
    """Return the limits of this process."""
    found = {}
    for name, number in _LIMITS.items():
        soft, hard = (
            None if value == resource.RLIM_INFINITY else value
            for value in resource.getrlimit(number)
        )
        found[name] = Limit(soft, hard)
    return found


def capabilities(status: str) -> int | None:
    """Return the effective capabilities in ``/proc/self/status``."""
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            try:
                return int(value.strip(), 16)
            except ValueError:
                return None
    return None


def in_container(root: Path, environ: Mapping[str, str]) -> bool:
    """Whether this looks like a container."""
    marks = (".dockerenv", "run/.containerenv")
    return "KUBERNETES_SERVICE_HOST" in environ or any((root / mark).exists() for mark in marks)


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _listed(directory: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(directory)))
    except OSError:
        return ()
