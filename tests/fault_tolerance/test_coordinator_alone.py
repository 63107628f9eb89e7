"""A coordinator on a host of its own; whole jobs with one are in tests/e2e."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from undaunted.fault_tolerance import coordinator_alone, run_lock
from undaunted.fault_tolerance.config import FaultToleranceConfig
from undaunted.fault_tolerance.nodes_config import Nodes

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_two_jobs_do_not_share_a_run_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = Nodes(
        min_nodes=2, max_nodes=2, endpoints=["127.0.0.1:1"], is_host=False, address="127.0.0.1"
    )
    config = coordinator_alone.AloneConfig(
        run_id="job8", run_dir=str(tmp_path), nodes=nodes, ft=FaultToleranceConfig()
    )
    lock = run_lock.lock(str(tmp_path), "", job="job7")
    assert lock is not None
    try:
        assert coordinator_alone.run(config) == 2
    finally:
        os.close(lock)
    assert f"{tmp_path} is in use" in capsys.readouterr().err
