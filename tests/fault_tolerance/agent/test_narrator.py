"""Events in, lines out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fault_tolerance.agent.test_environment import CONFIG
from undaunted.attribution.logs.landmarks import landmarks
from undaunted.fault_tolerance.agent.narrator import Narrator
from undaunted.fault_tolerance.nodes_config import Nodes
from undaunted.fault_tolerance.output.lines import DONE, ERROR, INFO, PROGRESS, TEXT, WARNING
from undaunted.journal import events as e
from undaunted.journal.reader import read_journal

S = 10**9
NODES = Nodes(min_nodes=2, max_nodes=2, endpoints=["a:1"], is_host=True, address="a")


class Told:
    """A narrator, and what it has said."""

    def __init__(self, **config: Any) -> None:
        self.narrator = Narrator(msgspec.structs.replace(CONFIG, **config))
        self.lines: list[Any] = []

    def take(self, *events: e.Event) -> Told:
        for event in events:
            self.lines += self.narrator.take(event)
        return self

    def restarts(self) -> list[str]:
        return [line.text.split(":")[0] for line in self.lines if line.text.startswith("restart ")]


def begins(number: int) -> e.RoundStarted:
    return e.RoundStarted(t=1, round=number, world_size=2, ranks=[0, 1], max_restarts=5)


def fails(number: int, left: int, by: str = "") -> list[e.Event]:
    return [
        e.FailureDetected(t=2, round=number, kind="crash", rank=0),
        e.Decision(t=3, round=number, number=number, action="restart", reason="oh",
                   restarts_left=left, by=by),
    ]  # fmt: skip


def runs(number: int, *ranks: int) -> list[e.Event]:
    return [
        e.RankMilestone(t=S, round=number, rank=rank, name="first_line", at_ns=S) for rank in ranks
    ]


CASES = Path(__file__).parents[2] / "journal" / "cases"


@pytest.mark.parametrize(
    "journal", sorted(CASES.glob("*/journal-*.jsonl")), ids=lambda p: p.parent.name
)
def test_the_console_of_a_job(journal: Path, golden: Any) -> None:
    """Each launch in the journal is told by a launcher of its own."""
    text = ""
    for launch in read_journal(journal).launches():
        begun = next(event for event in launch if isinstance(event, e.JobStarted))
        told = Told(
            node=begun.node,
            run_dir=journal.parent.name,
            nproc_per_node=begun.nproc_per_node,
            max_restarts=begun.max_restarts,
            nodes=begun.nodes and NODES,
        ).take(*launch)
        text += "".join(
            TEXT.line(line.text, prefix=line.prefix)
            for line in told.lines
            if line.level != PROGRESS
        )
    golden(journal.with_name(f"console{journal.stem.removeprefix('journal')}.txt"), text)


def test_restarts_are_counted_by_those_allowed_and_not_by_rounds() -> None:
    told = Told().take(begins(0), *fails(0, 4), begins(3), *runs(3, 0, 1))
    told.take(*fails(3, 3), begins(4), *runs(4, 0, 1))
    assert told.restarts() == ["restart 1 of 5", "restart 2 of 5"]


def test_a_restart_of_which_not_all_ranks_came_to_run_is_said() -> None:
    told = Told().take(begins(0), *fails(0, 4), begins(1), *runs(1, 0), *fails(1, 3), begins(2))
    told.take(*fails(2, 2), begins(3), *runs(3, 0, 1))
    assert told.restarts() == ["restart 1 of 5", "restart 2 of 5", "restart 3 of 5"]
    assert [line.text.partition(": ")[2][:7] for line in told.lines] == [
        *("1 of 2 ", "0 of 2 ", "2 ranks"),
    ]


@pytest.mark.parametrize("why", ["lost", "paused", ""])
def test_the_time_since_a_loss_counts_from_the_order_to_stop(why: str) -> None:
    blamed = e.RoundBlamed(t=3, number=0, node="b", line="oh", **({why: True} if why else {}))
    stop = e.StopRequested(t=S // 2, round=0, reason="oh", grace_s=1)
    told = Told().take(begins(0), stop, blamed, begins(1), *runs(1, 0, 1))
    assert any("500 ms after the failure" in line.text for line in told.lines) == bool(why)


def test_a_restart_that_uses_none_of_those_allowed_says_so() -> None:
    told = Told().take(begins(0), *fails(0, 5), begins(1), *runs(1, 0, 1))
    assert told.restarts() == ["restart (none of the 5 allowed)"]


def test_the_end_counts_rounds_that_were() -> None:
    told = Told().take(begins(0), *fails(0, 4), begins(3), *runs(3, 0, 1))
    end = e.JobEnded(t=9, round=3, outcome="finished", exit_code=0, reason="so", last_round=3)
    assert told.take(end).lines[-1][:2] == ("finished, 1 restart: so", DONE)


def test_people_at_a_terminal_see_about_once_a_minute_how_far_it_is() -> None:
    told = Told()
    for at_s, last in ((1, 4), (3, 8), (63, 104), (64, 105), (180, 105), (190, 114)):
        told.take(
            e.RoundProgress(round=0, first_iteration=0, last_iteration=last, last_ns=at_s * S)
        )
    assert [line.level for line in told.lines] == [PROGRESS] * 2
    assert [line.text.split()[1] for line in told.lines] == ["104,", "105,"]


@pytest.mark.parametrize(
    ("event", "level", "rank"),
    [
        (e.Remark(text="oh", level="error", rank=3), ERROR, 3),
        (e.Remark(text="oh", level="info"), INFO, None),
        (e.TemplateLost(reason="a thread"), WARNING, None),
        (e.AgentPaused(seconds=3.0), WARNING, None),
        (e.SlowRank(rank=2, on="n", line="slow"), WARNING, 2),
        (e.SlowRank(rank=2, on="n", line="not slow", over=True), INFO, 2),
        (e.RoundStopped(unkillable=[7]), ERROR, None),
        (e.FailureDetected(kind="spawn", rank=-1, detail="no"), ERROR, None),
        (e.RankEvent(rank=0, name="checkpoint", at_ns=1, text="doubted step=7 taken=5 no"),
         WARNING, 0),
    ],
)  # fmt: skip
def test_what_is_shown_as_it_happens(event: e.Event, level: int, rank: int | None) -> None:
    ((_, *about),) = Told().take(event).lines
    assert about[:2] == [level, rank]


@pytest.mark.parametrize(
    "event",
    [
        e.RankExited(rank=0, pid=1, exit_code=0),
        e.RoundStopped(),
        e.WorkersSpawned(mode="warm", pids=[1]),
        e.RankEvent(rank=0, name="checkpoint", at_ns=1, text="saved step=7"),
        e.StopAgreed(iteration=3),
    ],
)
def test_what_nobody_waits_for_is_not_shown(event: e.Event) -> None:
    assert Told().take(event).lines == []


@pytest.mark.parametrize(("words", "times"), [(2, 2), (80, 1)])
def test_the_last_line_refers_to_a_long_one_that_was_said(words: int, times: int) -> None:
    line = "rank 0 (node a, pid 7) failed: ValueError: " + "word " * words + "last"
    verdict = e.Verdict(kind="crash", rank=0, local_rank=0, pid=7, line=line)
    end = e.JobEnded(outcome="failed", exit_code=1, reason=f"{line}; no restart is left of 2")
    told = Told().take(begins(0), verdict, end)
    assert sum(line in each.text for each in told.lines) == times
    assert "rank 0" in told.lines[-1].text
    assert "no restart is left of 2" in told.lines[-1].text


@pytest.mark.parametrize(
    ("world_size", "stderr", "again"), [(1, 0, False), (1, 3, False), (1, 1, True), (2, 0, True)]
)
def test_the_traceback_of_the_only_rank_is_not_printed_twice(
    world_size: int, stderr: int, again: bool
) -> None:
    begun = msgspec.structs.replace(begins(0), world_size=world_size, ranks=[*range(world_size)])
    oh = "rank 0 failed: oh"
    verdict = e.Verdict(kind="crash", rank=0, local_rank=0, pid=7, line=oh, traceback="Traceback")
    told = Told(stderr=[stderr] * world_size)
    told.take(begun, verdict, e.JobEnded(outcome="failed", exit_code=1, reason=oh))
    assert any(line.text == "Traceback" for line in told.lines) == again
    assert (oh in told.lines[-1].text) == again


@pytest.mark.parametrize("nodes", [None, NODES])
@pytest.mark.parametrize(("outcome", "exit_code"), [("finished", 0), ("too_few_nodes", 19)])
def test_who_reads_logs_finds_rounds_and_the_end_in_what_is_said(
    tmp_path: Path, nodes: Nodes | None, outcome: str, exit_code: int
) -> None:
    started = e.JobStarted(
        node="a", run_id="5", argv=["train.py"], nproc_per_node=2, max_restarts=5
    )
    told = Told(nodes=nodes).take(started, begins(0), *runs(0, 0, 1), *fails(0, 4))
    told.take(begins(1), *runs(1, 0), *fails(1, 3), begins(2), *runs(2, 0, 1))
    told.take(e.JobEnded(t=9, round=2, outcome=outcome, exit_code=exit_code, reason="so"))
    lines = [f"[undaunted] {line.text}\n" for line in told.lines]

    log = tmp_path / "slurm-5.out"
    log.write_text("step 1\n" + "step 2\n".join(lines + lines))
    fd = os.open(log, os.O_RDONLY)
    try:
        found = landmarks(fd)
    finally:
        os.close(fd)

    begun = [log.read_bytes()[part.begin :].partition(b"\n")[0] for part in found.rounds[1:]]
    again = next(line for line in lines if "running again" in line).rstrip().encode()
    assert begun == [again, lines[0].rstrip().encode(), again]
    ended = [end.outcome if end else "" for end in found.ends]
    assert ended == ["", outcome.replace("_", " "), "", outcome.replace("_", " ")]
