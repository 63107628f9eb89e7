from __future__ import annotations

import os
from typing import TYPE_CHECKING

from undaunted.health.check import Settings
from undaunted.health.checks import disk_space

if TYPE_CHECKING:
    from pathlib import Path


def test_room_is_wanted(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    for least, enough in ((1, True), (2 * free + (1 << 40), False)):
        settings = Settings(disk_bytes=least, disk_paths=(str(tmp_path), str(tmp_path)))
        (check,) = disk_space.checks(settings)
        found = check.run({})
        assert (found is None) is enough
        assert found is None or "MiB are free" in found.text


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    (check,) = disk_space.checks(Settings(disk_bytes=1, disk_paths=(str(tmp_path / "x"),)))
    found = check.run({})
    assert found is not None
    assert found.failed
    assert disk_space.checks(Settings(disk_paths=(str(tmp_path),))) == []
