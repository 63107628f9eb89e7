from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.cost import field, launcher_processes, usage

if TYPE_CHECKING:
    from pathlib import Path


def test_field_reads_the_number_of_its_line(tmp_path: Path) -> None:
    path = tmp_path / "smaps_rollup"
    path.write_text("head\nPss_Dirty:  9 kB\nPss:    1234 kB\n")
    assert field(path, "Pss") == 1234


def test_field_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "status"
    path.write_text("Name: python\n")
    with pytest.raises(ValueError, match=r"status has no line Pss"):
        field(path, "Pss")


def test_usage_of_two_processes_is_the_sum() -> None:
    # A process that rests: threads of this one may end between two looks.
    program = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        one = usage([process.pid])
        two = usage([process.pid, process.pid])
    assert one.cpu_ns > 0
    assert one.pss_bytes > 1_000_000
    assert two.cpu_ns >= 2 * one.cpu_ns
    assert two.wake_ups >= 2 * one.wake_ups


def test_usage_of_nothing_is_nothing() -> None:
    assert usage([]).pss_bytes == 0


def test_a_process_without_children_is_its_own_launcher() -> None:
    own, templates = launcher_processes(os.getpid(), ranks=[])
    assert own[0] == os.getpid()
    assert templates == []
