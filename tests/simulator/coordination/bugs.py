"""Bugs to plant: each takes out one rule of coordination, as a careless change might."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from simulator.coordination.setup import Setup
from undaunted.coordinator.lead import fence, follower, knowledge, leader, register
from undaunted.coordinator.policy import messages as m
from undaunted.coordinator.policy import placement
from undaunted.coordinator.policy import round as one_round
from undaunted.coordinator.policy.policy import JobPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pytest


# Two of four nodes are enough, so that both parts of a partition could run.
HALVES = Setup(2, 2, elastic=True)
PARTITIONS = ("partition", "isolate", "one-way")
ORDERS = ("order",)


@dataclass(frozen=True)
class Bug:
    """A bug, the job and faults that bring it out, and the invariant that finds it."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    finds: str
    setup: Setup
    kinds: tuple[str, ...]
    faults: int = 12


def takeover_without_majority(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(register, "lacking", lambda *_: ())


def minority_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(follower.Follower, "_stop_ns", lambda *_, **__: 10**18)


def silent_nodes_count_as_stopped(patch: pytest.MonkeyPatch) -> None:
    stops = fence.Preparation._stops_after_s

    def at_once(self: fence.Preparation, *, soon: bool) -> float:
        return self._config.lease_s if soon else stops(self, soon=soon)

    patch.setattr(fence.Preparation, "_stops_after_s", at_once)


def coordinator_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fence.Preparation, "old_world_is_over", lambda _self, _now: True)


def budget_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    restored = JobPolicy.restored

    def forgetful(*args: Any, **kwargs: Any) -> JobPolicy:
        memory = msgspec.structs.replace(kwargs["memory"], restarts_used=0)
        return restored(*args, **kwargs | {"memory": memory})

    patch.setattr(JobPolicy, "restored", forgetful)


def newcomers_go_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        placement._Candidate,
        "preference",
        property(lambda self: (self.seat is not None, *self.order)),
    )


def silence_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leader.Leader, "_expire", lambda _self, _now: [])


def a_lost_disk_makes_a_new_job(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(knowledge.Knowledge, "should_join", lambda *_, **_more: False)


def victims_of_a_hang_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    hung = JobPolicy._hung

    def forgetful(self: JobPolicy, *args: Any) -> list[Any]:
        return [each for each in hung(self, *args) if not isinstance(each, m.GoOn)]

    patch.setattr(JobPolicy, "_hung", forgetful)


def the_largest_iteration_is_not_passed(patch: pytest.MonkeyPatch) -> None:
    decide = one_round.Stopping.decide

    def early(self: one_round.Stopping, nodes: Iterable[str]) -> bool:
        decided = decide(self, nodes)
        if decided and self.after is not None:
            self.after -= 1
        return decided

    patch.setattr(one_round.Stopping, "decide", early)


def nodes_that_have_not_answered_do_not_count(patch: pytest.MonkeyPatch) -> None:
    decide = one_round.Stopping.decide

    def hasty(self: one_round.Stopping, nodes: Iterable[str]) -> bool:
        return decide(self, [node for node in nodes if node in self._asked])

    patch.setattr(one_round.Stopping, "decide", hasty)


def an_ordered_restart_counts(patch: pytest.MonkeyPatch) -> None:
    def counted(self: JobPolicy, reason: str, order: m.RestartOrdered) -> list[Any]:
        return self._restart(reason, 9.0 + order.save, m.Outcome.FAILED)

    patch.setattr(JobPolicy, "_another_round", counted)


def who_is_excluded_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    restored = JobPolicy.restored

    def forgetful(*args: Any, **kwargs: Any) -> JobPolicy:
        memory = msgspec.structs.replace(kwargs["memory"], excluded={})
        return restored(*args, **kwargs | {"memory": memory})

    patch.setattr(JobPolicy, "restored", forgetful)


def a_round_follows_an_order_to_stop(patch: pytest.MonkeyPatch) -> None:
    over = JobPolicy._over_if_stopped

    def forgetful(self: JobPolicy) -> list[Any]:
        self.last.closing.ending = None
        self.last.closing.restart_said = True
        return over(self)

    patch.setattr(JobPolicy, "_over_if_stopped", forgetful)


BUGS = [
    Bug(
        "take-over without a majority",
        takeover_without_majority,
        "never two worlds",
        HALVES,
        PARTITIONS,
    ),
    Bug("a minority goes on", minority_goes_on, "each rank once", Setup(4, 2), PARTITIONS),
    Bug(
        "a node that is silent counts as one that has stopped",
        silent_nodes_count_as_stopped,
        "each rank once",
        Setup(2, 2),
        ("isolate", "partition"),
    ),
    Bug(
        "the coordinator does not wait for the old world",
        coordinator_does_not_wait,
        "each rank once",
        Setup(2, 2, standalone=True),
        PARTITIONS,
    ),
    Bug(
        "the budget is forgotten in a take-over",
        budget_is_forgotten,
        "the budget",
        Setup(4, 2, max_restarts=3),
        ("crash", "coordinator"),
    ),
    Bug(
        "newcomers displace survivors",
        newcomers_go_first,
        "no healthy node is evicted",
        Setup(4, 2),
        ("crash",),
    ),
    Bug(
        "newcomers displace survivors when only the network is cut",
        newcomers_go_first,
        "no healthy node is evicted",
        Setup(4, 2),
        ("isolate",),
    ),
    Bug(
        "a launcher whose disk was lost is not told that the job goes on",
        a_lost_disk_makes_a_new_job,
        "one job",
        Setup(1, 3, elastic=True),
        ("disk",),
        faults=2,
    ),
    Bug(
        "the leader does not notice silence",
        silence_is_not_noticed,
        "the job runs again",
        Setup(4, 2),
        ("power",),
    ),
    Bug(
        "nobody has the victims of a hang go on",
        victims_of_a_hang_are_forgotten,
        "the job runs again",
        Setup(2, 3, min_healthy=True),
        ("hang",),
        faults=6,
    ),
    Bug(
        "ranks are told to stop after an iteration that one of them has asked about",
        the_largest_iteration_is_not_passed,
        "one end",
        Setup(4, 2),
        ("leave",),
        faults=2,
    ),
    Bug(
        "nodes that have not said what their ranks have asked are not waited for",
        nodes_that_have_not_answered_do_not_count,
        "one end",
        Setup(4, 2),
        ("leave", "slow"),
        faults=4,
    ),
    Bug("an ordered restart counts", an_ordered_restart_counts, "the budget", Setup(4, 2), ORDERS),
    Bug(
        "who is excluded is forgotten in a take-over",
        who_is_excluded_is_forgotten,
        "who is excluded stays so",
        Setup(4, 2),
        (*ORDERS, "crash", "coordinator"),
    ),
    Bug(
        "a round follows an order to stop",
        a_round_follows_an_order_to_stop,
        "an order ends the job",
        Setup(4, 2),
        ORDERS,
    ),
]
