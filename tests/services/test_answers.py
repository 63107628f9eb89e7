"""What is said of a log, in the words of NVRx's service; `test_service` has whole answers."""

from __future__ import annotations

import pytest

from undaunted.attribution.findings import Finding
from undaunted.attribution.logs.landmarks import LastWords
from undaunted.services import answers
from undaunted.services.results import Log, LogResult, Results

STAMP = (1, 2, 3)
OOM = Finding("gpu_out_of_memory", (3,), quote="rank 3: CUDA out of memory", source="/a:7")


@pytest.mark.parametrize(
    ("log", "mode", "restarts"),
    [
        (Log("/a"), "PENDING", 0),
        (Log("/a", wanted=True), "SINGLE", 0),
        (Log("/a", told=LogResult(STAMP)), "SINGLE", 0),
        (Log("/a", told=LogResult(STAMP, starts=1)), "SINGLE", 0),  # it says no folder
        (Log("/a", told=LogResult(STAMP, starts=3, logs_dir="/logs")), "SPLITLOG", 2),
    ],
)
def test_modes(log: Log, mode: str, restarts: int) -> None:
    assert (answers.mode(log), answers.sched_restarts(log)) == (mode, restarts)
    assert answers.row(log)["mode"] == answers.submission(log, 0)["mode"] == mode


def test_keys_are_the_same_with_a_result_and_without() -> None:
    without = answers.no_result("/a", "pending")
    found = answers.result(Results(), Log("/a", told=LogResult(STAMP, (OOM,), 5)))
    assert found.keys() - without.keys() == {"result"}
    assert without["recommendation"]["action"] == "UNKNOWN"
    assert found["recommendation"] == found["result"]["recommendation"]
    assert found["result"].keys() == {"module", "result", "recommendation", "findings"}


def test_a_round_is_asked_for_by_its_number() -> None:
    log = Log("/a", told=LogResult(STAMP, ended=True, earlier=(LogResult(STAMP, (OOM,), 5),)))
    results = Results()
    assert answers.result(results, log)["recommendation"]["action"] == "CONTINUE"
    assert answers.result(results, log, 0)["recommendation"]["action"] == "RESTART"
    for number in (-1, 2):
        with pytest.raises(IndexError, match="wl_restart 0 to 1"):
            answers.result(results, log, number)


def test_a_failure_is_counted_among_those_of_all_rounds() -> None:
    oom, lost = LogResult(STAMP, (OOM,), 5), LogResult(STAMP, (LOST,), 5)
    log = Log("/a", told=LogResult(STAMP, (OOM,), 5, earlier=(oom, lost)))
    text = answers.result(Results(), log)["result"]["result"]
    assert "2 of 3 failures" in text


def test_dumps_that_were_read_are_said() -> None:
    log = Log("/a", told=LogResult(STAMP, (OOM,), dumps="/dumps", hanging=(1, 3)))
    found = answers.result(Results(), log)["result"]
    assert (found["fr_dump_path"], found["hanging_ranks"]) == ("/dumps", [1, 3])


LOST = Finding("node_failed", nodes=("n2",), quote="srun: error: Node failure on n2", source="/a:3")
LEFT = Finding("terminated", (1,), quote="srun: error: n1: task 0: Killed", source="/a:4")


def last(text: str) -> LastWords:
    return LastWords(text.partition(":")[0], text, 9)


@pytest.mark.parametrize(
    ("told", "state", "action", "words"),
    [
        (LogResult(STAMP, (LOST,)), "COMPLETED", "CONTINUE", "COMPLETED"),
        (LogResult(STAMP, ended=True), "FAILED", "RESTART", "to its end"),
        (LogResult(STAMP, ended=True), "OUT_OF_MEMORY", "RESTART", "OUT_OF_MEMORY"),
        (LogResult(STAMP, ended=True), "TIMEOUT", "CONTINUE", "to its end"),
        (
            LogResult(STAMP, ended=True, last=last("finished: well")),
            "FAILED",
            "CONTINUE",
            "to its end",
        ),
        (LogResult(STAMP), "NODE_FAIL", "RESTART", "node_failed"),
        (LogResult(STAMP, (LEFT,)), "PREEMPTED", "RESTART", "preempted"),
        (LogResult(STAMP, (LEFT,)), "TIMEOUT", "RESTART", "time_limit"),
        (LogResult(STAMP, (OOM,)), "NODE_FAIL", "RESTART", "gpu_out_of_memory"),
        (LogResult(STAMP, step=7), "FAILED", "RESTART", "the last step is 7"),
        (LogResult(STAMP), "RUNNING", "CONTINUE", "no failure"),
        (LogResult(STAMP), "", "CONTINUE", "no failure"),
        # The launcher knows better than Slurm, which has no place left for the job, say.
        (
            LogResult(STAMP, ended=True, last=last("finished: well")),
            "CANCELLED",
            "CONTINUE",
            "to its end",
        ),
        (
            LogResult(STAMP, last=last("no restart: again the same")),
            "FAILED",
            "STOP",
            "again the same",
        ),
        (
            LogResult(STAMP, (OOM,), last=last("failed: rank 3; not restarted: it ended at once")),
            "FAILED",
            "STOP",
            "ended at once",
        ),
        (
            LogResult(
                STAMP,
                (Finding("preempted"),),
                last=last("preempted: n1; not queued again: this start came to iteration 5"),
            ),
            "PREEMPTED",
            "STOP",
            "this start came to iteration 5",
        ),
        (
            LogResult(STAMP, last=last("failed: rank 1 exited with 3")),
            "",
            "RESTART",
            "exited with 3",
        ),
    ],
)
def test_slurm_and_the_launcher_are_not_contradicted(
    told: LogResult, state: str, action: str, words: str
) -> None:
    found = answers.result(Results(), Log("/a", told=told, state=state))
    assert found["recommendation"]["action"] == action
    assert words in found["result"]["result"]


def test_the_state_is_that_of_the_last_start() -> None:
    log = Log("/a", told=LogResult(STAMP, earlier=(LogResult(STAMP, step=3),)), state="NODE_FAIL")
    assert answers.result(Results(), log, 0)["recommendation"]["action"] == "CONTINUE"
    assert answers.result(Results(), log)["recommendation"]["action"] == "RESTART"
