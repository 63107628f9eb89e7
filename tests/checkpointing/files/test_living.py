from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import textwrap
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
    def fail(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "fcntl", fail)
    living = Living(str(tmp_path))
    living.begin("a")
    (tmp_path / ".session-b").write_text("")
    assert not Living(str(tmp_path)).is_over("b")
    assert living.runs_elsewhere() == []
    living.end()


def test_kernels_that_have_only_locks_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(fcntl, "fcntl", fail)
    living = Living(str(tmp_path))
    living.begin("a")
    (tmp_path / ".session-b").write_text("")
    assert not living.is_over("a")
    assert living.is_over("b")
    living.end()


def test_the_same_folder_by_another_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    one, other = Living(str(tmp_path / "real")), Living(str(tmp_path / "link"))
    one.begin("a")
    other.begin("b")
    assert not other.is_over("a")
    assert not one.is_over("b")
    assert sorted(os.listdir(tmp_path / "real")) == [".session-a", ".session-b"]
    other.end()
    one.end()


def test_a_fork_neither_ends_the_session_nor_keeps_it_alive(tmp_path: Path) -> None:
    forks = """
        import os, sys, threading
        from undaunted.checkpointing.files.living import Living
        living = Living(sys.argv[1])
        living.begin("theirs", "run1")
        if os.fork() == 0:
            living.end()
            del living
            print("forked", flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(forks), str(tmp_path)]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "forked\n"
        here = Living(str(tmp_path))
        assert not here.is_over("theirs")
        parent.kill()
        os.waitid(os.P_PID, parent.pid, os.WEXITED | os.WNOWAIT)
        assert here.is_over("theirs")
        parent.stdin.close()
        assert parent.stdout.read() == ""  # the fork has ended, too


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
