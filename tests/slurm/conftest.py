"""Fixtures of tests with Slurm."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.slurm.cluster import EXAMPLES, Cluster, Job, why_not

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster; a parameter of this name has the settings of the site."""
    if reason := why_not():
        pytest.skip(reason)
    # Not pytest's directory: its path is too long for a socket.
    with tempfile.TemporaryDirectory(prefix="slurm-") as directory:
        running = Cluster(Path(directory), [tmp_path], getattr(request, "param", None))
        try:
            yield running
        finally:
            running.close()


@pytest.fixture
def submit(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """``submit("train.sbatch", "train.py", NODES="1")`` submits an example, until the test ends."""
    with contextlib.ExitStack() as opened:

        def submit(*command: str, options: tuple[str, ...] = (), **env: str) -> Job:
            example, *args = command
            given = {"RANKS_PER_NODE": "2", "OMP_NUM_THREADS": "1"}
            job = cluster.submit(tmp_path, *options, EXAMPLES / example, *args, **given | env)
            opened.callback(job.close)
            return job

        yield submit
