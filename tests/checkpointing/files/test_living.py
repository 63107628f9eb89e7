from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from undaunted.checkpointing.files.living import Living

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_session_is_alive_until_its_end(tmp_path: Path) -> None:
    one, other = Living(str(tmp_path)), Living(str(tmp_path))
    assert other.is_over("a")
    one.begin("a")
    one.begin("a")
    assert not other.is_over("a")
    one.end()
    one.end()
    assert other.is_over("a")
    assert os.listdir(tmp_path) == []


def test_one_that_left_its_file_is_over(tmp_path: Path) -> None:
    (tmp_path / ".session-a").write_text("")
    assert Living(str(tmp_path)).is_over("a")
    assert os.listdir(tmp_path) == []


def test_a_new_session_ends_the_one_before(tmp_path: Path) -> None:
    living = Living(str(tmp_path))
    living.begin("a")
    living.begin("b")
    assert os.listdir(tmp_path) == [".session-b"]
    living.end()


def test_without_locks_all_are_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int, flags: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", fail)
    living = Living(str(tmp_path))
    living.begin("a")
    (tmp_path / ".session-b").write_text("")
    assert not Living(str(tmp_path)).is_over("b")
    assert living.runs_elsewhere() == []
    living.end()


def test_what_is_not_ended_ends_with_its_object(tmp_path: Path) -> None:
    living = Living(str(tmp_path))
    living.begin("a")
    del living
    assert os.listdir(tmp_path) == []


HOLD = """
import sys
from undaunted.checkpointing.files.living import Living
Living(sys.argv[1]).begin("theirs", "run1")
living = Living(sys.argv[1])
living.begin("theirs2", "run1")
print("held", flush=True)
sys.stdin.read()
"""


def test_other_processes_of_a_run_are_noticed(tmp_path: Path) -> None:
    here = Living(str(tmp_path))
    here.begin("ours", "run1")
    assert not here.others("run1")
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert here.others("run1")
        assert not here.others("run2")
        assert here.runs_elsewhere() == ["run1"]
        other.kill()
    assert not here.others("run1")
    assert here.runs_elsewhere() == []
    assert os.listdir(tmp_path) == [".session-ours"]
    here.end()
