"""Files about rounds, with real launchers and ranks."""

from __future__ import annotations

import contextlib
import json
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.e2e.launcher import Launcher, launched
from tests.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

SCRIPT = """
    import json, os, pathlib, sys
    link = pathlib.Path(os.environ["NVRX_CURRENT_CYCLE_INFO"])
    assert link.name == "cycle_info.job7.current", link
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    sys.exit(first and os.environ["RANK"] == "1")
"""


def info(path: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(path.read_text())
    return content


def test_each_round_of_one_node_has_a_file(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--worker-start", "fresh")
    asked = ("--ft-cycle-info-dir", "info", "--ft-cycle-info-job-id", "job7")
    with launched(
        tmp_path, SCRIPT, *options, *asked, "--node-name", "n1", SLURM_RESTART_COUNT="3"
    ) as launcher:
        assert launcher.finish() == 0, launcher.text
    first, second = (info(tmp_path / "info" / f"cycle_info.job7.3.{n}") for n in (0, 1))
    assert (first["active_nodes"], first["active_ranks"]) == ("n1", "0-1")
    assert str(first["cycle_end_time"]) <= str(second["cycle_start_time"])
    assert info(tmp_path / "info" / "cycle_info.job7.current") == second


def test_the_leader_of_several_nodes_writes_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    meet = f"--nnodes=2:3 --rdzv-endpoint=127.0.0.1:{free_ports(2)} --rdzv-id=job7"
    options = f"{meet} --worker-start=fresh --max-restarts=1 --ft-cycle-info-dir={tmp_path}/info"
    launchers: list[Launcher] = []
    with contextlib.ExitStack() as stack:
        for node in ("n1", "n2", "n3"):
            cwd = tmp_path / node
            cwd.mkdir()
            words = [*options.split(), f"--node-name={node}", "--run-dir=run", "../train.py"]
            launcher = Launcher(words, cwd, {"UNDAUNTED_TOKEN": "a token of this test"})
            stack.callback(launcher.close)
            launchers.append(launcher)
        for launcher in launchers:
            assert launcher.finish() == 0, launcher.text
    first, second = (info(tmp_path / "info" / f"cycle_info.job7.0.{n}") for n in (0, 1))
    assert first["active_nodes"] == second["active_nodes"]
    assert first["active_ranks"] == "0-1"
    assert first["standby_nodes"]
    assert str(first["cycle_end_time"]) <= str(second["cycle_start_time"])
    assert second["cycle_end_time"]
