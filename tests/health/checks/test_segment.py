from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from undaunted.health.check import Finding, Settings, needed
from undaunted.health.checks import segment

if TYPE_CHECKING:
    from pathlib import Path


def run(path: Path) -> Finding | None:
    settings = Settings(gpus=False, nic_link=False, segment_file=str(path))
    assert needed(settings)
    (check,) = segment.checks(settings)
    assert not check.must_answer, "a shared directory that hangs excludes nobody"
    return check.run({})


def test_without_a_setting_there_is_no_check() -> None:
    assert segment.checks(Settings()) == []


def test_a_file_that_is_not_empty_excludes(tmp_path: Path) -> None:
    path = tmp_path / "segment_health_check.12.3"
    assert run(path) is None, "nobody has said anything"
    path.touch()
    assert run(path) is None
    path.write_text("drained:\nswitch 4\n")
    found = run(path)
    assert found is not None
    assert found.failed
    assert "drained: switch 4" in found.text


@pytest.mark.parametrize("kind", ["directory", "fifo", "loop", "below a file"])
def test_what_cannot_be_judged_excludes_nobody(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "decision"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    else:
        (tmp_path / "file").touch()
        path = tmp_path / "file" / "decision"
    found = run(path)
    assert found is None or not found.failed
