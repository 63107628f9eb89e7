"""The hosts of the tests are what they seem, and leave nothing."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.launcher import alive, wait_until_gone
from tests.netns.hosts import Hosts, why_no_line, why_not

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(why_not()), reason=why_not())]
ROOT = Path(__file__).resolve().parents[2]

LISTEN = "import socket; s = socket.create_server(('', 5000)); print('ready', flush=True); input()"
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 5000), 0.3)"


def reaches(hosts: Hosts, one: str, other: str) -> bool:
    """Whether a host can connect to another one, where something listens."""
    command = [*hosts.enter(one), sys.executable, "-c", CONNECT, hosts.address(other)]
    return subprocess.run(command, stderr=subprocess.DEVNULL, timeout=60).returncode == 0


@contextlib.contextmanager
def listening(hosts: Hosts, name: str):
    command = [*hosts.enter(name), sys.executable, "-c", LISTEN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout.readline() == b"ready\n"
        yield
        server.communicate(b"\n", timeout=60)


def test_cables_are_pulled_out_and_nets_divided() -> None:
    with contextlib.closing(Hosts("abc")) as hosts, listening(hosts, "a"):
        assert reaches(hosts, "b", "a")
        hosts.unplug("a")
        assert not reaches(hosts, "b", "a")
        hosts.plug_in("a")
        assert reaches(hosts, "b", "a")
        hosts.divide("b")
        assert not reaches(hosts, "b", "a")
        assert reaches(hosts, "c", "a")
        hosts.heal()
        assert reaches(hosts, "b", "a")


@pytest.mark.parametrize("way", ["mute", "deafen"])
def test_a_line_that_loses_one_way(way: str) -> None:
    with contextlib.closing(Hosts("ab")) as hosts, listening(hosts, "a"):
        assert reaches(hosts, "b", "a")
        getattr(hosts, way)("a")
        assert not reaches(hosts, "b", "a")
        hosts.mend("a")
        assert reaches(hosts, "b", "a")


@pytest.mark.skipif(bool(why_no_line()), reason=why_no_line())
@pytest.mark.parametrize(("delay_s", "loss", "arrives"), [(0.01, 0, 1), (1, 0, 0), (0.01, 1, 0)])
def test_a_bad_line(delay_s: float, loss: float, arrives: int) -> None:
    """`reaches` waits for less than there and back take with a delay of one second."""
    with contextlib.closing(Hosts("ab")) as hosts, listening(hosts, "a"):
        hosts.worsen("b", delay_s, loss)
        assert reaches(hosts, "b", "a") == bool(arrives)


def test_nothing_is_left_of_a_test_that_was_killed() -> None:
    script = "from tests.netns.hosts import Hosts; it = Hosts('ab')"
    script += "; print(it.pids, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as killed:
        pids = [int(pid) for pid in killed.stdout.readline().strip(b"[]\n").split(b",")]
        assert len([pid for pid in pids if alive(pid)]) == 3
        killed.kill()
    assert wait_until_gone(pids, 10) == []
