"""Fixtures of tests on several hosts."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.netns.hosts import Hosts, why_not
from tests.netns.job import RANK, Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """``job("abcd", "3:4", ...)`` makes hosts with these names, and a job for them."""
    if reason := why_not():
        pytest.skip(reason)
    jobs: list[Job] = []
    with contextlib.ExitStack() as opened:

        def make(names: str, nnodes: str, *options: str, script: str = RANK) -> Job:
            hosts = Hosts(list(names))
            opened.callback(hosts.close)
            job = Job(hosts, tmp_path, nnodes, *options, script=script)
            opened.callback(job.close)
            jobs.append(job)
            return job

        yield make
    for job in jobs:
        print(job.text(*job.nodes))  # shown when the test has failed
