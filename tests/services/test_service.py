"""Who waits for which analysis, what is answered, and what is known after a start anew."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.coordinator.wire.talk import on_loop
from undaunted.attribution.findings import Finding
from undaunted.base.roots import Roots
from undaunted.services import looks
from undaunted.services import service as module
from undaunted.services.ledger import Ledger
from undaunted.services.results import LogResult
from undaunted.services.service import AttributionService, ServiceError, Submission

OOM = Finding("gpu_out_of_memory", (3,), quote="CUDA out of memory", source="/a:7", confidence=0.9)


class Reader:
    """Answers when it is let; what it is to find may be set by name of the file."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.may = asyncio.Event()
        self.may.set()
        self.told: dict[str, dict[str, Any]] = {}
        self.dumps: list[str] = []
        self.errors: list[str] = []

    async def read(
        self, path: str, stamp: tuple[int, int, int], dumps: str = "", errors: str = ""
    ) -> LogResult:
        self.asked.append(Path(path).name)
        self.dumps.append(dumps)
        self.errors.append(errors)
        self.begun.put_nowait(Path(path).name)
        await self.may.wait()
        return LogResult(stamp, **self.told.get(Path(path).name, {}))

    async def close(self) -> None:
        pass


class Place:
    """A service over a folder of logs."""

    def __init__(self, directory: Path, export: Any = None) -> None:
        self.export = export
        self.logs = directory / "logs"
        self.logs.mkdir(exist_ok=True)
        self.state = directory / "state"
        self.start()

    def start(self) -> None:
        self.reader = Reader()
        roots = Roots([self.logs])
        readers: list[Any] = [self.reader]
        self.service = AttributionService(roots, Ledger(self.state), readers, 60.0, self.export)
        self.service.begin()

    def put(self, name: str, content: str = "content\n", **told: Any) -> str:
        (self.logs / name).write_text(content)
        self.reader.told[Path(name).name] = told
        return str(self.logs / name)

    async def submit(self, path: str, **about: Any) -> dict[str, Any]:
        return await self.service.submit(Submission(log_path=path, **about))

    async def ask(self, path: str, *, wait: bool = True) -> dict[str, Any]:
        return await self.service.ask(await self.service.look(path), wait=wait)

    async def action(self, path: str) -> str:
        answer = await self.ask(path)
        assert answer["status"] == "completed"
        assert answer["result"]["recommendation"] == answer["recommendation"]
        return answer["recommendation"]["action"]


@on_loop
async def test_a_log_is_named_then_read_when_somebody_asks(tmp_path: Path) -> None:
    place = Place(tmp_path)
    path = place.put("a.log", findings=(OOM,), step=5)
    said = await place.submit(path, user="me", analysis_intent="track_only")
    assert said == {
        "submitted": True,
        "normalized_path": path,
        "mode": "PENDING",
        "logs_dir": "",
        "sched_restarts": 0,
        "files_analyzed": 0,
    }
    assert place.reader.asked == []
    answer = await place.ask(path)
    assert place.reader.asked == ["a.log"]
    assert (answer["status"], answer["mode"]) == ("completed", "SINGLE")
    assert answer["recommendation"] == {"action": "RESTART", "source": "rules"}
    assert answer["result"]["module"] == "log_analyzer"
    assert "rank 3" in answer["result"]["result"]
    assert "gpu_out_of_memory" in answer["result"]["result"]
    assert answer["result"]["findings"][0]["cause"] == "gpu_out_of_memory"
    await place.ask(path)
    assert place.reader.asked == ["a.log"]
    await place.service.close()


