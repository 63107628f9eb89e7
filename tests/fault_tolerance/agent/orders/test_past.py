from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tests.fault_tolerance.agent.round.test_environment import CONFIG
from undaunted.coordinator.core import messages as job
from undaunted.fault_tolerance.agent.orders.past import last_end
from undaunted.fault_tolerance.agent.telling.scribe import Scribe

if TYPE_CHECKING:
    from pathlib import Path


def ran(tmp_path: Path, node: str, end: job.Outcome | None) -> None:
    """Leave the journal of a launcher; no end: it runs, or was killed."""
    config = msgspec.structs.replace(CONFIG, run_dir=str(tmp_path), node=node)
    scribe = Scribe(config, "test")
    scribe.job_started()
    if end is not None:
        scribe.job_ended(job.End(node, end, f"said {node}"))
    scribe.close()


def test_nothing_has_ended(tmp_path: Path) -> None:
    assert last_end(str(tmp_path)) == ""
    ran(tmp_path, "a", None)
    assert last_end(str(tmp_path)) == ""
    assert last_end(str(tmp_path / "missing")) == ""


def test_the_end_is_said_to_who_comes_late(tmp_path: Path) -> None:
    ran(tmp_path, "a", job.Outcome.FINISHED)
    ran(tmp_path, "b", None)
    assert last_end(str(tmp_path)).startswith(
        f"the last job in {tmp_path} has ended, finished with exit code 0: said a. "
    )
