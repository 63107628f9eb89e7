"""Pods of a test: containers, as far as namespaces and control groups make them.

The launcher is the first process. Whatever is left when it ends, the kernel kills.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.launcher import Launcher
from tests.netns.hosts import DEADLINE_S, child_of
from undaunted.base import process

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NAMESPACES = ("--pid", "--mount", "--uts", "--ipc", "--net")
WORK = "/mnt"  # where a pod has its working directory
ROOT = Path(__file__).resolve().parents[2]
# What the launcher needs of this machine.
PLACES = (Path(sys.base_prefix).resolve(), Path(sys.prefix), ROOT)


class Pod(Launcher):
    """An ``undaunted run`` that is the first process of a pod, in its working directory `WORK`.

    Args:
        args: of the launcher.
        folder: what the working directory is outside.
        env: variables; the launcher gets no others but PATH and those of the interpreter.
        uid: of the launcher.
        read_only: whether the root file system and /tmp cannot be written.
        tmp: with ``read_only``, whether /tmp can.
        shm: size of /dev/shm; the default is that of most runtimes.
        group: a control group of memory.
    """

    def __init__(
        self,
        args: Sequence[str],
        folder: Path,
        env: dict[str, str] | None = None,
        *,
        uid: int = 0,
        read_only: bool = False,
        tmp: bool = False,
        shm: str = "64m",
        group: Path | None = None,
    ) -> None:
        mode = "ro" if read_only and not tmp else "rw"
        within = [
            "mount --make-rprivate /",
            "ip link set lo up",
            "hostname train-0",
            f"mount --bind {shlex.quote(str(folder))} {WORK}",
            *opened_up(),
            *(["mount -o remount,bind,ro /"] if read_only else []),
            f"mount -t tmpfs -o {mode} none /tmp",
            f"mount -t tmpfs -o size={shm} none /dev/shm",
            f"cd {WORK}",
        ]
        if group and "memory" in group.parts:  # else a namespace shows no other groups
            within.append(f"mount --bind {group} /sys/fs/cgroup/memory")
        folder.chmod(0o755)
        for path in (folder, *folder.iterdir()):
            os.chown(path, uid, uid)
        user = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups") if uid else ()
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        clean = ("env", "-i", *(f"{name}={value}" for name, value in variables.items()))
        enter = (
            *(("sh", "-ec", 'echo $$ > "$0"/cgroup.procs; exec "$@"', str(group)) if group else ()),
            *("unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc"),
            *("sh", "-ec", "\n".join([*within, 'exec "$@"']), "sh", *user, *clean),
        )
        super().__init__(list(args), folder, enter=enter)

    @functools.cached_property
    def first_pid(self) -> int:
        """The launcher's process id out here."""
        return child_of(self.process.pid)

    def tell(self, number: int) -> None:
        """Send a signal to the first process, as the container runtime does."""
        os.kill(self.first_pid, number)

    def exec(self, *command: str) -> None:
        """Run a command in the pod, whose parent is outside (``kubectl exec``)."""
        enter = ("nsenter", "--target", str(self.first_pid), *NAMESPACES, "--")
        subprocess.run([*enter, *command], check=True, timeout=DEADLINE_S)

    def zombies(self) -> list[int]:
        """Processes of the pod that have ended, and of which nobody has taken note."""
        return [pid for pid in process.descendants(self.first_pid) if process.state(pid) == "Z"]

    def close(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(OSError, ValueError):
                self.tell(signal.SIGKILL)
        super().close()


@functools.cache
def opened_up() -> list[str]:
    """Lines of a shell that make `PLACES` visible to others where a home directory hides them."""
    above = {parent for place in PLACES for parent in place.parents}
    closed = min((one for one in above if not one.stat().st_mode & 1), default=None)
    if closed is None:
        return []
    places = [shlex.quote(str(one)) for one in PLACES if one.is_relative_to(closed)]
    return [
        "mount -t tmpfs none /srv",
        *(f"mkdir /srv/{n} && mount --bind {one} /srv/{n}" for n, one in enumerate(places)),
        f"mount -t tmpfs -o mode=755 none {shlex.quote(str(closed))}",
        *(f"mkdir -p {one} && mount --move /srv/{n} {one}" for n, one in enumerate(places)),
        "umount /srv",
    ]


@functools.cache
def why_no_pods() -> str:
    """Why there can be no pods here, "" = there can."""
    if os.geteuid() != 0:
        return "namespaces of pods need root"
    for program in ("ip", "unshare", "nsenter", "setpriv"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if any(place.is_relative_to("/tmp") for place in PLACES):
        return "a pod has a /tmp of its own, and Python or undaunted are in this one"
    enter = ["unshare", *NAMESPACES, "--fork", "--mount-proc", "mount", "-t", "tmpfs", "none", WORK]
    tried = subprocess.run(enter, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    return f"no namespaces here: {tried.stderr.strip()}" if tried.returncode else ""


@contextlib.contextmanager
def memory_group(most: int) -> Iterator[Path]:
    """A control group of either version that may use ``most`` bytes of memory.

    Raises:
        OSError: this machine does not let us make one.
    """
    ours = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        ours[kinds] = path.strip("/")
    version_1 = "memory" in ours
    mount = Path("/sys/fs/cgroup", "memory" if version_1 else "")
    parent = mount / ours["memory"] if version_1 else mount
    group = Path(tempfile.mkdtemp(prefix="undaunted-pod-", dir=parent))
    try:
        file = group / ("memory.limit_in_bytes" if version_1 else "memory.max")
        file.write_text(str(most))
        yield group
    finally:
        group.rmdir()
