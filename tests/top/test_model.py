"""The whole job at one moment."""

from __future__ import annotations

import msgspec
import pytest

from tests.journal import sample
from tests.journal.sample import at
from tests.top.pages import SECOND, look, stepping
from undaunted.journal import events as e
from undaunted.progress.reader import RingEvent
from undaunted.top.model import Job, LauncherProcess, Model
from undaunted.top.pages import Look

BEGIN = [*sample.OPENING, *sample.begin(10, 0)]
NAME = "journal-n0.jsonl"


def job_after(
    *events: e.Event, process: LauncherProcess | None = None, now_ns: int = 20 * SECOND
) -> Job:
    model = Model("run")
    model.take(NAME, events)
    process = process or LauncherProcess(running=True)
    return model.job({NAME: process}, now_ns=now_ns, wall=1000 + now_ns / SECOND)


def test_nothing_to_show() -> None:
    job = Model("run").job({}, now_ns=1, wall=1.0, problems=["no room"])
    assert (job.ranks, job.problems) == ([], ["no room"])
    assert "no launcher" in job.state


def test_a_job_that_runs() -> None:
    pages = [look(stepping(107, 20 * SECOND, first_iteration=7)) for _ in range(2)]
    job = job_after(*BEGIN, process=LauncherProcess(running=True, looks=pages))
    assert (job.run_id, job.state, job.style) == ("demo", "round 0 is running", "green")
    assert (job.restarts, job.max_restarts, job.world_size, job.iteration) == (0, 3, 2, 107)
    assert job.running_s == pytest.approx(19.999)
    assert job.round_s == pytest.approx(19.99)
    assert job.goodput == pytest.approx(0.997, abs=0.001)
    assert [row.rank for row in job.ranks] == [0, 1]
    assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], "starting"),
        ([at(10, e.RoundStarted, 0, world_size=1, ranks=[0])], "round 0 is starting"),
        (BEGIN[2:] + sample.CRASH[:1], "a failure in round 0 is being examined"),
        (BEGIN[2:] + sample.CRASH[:3], "a failure in round 0 is being stopped"),
        (
            [*BEGIN[2:], at(20, e.StopRequested, 0, reason="", grace_s=1)],
            "round 0 is being stopped",
        ),
        ([*BEGIN[2:], at(20, e.RoundStopped, 0)], "round 0 is stopped"),
        (
            [*BEGIN[2:], at(20, e.InProcessPhase, 0, call=0, epoch=1, phase="detect")],
            "restarting inside the processes",
        ),
        (sample.RUN[2:], "finished, exit code 0"),
    ],
)  # fmt: skip
def test_states(events: list[e.Event], state: str) -> None:
    assert job_after(*sample.OPENING, *events).state == state


def test_a_launcher_that_was_killed() -> None:
    job = job_after(*BEGIN, process=LauncherProcess(running=False))
    assert job.state == "killed: the launcher is gone and recorded no end"
    assert job.running_s == pytest.approx(0.045)  # its last event


def test_a_launcher_that_was_stopped_by_a_signal() -> None:
    job = job_after(*BEGIN, process=LauncherProcess(running=True, stopped=True))
    assert len(job.problems) == 1
    assert job.problems[0].startswith("n0: the launcher was stopped by a signal: until it gets SIG")


def test_the_process_that_the_user_started_was_stopped() -> None:
    job = job_after(*BEGIN, process=LauncherProcess(running=True, front_stopped=True))
    (problem,) = job.problems
    assert problem.startswith("n0: ")
    assert "SIGCONT" in problem
    both = LauncherProcess(running=True, stopped=True, front_stopped=True)
    assert len(job_after(*BEGIN, process=both).problems) == 1


def test_pages_that_cannot_be_read() -> None:
    process = LauncherProcess(running=True, problem="not shown to this user")
    job = job_after(*BEGIN, process=process)
    assert job.problems == ["n0: not shown to this user; shown is what was known last"]
    assert [row.phase for row in job.ranks] == ["stepping"] * 2
    assert job_after(*sample.RUN, process=process).problems == []


def test_a_node_on_another_machine_goes_by_its_wall_clock() -> None:
    job = job_after(*BEGIN, process=LauncherProcess(running=None), now_ns=50 * SECOND)
    assert job.running_s == pytest.approx(49.999)
    assert job.round_s == pytest.approx(49.99)


def test_time_goes_on_when_one_of_the_launchers_is_gone() -> None:
    model = Model("run")
    model.take(NAME, BEGIN)
    model.take("journal-n1.jsonl", [msgspec.structs.replace(event, node="n1") for event in BEGIN])
    launches = {
        NAME: LauncherProcess(running=False),
        "journal-n1.jsonl": LauncherProcess(running=True),
    }
    job = model.job(launches, now_ns=20 * SECOND, wall=1020.0)
    assert job.running_s == pytest.approx(19.999)
    launches["journal-n1.jsonl"] = LauncherProcess(running=False)
    job = model.job(launches, now_ns=20 * SECOND, wall=1020.0)
    assert job.running_s == pytest.approx(0.045)


