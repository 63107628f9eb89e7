"""The file of odd results."""

from __future__ import annotations

import os
import re
import threading

import pytest

from undaunted.training.rerun import tracker as module
from undaunted.training.rerun.slot import Slot
from undaunted.training.rerun.table import RerunValidationStatus as Status
from undaunted.training.rerun.tracker import Tracker, get_skipped_iterations_from_tracker_file

SLOT = Slot("node1", "cuda:3", "GPU-1")


def test_a_line(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOBID", raising=False)
    tracker = Tracker(tmp_path / "odd")
    tracker.add(SLOT, 2, 17, Status.FIRST_RERUN_REPRODUCIBLE, "nan", "loss\nis NaN")
    assert re.fullmatch(
        r"ts=\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? node=node1 device=cuda:3 jobID=N/A rank=2 "
        r"iteration=17 status=first_rerun_reproducible result=nan message='loss is NaN'\n",
        (tmp_path / "odd").read_text(),
    )


def add(tmp_path, monkeypatch, job, rank, iteration, status):
    monkeypatch.setenv("SLURM_JOBID", job)
    Tracker(tmp_path / "odd").add(SLOT, rank, iteration, status, 1.0, "m")


def test_which_iterations_are_left_out(tmp_path, monkeypatch):
    for job, rank, iteration, status in [
        ("1", 0, 5, Status.RERUN_DISABLED),
        ("2", 0, 5, Status.RERUN_DISABLED),  # twice
        ("1", 0, 6, Status.RERUN_DISABLED),  # once
        ("1", 0, 7, Status.RERUN_DISABLED),
        ("2", 1, 7, Status.RERUN_DISABLED),  # another rank
        ("1", 3, 8, Status.INITIAL_RUN),
        ("1", 3, 8, Status.FIRST_RERUN_REPRODUCIBLE),
        ("2", 3, 8, Status.SECOND_RERUN_REPRODUCIBLE),
        ("1", 0, 9, Status.INITIAL_RUN),
        ("1", 0, 9, Status.FIRST_RERUN_NOT_REPRODUCIBLE),
        ("2", 0, 9, Status.FIRST_RERUN_NOT_REPRODUCIBLE),
        ("1", 0, 4, Status.RERUN_DISABLED),
        ("1", 1, 4, Status.RERUN_DISABLED),  # several ranks of a job
        ("2", 0, 4, Status.RERUN_DISABLED),
    ]:
        add(tmp_path, monkeypatch, job, rank, iteration, status)
    with (tmp_path / "odd").open("a") as file:
        file.write("no line of it\n")
    assert get_skipped_iterations_from_tracker_file(str(tmp_path / "odd")) == [5, 8]


def test_a_file_that_is_not_there(tmp_path, caplog):
    assert get_skipped_iterations_from_tracker_file(str(tmp_path / "none")) == []
    assert "No such file" in caplog.text


def test_a_file_that_cannot_be_appended_to(tmp_path):
    with pytest.raises(RuntimeError, match="result_rejected_tracker_filename"):
        Tracker(tmp_path / "no folder" / "odd")


def test_a_file_that_goes_away_stops_nothing(tmp_path, caplog):
    (tmp_path / "folder").mkdir()
    tracker = Tracker(tmp_path / "folder" / "odd")
    (tmp_path / "folder" / "odd").unlink()
    (tmp_path / "folder").rmdir()
    for _ in range(2):
        tracker.add(SLOT, 0, 1, Status.INITIAL_RUN, 1.0, "m")
    assert caplog.text.count("no more") == 1


def test_a_full_disk_stops_nothing(caplog):
    tracker = Tracker("/dev/full")
    for _ in range(2):
        tracker.add(SLOT, 0, 1, Status.INITIAL_RUN, 1.0, "m")
    assert caplog.text.count("No space left on device") == 1


@pytest.mark.leaves("threads")
def test_a_file_that_does_not_answer_is_left_alone(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module, "_DISK_S", 0.05)
    path = tmp_path / "odd"
    tracker = Tracker(path)
    path.unlink()
    os.mkfifo(path)  # which nobody reads
    tracker.add(SLOT, 0, 1, Status.INITIAL_RUN, 1.0, "m")
    tracker.add(SLOT, 0, 1, Status.INITIAL_RUN, 1.0, "m")
    with pytest.raises(RuntimeError, match=r"no answer within 0\.05 s"):
        Tracker(path)
    assert caplog.text.count("no answer within 0.05 s") == 1
    end = os.open(path, os.O_RDWR)
    await_threads()
    os.close(end)


@pytest.mark.leaves("threads")
def test_a_file_that_does_not_answer_leaves_nothing_out(tmp_path, monkeypatch, caplog):
    go_on = threading.Event()
    monkeypatch.setattr(module, "_DISK_S", 0.05)
    monkeypatch.setattr(module, "_lines", lambda _path: [str(go_on.wait(60))])
    assert get_skipped_iterations_from_tracker_file(str(tmp_path / "odd")) == []
    assert "no answer within 0.05 s" in caplog.text
    go_on.set()
    await_threads()


def await_threads():
    for thread in threading.enumerate():
        if thread.name == "undaunted-deadline":
            thread.join(10)
