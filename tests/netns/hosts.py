"""Hosts of a test: network namespaces behind a switch, whose cables can be pulled out.

Whole machines have processes and mounts of their own as well, and can lose their power.

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
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.netns.line import TUN

if TYPE_CHECKING:
    from collections.abc import Sequence

NET = "10.77.0"
LINE = Path(__file__).with_name("line.py")
DEADLINE_S = 20.0


class Namespace:
    """A network namespace, and a host name, for as long as this object is open.

    Args:
        name: of the host.
        boot: what the shell of a whole machine, which has processes and mounts of its own, does
            first; none = the host shares these with this machine.
    """

    def __init__(self, name: str, boot: str | None = None) -> None:
        self.name = name
        self._kinds, how = ["--net", "--uts"], []
        script = 'ip link set lo up && hostname "$0"'
        if boot is None:
            script += " && echo ready && exec cat"
        else:
            self._kinds += ["--pid", "--mount"]
            how = ["--fork", "--kill-child", "--mount-proc"]
            # Its first process is the parent of orphans: a shell takes note of their ends.
            script += f" && {boot} && echo ready && cat; exit"
        self._holder = subprocess.Popen(
            ["unshare", *self._kinds, *how, "sh", "-c", script, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n", f"there is no host {name}"
        self.pid = self._holder.pid if boot is None else child_of(self._holder.pid)

    @property
    def enter(self) -> tuple[str, ...]:
        """What to put in front of a command that shall run here."""
        return ("nsenter", "--target", str(self.pid), *self._kinds, "--")

    def ip(self, *lines: str) -> None:
        """Run commands of ``ip``."""
        self._run("ip", "-batch", "-", given="\n".join(lines))

    def tc(self, *args: str) -> None:
        """Run ``tc``."""
        self._run("tc", *args)

    @property
    def is_open(self) -> bool:
        return self._holder.stdin is not None and not self._holder.stdin.closed

    def close(self) -> None:
        """End it at once, with all that runs on it if it is a whole machine."""
        if self.is_open:
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
        boot: makes them whole machines, see `Namespace`.
    """

    def __init__(self, names: Sequence[str], boot: str | None = None) -> None:
        self.names = list(names)
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._boot = boot
        self._hosts: dict[str, Namespace] = {}
        self._open = contextlib.ExitStack()
        try:
            self._build()
        except BaseException:
            self._open.close()
            raise

    def _build(self) -> None:
        self._switch = Namespace("switch")
        self._open.callback(self._switch.close)
        # The second bridge is what one half of them is plugged into while the net is divided.
        self._switch.ip(*(f"link add {b} type bridge\nlink set {b} up" for b in ("one", "two")))
        for name in self.names:
            self.power_on(name)

    def power_on(self, name: str) -> None:
        """Start a host; it has the same address and name as ever."""
        self._hosts[name] = host = Namespace(name, self._boot)
        self._open.callback(host.close)
        own = f"eth0 address {self._mac(name)}"
        self._switch.ip(
            f"link add to-{name} type veth peer name {own} netns {host.pid}",
            f"link set to-{name} master one up",
        )
        host.ip(*self._set_up(name))

    def _mac(self, name: str) -> str:
        return f"02:00:00:00:00:{self._numbers[name]:02x}"

    def _set_up(self, name: str) -> tuple[str, str]:
        return f"address add {self.address(name)}/24 dev eth0", "link set eth0 up"

    def move(self, name: str) -> None:
        """Start another host of this name, with another address."""
        self._numbers[name] = max(self._numbers.values()) + 1
        self.power_on(name)

    def power_off(self, name: str) -> None:
        """Take a whole machine its power: all that runs on it is gone, and nobody is told."""
        self.unplug(name)
        self.stop(name)

    def stop(self, name: str) -> None:
        """End all that runs on a whole machine, whose kernel closes the connections."""
        self._hosts[name].close()
        with contextlib.suppress(AssertionError):  # the kernel removes it as well, but later
            self._switch.ip(f"link delete to-{name}")

    @property
    def pids(self) -> list[int]:
        """Of the processes that hold the namespaces."""
        return [each.pid for each in (self._switch, *self._hosts.values())]

    def pid(self, name: str) -> int:
        """Of the process that holds a host."""
        return self._hosts[name].pid

    def is_on(self, name: str) -> bool:
        """Whether a host has power."""
        return self._hosts[name].is_open

    def address(self, name: str) -> str:
        return f"{NET}.{self._numbers[name]}"

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

    def deafen(self, name: str) -> None:
        """Lose all that is sent to a host; what it sends arrives."""
        self._switch.tc("qdisc", "replace", "dev", f"to-{name}", "root", "blackhole")

    def mute(self, name: str) -> None:
        """Lose all that a host sends; it hears the others."""
        self._hosts[name].tc("qdisc", "replace", "dev", "eth0", "root", "blackhole")

    def mend(self, name: str) -> None:
        """Undo `deafen` or `mute`."""
        for end, space in ((f"to-{name}", self._switch), ("eth0", self._hosts[name])):
            with contextlib.suppress(AssertionError):  # nothing was done at this end
                space.tc("qdisc", "delete", "dev", end, "root")

    def link_down(self, name: str) -> None:
        """Shut down the interface of a host, which knows it: it has no route to anybody."""
        self._hosts[name].ip("link set eth0 down")

    def link_up(self, name: str) -> None:
        """Undo `link_down`."""
        self._hosts[name].ip("link set eth0 up")

    def worsen(self, name: str, delay_s: float, loss: float = 0.0) -> None:
        """Put a bad line in the place of a host's cable.

        Args:
            name: of the host.
            delay_s: for how long a frame is under way, to it or from it.
            loss: which part of the frames does not arrive.
        """
        host = self._hosts[name]
        self._switch.ip(f"link delete to-{name}")
        line = subprocess.Popen(
            [
                *(sys.executable, str(LINE), str(host.pid), "eth0"),
                *(str(self._switch.pid), f"to-{name}", str(delay_s), str(loss)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._open.callback(line.communicate, timeout=DEADLINE_S)
        assert line.stdout is not None
        assert line.stdout.readline() == "ready\n", f"there is no line to {name}"
        self._switch.ip(f"link set to-{name} master one up")
        host.ip(f"link set eth0 address {self._mac(name)}", *self._set_up(name))

    def close(self) -> None:
        self._open.close()


def child_of(pid: int) -> int:
    """The only child of a process."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


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


def why_no_line() -> str:
    """Why there can be no bad line (`Hosts.worsen`) here, "" = there can."""
    return "" if Path(TUN).exists() else f"{TUN} is not there"
