"""Which ranks a link reaches, which messages count, and when a link is given up."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.inprocess.guard.talk import enter, join
from undaunted.inprocess.core import messages as m
from undaunted.inprocess.core.links import GRACE_S, Links, reconnect_grace_s


@dataclass(frozen=True)
class Connection:
    number: int


LOST = m.Lost(0, 1, m.Reason("TERMINATED", 1))


def test_a_message_goes_once_to_each_guard() -> None:
    links = Links[Connection]()
    one, other = Connection(1), Connection(2)
    for job_rank, link in enumerate((one, other, one)):
        links.came(link, job_rank)
    assert links.groups((0, 1, 2, 7)) == {one: [0, 2], other: [1]}
    assert links.give_up(one) == (0, 2)
    assert links.give_up(one) == ()
    assert links.groups((0, 1)) == {other: [1]}


def test_what_comes_late_over_a_connection_that_was_given_up_does_not_count() -> None:
    """A partition heals: the kernel delivers what was sent over the old connection."""
    links = Links[Connection]()
    old, new = Connection(1), Connection(2)
    assert links.hears(old, enter(1))
    links.came(old, 1)
    resume = m.Resume(enter(1), None, None, ())
    assert links.hears(new, resume)
    links.came(new, 1)
    replacing = enter(1, rejoin=True, pid=7)  # and was replaced itself, as the new one has said
    for late in (enter(1), resume, replacing, join(1), LOST):
        assert not links.hears(old, late)
    assert links.hears(new, join(1))


def test_a_process_that_was_refused_has_no_say_but_the_end_of_a_rank_counts() -> None:
    links = Links[Connection]()
    links.came(Connection(1), 1)
    stray = Connection(2)
    assert links.hears(stray, enter(1))  # the controller refuses it
    assert not links.hears(stray, join(1))
    assert links.hears(stray, LOST)  # of a guard that is back


@pytest.mark.parametrize(
    ("closed_by_peer", "announced_return", "longest"),
    [(True, False, GRACE_S), (True, True, 42.0), (False, False, 42.0), (False, True, 42.0)],
)
def test_only_a_guard_that_has_ended_is_given_up_soon(
    closed_by_peer: bool, announced_return: bool, longest: float
) -> None:
    grace_s = reconnect_grace_s(
        42.0, closed_by_peer=closed_by_peer, announced_return=announced_return
    )
    assert grace_s == longest