def test_several_nodes() -> None:
    model = Model("run")
    model.take(NAME, BEGIN)
    other = [msgspec.structs.replace(event, node="n1") for event in BEGIN]
    other[2] = at(10, e.RoundStarted, 0, world_size=4, ranks=[2, 3])
    model.take("journal-n1.jsonl", [msgspec.structs.replace(event, node="n1") for event in other])
    job = model.job({NAME: LauncherProcess(running=True)}, now_ns=SECOND, wall=1001.0)
    assert job.nodes == ["n0", "n1"]
    assert [(row.rank, row.node) for row in job.ranks] == [
        (0, "n0"), (1, "n0"), (2, "n1"), (3, "n1"),
    ]  # fmt: skip


def test_a_job_that_one_node_saw_finish_has_finished() -> None:
    model = Model("run")
    model.take(NAME, sample.RUN)
    model.take("journal-n1.jsonl", [msgspec.structs.replace(e, node="n1") for e in BEGIN])
    launches = {
        NAME: LauncherProcess(running=False),
        "journal-n1.jsonl": LauncherProcess(running=False),
    }
    job = model.job(launches, now_ns=20 * SECOND, wall=1020.0)
    assert job.nodes == ["n0", "n1"]
    assert (job.state, job.style) == ("finished, exit code 0", "green")


def with_node(model: Model, node: str, number: int, ranks: list[int], ms: float = 10) -> None:
    """A node takes part in a round with these ranks."""
    begin = [*sample.OPENING, at(ms, e.RoundStarted, number, world_size=4, ranks=ranks)]
    events = [msgspec.structs.replace(event, node=node) for event in begin]
    model.take(f"journal-{node}.jsonl", events)


def test_a_node_that_was_lost_gives_its_ranks_to_another_one() -> None:
    model = Model("run")
    with_node(model, "n0", 1, [0, 1])
    with_node(model, "n1", 0, [2, 3])
    assert [(row.rank, row.node) for row in model.job({}, now_ns=1, wall=1.0).ranks][2:] == [
        (2, "n1"), (3, "n1"),
    ]  # fmt: skip
    with_node(model, "n2", 1, [2, 3])
    with_node(model, "n3", 0, [4, 5])  # the job has become smaller
    job = model.job({}, now_ns=1, wall=1.0)
    assert [(row.rank, row.node) for row in job.ranks] == [
        (0, "n0"), (1, "n0"), (2, "n2"), (3, "n2"),
    ]  # fmt: skip


def test_a_killed_launch_is_not_of_the_next_job() -> None:
    model = Model("run")
    with_node(model, "old", 3, [0, 1])
    begin = [at(20_000, e.JournalOpened, boot_id="b", pid=50)]
    begin += [at(20_001, e.JobStarted, run_id="demo", argv=[], nproc_per_node=1, max_restarts=0)]
    model.take(NAME, begin)
    job = model.job({"journal-old.jsonl": LauncherProcess(running=False)}, now_ns=1, wall=1021.0)
    assert (job.nodes, job.round, job.ranks) == (["n0"], -1, [])


def test_a_new_launch_hides_nodes_that_have_no_part_in_it() -> None:
    model = Model("run")
    model.take("journal-old.jsonl", sample.RUN)
    begin = [at(20_000, e.JournalOpened, boot_id="b", pid=50)]
    begin += [at(20_001, e.JobStarted, run_id="demo", argv=[], nproc_per_node=1, max_restarts=0)]
    model.take(NAME, begin)
    job = model.job({}, now_ns=1, wall=1021.0)
    assert (len(job.nodes), job.state) == (1, "starting")


def test_events_are_told_once_whether_read_in_a_page_or_in_the_journal() -> None:
    text = "saved step=5 total_s=1.0"
    ring = (RingEvent("checkpoint", text, 19 * SECOND), RingEvent("mine", "x", 1))
    looks = [Look(stepping(5, 20 * SECOND), ring, "S")] * 2
    told = at(50, e.RankEvent, 0, rank=0, name="checkpoint", at_ns=19 * SECOND, text=text)
    for events in (BEGIN, [*BEGIN, told]):
        job = job_after(*events, process=LauncherProcess(running=True, looks=looks))
        assert [note.text for note in job.notes] == ["checkpoint of step 5 saved in 1.0 s"]


def test_time_is_counted_anew_now_and_then() -> None:
    model = Model("run")
    model.take(NAME, BEGIN)

    def goodput(iteration: int, now_ns: int) -> float | None:
        pages = [look(stepping(iteration, now_ns, first_iteration=7))] * 2
        process = LauncherProcess(running=True, looks=pages)
        return model.job({NAME: process}, now_ns=now_ns, wall=1.0).goodput

    first = goodput(50, SECOND)
    assert goodput(60, 2 * SECOND) == first
    assert goodput(90, 7 * SECOND) != first
