from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from undaunted.shared_utils.wait_daemon import main, read_pids, wait_for_pids

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

DEADLINE_S = 60


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "pids")]) == 1
    assert "pids" in capsys.readouterr().err
    assert main([]) == 2


def test_what_is_read(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    file.write_text("12\n\n 13 \nhello\n-4\n0\n99999999999\n")
    assert read_pids(str(file)) == [12, 13]


def test_processes_that_are_gone_are_not_waited_for() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    wait_for_pids([gone.pid])


def test_it_waits_for_all(tmp_path: Path) -> None:
    daemons = [subprocess.Popen(["cat"], stdin=subprocess.PIPE) for _ in range(2)]
    file = tmp_path / "pids"
    file.write_text("".join(f"{daemon.pid}\n" for daemon in daemons))
    waiting = subprocess.Popen(
        [sys.executable, "-m", "undaunted.shared_utils.wait_daemon", str(file)]
    )
    try:
        for daemon in daemons:
            assert waiting.poll() is None
            assert daemon.stdin is not None
            daemon.stdin.close()
            daemon.wait(DEADLINE_S)
        assert waiting.wait(DEADLINE_S) == 0
    finally:
        for process in (*daemons, waiting):
            process.kill()
            process.wait()
