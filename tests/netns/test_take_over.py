"""Four nodes train and a spare waits; the host of the coordinator is lost in every way."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.netns.hosts import why_no_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.netns.job import Job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

LOSSES: dict[str, Callable[[Job], object]] = {
    "everything on it is killed": lambda run: run["a"].lose_power(),
    "it loses its power": lambda run: (run.hosts.unplug("a"), run["a"].lose_power()),
    "its cable is pulled out": lambda run: run.hosts.unplug("a"),
    "its interface is shut down": lambda run: run.hosts.link_down("a"),
    "what it sends is lost": lambda run: run.hosts.mute("a"),
    "what is sent to it is lost": lambda run: run.hosts.deafen("a"),
}
HEALED: dict[str, Callable[[Job], object]] = {
    "its cable is pulled out": lambda run: run.hosts.plug_in("a"),
    "its interface is shut down": lambda run: run.hosts.link_up("a"),
    "what it sends is lost": lambda run: run.hosts.mend("a"),
    "what is sent to it is lost": lambda run: run.hosts.mend("a"),
}
RARE = ("its interface is shut down", "what it sends is lost", "what is sent to it is lost")


def leader_of(run: Job, names: str) -> str:
    """Return which of these nodes has taken over; exactly one has, and all of them follow it."""
    (leader,) = [name for name in names if "takes over the coordination" in run[name].text]
    said = [re.findall(r"following the coordinator on (\w)", run[name].text) for name in names]
    assert {each for leaders in said for each in leaders} == {leader}
    return leader


@pytest.mark.parametrize(
    "loss",
    [pytest.param(loss, marks=pytest.mark.slow if loss in RARE else ()) for loss in LOSSES],
)
def test_the_host_of_the_coordinator_is_lost(job: Callable[..., Job], loss: str) -> None:
    """The spare takes its place for one restart; a host that lives is a spare once it is back."""
    run, left = job("abcde", "4:5"), "bcde"
    run.start()
    run.begins(0, *"abcd")
    LOSSES[loss](run)
    run.begins(1, *left)
    run.lasts(1, 4)
    if loss in HEALED:
        run["a"].wait_for("the ranks are stopped|node [bcde] is lost|cannot go on")
        HEALED[loss](run)
        run["a"].wait_for_next(f"following the coordinator on [{left}]")
        left = "abcde"
    run.finish()
    run.ends(*left)
    leader = leader_of(run, "bcde")
    assert "1 restart" in run[leader].seen[-1], run.text(*left)
    run.one_world()


@pytest.mark.parametrize("half", ["ab", "abe"])
def test_halves(job: Callable[..., Job], half: str) -> None:
    """Two of four on either side: the side with the spare goes on, whoever coordinated before."""
    other = "".join(name for name in "abcde" if name not in half)
    goes_on, stops = (half, other) if "e" in half else (other, half)
    run = job("abcde", "2:4", "--elastic")
    run.start(*"abcd")
    run.begins(0, *"abcd")
    run.start("e")
    run["e"].wait_for("spare nodes: e")
    run.hosts.divide(*other)
    run.begins(1, *goes_on)
    run.lasts(1, 3)
    for name in stops:
        run[name].wait_for("the ranks are stopped|node [cde] is lost|cannot go on")
    run.hosts.heal()
    for name in stops:
        run[name].wait_for_next("following the coordinator on")
    run["e"].wait_for(r"rank \d of 4 in round 2")
    run.finish()
    run.ends(*"abcde")
    run.one_world()


@pytest.mark.slow
def test_a_bad_network_costs_no_restart(job: Callable[..., Job]) -> None:
    """300 ms there and back, and every twentieth packet is lost, for some leases of 5 s."""
    if reason := why_no_line():
        pytest.skip(reason)
    run = job("abcde", "4:5", "--max-restarts", "2", "--rdzv-conf", "lease=5")
    for name in "abcde":  # a packet takes two of these lines, and as many back
        run.hosts.worsen(name, delay_s=0.075, loss=0.0253)
    run.start()
    run.lasts(0, 4, more_s=30)  # who comes last is the spare
    run.tell(0, 2, 2, "raise ValueError('a crash')")  # a restart is as ever
    run.lasts(1, 4)
    run["a"].lose_power()  # so is the loss of the coordinator
    run.lasts(2, 4)
    run.finish()
    run.ends(*"bcde")
    assert sum(len(run[name].events("round_started")) for name in "abcde") == 3 * 4
    run.one_world()
