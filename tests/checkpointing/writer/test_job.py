"""Settings of a writer process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.writer.job import (
    Job,
    JobFile,
    NotWritten,
    Progress,
    WriterOptions,
    Written,
    lower_priority,
)
from undaunted.checkpointing.writer.process import CONFIRM_S, Standstill


def test_the_defaults_make_sense() -> None:
    WriterOptions().check()
    WriterOptions(threads=1, bandwidth=1e6, nice=-20, io_class="idle", stall_timeout_s=0.1).check()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threads": 0}, "threads=0: give 1 or more"),
        ({"bandwidth": 0.0}, "bandwidth=0.0: give bytes per second"),
        ({"stall_timeout_s": float("nan")}, "stall_timeout_s=nan"),
        ({"stall_timeout_s": 0.0}, "stall_timeout_s=0.0"),
        ({"nice": 20}, "nice=20"),
        ({"io_class": "realtime"}, "'realtime': give one of best-effort, idle"),
    ],
)
def test_each_is_checked(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        WriterOptions(**settings).check()


LOWERED = """
import os
from undaunted.checkpointing.writer.job import lower_priority
lower_priority(15, "idle")
print(os.getpriority(os.PRIO_PROCESS, 0))
print(open("/proc/self/stat").read().rpartition(")")[2].split()[16])
"""


@pytest.mark.e2e
def test_lower() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOWERED], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["15", "15"]


def test_a_system_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    lower_priority(-20, None)


JOB = Job("/url", WriterOptions(threads=2), "/url/a", [Image("x", 4096, 5)], 65536)


def test_both_ends_see_the_same() -> None:
    trainer = JobFile.create(JOB)
    writer = JobFile(os.dup(trainer.fd))
    assert writer.job() == JOB
    assert trainer.look() == Progress(0.0, 0)
    writer.show(1_500_000_000, 1 << 40)
    assert trainer.look() == Progress(1.5, 1 << 40)
    assert not writer.is_given_up
    trainer.give_up()
    assert writer.is_given_up
    assert trainer.answered() is None
    answer = Written({"x": "0" * 8_000_000}, 1.0, 5)
    writer.answer(answer)
    assert trainer.answered() == answer
    assert writer.look() == trainer.look(), "the answer lies behind"
    trainer.close()
    writer.close()


@pytest.mark.parametrize("lost", [1, 5, 1000])
def test_an_answer_that_is_cut_short_is_none(lost: int) -> None:
    file = JobFile.create(JOB)
    file.answer(NotWritten("x" * 2000, 5))
    assert file.answered() == NotWritten("x" * 2000, 5)
    os.ftruncate(file.fd, os.fstat(file.fd).st_size - lost)
    assert file.answered() is None
    file.close()


def test_a_descriptor_of_something_else() -> None:
    ours, theirs = os.pipe()
    with pytest.raises(OSError, match=r"No such device|Permission denied"):
        JobFile(ours)
    os.close(theirs)


def test_nothing_is_heard_from_the_start() -> None:
    judge = Standstill(60.0, 1000.0)
    assert judge.patience_s(1000.0, 0.0) == 60.0
    assert judge.judge(1059.0, 0.0) is None
    assert judge.judge(1060.0, 0.0) is None  # asked twice
    assert judge.patience_s(1060.0, 0.0) == CONFIRM_S
    assert judge.judge(1060.5, 0.0) is None
    assert judge.judge(1061.0, 0.0) == 61.0


def test_progress_counts_whenever_it_is_looked_at() -> None:
    judge = Standstill(60.0, 1000.0)
    assert judge.judge(5000.0, 4990.0) is None
    assert judge.patience_s(5000.0, 4990.0) == 50.0
    assert judge.patience_s(9000.0, 4990.0) == 0.0


def test_one_that_goes_on_was_stopped_with_the_trainer() -> None:
    """A scheduler may stop a whole job: when it goes on, the trainer may look first."""
    judge = Standstill(60.0, 1000.0)
    assert judge.judge(9000.0, 1001.0) is None
    assert judge.judge(9001.0, 9000.2) is None
    assert judge.judge(9060.5, 9000.2) is None  # from the beginning
    assert judge.judge(9061.5, 9000.2) is not None
