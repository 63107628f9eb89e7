from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from undaunted.journal import owner
from undaunted.journal.events import JournalOpened
from undaunted.journal.owner import is_running, this_process


def test_this_process_runs() -> None:
    opened = this_process(5, "1.0")
    assert (opened.t, opened.version) == (5, "1.0")
    assert is_running(opened) is True
    assert is_running(msgspec.structs.replace(opened, start_ticks=opened.start_ticks + 1)) is False


def test_process_that_has_ended_does_not() -> None:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        start = owner.process.start_time(child.pid)
        opened = msgspec.structs.replace(this_process(1, ""), pid=child.pid, start_ticks=start)
        assert is_running(opened) is True
        child.kill()
    assert is_running(opened) is False


@pytest.mark.parametrize("change", [{"boot_id": "other"}, {"pid_namespace": 1}, {"start_ticks": 0}])
def test_other_machines_and_older_journals_do_not_tell(change: dict[str, object]) -> None:
    assert is_running(msgspec.structs.replace(this_process(1, ""), **change)) is None
    assert is_running(JournalOpened(t=1)) is None
