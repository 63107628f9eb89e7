"""What is said of a log, in the words of NVRx's service; `test_service` has whole answers."""

from __future__ import annotations

import pytest

from undaunted.attribution.findings import Finding
from undaunted.services import answers
from undaunted.services.results import Log, Results, Told

STAMP = (1, 2, 3)
OOM = Finding("gpu_out_of_memory", (3,), quote="rank 3: CUDA out of memory", source="/a:7")


@pytest.mark.parametrize(
    ("log", "mode", "restarts"),
    [
        (Log("/a"), "PENDING", 0),
        (Log("/a", wanted=True), "SINGLE", 0),
        (Log("/a", told=Told(STAMP)), "SINGLE", 0),
        (Log("/a", told=Told(STAMP, starts=1)), "SINGLE", 0),  # it says no folder
        (Log("/a", told=Told(STAMP, starts=3, logs_dir="/logs")), "SPLITLOG", 2),
    ],
)
def test_modes(log: Log, mode: str, restarts: int) -> None:
    assert (answers.mode(log), answers.sched_restarts(log)) == (mode, restarts)
    assert answers.row(log)["mode"] == answers.submission(log, 0)["mode"] == mode


def test_keys_are_the_same_with_a_result_and_without() -> None:
    without = answers.no_result("/a", "pending")
    found = answers.result(Results(), Log("/a", told=Told(STAMP, (OOM,), 5)))
    assert found.keys() - without.keys() == {"result"}
    assert without["recommendation"]["action"] == "UNKNOWN"
    assert found["recommendation"] == found["result"]["recommendation"]
    assert found["result"].keys() == {"module", "result", "recommendation", "findings"}


def test_a_round_is_asked_for_by_its_number() -> None:
    log = Log("/a", told=Told(STAMP, ended=True, earlier=(Told(STAMP, (OOM,), 5),)))
    results = Results()
    assert answers.result(results, log)["recommendation"]["action"] == "CONTINUE"
    assert answers.result(results, log, 0)["recommendation"]["action"] == "RESTART"
    for number in (-1, 2):
        with pytest.raises(IndexError, match="wl_restart 0 to 1"):
            answers.result(results, log, number)


def test_dumps_that_were_read_are_said() -> None:
    log = Log("/a", told=Told(STAMP, (OOM,), dumps="/dumps", hanging=(1, 3)))
    found = answers.result(Results(), log)["result"]
    assert (found["fr_dump_path"], found["hanging_ranks"]) == ("/dumps", [1, 3])
