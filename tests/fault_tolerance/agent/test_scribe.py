"""What is written down once, and what is counted."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.fault_tolerance.agent.journal_and_lines import OpenScribe
from tests.fault_tolerance.agent.test_environment import CONFIG, START
from undaunted.attribution.evidence import RankEvidence
from undaunted.attribution.hang import RankObservation, Standing
from undaunted.coordinator.policy import messages as job
from undaunted.coordinator.policy.messages import NO_ITERATIONS, Iterations
from undaunted.fault_tolerance.agent.kernel_log import Record
from undaunted.fault_tolerance.nodes_config import Nodes
from undaunted.journal import events as e
from undaunted.progress.layout import EVALUATION
from undaunted.progress.snapshot import PageSnapshot, Phase
from undaunted.progress.timeouts import Expired

if TYPE_CHECKING:
    from pathlib import Path


TWO = Nodes(min_nodes=2, max_nodes=2, endpoints=["a:1"], is_host=True, address="a")


def scribe(tmp_path: Path) -> OpenScribe:
    return OpenScribe(msgspec.structs.replace(CONFIG, run_dir=str(tmp_path)))


def events(tmp_path: Path, kind: str) -> list[dict[str, Any]]:
    (path,) = tmp_path.glob("journal-*.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [event for event in found if event["event"] == kind]


def a_round(number: int) -> Any:
    start = msgspec.structs.replace(START, round=number)
    return SimpleNamespace(start=start, port=SimpleNamespace(number=1), rank=lambda local: local)


@pytest.mark.parametrize(
    ("asked", "iteration"),
    [(20_000_000, 20_000_000), (2 * EVALUATION + 7, 7)],
)
def test_ranks_stop_after_an_iteration_of_the_program(
    tmp_path: Path, asked: int, iteration: int
) -> None:
    it = scribe(tmp_path)
    it.stop_agreed(job.StopAfter(node="a", round=0, iteration=asked))
    it.close()
    (event,) = events(tmp_path, "stop_agreed")
    assert event["iteration"] == iteration


def test_progress_is_written_when_there_is_some(tmp_path: Path) -> None:
    it = scribe(tmp_path)
    for seen, at_ns in (
        (NO_ITERATIONS, 0),
        (Iterations(4, 7), 100),
        (Iterations(4, 7), 100),
        (Iterations(problem="unreadable"), 0),
        (Iterations(4, 9), 200),
    ):
        it.round_progress(seen, at_ns)
    it.close()
    found = [
        (event["first_iteration"], event["last_iteration"], event["last_ns"])
        for event in events(tmp_path, "round_progress")
    ]
    assert found == [(4, 7, 100), (4, 9, 200)]


@pytest.mark.parametrize(
    ("action", "done", "lines"),
    [
        ("restart", False, 0),
        ("stop", False, 1),
        ("stop", True, 0),  # said of the end
        ("exclude", False, 1),
        ("exclude", True, 1),
        ("gremlins", False, 0),
    ],
)
def test_advice_is_always_written_and_said_where_it_is_more_than_a_restart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], action: str, done: bool, lines: int
) -> None:
    it = scribe(tmp_path)
    it.advised(job.Advised(3, action, "why", ("b",), "host_lag", done))
    it.close()
    (event,) = events(tmp_path, "round_advised")
    assert (event["number"], event["action"], event["nodes"]) == (3, action, ["b"])
    assert len(capfd.readouterr().err.splitlines()) == lines


def test_a_restart_that_is_taken_back_is_not_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    it = scribe(tmp_path)
    for number in (0, 1):
        it.round_started(a_round(number))
        it.decided(job.Decided(number, "restart", "rank 0 crashed", 1))
    it.decided(job.Decided(1, "end", "no progress", 1))
    it.job_ended(job.End("a", job.Outcome.NO_RESTART, "no progress"))
    it.close()
    assert "no restart, 1 restart: no progress" in capfd.readouterr().err


def test_a_restart_that_was_ordered_is_said_at_once_and_is_none_of_the_budget(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    it = scribe(tmp_path)
    by = "undaunted ctl (pid 7)"
    for number in (0, 1):
        it.round_started(a_round(number))
        it.decided(job.Decided(number, "restart", f"{by} asked for a restart", 1, by))
    it.decided(job.Decided(1, "end", "all nodes have left", 1))
    it.decided(job.Decided(1, "restart", f"{by} asked to go on without node a", 1, by))
    it.job_ended(job.End("a", job.Outcome.NO_RESTART, "all nodes have left"))
    it.close()
    lines = capfd.readouterr().err.splitlines()
    assert sum("asked for a restart: round 0 is stopped" in line for line in lines) == 1
    assert "no restart, 1 restart on request: all nodes" in lines[-1]
    assert [event.get("by") for event in events(tmp_path, "decision")] == [by, by, None, by]


def begun(first_line_ns: int) -> Any:
    return SimpleNamespace(
        problem="", first_line_ns=first_line_ns, initialized_ns=None, first_step_ns=None
    )


def test_a_rank_that_begins_after_the_failure_of_its_round_is_no_restart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    it = scribe(tmp_path)
    it.round_started(first := a_round(0))
    it.crash_detected(0, 1, "exits with 3")
    for local_rank in range(first.start.slots):
        it.milestones(first, local_rank, begun(time.monotonic_ns()))
    it.round_started(second := a_round(1))
    it.crash_detected(0, 1, "again, before all have begun")
    assert "running again" not in capfd.readouterr().err
    for local_rank in range(second.start.slots):
        it.milestones(second, local_rank, begun(time.monotonic_ns()))
    it.close()
    assert capfd.readouterr().err.count("restart 1 of") == 1


@pytest.mark.parametrize("nodes", [None, TWO])
def test_a_node_of_several_says_that_only_its_own_ranks_run_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], nodes: Nodes | None
) -> None:
    it = OpenScribe(msgspec.structs.replace(CONFIG, run_dir=str(tmp_path), nodes=nodes))
    it.round_started(a_round(0))
    it.crash_detected(0, 1, "exits with 3")
    it.round_started(second := a_round(1))
    for local_rank in range(second.start.slots):
        it.milestones(second, local_rank, begun(time.monotonic_ns()))
    it.close()
    (line,) = [each for each in capfd.readouterr().err.splitlines() if "running again" in each]
    assert ("of this node" in line) == (nodes is not None)


@pytest.mark.parametrize("mode", ["warm", "fresh"])
def test_what_fresh_ranks_have_before_them_is_said_with_a_restart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], mode: Any
) -> None:
    it = scribe(tmp_path)
    it.round_started(first := a_round(0))
    it.crash_detected(0, 1, "exits with 3")
    it.round_started(second := a_round(1))
    it.journal.record(e.WorkersSpawned(mode=mode, pids=[1] * first.start.slots))
    for local_rank in range(second.start.slots):
        it.milestones(second, local_rank, begun(time.monotonic_ns()))
    it.close()
    said = capfd.readouterr().err
    assert "first line of the script" in said
    assert ("imports" in said) == (mode == "fresh")


def of_several_nodes(tmp_path: Path) -> OpenScribe:
    nodes = Nodes(min_nodes=2, max_nodes=3, endpoints=["b:1"], is_host=False, address="a")
    return OpenScribe(msgspec.structs.replace(CONFIG, run_dir=str(tmp_path), nodes=nodes))


def test_why_a_round_was_stopped_is_said_where_nobody_is_blamed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    it = of_several_nodes(tmp_path)
    it.round_started(a_round(0))
    it.decided(job.Decided(0, "restart", "the launcher on node b received SIGTERM", 1))
    it.round_started(a_round(1))
    it.decided(job.Decided(1, "restart", "node c is lost", 1))
    it.blamed(job.Blamed(1, "d", "rank 3 crashed", ()))
    it.round_started(a_round(2))
    it.close()
    said = capfd.readouterr().err
    assert "round 0 was stopped: the launcher on node b received SIGTERM" in said
    assert "first cause in round 1: rank 3 crashed" in said
    assert "round 1 was stopped" not in said


def test_why_a_round_was_stopped_is_said_where_it_had_gone_on_after_a_hang(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    it = of_several_nodes(tmp_path)
    it.round_started(a_round(0))
    it.blamed(job.Blamed(0, "b", "rank 7 hangs", (CONFIG.node,), (7,), "host_lag"))
    it.decided(job.Decided(0, "restart", "the launcher on node c received SIGTERM", 1))
    it.round_started(a_round(1))
    it.close()
    said = "round 0 was stopped: the launcher on node c received SIGTERM"
    assert said in capfd.readouterr().err


def test_why_a_round_was_stopped_is_said_where_no_decision_was_heard_of(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    it = of_several_nodes(tmp_path)
    it.round_started(a_round(0))
    it.stop_requested(job.Stop("a", 0, "the coordinator had lost this node", 2.0))
    it.round_started(a_round(1))
    it.blamed(job.Blamed(1, "b", "rank 7 crashed", ()))
    it.stop_requested(job.Stop("a", 1, "node b: exit code 1", 2.0))
    it.round_started(a_round(2))
    it.close()
    said = capfd.readouterr().err
    assert "round 0 was stopped: the coordinator had lost this node" in said
    assert "round 1 was stopped" not in said


def test_a_node_that_joins_later_counts_the_restarts_of_the_job(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    it = of_several_nodes(tmp_path)
    it.round_started(a_round(2))
    it.job_ended(job.End("a", job.Outcome.FINISHED, "every rank exited with 0"))
    it.close()
    assert "finished, 2 restarts" in capfd.readouterr().err


def test_a_node_that_was_away_at_the_end_counts_as_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    it = of_several_nodes(tmp_path)
    it.round_started(a_round(4))
    it.job_ended(job.End("a", job.Outcome.FINISHED, "every rank exited with 0", 5))
    it.close()
    assert "finished, 5 restarts" in capfd.readouterr().err


def test_a_spare_that_is_taken_in_knows_which_round_was_stopped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    it = of_several_nodes(tmp_path)
    it.decided(job.Decided(3, "restart", "node c left", 1))
    it.round_started(a_round(4))
    it.close()
    assert "round 3 was stopped: node c left" in capfd.readouterr().err


@pytest.mark.parametrize(("ranks", "said"), [(True, "passed on to the"), (False, "no rank runs")])
def test_a_signal_is_passed_on_where_there_are_ranks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], ranks: bool, said: str
) -> None:
    it = scribe(tmp_path)
    if ranks:
        it.round_started(a_round(0))
    it.journal.record(e.SignalReceived(signal="SIGTERM"))
    it.close()
    assert f"received SIGTERM: {said}" in capfd.readouterr().err


@pytest.mark.parametrize(("blamed", "shown"), [(CONFIG.node, True), ("another", False)])
def test_only_the_traceback_of_the_first_cause_is_shown_in_full(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], blamed: str, shown: bool
) -> None:
    it = of_several_nodes(tmp_path)
    it.round_started(a_round(0))
    it.verdict(crash("Traceback: of round 0"))
    it.round_started(a_round(1))
    it.verdict(crash("Traceback: of round 1"))
    it.blamed(job.Blamed(1, blamed, "rank 3 crashed", ()))
    it.job_ended(job.End("a", job.Outcome.FAILED, "no restart is left"))
    it.close()
    said = capfd.readouterr().err
    assert ("Traceback: of round 1" in said) is shown
    assert "of round 0" not in said


class TestWhoHangsInAJobOfSeveralNodes:
    """The node's own verdict is written down; people see the one of the job."""

    def hung(self) -> Any:
        line = "no rank of this node is known to be the cause"
        return e.Verdict(kind="hang", rank=3, local_rank=0, pid=1, line=line)

    def test_only_that_of_the_job_is_said(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        it = of_several_nodes(tmp_path)
        it.round_started(a_round(0))
        it.verdict(self.hung())
        it.blamed(job.Blamed(0, "b", "rank 7 hangs", (CONFIG.node,), (7,), "host_lag"))
        it.decided(job.Decided(0, "restart", "rank 7 hangs", 1))
        it.round_started(a_round(1))
        it.job_ended(job.End("a", job.Outcome.FAILED, "no restart is left"))
        it.close()
        said = capfd.readouterr().err
        assert "no rank of this node" not in said
        assert said.count("rank 7 hangs") == 1
        assert f"rank 7 hangs; the ranks of {CONFIG.node} are victims" in said
        (verdict,) = events(tmp_path, "verdict")
        (blamed,) = events(tmp_path, "round_blamed")
        assert (verdict["rank"], blamed["ranks"], blamed["cause"]) == (3, [7], "host_lag")

    @pytest.mark.parametrize("nodes", [1, 2])
    def test_the_end_does_not_say_the_whole_line_again(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str], nodes: int
    ) -> None:
        line, reason = "rank 3 (node b, pid 7) hangs: in load", "--max-restarts is 0"
        one = msgspec.structs.replace(CONFIG, run_dir=str(tmp_path))
        it = of_several_nodes(tmp_path) if nodes > 1 else OpenScribe(one)
        it.round_started(a_round(0))
        event = e.Verdict(
            t=1, kind="hang", rank=3, local_rank=0, pid=7, line=f"{line}; stacks: run/stacks.txt"
        )
        it.verdict(event)
        if nodes > 1:
            it.blamed(job.Blamed(0, "b", line, (), (3,)))
        it.job_ended(job.End("a", job.Outcome.FAILED, f"{line}; {reason}"))
        it.close()
        said = capfd.readouterr().err
        assert said.count("in load") == 1
        assert f"failed: rank 3 (node b, pid 7) hangs, see above; {reason}" in said
        assert events(tmp_path, "job_ended")[0]["reason"] == f"{line}; {reason}"

    def test_its_own_is_said_if_there_is_none(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        it = of_several_nodes(tmp_path)
        it.round_started(a_round(0))
        it.verdict(self.hung())
        it.job_ended(job.End("a", job.Outcome.FAILED, "the coordinator is gone"))
        it.close()
        assert capfd.readouterr().err.count("no rank of this node") == 1

    def test_of_a_victim_that_goes_on_nothing_is_left(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        it = of_several_nodes(tmp_path)
        it.round_started(a_round(0))
        it.verdict(self.hung())
        it.verdict_withdrawn()
        it.job_ended(job.End("a", job.Outcome.FINISHED, "every rank exited with 0"))
        it.close()
        assert "no rank of this node" not in capfd.readouterr().err


def crash(traceback: str) -> Any:
    return e.Verdict(
        kind="crash", rank=3, local_rank=0, pid=1, line="rank 3 crashed", traceback=traceback
    )


@pytest.mark.parametrize(
    ("name", "outcome", "hint"),
    [("SIGINT", "stopped by the user (Ctrl-C)", True), ("SIGTERM", "preempted", False)],
)
def test_ctrl_c_is_an_interruption_and_a_second_one_is_offered_to_nobody_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, outcome: str, hint: bool
) -> None:
    it = scribe(tmp_path)
    it.round_started(a_round(0))
    it.journal.record(e.SignalReceived(signal=name))
    it.job_ended(job.End("a", job.Outcome.PREEMPTED, f"the launcher on node a received {name}"))
    it.close()
    received, ended = capfd.readouterr().err.splitlines()
    assert "--term-timeout" in received
    assert ("a second Ctrl-C" in received) is hint
    assert ended.startswith(f"[undaunted] {outcome}: ")
    (event,) = events(tmp_path, "job_ended")
    assert (event["outcome"], event["exit_code"]) == ("preempted", 75)


def test_a_name_of_several_lines_is_said_in_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = msgspec.structs.replace(CONFIG, run_dir=str(tmp_path), target="new\nline.py")
    it = OpenScribe(config)
    it.job_started()
    it.close()
    (line,) = capfd.readouterr().err.splitlines()
    assert " of new line.py on " in line


@pytest.mark.parametrize(
    ("is_host", "given", "said"), [(True, 0, True), (False, 0, False), (False, 3, True)]
)
def test_a_launcher_that_leaves_restarts_to_the_coordinator_does_not_say_how_many(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], is_host: bool, given: int, said: bool
) -> None:
    nodes = Nodes(min_nodes=2, max_nodes=2, endpoints=["a:1"], is_host=is_host, address="a")
    config = msgspec.structs.replace(CONFIG, run_dir=str(tmp_path), nodes=nodes, max_restarts=given)
    it = OpenScribe(config)
    it.job_started()
    it.close()
    (line,) = capfd.readouterr().err.splitlines()
    assert (" restarts allowed; report: " in line) is said


