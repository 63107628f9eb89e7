"""The end of a job: what Slurm is asked and what the console says, which stand in queue.txt."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from undaunted.journal.events import JobStarted
from undaunted.journal.job.launches import launches_of
from undaunted.journal.job.values import JobRound, JobSummary
from undaunted.journal.reader import Journal
from undaunted.services.slurm import queue as module
from undaunted.services.slurm.allocation import Next, allocation
from undaunted.services.slurm.commands import SlurmError
from undaunted.services.slurm.queue import (
    Queue,
    journals_in,
    of_same_program,
    outcome_line,
    what_follows,
)

if TYPE_CHECKING:
    from undaunted.journal.job.launches import Launch

JOB = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_PARTITION": "batch",
}
TASK = JOB | {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "9", "SLURM_RESTART_COUNT": "2"}
ROUND = JobRound(attempt=0, round=0, world_size=1, began_ns=0, stopped_ns=None)
AGAIN, WITHOUT_N2 = Next(again=True), Next(again=True, without="n2")
AWAY = "Unable to contact slurm controller (connect failure)"
RUNS = {"JobState": "RUNNING", "Restarts": "0", "BatchFlag": "1", "ExcNodeList": "(null)"}


class Slurm:
    """Its commands: shows a job as ``about`` says, and refuses orders, each complaint once."""

    def __init__(self, about: list[dict[str, str]], refuses: dict[str, str]) -> None:
        self.about, self.refuses = about, dict(refuses)
        self.asked: list[str] = []

    async def ask(self, *words: str, orders: tuple[str, ...] = ()) -> str:
        self.asked.append(" ".join([*words, *(f"<- {order}" for order in orders)]))
        for order, complaint in list(self.refuses.items()):
            if order in self.asked[-1]:
                del self.refuses[order]
                raise SlurmError(complaint)
        if "show" not in words:
            return ""
        about = self.about.pop(0) if len(self.about) > 1 else self.about[0]
        return " ".join(f"{name}={text}" for name, text in (RUNS | about).items())


# Name, what Slurm shows of the job one time after another, what it refuses, what is decided.
SCENES: list[tuple[str, list[dict[str, str]], dict[str, str], Next]] = [
    ("a job that goes back", [{}], {}, AGAIN),
    ("one that does not", [{}], {}, Next(again=False, why="no further than before")),
    ("without a node", [{}], {}, WITHOUT_N2),
    ("without another node", [{"ExcNodeList": "n7"}], {}, WITHOUT_N2),
    ("no other node has room", [{}], {"--test-only": "not available"}, WITHOUT_N2),
    ("no batch script", [{"BatchFlag": "0"}], {}, AGAIN),
    ("Slurm ends it already", [{"JobState": "COMPLETING"}], {}, AGAIN),
    ("its time is over", [{"JobState": "TIMEOUT", "TimeLimit": "01:00:00"}], {}, AGAIN),
    ("another start of it runs", [{"Restarts": "1"}], {}, AGAIN),
    ("a job that may not go back", [{}], {"requeue": "operation is disabled"}, AGAIN),
    ("the order was carried out", [{}, {"JobState": "PENDING"}], {"requeue": "killed"}, AGAIN),
    ("nobody knows whether it was", [{}], {"requeue": "killed"}, AGAIN),
    ("the job is not known", [{}], {"show": "Invalid job id specified"}, AGAIN),
    ("the controller is away", [{}], {"show": AWAY, "requeue": AWAY}, AGAIN),
]


def test_the_end_of_a_job(golden: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    text = ""
    for name, about, refuses, decided in SCENES:
        slurm, said = Slurm(about, refuses), []
        monkeypatch.setattr(module, "ask", slurm.ask)
        is_there = asyncio.run(Queue(allocation(JOB), said.append).put_back(decided))
        lines = [f"# {name}", *(f"$ {line}" for line in slurm.asked), *said]
        text += "\n".join([*lines, "[it is in the queue]" if is_there else "[it is not]", "", ""])
    golden(Path(__file__).with_name("queue.txt"), text)


def test_a_task_of_an_array_goes_back_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm([{"Restarts": "2"}], {})
    monkeypatch.setattr(module, "ask", slurm.ask)
    assert asyncio.run(Queue(allocation(TASK), lambda _: None).put_back(AGAIN))
    assert slurm.asked[-1] == "scontrol requeue 17_9"


def test_a_controller_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: str, **__: Any) -> str:
        raise SlurmError(AWAY)

    monkeypatch.setattr(module, "ask", away)
    monkeypatch.setattr(module, "_AWAY_S", -1.0)
    with pytest.raises(SlurmError):
        asyncio.run(Queue(allocation(JOB), lambda _: None).shown())


def test_a_comment_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm([{}], {"update": "Access denied"})
    monkeypatch.setattr(module, "ask", slurm.ask)
    asyncio.run(Queue(allocation(JOB), lambda _: None).comment("finished\x1b[31m"))
    assert slurm.asked == ["scontrol update JobId=17 Comment=finished\\x1b[31m"]


def launch(*argv: str, run_id: str = "slurm-17") -> Launch:
    started = JobStarted(run_id=run_id, argv=list(argv), nproc_per_node=1, max_restarts=0)
    (made,) = launches_of([Journal(Path("journal-n1.jsonl"), [started])])
    return made


def test_earlier_starts_of_other_programs_do_not_count() -> None:
    same, other, of_another_job = launch("a.py"), launch("b.py"), launch("a.py", run_id="x")
    assert of_same_program([same, other, of_another_job], [launch("a.py")]) == [same]


@pytest.mark.parametrize(
    ("outcome", "came_to", "before", "again"),
    [
        ("finished", 9, 5, False),
        ("preempted", 9, 5, True),
        ("preempted", 5, 5, False),  # it came no further than the start before
        ("preempted", None, None, True),
    ],
)
def test_a_start_that_came_further_is_followed_by_another(
    outcome: str, came_to: int | None, before: int | None, again: bool
) -> None:
    start, earlier = (
        JobSummary(
            outcome=outcome,
            exit_code=75,
            reason="the launcher on node n1 received SIGTERM",
            rounds=[replace(ROUND, last_iteration=iteration)],
        )
        for iteration in (came_to, before)
    )
    assert what_follows(start, earlier, restarts=1, requeues=100).again is again
    assert outcome_line(start).startswith(outcome)


def test_journals_that_are_not_there_yet_are_none(tmp_path: Path) -> None:
    assert journals_in(tmp_path / "gone") == []
    (tmp_path / "journal-n1.jsonl").touch()
    assert [journal.events for journal in journals_in(tmp_path)] == [[]]
