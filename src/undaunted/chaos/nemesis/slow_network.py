"""A separate network for one run, which can be made slow.

It is a network namespace with nothing but a loopback, over which the ranks of one node talk to each
other. While it is slow, the kernel's traffic control lets through a part of what the run has sent
until then, and where the kernel can (netem), each packet comes late as well.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

from undaunted.base.child import Program, run
from undaunted.base.process import module_command
from undaunted.chaos.nemesis import helper, namespaces, stage
from undaunted.chaos.nemesis.helper import NotPossibleError

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOOPBACK = "lo"
_MTU = 1500  # bytes; what is larger than tbf's burst would be dropped for ever
_PART = 4
_LEAST = 4000  # bytes per second
_TC_S = 30.0
_PLACES = "/usr/sbin:/sbin:/usr/bin:/bin"  # users' PATH often lacks those of administration
_DEV_BYTES = 1 << 16
_SENT_COLUMN = 8


class SlowNetwork:
    """A network that was made. The owner calls `close`.

    Attributes:
        namespaces: descriptors of what the run is to enter, in order.
    """

    def __init__(self, inside: Sequence[int] = ()) -> None:
        """Make a network namespace.

        Args:
            inside: descriptors of namespaces which the run enters anyway; they stay the caller's.

        Raises:
            NotPossibleError: the machine does not allow it.
        """
        self._tc = _find_tc()
        self.namespaces: tuple[int, ...] = tuple(inside)
        self._own: tuple[int, ...] = ()
        self._kind = ""
        self._started = time.monotonic()
        with helper.running(__name__, [stage.numbers(inside)], inside) as pid:
            try:
                names = ("net",) if inside else ("user", "net")
                entered = helper.open_namespaces(pid, names)
                self._own = entered
                self._dev = os.open(f"/proc/{pid}/net/dev", os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                self.close()
                raise NotPossibleError(f"its namespace cannot be entered: {error}") from None
        self.namespaces += entered
        self._own += (self._dev,)

    def slow(self) -> str:
        """Make it slow; return in words how.

        Raises:
            NotPossibleError: the traffic control refused.
        """
        sent = sent_over_loopback(os.pread(self._dev, _DEV_BYTES, 0).decode(errors="replace"))
        rate = slow_rate(sent, time.monotonic() - self._started)
        problem = ""
        for kind, words in _shapes(rate).items():
            problem = self._run("replace", kind, words)
            if not problem:
                self._kind = kind
                return f"the loopback of the run: {kind} {' '.join(words)}"
        raise NotPossibleError(problem)

    def lift(self) -> None:
        """Let everything through again, what waits first.

        Raises:
            NotPossibleError: the traffic control refused.
        """
        # Removing it would drop what waits.
        problem = self._run("change", self._kind, _OPEN[self._kind])
        if problem:
            raise NotPossibleError(problem)

    def close(self) -> None:
        """Let go of it: the kernel removes it once no process uses it."""
        for fd in self._own:
            os.close(fd)
        self._own = ()

    def _run(self, verb: str, kind: str, words: Sequence[str]) -> str:
        """Run ``tc`` in there; return what is wrong, "" if nothing is."""
        argv = [self._tc, "qdisc", verb, "dev", _LOOPBACK, "root", kind, *words]
        words = module_command(__name__, stage.numbers(self.namespaces), *argv)
        end = run(Program(words, _TC_S, pass_fds=self.namespaces))
        if end.code is None:
            return f"tc did not end within {_TC_S:g} s"
        return "" if end.code == 0 else f"tc {kind}: {end.errors.decode(errors='replace').strip()}"


def not_possible() -> str:
    """Say why this machine allows no slow network, "" if it does."""
    try:
        network = SlowNetwork()
    except NotPossibleError as error:
        return str(error)
    try:
        network.slow()
        network.lift()
    except NotPossibleError as error:
        return f"the network cannot be made slow: {error}"
    finally:
        network.close()
    return ""


def sent_over_loopback(text: str) -> int:
    """Return the bytes sent over the loopback, out of ``/proc/net/dev``; 0 = not known."""
    for line in text.splitlines():
        name, colon, columns = line.partition(":")
        if colon and name.strip() == _LOOPBACK:
            return int(columns.split()[_SENT_COLUMN])
    return 0


def slow_rate(sent: int, seconds: float) -> int:
    """Return how many bytes per second are let through: a part of what was sent until then.

    Args:
        sent: bytes.
        seconds: since the network was made.
    """
    return max(_LEAST, int(sent / max(seconds, 1.0) / _PART))


def _shapes(rate: int) -> dict[str, tuple[str, ...]]:
    bits = f"{8 * rate}bit"
    return {
        "netem": ("delay", "50ms", "rate", bits, "limit", "100000"),
        "tbf": ("rate", bits, "burst", "4kb", "limit", "64mb"),
    }


_OPEN = {
    "netem": ("delay", "0ms", "rate", "100gbit", "limit", "100000"),
    "tbf": ("rate", "100gbit", "burst", "64mb", "limit", "64mb"),
}


def _find_tc() -> str:
    found = shutil.which("tc") or shutil.which("tc", path=_PLACES)
    if found is None:
        raise NotPossibleError("the program tc is not installed (package iproute2 or iproute)")
    return found


def main(words: Sequence[str]) -> int:
    """Be a helper: make the namespace, and stay until standard input ends; or run a command there.

    Args:
        words: the descriptors of namespaces to enter; the command, none = make the namespace.
    """
    fds, *argv = words
    try:
        stage.enter_all(fds)
        if argv:
            namespaces.keep_network_rights()
            os.execv(argv[0], argv)  # noqa: S606 - the point of it
        namespaces.make_network_namespace(_MTU)
    except OSError as error:
        if argv:
            sys.exit(str(error))
        helper.answer(f"no network can be made here ({error})")
    else:
        helper.answer()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
