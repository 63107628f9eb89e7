"""Hosts of a test: network namespaces behind a switch, whose cables can be pulled out.

Nothing has a name outside of this process: each namespace is held by a process that ends when its
standard input does, and so are the bridges, in a namespace of their own. So a test that was killed
leaves nothing, and two runs of the tests never meet.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NET = "10.77.0"
DEADLINE_S = 20.0


class Namespace:
    """A network namespace, and a host name, for as long as this object is open."""

    def __init__(self, name: str) -> None:
        self.name = name
        script = 'ip link set lo up && hostname "$0" && echo ready && exec cat'
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "sh", "-c", script, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n", f"no network namespace for {name}"

    @property
    def pid(self) -> int:
        return self._holder.pid

    @property
    def enter(self) -> tuple[str, ...]:
        """What to put in front of a command that shall run here."""
        return ("nsenter", "--target", str(self.pid), "--net", "--uts", "--")

    def ip(self, *lines: str) -> None:
        """Run commands of ``ip``."""
        self._run("ip", "-batch", "-", given="\n".join(lines))

    def tc(self, *args: str) -> None:
        """Run ``tc``."""
        self._run("tc", *args)

    def close(self) -> None:
        self._holder.communicate(timeout=DEADLINE_S)

    def _run(self, *command: str, given: str = "") -> None:
        done = subprocess.run(
            [*self.enter, *command],
            input=given,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)} on {self.name}: {done.stderr}{given}"


class Hosts:
    """Hosts with one interface each, all on one switch.

    Args:
        names: of the hosts.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._open = contextlib.ExitStack()
        try:
            self._build()
        except BaseException:
            self._open.close()
            raise

    def _build(self) -> None:
        self._switch = self._namespace("switch")
        self._hosts = {name: self._namespace(name) for name in self.names}
        # The second bridge is what one half of them is plugged into while the net is divided.
        lines = [f"link add {b} type bridge\nlink set {b} up" for b in ("one", "two")]
        for name, host in self._hosts.items():
            lines.append(f"link add to-{name} type veth peer name eth0 netns {host.pid}")
            lines.append(f"link set to-{name} master one up")
        self._switch.ip(*lines)
        for name, host in self._hosts.items():
            host.ip(f"address add {self.address(name)}/24 dev eth0", "link set eth0 up")

    def _namespace(self, name: str) -> Namespace:
        namespace = Namespace(name)
        self._open.callback(namespace.close)
        return namespace

    @property
    def pids(self) -> list[int]:
        """Of the processes that hold the namespaces."""
        return [each.pid for each in (self._switch, *self._hosts.values())]

    def address(self, name: str) -> str:
        return f"{NET}.{self.names.index(name) + 1}"

    def enter(self, name: str) -> tuple[str, ...]:
        """What to put in front of a command that shall run on a host."""
        return self._hosts[name].enter

    def unplug(self, *names: str) -> None:
        """Pull out the cables of hosts: nothing comes or goes, and nobody is told."""
        self._switch.ip(*(f"link set to-{name} down" for name in names))

    def plug_in(self, *names: str) -> None:
        """Undo `unplug`."""
        self._switch.ip(*(f"link set to-{name} up" for name in names))

    def divide(self, *others: str) -> None:
        """Divide the net: these hosts reach only each other, and so do all the rest."""
        self._switch.ip(*(f"link set to-{name} master two" for name in others))

    def heal(self) -> None:
        """Undo `divide`."""
        self._switch.ip(*(f"link set to-{name} master one" for name in self.names))

    def slow_down(self, name: str) -> None:
        """Make everything that a host sends arrive late."""
        how = ("netem", "delay", "200ms") if netem() else NARROW
        self._hosts[name].tc("qdisc", "add", "dev", "eth0", "root", *how)

    def close(self) -> None:
        self._open.close()


# 4 kB/s: as late as with a delay, where the kernel has no netem.
NARROW = ("tbf", "rate", "32kbit", "burst", "2kb", "latency", "2s")


@functools.cache
def netem() -> bool:
    """Whether the kernel can delay packets."""
    with namespace("probe") as probe:
        try:
            probe.tc("qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
        except AssertionError:
            return False
    return True


@functools.cache
def why_not() -> str:
    """Why there can be no hosts here, "" = there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc", "unshare", "nsenter"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    with contextlib.suppress(AssertionError), contextlib.ExitStack() as opened:
        hosts = Hosts(["a", "b"])
        opened.callback(hosts.close)
        return ""
    return "network namespaces are not permitted here"


@contextlib.contextmanager
def namespace(name: str) -> Iterator[Namespace]:
    one = Namespace(name)
    try:
        yield one
    finally:
        one.close()
