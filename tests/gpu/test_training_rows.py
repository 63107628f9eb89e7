"""The rows about the training loop, on a CPU: what they do must not be tried first on a GPU."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.gpu import rows, training_rows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def test_generators() -> None:
    assert "come again" in training_rows.generators("cpu")


def test_a_second_opinion() -> None:
    assert "transient" in training_rows.second_opinion("cpu")


def test_a_replay() -> None:
    assert "gradient of 0.weight" in training_rows.replay("cpu")


def test_digests_of_replicas() -> None:
    assert "2 tensors" in training_rows.replica_digests("cpu", mib=2)


def test_the_cost_of_checks() -> None:
    assert "in a step" in training_rows.cost_of_checks("cpu", steps=20)


def test_recordings() -> None:
    code = (  # a process of its own: the recorder is made with the first group
        "from tests.gpu import rows, training_rows\n"
        "rows._alone()\n"
        "print(training_rows.recordings('cpu'))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "5 calls of gloo" in done.stdout


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.usefixtures("no_compiler")
def test_a_session_that_stops(tmp_path: Path) -> None:
    assert "2 rank(s)" in training_rows.stops(tmp_path, "cpu", rows.run, ranks=2)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.usefixtures("no_compiler")
def test_a_job_that_is_killed(tmp_path: Path) -> None:
    told = training_rows.job(tmp_path, "cpu", rows.run, width=64, layers=2)
    assert "the same after SIGKILL" in told
