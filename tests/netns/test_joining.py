"""Who takes part in a job: too many, too late, too slow, not meant, and twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.netns.hosts import why_no_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.netns.job import Job

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def test_one_agent_more_than_there_are_places(job: Callable[..., Job]) -> None:
    run = job("abcde", "4")
    run.start(*"abcd")
    run.begins(0, *"abcd")
    run.start("e")
    run["b"].lose_power()
    run.begins(1, "a", "c", "d", "e")
    run.finish()
    run.ends("a", "c", "d", "e")
    run.one_world()


def test_a_node_that_comes_late(job: Callable[..., Job]) -> None:
    """The first round begins without it; the job grows when it is there."""
    run = job("abc", "2:3", "--elastic")
    run.start("a", "b")
    run.begins(0, "a", "b")
    run.start("c")
    run.begins(1, *"abc")
    run.finish()
    run.ends(*"abc")
    run.one_world()


def test_a_node_behind_a_slow_line(job: Callable[..., Job]) -> None:
    if reason := why_no_line():
        pytest.skip(reason)
    run = job("abc", "3")
    run.hosts.worsen("c", delay_s=0.2)
    run.start()
    run.begins(0, *"abc")
    run.finish()
    run.ends(*"abc")


def test_another_token(job: Callable[..., Job]) -> None:
    """It does not disturb the others, and says why it may not take part."""
    run = job("abc", "2")
    (run.cwd / "other").write_text("this is not the token of the job")
    (run.cwd / "other").chmod(0o600)
    run.start("a", "b")
    stranger = run.start_as("c", "c", "--coordinator-token-file", "other")
    run.begins(0, "a", "b")
    assert stranger.finish() == 1
    assert "token" in stranger.seen[-1], stranger.text
    run.finish()
    run.ends("a", "b")


def test_another_job(job: Callable[..., Job]) -> None:
    run = job("abc", "2")
    run.start("a", "b")
    stranger = run.start_as("c", "c", "--rdzv-id", "another")
    run.begins(0, "a", "b")
    assert stranger.finish() == 1
    assert "node c belongs to job another" in stranger.seen[-1], stranger.text
    run.finish()
    run.ends("a", "b")


def test_two_launchers_with_one_name(job: Callable[..., Job]) -> None:
    run = job("abc", "2")
    run.start("a", "b")
    run.begins(0, "a", "b")
    short = ("--rdzv-conf", "lease=2,timeout=2")
    double = run.start_as("b2", "c", "--node-name", "b", "--run-dir", "other", *short)
    assert double.finish() == 1
    assert "--node-name" in double.seen[-1], double.text
    run.finish()
    run.ends("a", "b")
    assert len(run["a"].events("round_started")) == 1


def test_nobody_to_meet(job: Callable[..., Job]) -> None:
    run = job("ab", "2", "--rdzv-conf", "timeout=2")
    run.start("b")
    run.ends("b", code=1)
    assert "no coordinator for 2 s" in run["b"].seen[-1]
