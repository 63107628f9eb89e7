"""What becomes of the checkpoints of a folder when rank 0 commits and deletes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.checkpointing.files.conformance import manifest_of, write_attempt
from undaunted.agreement.agreement import Alone
from undaunted.checkpointing.errors import AGREED, SaveError
from undaunted.checkpointing.files.folder import FolderStorage
from undaunted.checkpointing.finding import find
from undaunted.checkpointing.format.manifest import file_of
from undaunted.checkpointing.format.rules import Rule
from undaunted.checkpointing.publishing import Publisher
from undaunted.checkpointing.snapshot import Report
from undaunted.checkpointing.trust import Trust

if TYPE_CHECKING:
    from pathlib import Path

AN_HOUR_S = 3600.0
DATA = "__0_0.distcp"


class Job:
    """One rank that saves into a folder."""

    def __init__(self, place: Path, *, keep: int | None = None) -> None:
        self.storage = FolderStorage(str(place))
        self.trust = Trust(self.storage, "s1")
        alone = Alone("s1", AGREED)
        self.publisher = Publisher(self.storage, alone, 0, Rule(keep=keep), self.trust)
        self._attempts = 0

    def save(self, step: int, content: bytes = b"weights") -> None:
        self._attempts += 1
        target = self.publisher.target(step, self._attempts)
        self.storage.write_small(target, DATA, content)
        report = Report({DATA: file_of(content)}, b"")
        self.publisher.commit(step, self._attempts, 1, "abc", [report], b"metadata")

    @property
    def newest(self) -> int | None:
        manifest = find(self.storage).manifest
        return None if manifest is None else manifest.step


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def put(storage: FolderStorage, step: int, saved_at: float) -> None:
    """A checkpoint of an earlier run, by the clock of its node."""
    target, files = write_attempt(storage, step, session="earlier")
    manifest = manifest_of(step, files, session="earlier")
    storage.commit(target, msgspec.structs.replace(manifest, saved_at=saved_at))


@pytest.mark.parametrize("ahead_s", [-AN_HOUR_S, AN_HOUR_S])
def test_the_last_commit_is_the_newest_whatever_the_clock_says(place: Path, ahead_s: float) -> None:
    job = Job(place)
    put(job.storage, 900, time.time() + ahead_s)
    for step in (100, 90, 300):  # training went back to step 90
        job.save(step)
        assert job.newest == step


def test_a_clock_that_was_set_back_costs_no_new_checkpoint(place: Path) -> None:
    job = Job(place, keep=2)
    for step in (800, 900):
        put(job.storage, step, time.time() + AN_HOUR_S + step)
    job.save(1000)
    job.publisher.delete_old(1000)
    assert job.storage.steps() == [900, 1000]
    job.save(1100)
    job.publisher.delete_old(1100)
    assert job.storage.steps() == [1000, 1100]


def test_a_checkpoint_in_doubt_is_kept_aside_once_its_step_is_saved_again(place: Path) -> None:
    job = Job(place)
    job.save(100, b"doubtful")
    job.trust.steps = {100}
    job.save(200)
    assert job.storage.kept_aside() == []
    job.save(100, b"sound")
    [aside] = job.storage.kept_aside()
    assert aside.step == 100
    assert (place / aside.name / DATA).read_bytes() == b"doubtful"
    assert (place / "step-00000100" / DATA).read_bytes() == b"sound"
    job.save(100, b"sounder")  # what it replaces is in no doubt
    assert job.storage.kept_aside() == [aside]


def test_the_rule_passes_over_a_checkpoint_in_doubt_until_its_step_is_saved_again(
    place: Path,
) -> None:
    job = Job(place, keep=1)
    for step in (100, 200):
        job.save(step)
    job.trust.steps = {200}
    job.publisher.delete_old(100)
    assert job.storage.steps() == [100, 200]
    job.save(200)
    job.publisher.delete_old(200)
    assert job.storage.steps() == [200]
    job.save(300)
    job.publisher.delete_old(300)
    assert job.storage.steps() == [300]


def test_an_aborted_job_commits_and_deletes_nothing(place: Path) -> None:
    job = Job(place, keep=1)
    for step in (100, 200):
        job.save(step)
    job.publisher.abort(0.0)
    with pytest.raises(SaveError, match="aborted"):
        job.save(300)
    job.publisher.delete_old(200)
    assert job.storage.steps() == [100, 200]
