from __future__ import annotations

from undaunted.coordinator import protocol as p
from undaunted.coordinator.service.option_differences import Differences

OWN = {"--nnodes": "2", "--elastic": "", "--max-restarts": "3"}


def hello(node: str = "b", **settings: str) -> p.Hello:
    given = OWN | {f"--{name.replace('_', '-')}": value for name, value in settings.items()}
    return p.Hello(node=node, incarnation="1", slots=1, settings=given)


def welcome(leader: str, **settings: str) -> p.Welcome:
    return p.Welcome(epoch=1, leader=leader, lease_s=5.0, settings=hello(**settings).settings)


def test_who_agrees_is_not_spoken_of() -> None:
    assert Differences(OWN).of_follower(hello()) == []
    assert Differences(OWN).of_leader(welcome("a")) == []


def test_the_leader_names_node_and_option_once() -> None:
    leader = Differences(OWN)
    assert leader.of_follower(hello(max_restarts="5")) == [
        (
            "node b was started with --max-restarts 5, this one, which coordinates the job, with "
            "--max-restarts 3: that of this node holds; give all launchers the same options"
        )
    ]
    assert leader.of_follower(hello("c", max_restarts="5")) == []
    assert len(leader.of_follower(hello("c", max_restarts="6", nnodes="3"))) == 2


def test_a_follower_says_what_holds() -> None:
    follower = Differences(OWN)
    assert follower.of_leader(welcome("a", elastic="true")) == [
        (
            "this node was started without --elastic, node a, which coordinates the job, with "
            "--elastic true: that of node a holds; give all launchers the same options"
        )
    ]
    assert follower.of_leader(welcome("c", elastic="true")) == []


def test_a_coordinator_alone_is_no_node() -> None:
    (line,) = Differences(OWN).of_leader(welcome("", nnodes="4:6"))
    assert line.startswith("this node was started with --nnodes 2, the coordinator with --nnodes 4")


def test_what_is_not_known_of_another_build_does_not_differ() -> None:
    bare = p.Hello(node="b", incarnation="1", slots=1)
    assert Differences(OWN).of_follower(bare) == []


def test_lines_are_bounded() -> None:
    leader = Differences(OWN)
    said = [leader.of_follower(hello(max_restarts=str(n))) for n in range(100, 200)]
    assert sum(map(len, said)) == 20


def test_launchers_may_leave_out_what_a_coordinator_alone_is_given() -> None:
    alone = OWN | {"--elastic": "true"}
    bare = {"--nnodes": "2", "--elastic": "", "--max-restarts": ""}
    launcher = p.Hello(node="b", incarnation="1", slots=1, settings=bare)
    assert Differences(alone, alone=True).of_follower(launcher) == []
    told = p.Welcome(epoch=1, leader="", lease_s=5.0, settings=alone)
    assert Differences(bare).of_leader(told) == []


def test_what_launchers_are_given_and_a_coordinator_alone_is_not_does_not_hold() -> None:
    alone = {"--max-restarts": "", "--slow-ranks": ""}
    given = p.Hello(node="b", incarnation="1", slots=1, settings=alone | {"--slow-ranks": "stop"})
    (here,) = Differences(alone, alone=True).of_follower(given)
    assert "node b was started with --slow-ranks stop, this coordinator without" in here
    told = p.Welcome(epoch=1, leader="", lease_s=5.0, settings=alone)
    (there,) = Differences(given.settings).of_leader(told)
    assert there.startswith("this node was started with --slow-ranks stop, the coordinator without")
