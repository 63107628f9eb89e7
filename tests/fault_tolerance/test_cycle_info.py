from __future__ import annotations

import json
import os
import queue
import stat
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator.lead.seats import ledger, table
from undaunted.coordinator.policy import messages as job
from undaunted.coordinator.protocol import Ledger
from undaunted.fault_tolerance import cycle_info
from undaunted.fault_tolerance.cycle_info import (
    CycleInfo,
    CycleInfoFiles,
    CycleTracker,
    OwnRounds,
    content,
    iso_time,
    node_ranges,
)
from undaunted.fault_tolerance.run_config import CycleInfoPlace

NONE = Ledger(run_id="job")

about = {"job_id": "7", "attempt": 1, "log_file": "/l/train_cycle0.log"}


@pytest.fixture
def place(tmp_path: Path) -> CycleInfoPlace:
    return CycleInfoPlace(
        directory=str(tmp_path / "info"), job_id="7/8", attempt=2, log_prefix="/logs/train.log"
    )


def read(path: str) -> dict[str, object]:
    content: dict[str, object] = json.loads(Path(path).read_text())
    return content


def test_files_and_the_link_to_the_newest(place: CycleInfoPlace) -> None:
    files = CycleInfoFiles(place, pytest.fail)
    files.lead(NONE)
    files.take(ledger("abc"), lambda: ["d"])
    files.take(ledger("abc", running=False), tuple)
    files.take(ledger("bcd", round=1), tuple)
    files.close()
    directory = Path(place.directory)
    assert {path.name for path in directory.iterdir()} == {
        "cycle_info.7_8.2.0",
        "cycle_info.7_8.2.1",
        "cycle_info.7_8.current",
    }
    assert os.readlink(place.current) == "cycle_info.7_8.2.1"  # also where it is mounted elsewhere
    first, second = read(place.path(0)), read(place.current)
    assert (first["job_id"], first["attempt_index"], first["standby_nodes"]) == ("7/8", 2, "d")
    assert first["cycle_log_file"] == "/logs/train_cycle0.log"
    assert str(first["cycle_start_time"]) <= str(first["cycle_end_time"])
    assert (second["cycle_number"], second["cycle_end_time"]) == (1, None)
    assert stat.S_IMODE(Path(place.path(0)).stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_later_leader_completes_the_file_of_the_first(place: CycleInfoPlace) -> None:
    first = CycleInfoFiles(place, pytest.fail)
    first.lead(NONE)
    first.take(ledger("abc"), lambda: ["d"])
    first.close()
    begun = read(place.path(0))
    second = CycleInfoFiles(place, pytest.fail)
    second.lead(ledger("abc", epoch=2))
    second.take(ledger("abc", epoch=2, running=False), tuple)
    second.close()
    ended = read(place.path(0))
    assert ended.pop("cycle_end_time")
    assert ended == {**{k: v for k, v in begun.items() if k != "cycle_end_time"}, "generation": 2}


@pytest.mark.parametrize("content", ["", "{", '{"job_id": 3}', "[" * 9999])
def test_a_file_that_says_nothing_is_replaced(place: CycleInfoPlace, content: str) -> None:
    Path(place.directory).mkdir()
    Path(place.path(0)).write_text(content)
    files = CycleInfoFiles(place, pytest.fail)
    files.lead(ledger("abc"))
    files.close()
    assert read(place.path(0))["cycle_start_time"] is None


def test_a_place_that_cannot_be_written_is_said_once(place: CycleInfoPlace) -> None:
    Path(place.directory).write_text("no directory")
    said: list[str] = []
    files = CycleInfoFiles(place, said.append)
    files.lead(NONE)
    files.take(ledger("abc"), tuple)
    files.take(ledger("abc", round=1), tuple)
    files.close()
    (line,) = said
    assert place.directory in line
    assert "the job goes on" in line


def test_a_disk_that_hangs_holds_up_nobody(
    place: CycleInfoPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: queue.Queue[int] = queue.Queue()
    released: queue.Queue[None] = queue.Queue()
    written: list[int] = []

    def hang(_place: object, cycle: cycle_info.Cycle) -> None:
        if not written:
            began.put(cycle.number)
            released.get(timeout=30)
        written.append(cycle.number)

    monkeypatch.setattr(cycle_info, "_write", hang)
    files = CycleInfoFiles(place, pytest.fail)
    files.lead(NONE)
    files.take(ledger("abc"), tuple)
    assert began.get(timeout=30) == 0
    for number in range(1, 1000):
        files.take(ledger("abc", round=number), tuple)
    released.put(None)
    files.close()
    assert written == [0, *range(936, 1000)]


def test_a_job_of_one_node(place: CycleInfoPlace) -> None:
    rounds = OwnRounds(place, pytest.fail)
    rounds.obey(job.Start("node1", 0, 0, 1, 0, 4, 4, 3))
    rounds.obey(job.Stop("node1", 0, "crash", 1.0))
    rounds.obey(job.Decided(0, "restart", "crash", 2))
    rounds.obey(job.Start("node1", 1, 0, 1, 0, 4, 4, 3))
    rounds.obey(job.End("node1", job.Outcome.FINISHED, "all ranks finished"))
    rounds.close()
    for number in (0, 1):
        info = read(place.path(number))
        assert (info["active_nodes"], info["active_ranks"]) == ("node1", "0-3")
        assert info["cycle_end_time"]


def spares(*names: str):
    return lambda: names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("b", "a"), "a,b"),
        (("node1",), "node1"),
        (("node3", "node1", "node2", "node7"), "node[1-3,7]"),
        (("n08", "n09", "n10", "n11"), "n[08-11]"),
        (("n8", "n9", "n10"), "n[8-10]"),
        (("n9", "n010"), "n[9,010]"),
        (("n98", "n99", "n100"), "n[98-100]"),
        (("a-2", "a-1", "b1.site", "login"), "a-[1-2],b1.site,login"),
        (("1", "2", "3"), "[1-3]"),
    ],
)
def test_nodes_as_slurm_writes_them(names, text):
    assert node_ranges(names) == text


