"""Doctors of several hosts meet, and find out who does not reach whom."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys

import pytest

from tests.netns.hosts import Hosts, why_not

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(bool(why_not()), reason=why_not())]
DEADLINE_S = 110.0


def doctor(hosts: Hosts, name: str, *args: str) -> subprocess.Popen[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "UNDAUNTED"))}
    command = [sys.executable, "-m", "undaunted.cli.main", "doctor", "--no-self-test", *args]
    return subprocess.Popen(
        [*hosts.enter(name), *command],
        env={**kept, "UNDAUNTED_TOKEN": "0123456789abcdef"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )


def said(one: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        output, _ = one.communicate(timeout=DEADLINE_S)
    finally:
        one.kill()
        one.communicate()
    return one.returncode, " ".join(output.split())


def test_a_host_that_cannot_reach_another() -> None:
    with contextlib.closing(Hosts("abc")) as hosts:
        hosts._hosts["b"].ip(f"route add unreachable {hosts.address('c')}/32")
        meeting = ("--nnodes", "3", "--rdzv-endpoint", f"{hosts.address('a')}:29400")
        doctors = [doctor(hosts, name, *meeting) for name in "abc"]
        for one in doctors:
            code, output = said(one)
            assert code == 1
            assert "met 3 nodes: " in output
            assert f"c from b: {hosts.address('c')}: no route to host" in output
            assert f"b from c: {hosts.address('b')} has not answered within 3.0 s" in output
            # The hosts of these tests have no names that others know, which is told as well.
            assert re.findall(r"\ba from [a-c, ]+: (?!the name)", output) == []


def test_a_host_that_does_not_come() -> None:
    with contextlib.closing(Hosts("ab")) as hosts:
        hosts.unplug("b")
        meeting = ("--nnodes", "2", "--rdzv-endpoint", f"{hosts.address('a')}:29400")
        doctors = [doctor(hosts, name, *meeting, "--join-timeout", "6") for name in "ab"]
        (code, there), (other_code, cut_off) = map(said, doctors)
        assert (code, other_code) == (1, 1)
        assert "only 1 of 2 nodes came to the meeting: a" in there
        assert f"no meeting at {hosts.address('a')}:29400: " in cut_off


def test_hosts_that_are_given() -> None:
    with contextlib.closing(Hosts("abc")) as hosts:
        hosts.unplug("c")
        given = ",".join(hosts.address(name) for name in "bc")
        code, output = said(doctor(hosts, "a", "--hosts", given))
        assert code == 1
        assert f"network: {hosts.address('c')}: port 29400 at {hosts.address('c')}: " in output
        assert f"network: {hosts.address('b')}" not in output
