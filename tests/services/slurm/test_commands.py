"""What squeue and sacct print is understood; commands that misbehave are an error with a reason."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.services.slurm.fakes import Slurm, row
from undaunted.services.slurm import commands
from undaunted.services.slurm.commands import (
    SlurmError,
    list_jobs,
    look_up,
    read_jobs,
    read_states,
)
from undaunted.services.slurm.core import Listed

if TYPE_CHECKING:
    from pathlib import Path

MARK = "=5f="
# Of Slurm 22.05, with this mark: tasks of an array, tasks that wait, a heterogeneous job, an
# interactive one, a job whose name has two lines, one that was cancelled before it began.
RECORDED = """\
3_1=5f=9=5f=1=5f=0=5f=2026-11-24T13:56:23=5f=RUNNING=5f=debug=5f=n1=5f=root=5f=/w/%A_%4a.out=5f=/w/%A_%4a.out=5f=w=5f=
3_2=5f=10=5f=1=5f=0=5f=2026-11-24T13:56:23=5f=RUNNING=5f=debug=5f=n1=5f=root=5f=/w/slurm-10.out=5f=/w/slurm-10.out=5f=w=5f=
3_[2-5%2]=5f=3=5f=1=5f=0=5f=2026-11-24T13:56:23=5f=PENDING=5f=debug=5f=n/a=5f=root=5f=/w/%A_%4a.out=5f=/w/%A_%4a.out=5f=w=5f=
7+0=5f=7=5f=1=5f=0=5f=2026-11-24T13:56:23=5f=RUNNING=5f=debug=5f=n2=5f=root=5f=/w/het-%j=5f=/w/het-%j.err=5f=he=5f=
7+1=5f=8=5f=1=5f=0=5f=2026-11-24T13:56:23=5f=RUNNING=5f=debug=5f=n3=5f=root=5f=/w/het-%j=5f=/w/het-%j=5f=he=5f=
11=5f=11=5f=0=5f=0=5f=2026-11-24T13:56:23=5f=RUNNING=5f=debug=5f=vm=5f=root=5f=/w/slurm-11.out=5f=/w/slurm-11.out=5f=i=5f=
5=5f=5=5f=1=5f=2=5f=2026-11-24T13:59:01=5f=CONFIGURING=5f=debug=5f=n1=5f=root=5f=/w/%x.out=5f=/w/%x.out=5f=new
line=5f=
6=5f=6=5f=1=5f=0=5f=2026-11-24T13:56:23=5f=CANCELLED=5f=debug=5f=n/a=5f=root=5f=/w/6.out=5f=/w/6.out=5f=w=5f=
8=5f=8=5f=1=5f=0=5f=2026-11-24T13:56:23=5f=RUNNING=5f=debug=5f=n1=5f=root=5f=/dev/null=5f=/w/8.err=5f=w=5f=
"""


def test_jobs_as_squeue_shows_them() -> None:
    same = ("root", "debug")
    assert list(read_jobs(RECORDED, MARK)) == [
        Listed("3_1", 0, "2026-11-24T13:56:23", "RUNNING", *same, "/w/3_0001.out", "w"),
        Listed("3_2", 0, "2026-11-24T13:56:23", "RUNNING", *same, "/w/slurm-3_2.out", "w"),
        Listed("7", 0, "2026-11-24T13:56:23", "RUNNING", *same, "/w/het-7", "he", "/w/het-7.err"),
        Listed("5", 2, "2026-11-24T13:59:01", "UNKNOWN", *same, "/w/new\nline.out", "new\nline"),
        Listed("6", 0, "2026-11-24T13:56:23", "CANCELLED", *same, "", "w"),
        Listed("8", 0, "2026-11-24T13:56:23", "RUNNING", *same, "/w/8.err", "w"),
    ]
    assert list(read_jobs("", MARK)) == []


@pytest.mark.parametrize("text", ["one\ntwo", f"17{MARK}\n", RECORDED + "more", RECORDED[:-40]])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(SlurmError, match="this is no list of jobs"):
        list(read_jobs(text, MARK))


def test_states_as_sacct_prints_them() -> None:
    text = "17|COMPLETED\n3_1|CANCELLED by 1000\n3_[4-5]|PENDING\n7+0|TIMEOUT\n7+1|TIMEOUT\n"
    assert dict(read_states(text)) == {"17": "COMPLETED", "3_1": "CANCELLED", "7": "TIMEOUT"}
    with pytest.raises(SlurmError, match="no state of a job: 'oops'"):
        dict(read_states("17|COMPLETED\noops\n"))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", made.path)
    return made


def listed(users: str = "", partitions: str = "") -> list[Listed]:
    return asyncio.run(list_jobs(users, partitions))


def test_the_queue_is_asked_with_words(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    slurm.show(row("17", "RUNNING", "/logs/%j.out"))
    [job] = listed("alice,bob", "batch")
    assert (job.id, job.log_path) == ("17", "/logs/17.out")
    [words] = slurm.asked()
    assert "--states=all" in words
    assert words.endswith("--user=alice,bob --partition=batch UTC")  # and no SQUEUE_STATES
    listed()
    marks = {line.rpartition(":")[2].split()[0] for line in slurm.asked()}
    assert len(marks) == 2  # nobody can know the next one


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("fail", "squeue: slurm_load_jobs error: Unable to contact slurm controller"),
        ("garbage", "this is no list of jobs: 'one two three'"),
        ("user", "Invalid user: nobody-here"),
        ("hang", "squeue has not answered for 1 s"),
        ("endless", "prints more than 0 MiB"),
    ],
)
def test_a_command_that_misbehaves(
    slurm: Slurm, fault: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_MOST_BYTES", 1 << 17)
    if fault == "hang":
        monkeypatch.setattr(commands, "_DEADLINE_S", 1.0)
    slurm.show(row("17", "RUNNING", "/logs/%j.out"))
    slurm.fault(fault)
    with pytest.raises(SlurmError, match=said):
        listed()
    assert len(listed()) == 1


def test_much_that_is_no_list_is_shown_in_part() -> None:
    text = "\0" * (1 << 22)
    with pytest.raises(SlurmError) as caught:
        list(commands.read_jobs(text, "=m="))
    assert len(str(caught.value)) < 200
    trace = caught.tb
    while trace is not None:  # an error keeps what was known when it was raised
        known = trace.tb_frame.f_locals
        assert trace.tb_frame.f_code.co_name != "read_jobs" or "text" not in known
        trace = trace.tb_next


def test_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="squeue cannot be run: No such file or directory"):
        listed()


def test_accounts(slurm: Slurm) -> None:
    slurm.account("17|FAILED\n3_1|CANCELLED by 0\n")
    assert asyncio.run(look_up(["17", "3_1", "4"])) == {"17": "FAILED", "3_1": "CANCELLED"}
    assert slurm.asked()[0].endswith("--format=JobID,State --jobs=17,3_1,4")
    slurm.account("error: disabled")
    assert asyncio.run(look_up(["17"])) == {}
    slurm.account("error: slurmdbd is away")
    with pytest.raises(SlurmError, match="slurmdbd is away"):
        asyncio.run(look_up(["17"]))


def test_an_order_that_ends_the_job_is_followed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm tells all processes of a job that it requeues to stop: this command, too."""
    program = tmp_path / "scontrol"
    program.write_text(
        "#!/bin/sh\nread first\necho $first\nkill -TERM $$\nread second\necho $second\n"
    )
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    told = asyncio.run(commands.ask("scontrol", orders=["requeue 17", "update JobId=17"]))
    assert told.splitlines() == ["requeue 17", "update JobId=17"]
