from __future__ import annotations

import pytest

from tests.doctor.checks.saying import said, wanting
from undaunted.base.sizes import GIB, MIB
from undaunted.doctor.checks import shared_memory
from undaunted.doctor.facts import FileSystem


@pytest.mark.parametrize(
    ("total", "free", "severity"),
    [(64 * MIB, 64 * MIB, "fail"), (8 * GIB, 100 * MIB, "warn"), (8 * GIB, 2 * GIB, None)],
)
def test_shared_memory(total: int, free: int, severity: str | None) -> None:
    shm = FileSystem(path="/dev/shm", size=total, free=free)
    found = said(shared_memory, file_systems={"shm": shm})
    assert [row[:2] for row in found] == ([("L01", severity)] if severity else [])


def test_shared_memory_for_checkpoints_that_is_away_or_unknown() -> None:
    asked = wanting("async-checkpoint", checkpoint_bytes=40 * GIB)
    shm = FileSystem(path="/dev/shm", size=32 * GIB, free=30 * GIB)
    ((key, severity, found),) = said(shared_memory, asked, file_systems={"shm": shm})
    assert (key, severity) == ("L01", "warn")
    assert found == "/dev/shm has 30 GiB free of 32 GiB"
    gone = FileSystem(path="/dev/shm", problem="No such file or directory")
    assert said(shared_memory, file_systems={"shm": gone})[0][1] == "fail"
    assert said(shared_memory) == []
    assert said(shared_memory, file_systems={"shm": FileSystem(path="/dev/shm")}) == []
