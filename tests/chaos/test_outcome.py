"""What the nemesis writes down about a run."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from undaunted.chaos.outcome import (
    FILE,
    Note,
    Outcome,
    disk_filled_by,
    read_outcome,
    write_outcome,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    note = Note("f1", "damaged", 1.5, 7, rank=1, iteration=30, text="step-25/rank0")
    outcome = Outcome(exit_codes=[75, 0], seconds=3.5, notes=[note], skipped={"f2": "no cgroup"})

    write_outcome(tmp_path, outcome)

    assert read_outcome(tmp_path) == outcome
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_exit_code_is_that_of_the_last_launcher() -> None:
    assert Outcome(exit_codes=[75, 0]).exit_code == 0
    assert Outcome().exit_code is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"exit_codes": "x"}', b"\xff"])
def test_garbage_is_a_value_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)

    with pytest.raises(ValueError):  # noqa: PT011 - any message of the decoder's
        read_outcome(tmp_path)


def test_which_fault_had_the_disk_full() -> None:
    whats = [("f1", "filled"), ("f2", "slowed"), ("f1", "emptied"), ("f3", "filled")]
    notes = [Note(fault, what, 0.0, 10 * (at + 1)) for at, (fault, what) in enumerate(whats)]

    found = [disk_filled_by(notes, at) for at in (9, 10, 29, 30, 39, 40, 99)]

    assert found == ["", "f1", "f1", "", "", "f3", "f3"]
