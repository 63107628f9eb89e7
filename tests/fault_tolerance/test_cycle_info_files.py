from __future__ import annotations

import json
import os
import queue
import stat
from pathlib import Path

import pytest

from tests.coordinator.core.seats import ledger
from undaunted.coordinator.core import messages as job
from undaunted.coordinator.protocol import Ledger
from undaunted.fault_tolerance import cycle_info_files
from undaunted.fault_tolerance.cycle_info_files import CycleInfoFiles, OwnRounds
from undaunted.fault_tolerance.cycle_info_place import CycleInfoPlace

NONE = Ledger(run_id="job")


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

    def hang(_place: object, cycle: cycle_info_files.Cycle) -> None:
        if not written:
            began.put(cycle.number)
            released.get(timeout=30)
        written.append(cycle.number)

    monkeypatch.setattr(cycle_info_files, "_write", hang)
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
