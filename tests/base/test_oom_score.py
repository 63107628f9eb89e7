"""A process offers itself to the kernel when memory runs out, as far as it may."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from undaunted.base import oom_score


def test_the_score_is_added_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "score"
    path.write_text("-500\n")
    assert oom_score.raise_own(100, path) == -400
    assert path.read_text() == "-400"


def test_no_more_than_the_most(tmp_path: Path) -> None:
    path = tmp_path / "score"
    path.write_text("1000\n")
    assert oom_score.raise_own(100, path) == 1000


def test_where_it_cannot_be_changed(tmp_path: Path) -> None:
    assert oom_score.raise_own(100, tmp_path / "missing") is None
    path = tmp_path / "score"
    path.write_text("garbage")
    assert oom_score.raise_own(100, path) is None


def test_a_real_process_and_its_children() -> None:
    code = (
        "import os, subprocess; from undaunted.base import oom_score; oom_score.raise_own(100);"
        "subprocess.run(['cat', '/proc/self/oom_score_adj'])"
    )
    mine = int(Path("/proc/self/oom_score_adj").read_text())
    env = {**os.environ, "PYTHONPATH": str(Path(oom_score.__file__).parents[2])}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, timeout=60)
    assert int(out.stdout) == min(1000, mine + 100)
