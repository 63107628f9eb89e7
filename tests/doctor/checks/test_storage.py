from __future__ import annotations

from typing import Any

from tests.doctor.checks.saying import said, wanting
from undaunted.base.sizes import GIB, MIB
from undaunted.doctor.checks import storage
from undaunted.doctor.facts import FileSystem, Trial


def trial(**more: Any) -> Trial:
    place = FileSystem(path="/ckpt", **more.pop("place", {"free": 100 * GIB}))
    made = {"written": 64 * MIB, "seconds": 0.1} | more
    return Trial(**{"path": "/ckpt", "purpose": "checkpoints", "file_system": place} | made)


def test_directories() -> None:
    asked = wanting(checkpoint_bytes=10 * GIB)
    (fine,) = said(storage, asked, trials=(trial(),))
    found = "/ckpt (checkpoints): 640 MiB/s written, a checkpoint takes 16.0 s"
    assert fine == ("L21", "info", found)
    (slow,) = said(storage, trials=(trial(seconds=30.0),))
    assert slow == ("L21", "warn", "/ckpt (checkpoints): 2.1 MiB/s written")
    (broken,) = said(storage, trials=(trial(problem="Permission denied"),))
    assert broken == ("L21", "fail", "/ckpt (checkpoints): Permission denied")
    full = trial(place={"free": 20 * GIB, "free_inodes": 5})
    assert [row[1] for row in said(storage, asked, trials=(full,))] == ["fail", "warn", "info"]
    logs = trial(purpose="logs", place={"free": 10 * MIB})
    assert [row[1] for row in said(storage, asked, trials=(logs,))] == ["warn", "info"]
    assert said(storage, trials=(trial(seconds=0.0),)) == []
