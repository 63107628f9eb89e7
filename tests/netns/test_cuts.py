"""The net is divided: one side goes on or none, never both."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.netns.job import Job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def test_without_a_majority_nobody_goes_on(job: Callable[..., Job]) -> None:
    """Two of four, on either side of the cut: the side of the coordinator has the casting vote."""
    run = job("abcd", "2:4", "--elastic")
    run.start()
    run.begins(0, *"abcd")
    run.hosts.divide("c", "d")
    run.begins(1, "a", "b")
    run["c"].wait_for("the job may go on without this node")
    run.hosts.heal()
    run.begins(2, *"abcd")
    run.finish()
    run.ends(*"abcd")
    run.one_world()


def test_a_cut_between_four_nodes_that_are_all_needed(job: Callable[..., Job]) -> None:
    run = job("abcd", "4")
    run.start()
    run.begins(0, *"abcd")
    run.hosts.divide("c", "d")
    run["a"].wait_for("node [cd] is lost|cannot go on")
    run["c"].wait_for("the job may go on without this node")
    run.hosts.heal()
    run.begins(1, *"abcd")
    run.finish()
    run.ends(*"abcd")
    run.one_world()


def test_the_coordinator_is_cut_off_and_lives(job: Callable[..., Job]) -> None:
    """The others go on once its ranks are certainly gone; healed, it is a spare like any other."""
    run = job("abcd", "3:4")
    run.start()
    run.begins(0, *"abc")
    run.hosts.divide("a")
    run["a"].wait_for("node [bcd] is lost|cannot go on")
    run.begins(1, *"bcd")
    run.hosts.heal()
    run["a"].wait_for("following the coordinator on [bcd]")
    run["c"].lose_power()
    run.begins(2, *"abd")
    run.finish()
    run.ends(*"abd")
    run.one_world()


def test_a_node_is_cut_off_and_lives(job: Callable[..., Job]) -> None:
    run = job("abcd", "3:4")
    run.start()
    run.begins(0, *"abc")
    run.hosts.unplug("b")
    run.begins(1, *"acd")
    run["b"].wait_for("the ranks are stopped")
    run.hosts.plug_in("b")
    run["b"].wait_for("following the coordinator on a")
    run["c"].lose_power()
    run.begins(2, *"abd")
    run.finish()
    run.ends(*"abd")
    run.one_world()


def test_one_of_two_nodes_has_stopped_before_a_spare_takes_its_place(
    job: Callable[..., Job],
) -> None:
    run = job("abc", "2:3")
    run.start()
    run.begins(0, "a", "b")
    run.hosts.unplug("b")
    run.begins(1, "a", "c")
    run["b"].wait_for("the ranks are stopped")
    run.hosts.plug_in("b")
    run["b"].wait_for("following the coordinator on a")
    run.finish()
    run.ends(*"abc")
    run.one_world()


def test_with_a_coordinator_of_its_own_a_node_has_stopped_before_a_spare_takes_its_place(
    job: Callable[..., Job],
) -> None:
    run = job("kabc", "2:3")
    run.coordinate()
    run.start(*"abc")
    run.begins(0, "a", "b")
    run.hosts.unplug("b")
    run.begins(1, "a", "c")
    run["b"].wait_for("the ranks are stopped")
    run.hosts.plug_in("b")
    run["b"].wait_for("following the coordinator")
    run.finish()
    run.ends(*"abck")
    run.one_world()


def test_a_cut_that_heals_within_the_lease_goes_unnoticed(job: Callable[..., Job]) -> None:
    run = job("abc", "3", "--rdzv-conf", "lease=8")
    run.start()
    run.begins(0, *"abc")
    run.hosts.divide("c")
    run.hosts.heal()
    run.finish()
    run.ends(*"abc")
    assert len(run["a"].events("round_started")) == 1


@pytest.mark.slow
def test_a_node_takes_no_job_to_a_launcher_that_was_started_anew(job: Callable[..., Job]) -> None:
    """Of the two that are left one keeps the state alone, and may go on alone."""
    run = job("abc", "1:3", "--elastic")
    run.start()
    run.begins(0, *"abc")
    run["a"].process.send_signal(signal.SIGTERM)
    run.begins(1, *"bc")
    assert run["a"].finish() == 75
    keeper = run["b"].wait_for(r"following the coordinator on ([bc])")[1]
    (other,) = {"b", "c"} - {keeper}
    run.hosts.divide(keeper)
    run.begins(2, keeper)
    waits = "lease=2,join_timeout=40,last_call_timeout=60"
    run.start_as("a", "a", "--run-dir", "other", "--rdzv-conf", waits)
    run.lasts(2, 1, more_s=12)  # it would go on after a lease and 5 s
    run.hosts.heal()
    run[other].wait_for_next(f"following the coordinator on {keeper}")
    run["a"].wait_for(r"rank \d of 3 in round")
    run.finish()
    run.ends(*"abc")
    run.one_world()
