"""Nodes of a job are lost in every way; the job goes on without them, in one world."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.netns.job import LEASE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.netns.job import Job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def test_a_spare_takes_the_place_of_a_node_without_power(job: Callable[..., Job]) -> None:
    run = job("abcd", "3:4")
    run.start()
    run.begins(0, "a", "b", "c")
    run.hosts.unplug("b")
    run["b"].lose_power()
    run.begins(1, "a", "c", "d")
    run["a"].wait_for(r"node b is lost: nothing was heard of it for 2 s")
    run.finish()
    run.ends("a", "c", "d")
    run.one_world()


def test_another_node_coordinates_when_the_host_of_the_coordinator_is_lost(
    job: Callable[..., Job],
) -> None:
    run = job("abcd", "3:4")
    run.start()
    run.begins(0, "a", "b", "c")
    run.hosts.unplug("a")
    run["a"].lose_power()
    run.begins(1, "b", "c", "d")
    run["b"].wait_for("takes over the coordination of the job from node a")
    run["c"].wait_for("first cause in round 0: node a is lost")
    run.finish()
    run.ends("b", "c", "d")
    run.one_world()


def test_two_nodes_are_lost_one_after_the_other(job: Callable[..., Job]) -> None:
    """The second one while the job starts again without the first."""
    # Of three, two may be gone before the next table is known: no quorum would be left.
    run = job("abcdef", "4:6")
    run.start()
    run.begins(0, "a", "b", "c", "d")
    run["b"].lose_power()
    run["a"].wait_for("node b is lost")
    run["c"].lose_power()
    for spare in "ef":  # in the places of both
        run[spare].wait_for(r"rank \d+ of 4 in round [12]")
    run.finish()
    run.ends("a", "d", "e", "f")
    run.one_world()


def test_two_coordinators_are_lost_one_after_the_other(job: Callable[..., Job]) -> None:
    run = job("abcde", "3:5")
    run.start()
    run.begins(0, "a", "b", "c")
    run["a"].lose_power()
    leads = run["c"].wait_for(r"following the coordinator on (\w)")[1]  # mostly b
    spare = run["c"].wait_for(r"goes on in round 1: (\w) in the place of a")[1]  # who came first
    run.begins(1, "b", "c", spare)
    run[leads].lose_power()
    left = [name for name in "bcde" if name != leads]
    run.begins(2, *left)
    run.finish()
    run.ends(*left)
    run.one_world()


def test_an_agent_that_is_killed(job: Callable[..., Job]) -> None:
    """Its connection is reset: the others need not wait for the lease."""
    run = job("abc", "2:3")
    run.start()
    run.begins(0, "a", "b")
    os.kill(run["b"].agent_pid, signal.SIGKILL)
    assert run["b"].finish() == 1
    run.begins(1, "a", "c")
    run.finish()
    run.ends("a", "c")
    run.one_world()


def test_a_node_whose_launcher_is_started_again(job: Callable[..., Job]) -> None:
    run = job("abc", "3")
    run.start()
    run.begins(0, *"abc")
    run["c"].lose_power()
    run.start_as("c", "c")
    run.begins(1, *"abc")
    run.finish()
    run.ends(*"abc")
    run.one_world()


def test_the_host_of_the_coordinator_is_started_again(job: Callable[..., Job]) -> None:
    """Another node leads meanwhile; the host takes its place again, but not the lead."""
    run = job("abc", "3")
    run.start()
    run.begins(0, *"abc")
    run["a"].lose_power()
    run.start_as("a", "a")
    run.begins(1, *"abc")
    run["b"].wait_for("takes over the coordination of the job from node a")
    run.finish()
    run.ends(*"abc")
    run.one_world()


def test_the_coordinator_of_two_nodes_is_started_again(job: Callable[..., Job]) -> None:
    """Two cannot outvote each other: the other one waits for it."""
    run = job("ab", "2")
    run.start()
    run.begins(0, "a", "b")
    run["a"].lose_power()
    run["b"].wait_for("the coordinator at .* is gone")
    run.start_as("a", "a")
    run.begins(1, "a", "b")
    run.finish()
    run.ends("a", "b")
    run.one_world()


def test_the_coordinator_of_two_nodes_stays_away(job: Callable[..., Job]) -> None:
    run = job("ab", "2", "--rdzv-conf", f"lease={LEASE_S:g},away_timeout=2,join_timeout=4")
    run.start()
    run.begins(0, "a", "b")
    run["a"].lose_power()
    run["b"].wait_for("the ranks are stopped: the coordinator at .* is gone")
    run.ends("b", code=19)
    assert "the coordinator at 10.77.0.1:29400 is gone" in run["b"].seen[-1]