@on_loop
async def test_all_who_ask_at_once_get_one_analysis(tmp_path: Path) -> None:
    place = Place(tmp_path)
    path = place.put("a.log")
    place.reader.may.clear()
    asking = [asyncio.ensure_future(place.ask(path)) for _ in range(50)]
    await place.reader.begun.get()
    assert [one["log_path"] for one in place.service.in_flight()["inflight"]] == [path]
    assert (await place.ask(path, wait=False))["status"] == "in_flight"
    assert place.service.stats()["in_flight"] == 1
    place.reader.may.set()
    answers = await asyncio.gather(*asking)
    assert {answer["recommendation"]["action"] for answer in answers} == {"CONTINUE"}
    assert place.reader.asked == ["a.log"]
    await place.service.close()


@on_loop
async def test_who_does_not_wait_is_told_how_far_it_is(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.reader.may.clear()
    first, second = place.put("a.log"), place.put("b.log")
    for path in (first, second):
        answer = await place.ask(path, wait=False)
        assert answer["status"] == "pending"
        assert answer["recommendation"]["action"] == "UNKNOWN"
        assert "result" not in answer
    place.reader.may.set()
    assert await place.action(second) == "CONTINUE"
    assert place.reader.asked == ["a.log", "b.log"]
    await place.service.close()


@on_loop
async def test_who_joins_an_analysis_that_is_older_than_the_file_waits_for_the_next(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    place.reader.may.clear()
    path = place.put("a.log", "begun\n")
    early = asyncio.ensure_future(place.ask(path))
    await place.reader.begun.get()
    place.put("a.log", "begun\nfailed\n", findings=(OOM,), step=5)
    late = asyncio.ensure_future(place.service.ask(await place.service.look(path), wait=True))
    await asyncio.sleep(0)
    assert place.service.stats()["joined"] == 1
    place.reader.may.set()
    assert (await late)["recommendation"]["action"] == "RESTART"
    assert (await early)["status"] == "completed"
    assert place.reader.asked == ["a.log", "a.log"]
    await place.service.close()


@on_loop
async def test_recommendations(tmp_path: Path) -> None:
    place = Place(tmp_path)
    lost = Finding("gpu_lost", (), ("node7",), confidence=0.9, quote="fallen off the bus")
    cases = {
        "oom": ("RESTART", {"findings": (OOM,), "step": 5}),
        "gpu": ("RESTART", {"findings": (lost,), "step": 5}),
        "import": ("STOP", {"findings": (Finding("program_error"),), "stop": True}),
        "end": ("CONTINUE", {"ended": True}),
        "nothing": ("CONTINUE", {}),
        "late": ("TIMEOUT", {"problem": "reading it takes longer than 5 s", "late": True}),
        "broken": ("UNKNOWN", {"problem": "the program has ended"}),
    }
    for name, (expected, told) in cases.items():
        assert await place.action(place.put(name, **told)) == expected, name
    late = (await place.ask(str(place.logs / "late")))["result"]
    assert (late["state"], late["error"]) == ("timeout", "reading it takes longer than 5 s")
    assert (await place.ask(str(place.logs / "broken")))["result"]["state"] == "error"
    assert "node7" in (await place.ask(str(place.logs / "gpu")))["result"]["result"]
    assert place.service.stats()["late"] == place.service.stats()["failed"] == 1
    await place.service.close()


@on_loop
async def test_the_same_failure_in_the_third_round_of_a_job(tmp_path: Path) -> None:
    place = Place(tmp_path)
    actions = []
    for cycle in range(3):
        path = place.put(f"cycle{cycle}", findings=(OOM,), step=5)
        await place.submit(path, job_id=7, cycle_id=str(cycle))
        actions.append(await place.action(path))
    assert actions == ["RESTART", "RESTART", "STOP"]
    await place.service.close()


@on_loop
async def test_rounds_of_one_log(tmp_path: Path) -> None:
    place = Place(tmp_path)
    failed = LogResult((0, 0, 0), (OOM,), 5)
    path = place.put("a.log", findings=(OOM,), step=5, earlier=(failed, failed))
    answer = await place.ask(path)
    assert (answer["wl_restart"], answer["wl_restart_count"]) == (2, 3)
    assert answer["recommendation"]["action"] == "STOP"  # the third time at this step
    seen = await place.service.look(path)
    first = await place.service.ask(seen, wait=True, restart=0)
    assert (first["wl_restart"], first["recommendation"]["action"]) == (0, "RESTART")
    with pytest.raises(ServiceError, match="wl_restart 0 to 2, and no 3") as caught:
        await place.service.ask(seen, wait=True, restart=3)
    assert caught.value.code == "not_found"
    await place.submit(path, job_id=7, cycle_id=0)
    after = place.put("b.log", findings=(OOM,), step=5)
    await place.submit(after, job_id=7, cycle_id=1)
    assert await place.action(after) == "STOP"
    await place.service.close()


# --- logs that a log names ------------------------------------------------------------------------


def put_split(place: Place, *names: str, folder: str = "17") -> str:
    """Write the output of a batch script, and logs of its ranks; the last of these has failed."""
    (place.logs / folder).mkdir(exist_ok=True)
    for number, name in enumerate(names, 1):
        place.put(f"{folder}/{name}")
        os.utime(place.logs / folder / name, (number, number))
    if names:
        place.reader.told[names[-1]] = {"findings": (OOM,), "step": 5}
    return place.put("slurm.out", starts=len(names), logs_dir=str(place.logs / folder))


@on_loop
async def test_a_log_that_names_others_is_answered_by_the_newest(tmp_path: Path) -> None:
    place = Place(tmp_path)
    path = put_split(place, "b.log", "a.log")
    place.put("17/model.pt")
    place.put("17/empty.log", "")
    answer = await place.ask(path)
    assert (answer["mode"], answer["sched_restarts"]) == ("SPLITLOG", 1)
    assert answer["log_file"] == str(place.logs / "17" / "a.log")
    assert answer["recommendation"]["action"] == "RESTART"
    assert sorted(place.reader.asked) == ["a.log", "b.log", "slurm.out"]
    said = await place.submit(path)
    assert (said["mode"], said["logs_dir"]) == ("SPLITLOG", str(place.logs / "17"))
    assert (said["sched_restarts"], said["files_analyzed"]) == (1, 2)
    other = await place.service.ask(await place.service.find(path, "b.log"), wait=True)
    assert (other["log_file"], other["mode"]) == (str(place.logs / "17" / "b.log"), "SINGLE")
    assert other["recommendation"]["action"] == "CONTINUE"
    with pytest.raises(ServiceError, match="is not below"):
        await place.service.find(path, "../../state/lock")
    place.put("17/a.log", "it has grown", ended=True)
    assert await place.action(path) == "CONTINUE"
    await place.service.close()


@on_loop
async def test_terminal_has_the_others_read_as_well(tmp_path: Path) -> None:
    place = Place(tmp_path)
    path = put_split(place, "a.log", "b.log")
    await place.submit(path, analysis_intent="terminal")
    assert [await place.reader.begun.get() for _ in range(3)] == ["slurm.out", "a.log", "b.log"]
    await place.service.close()


@on_loop
async def test_of_a_shared_folder_the_logs_with_the_number_of_the_job_count(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    path = put_split(place, "train_17_0.log", "train_170_0.log", "x17.log", "y.log", folder="all")
    await place.submit(path, job_id="17")
    assert (await place.ask(path))["log_file"].endswith("x17.log")
    await place.submit(path, job_id="18")
    answer = await place.ask(path)  # none is there: what the script itself has written counts
    assert (answer["log_file"], answer["mode"]) == (path, "SPLITLOG")
    await place.service.close()


@on_loop
async def test_starts_of_a_job_by_its_scheduler_are_rounds(tmp_path: Path) -> None:
    place = Place(tmp_path)
    path = put_split(place, "a.log", "b.log", "c.log")
    for name in ("a.log", "b.log"):
        place.reader.told[name] = {"findings": (OOM,), "step": 5}
    assert await place.action(path) == "STOP"
    await place.service.close()


@on_loop
async def test_several_logs_of_one_start_are_no_rounds(tmp_path: Path) -> None:
    place = Place(tmp_path)
    path = put_split(place, "a.log", "b.log", "c.log")
    for name in ("a.log", "b.log"):
        place.reader.told[name] = {"findings": (OOM,), "step": 5}
    place.reader.told["slurm.out"]["starts"] = 2
    assert await place.action(path) == "RESTART"
    await place.service.close()


@on_loop
async def test_others_that_cannot_be_read(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for folder in (str(tmp_path), "/gone", str(place.logs / "gone")):
        path = place.put("slurm.out", folder, starts=1, logs_dir=folder)
        with pytest.raises(ServiceError, match=f"LOGS_DIR={folder}, of ") as caught:
            await place.ask(path)
        assert caught.value.code == "logs_dir_not_readable"
    await place.service.close()


# --- dumps ----------------------------------------------------------------------------------------


@on_loop
async def test_dumps_that_are_named_are_read_with_the_log(tmp_path: Path) -> None:
    place = Place(tmp_path)
    folder = place.logs / "dumps"
    folder.mkdir()
    place.put("dumps/_dump_0")
    path = place.put("a.log")
    await place.ask(path)
    place.put("a.log", findings=(OOM,), dumps=str(folder), hanging=(3,))
    await place.submit(path, fr_path=str(folder))
    answer = await place.ask(path)
    assert place.reader.dumps == ["", str(folder)]
    assert answer["result"]["hanging_ranks"] == [3]
    assert answer["result"]["fr_dump_path"] == str(folder)
    await place.service.close()


@on_loop
async def test_errors_that_are_in_a_file_of_their_own_are_read_with_the_log(tmp_path: Path) -> None:
    """At the end they are read again: the log itself may not have changed since."""
    place = Place(tmp_path)
    path = place.put("a.log")
    await place.ask(path)
    await place.submit(path, error_path="/logs/a.err")
    await place.ask(path)
    await place.submit(path, error_path="/logs/a.err", analysis_intent="terminal")
    await place.ask(path)
    assert place.reader.errors == ["", "/logs/a.err", "/logs/a.err"]
    await place.service.close()


@on_loop
async def test_dumps_that_are_named_while_the_log_is_read(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.put("_dump_0")
    path = place.put("a.log")
    place.reader.may.clear()
    early = asyncio.ensure_future(place.ask(path))
    await place.reader.begun.get()
    await place.submit(path, fr_path=str(place.logs))
    place.reader.may.set()
    await early
    await place.ask(path)
    assert place.reader.dumps == ["", str(place.logs)]
    await place.service.close()


@on_loop
async def test_what_has_happened_is_exported_once(tmp_path: Path) -> None:
    given: list[Any] = []

    class Export:
        sent, lost, problem = 3, 1, "it answers 500"

        def begin(self) -> None:
            self.give = given.append

        async def close(self) -> None:
            given.append("closed")

    place = Place(tmp_path, Export())
    path = place.put("a.log", step=5)
    await place.submit(path, user="me", job_id="7", cycle_id=0)
    await place.ask(path)  # all is well
    for content in ("failed\n", "failed, and other words\n"):
        place.put("a.log", content, findings=(OOM,), step=5)
        answer = await place.ask(path)
    about = {"log_path": path, "user": "me", "job_id": "7", "cycle_id": 0}
    assert given == [{**about, **answer}]
    assert place.service.health()["issues"] == [
        "a result could not be sent to --export-url: it answers 500"
    ]
    stats = place.service.stats()
    assert (stats["exported"], stats["export_lost"]) == (3, 1)
    await place.service.close()
    assert given[1:] == ["closed"]


@on_loop
async def test_what_was_submitted_is_read_after_a_start_anew(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.reader.may.clear()
    read, waits, tracked = (place.put(name) for name in ("read", "waits", "tracked"))
    await place.submit(read, analysis_intent="terminal")
    await place.submit(waits, user="me", job_id="7", cycle_id=1, analysis_intent="terminal")
    await place.submit(tracked, analysis_intent="progressive")
    await place.service.close()  # the first is being read, the second is queued
    place.start()
    found = {Path(row["log_path"]).name: row for row in place.service.jobs("", 10, 0)["jobs"]}
    assert found.keys() == {"read", "waits", "tracked"}
    assert (found["waits"]["user"], found["waits"]["job_id"], found["waits"]["cycle_id"]) == (
        *("me", "7"),
        1,
    )
    assert [await place.reader.begun.get() for _ in range(2)] == ["read", "waits"]
    assert place.service.jobs("PENDING", 10, 0)["total"] == 1
    assert place.service.jobs("", 1, 1)["jobs"][0]["log_path"] == waits
    await place.service.close()


@on_loop
async def test_answers_are_known_after_a_start_anew(tmp_path: Path) -> None:
    place = Place(tmp_path)
    path = place.put("a.log", findings=(OOM,), step=5)
    before = await place.ask(path)
    await place.service.close()
    place.start()
    assert await place.ask(path) == before
    assert place.reader.asked == []
    await place.service.close()


@on_loop
async def test_a_log_that_vanishes_before_it_is_read(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.reader.may.clear()
    first, path = place.put("first.log"), place.put("a.log")
    await place.ask(first, wait=False)
    seen = await place.service.look(path)
    asking = asyncio.ensure_future(place.service.ask(seen, wait=True))
    await place.reader.begun.get()
    Path(path).unlink()
    place.reader.may.set()
    answer = await asking
    assert answer["recommendation"]["action"] == "UNKNOWN"
    assert answer["result"]["error"].startswith("not_found: ")
    await place.service.close()


@on_loop
async def test_what_cannot_be_submitted(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.put("empty", "")
    for path, code in {
        str(place.logs / "empty"): "empty_file",
        str(place.logs / "gone"): "not_found",
        str(place.logs): "not_regular",
        "/etc/passwd": "outside_root",
        "a.log": "invalid_path",
    }.items():
        with pytest.raises(ServiceError) as caught:
            await place.submit(path)
        assert caught.value.code == code
    assert place.service.stats()["logs"] == 0
    await place.service.close()


@on_loop
async def test_a_full_disk_is_said_and_questions_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    path = place.put("a.log")
    assert place.service.health() == {"status": "ok", "issues": []}

    def full(_lines: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(place.service._ledger, "_append", full)
    with pytest.raises(ServiceError, match="No space left") as caught:
        await place.submit(path)
    assert caught.value.code == "internal"
    assert await place.action(path) == "CONTINUE"
    assert place.service.health()["status"] == "degraded"
    monkeypatch.undo()
    await place.submit(path)
    assert place.service.health()["status"] == "ok"
    await place.service.close()


@on_loop
async def test_a_disk_that_does_not_answer_holds_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    slow, path = place.put("slow"), place.put("a.log")
    monkeypatch.setattr(module, "_LOOK_S", 0.05)
    look = looks.look
    released = threading.Event()

    def stuck(roots: Roots, path: str) -> Any:
        if path == slow:
            assert released.wait(60)
        return look(roots, path)

    monkeypatch.setattr(looks, "look", stuck)
    waiting = asyncio.ensure_future(place.ask(slow))
    await asyncio.sleep(0)
    monkeypatch.setattr(module, "_LOOK_S", 60.0)
    assert await place.action(path) == "CONTINUE"
    with pytest.raises(ServiceError) as caught:
        await waiting
    assert caught.value.code == "busy"
    assert place.service.health()["status"] == "degraded"
    released.set()
    await place.service.close()


@on_loop
async def test_the_beginning_of_a_log(tmp_path: Path) -> None:
    place = Place(tmp_path)
    path = place.put("a.log", "x" * 10_000)
    assert await place.service.head(path) == b"x" * 4096
    with pytest.raises(ServiceError):
        await place.service.head("/etc/passwd")
    await place.service.close()