def test_who_is_silent_is_written_and_said_and_no_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    it = scribe(tmp_path)
    page = PageSnapshot(phase=Phase.STEPPING)
    evidence = [RankEvidence(1, 1, 7, page, (), "S", "stack of it", "")]
    seen = RankObservation(1, "n", 7, Standing.BUSY, frame="load (train.py:12)")
    expired = Expired("heartbeat", "", 1, 2, age_s=31.0, limit_s=124.0, source="default")
    path = str(tmp_path / "early.txt")
    it.rank_silent(evidence, seen, expired, path)
    it.close()
    (event,) = events(tmp_path, "rank_silent")
    assert (event["rank"], event["path"]) == (1, path)
    assert "stack of it" in (tmp_path / "early.txt").read_text()
    said = capfd.readouterr().err
    for word in ("rank 1", "no heartbeat for 31.0 s", "load (train.py:12)", path):
        assert word in said
    assert events(tmp_path, "failure_detected") == []


def test_what_the_kernel_logged_is_kept_and_its_first_line_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    it = scribe(tmp_path)
    path = tmp_path / "kernel-round3.log"
    texts = ["NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.", *["I/O error"] * 20]
    it.kernel_logged(3, [Record(1.5, text) for text in texts], str(path))
    it.close()
    (event,) = events(tmp_path, "kernel_logged")
    assert event["round"] == 3
    assert (event["count"], event["file"]) == (21, str(path))
    assert event["lines"] == texts[:8]
    assert path.read_text().splitlines()[0] == f"1970-01-01 00:00:01.500000Z kernel: {texts[0]}"
    assert texts[0] in capfd.readouterr().err
