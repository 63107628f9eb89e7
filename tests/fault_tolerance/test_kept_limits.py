from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.fault_tolerance import kept_limits
from undaunted.fault_tolerance.kept_limits import FILE, Entry, Job, KeptLimits

if TYPE_CHECKING:
    from pathlib import Path

BY_JOB = "ft_state_by_job.json"
SECTIONS = ("checkpointing", "setup", "step")
SMALL, LARGE = Job(16, SECTIONS, {"num_layers": 4}), Job(1024, SECTIONS, {"num_layers": 4})


def state(limit: float) -> dict[str, Any]:
    return {"current_timeouts": {"section": {"section": {"step": limit}}}}


@pytest.fixture
def said() -> list[str]:
    return []


def test_each_kind_of_job_finds_its_own(tmp_path: Path, said: list[str]) -> None:
    small, large = (KeptLimits(str(tmp_path), job, said.append) for job in (SMALL, LARGE))
    assert small.load() is None
    assert small.save(state(1.0))
    assert small.load() == state(1.0)
    assert large.load() is None, "limits of 16 ranks would end 1024"
    assert large.save(state(9.0))
    assert (small.load(), large.load()) == (state(1.0), state(9.0))
    assert json.loads((tmp_path / FILE).read_text()) == state(9.0)
    assert said == []


@pytest.mark.parametrize(
    "other",
    [Job(16, ("step",), {"num_layers": 4}), Job(16, SECTIONS, {"num_layers": 5})],
)
def test_other_sections_and_another_model_are_another_job(
    tmp_path: Path, said: list[str], other: Job
) -> None:
    KeptLimits(str(tmp_path), SMALL, said.append).save(state(1.0))
    assert KeptLimits(str(tmp_path), other, said.append).load() is None


def test_what_megatron_has_written_is_used(tmp_path: Path, said: list[str]) -> None:
    kept = KeptLimits(str(tmp_path), SMALL, said.append)
    (tmp_path / FILE).write_text(json.dumps(state(3.0)))
    assert kept.load() == state(3.0)
    kept.save(state(1.0))
    (tmp_path / FILE).write_text(json.dumps(state(4.0)))
    assert kept.load() == state(4.0), "it was written later than what is kept here"


def test_files_are_private_and_replaced_whole(tmp_path: Path, said: list[str]) -> None:
    KeptLimits(str(tmp_path), SMALL, said.append).save(state(1.0))
    assert {path.name for path in tmp_path.iterdir()} == {FILE, BY_JOB}
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_bound_for_kinds_of_jobs() -> None:
    entries: list[Entry] = []
    for ranks in range(100):
        entries = kept_limits.with_entry(entries, Entry(Job(ranks, SECTIONS), state(1.0)))
    assert [entry.job.ranks for entry in entries] == [*range(99, 67, -1)]


@pytest.mark.parametrize("name", [FILE, BY_JOB])
@pytest.mark.parametrize("content", [b"{", b"[1]", b'"\xff"', b"[" * 100_000])
def test_a_damaged_file_is_said(tmp_path: Path, said: list[str], name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    kept = KeptLimits(str(tmp_path), SMALL, said.append)
    assert kept.load() is None
    assert len(said) == 1
    assert name in said[0]
    assert kept.save(state(1.0))
    assert kept.load() == state(1.0)


def test_a_folder_that_takes_nothing(tmp_path: Path, said: list[str]) -> None:
    (tmp_path / "file").touch()
    kept = KeptLimits(str(tmp_path / "file"), SMALL, said.append)
    kept.make_folder()
    assert not kept.save(state(1.0))
    assert all("limits are not kept between jobs" in line for line in said)
    assert len(said) == 2


def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptLimits(str(tmp_path), SMALL, said.append)
    kept.save(state(1.0))

    def full(path: str, _content: bytes, temporary: str) -> None:
        (tmp_path / temporary).touch()
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(kept_limits, "replace_file", full)
    assert not kept.save(state(2.0))
    assert kept.load() == state(1.0)
    assert {path.name for path in tmp_path.iterdir()} == {FILE, BY_JOB}
    assert "No space left on device" in said[0]


@pytest.mark.leaves("threads")
def test_a_disk_that_hangs_is_asked_once(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(kept_limits, "_DISK_S", 0.01)
    monkeypatch.setattr(kept_limits, "read_file", lambda *_: go_on.wait(60) and b"{}")
    kept = KeptLimits(str(tmp_path), SMALL, said.append)
    assert kept.load() is None
    assert not kept.save(state(1.0))
    assert len(said) == 1
    assert "does not answer within" in said[0]
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == "undaunted-deadline":
            thread.join(10)