def expand(text: str) -> set[str]:
    prefix, bracket, rest = text.partition("[")
    if not bracket:
        return {text}
    names = set()
    for part in rest.removesuffix("]").split(","):
        low, _, high = part.partition("-")
        numbers = range(int(low), int(high or low) + 1)
        names |= {f"{prefix}{str(number).zfill(len(low))}" for number in numbers}
    return names


@given(st.sets(st.from_regex(r"\A[0-9]{1,3}\Z"), min_size=1))
def test_ranges_name_exactly_these_nodes(numbers):
    names = {f"node{digits}" for digits in numbers}
    assert expand(node_ranges(names)) == names


def test_a_round_from_its_start_to_its_end():
    tracker = CycleTracker(NONE)
    assert tracker.take(msgspec.structs.replace(NONE, pending_round=0), spares(), 1.0) == []
    (begun,) = tracker.take(ledger("abc"), spares("d"), 1000.5)
    info = content(begun, **about)
    assert info == CycleInfo(
        job_id="7",
        attempt_index=1,
        cycle_number=0,
        cycle_start_time="1970-01-01T00:16:40.500Z",
        cycle_log_file="/l/train_cycle0.log",
        active_nodes="a,b,c",
        standby_nodes="d",
        generation=1,
        active_ranks="0-5",
    )
    assert tracker.take(ledger("abc", version=9), spares(), 1001.0) == []
    (ended,) = tracker.take(ledger("abc", running=False), spares("x"), 1002.0)
    info.cycle_end_time = "1970-01-01T00:16:42.000Z"
    assert content(ended, **about) == info
    assert tracker.take(ledger("abc", running=False, version=9), spares(), 1003.0) == []


def test_the_next_round_ends_one_that_has_not_been_ended():
    tracker = CycleTracker(NONE)
    tracker.take(ledger("abc"), spares(), 1.0)
    ended, begun = tracker.take(ledger("bc", round=1), spares("a"), 2.0)
    assert (ended.number, ended.started_s, ended.ended_s) == (0, 1.0, 2.0)
    assert (begun.number, begun.table, begun.ended_s) == (1, table("bc"), None)


def test_a_job_that_begins_anew_begins_with_round_0():
    tracker = CycleTracker(NONE)
    tracker.take(ledger("abc"), spares(), 1.0)
    (ended,) = tracker.take(ledger("abc", round=-1, running=False), spares(), 2.0)
    assert ended.ended_s == 2.0
    (begun,) = tracker.take(ledger("abc"), spares(), 3.0)
    assert (begun.number, begun.started_s) == (0, 3.0)


def test_a_later_leader_keeps_what_it_cannot_know():
    tracker = CycleTracker(ledger("abc", round=4))
    assert tracker.running is not None
    assert content(tracker.running, **about).cycle_start_time is None
    (ended,) = tracker.take(ledger("abc", round=4, running=False), spares(), 9.0)
    before = CycleInfo(
        job_id="7",
        attempt_index=1,
        cycle_number=4,
        cycle_start_time=iso_time(5.0),
        standby_nodes="d",
    )
    info = content(ended, **about, before=before)
    assert (info.cycle_start_time, info.standby_nodes) == (iso_time(5.0), "d")
    assert info.cycle_end_time == iso_time(9.0)
    before.cycle_number = 3
    assert content(ended, **about, before=before).cycle_start_time is None
