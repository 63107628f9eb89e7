"""Where the lines of ranks and of the launcher go, with real launchers and ranks."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from nvidia_resiliency_ext.shared_utils import log_aggregator
from tests.e2e.launcher import launched

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

CRASH_ONCE = """
    import os, sys
    rank, cycle = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    print(f"loss of rank {rank} in cycle {cycle}", flush=True)
    print(f"other line of rank {rank}", flush=True)
    print(f"warning of rank {rank}", file=sys.stderr, flush=True)
    if cycle == "0" and rank == "1":
        raise ValueError("first attempt")
"""


def test_the_launchers_lines_go_to_a_file_as_well(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "launcher.log"
    options = ("--ft-per-cycle-applog-prefix", str(tmp_path / "all"), "--ft-nvrx-logfile", str(log))
    with launched(tmp_path, CRASH_ONCE, "--nproc-per-node=2", "--max-restarts=1", *options) as run:
        assert run.finish() == 0, run.text
    stamp = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z \S+ ", re.MULTILINE)
    text = log.read_text()
    assert stamp.sub("", text).splitlines() == [line for line in run.seen if "[undaunted]" in line]
    assert "failed: ValueError: first attempt" in text


def test_a_launchers_log_that_cannot_be_written_disturbs_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = ("--ft-per-cycle-applog-prefix", str(tmp_path / "all"))
    log = ("--ft-nvrx-logfile", str(tmp_path / "file" / "log"))
    with launched(tmp_path, "print()", *options, *log) as run:
        assert run.finish() == 0, run.text
    assert f"the launcher's log {tmp_path}/file/log cannot be written" in run.text


LOGGING = """
    import logging, os
    from nvidia_resiliency_ext.shared_utils.log_manager import LogConfig, setup_logger
    setup_logger()
    logger = logging.getLogger(LogConfig.name)
    logger.info("begun")
    if os.environ["RANK"] == "0" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        logger.error("about to be killed")
        os.kill(os.getpid(), 9)
"""


def test_messages_of_ranks_and_launcher_are_put_together(tmp_path: Path) -> None:
    messages = tmp_path / "messages"
    options = ("--nproc-per-node=2", "--max-restarts=1", "--rdzv-id=job")
    variables = {"NVRX_NODE_LOCAL_TMPDIR": str(messages), "SLURMD_NODENAME": "node7"}
    with launched(tmp_path, LOGGING, *options, **variables) as run:
        assert run.finish() == 0, run.text
    aggregate = ["--log-file", str(tmp_path / "node.log"), "--temp-dir", str(messages), "--once"]
    assert log_aggregator.main(aggregate) == 0
    lines = (tmp_path / "node.log").read_text().splitlines()
    assert lines == sorted(lines)
    text = "\n".join(lines)
    killed = text.index("about to be killed")
    assert text.index("2 ranks of train.py on node7") < killed < text.index("SIGKILL")
    assert text.count("[workload:1(1) infra:?(?)] train.py:") >= 1
    assert text.endswith("finished, 1 restart: every rank exited with 0")


def test_lines_for_programs_and_files_that_keep_their_newest_part(tmp_path: Path) -> None:
    script = """
        import os
        for number in range(100_000):
            print(f"{number:06} " + "x" * 40)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
            raise ValueError("first attempt")
    """
    options = ("--redirects=3", "--log-dir=logs", "--log-max-bytes=1M", "--log-format=json")
    with launched(tmp_path, script, "--nproc-per-node=2", "--max-restarts=1", *options) as run:
        assert run.finish() == 0, run.text
    said = [json.loads(line) for line in run.seen]
    assert [each["rank"] for each in said if "failed: ValueError" in each["text"]] == [1]
    assert said[-1]["text"].startswith("finished")
    logs = sorted((tmp_path / "logs").rglob("stdout.log"))
    assert len(logs) == 4
    for log in logs:
        assert log.stat().st_size <= (1 << 20) + 200
        if log.parts[-3:-1] != ("attempt_0", "0"):  # whom the failure of rank 1 may have ended
            assert log.read_text().endswith(f"099999 {'x' * 40}\n")
