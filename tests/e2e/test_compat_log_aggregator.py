"""One log of several processes, with an aggregator that is killed and followed by another."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

DEADLINE_S = 60.0
RANKS = 3
MESSAGES = 2000
LOGGING = """
    import os
    from nvidia_resiliency_ext.shared_utils.log_manager import setup_logger
    logger = setup_logger()
    for number in range(2000):
        logger.info("message %d of rank %s\\n  more of it", number, os.environ["RANK"])
"""


def start(*command: str, **variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *command], env={**os.environ, **variables})


def wait_for_size(path: Path, size: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists() or path.stat().st_size < size:
        assert time.monotonic() < deadline
        os.sched_yield()


def test_no_message_is_lost_when_an_aggregator_is_killed(tmp_path: Path) -> None:
    messages, log, over = tmp_path / "messages", tmp_path / "node.log", tmp_path / "over"
    program = "\n".join(line[4:] for line in LOGGING.splitlines())
    command = ["-m", "nvidia_resiliency_ext.shared_utils.log_aggregator", "--log-file", str(log)]
    command += ["--temp-dir", str(messages), "--wait-file", str(over)]
    variables = {"NVRX_NODE_LOCAL_TMPDIR": str(messages), "NVRX_LOG_MAX_FILE_SIZE_KB": "100"}
    ranks = [start("-c", program, RANK=str(rank), **variables) for rank in range(RANKS)]
    first = start(*command)
    wait_for_size(log, 1)
    first.send_signal(signal.SIGKILL)
    first.wait(DEADLINE_S)
    second = start(*command)
    assert [rank.wait(DEADLINE_S) for rank in ranks] == [0] * RANKS
    over.touch()
    assert second.wait(DEADLINE_S) == 0
    lines = log.read_text().splitlines()
    for rank in range(RANKS):
        found = {line.split("message ")[1] for line in lines if line.endswith(f"of rank {rank}")}
        assert found == {f"{number} of rank {rank}" for number in range(MESSAGES)}
    alone = [
        line
        for line, after in itertools.pairwise(lines)
        if "of rank" in line and after != "  more of it"
    ]
    assert len(alone) <= 1, alone  # where the first one was killed
    assert len(lines) < 2 * 2 * RANKS * MESSAGES  # what came twice is not all
