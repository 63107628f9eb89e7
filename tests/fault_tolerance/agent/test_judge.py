"""From workers and pages to the journal's verdict, with the disk that was full."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.fault_tolerance.agent.test_environment import CONFIG
from undaunted.attribution import error_file
from undaunted.attribution.crash import RankFailure
from undaunted.attribution.evidence import RankEvidence
from undaunted.attribution.flight.recording import Call, Group, Recording, encode
from undaunted.attribution.hang import look, with_recording
from undaunted.base import deadline
from undaunted.fault_tolerance.agent import judge
from undaunted.fault_tolerance.agent.judge import (
    full_disk,
    is_misuse,
    judge_crash,
    judge_hang,
    serve_error_file,
)
from undaunted.fault_tolerance.agent.processes import Worker
from undaunted.fault_tolerance.worker.messages import WorkerSpec
from undaunted.progress.snapshot import ErrorRecord, PageSnapshot, Phase
from undaunted.progress.timeouts import Expired

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class FakeRound:
    errors: dict[int, str] = field(default_factory=dict)
    number: int = 2
    oom_kills_before: int | None = None
    stacks_path: str = "/run/stacks-round2.txt"
    faults: dict[int, str] = field(default_factory=dict)
    killed: dict[int, str] = field(default_factory=dict)
    specs: list[WorkerSpec] = field(default_factory=list)
    start: Any = field(default_factory=lambda: SimpleNamespace(world_size=8))

    def rank(self, local_rank: int) -> int:
        return 4 + local_rank

    def error_file(self, local_rank: int) -> str:
        return self.errors.get(local_rank, "")


def spec(stderr: str = "") -> WorkerSpec:
    return WorkerSpec(
        local_rank=0,
        kind="script",
        target="t",
        args=[],
        env={},
        cwd="/",
        agent_pid=1,
        stderr=stderr,
    )


def error(at_ns: int, kind: str, message: str) -> PageSnapshot:
    head = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 3, in load\n'
    trace = f"{head}{kind}: {message}\n"
    record = ErrorRecord(at_ns=at_ns, type=kind, message=message, traceback=trace, pid=11)
    return PageSnapshot(phase=Phase.FAILED, error=record, iteration=7)


def worker(local_rank: int, code: int | None, at_ns: int) -> Worker:
    return Worker(local_rank, 10 + local_rank, 0, code=code, exited_ns=at_ns)


def test_ranks_that_the_others_went_on_without_are_not_the_cause() -> None:
    lost = worker(0, -9, 100)
    lost.lost = True
    workers = [lost, worker(1, 3, 900)]
    found = judge_crash(CONFIG, FakeRound(specs=[spec(), spec()]), workers, [PageSnapshot()] * 2)
    assert found.event.local_rank == 1
    alone = judge_crash(CONFIG, FakeRound(specs=[spec()]), [lost], [PageSnapshot()])
    assert alone.event.local_rank == 0


def test_the_killed_rank_is_the_cause_although_its_victim_spoke_first() -> None:
    pages = [error(100, "RuntimeError", "Connection closed by peer [::1]:99"), PageSnapshot()]
    workers = [worker(0, 1, 300), worker(1, -9, 200)]
    found = judge_crash(CONFIG, FakeRound(specs=[spec(), spec()]), workers, pages)
    assert (found.event.rank, found.event.signal, found.culprits) == (5, "SIGKILL", (1,))
    assert found.event.waiting == [4]
    assert found.certain


def test_memory_and_core_of_a_rank_that_a_signal_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dead = worker(0, -11, 200)
    dead.peak_bytes, dead.dumped_core = 3 << 30, True
    asked: list[object] = []
    monkeypatch.setattr(judge.core_file, "find", lambda *about: asked.append(about) or "/core.10")
    found = judge_crash(CONFIG, FakeRound(specs=[spec()]), [dead], [PageSnapshot()])
    assert found.event.line.endswith("; peak memory 3.00 GiB; core file: /core.10")
    assert (found.event.peak_memory_bytes, found.event.core) == (3 << 30, "/core.10")
    ((pid, cwd, began),) = asked
    assert (pid, cwd) == (10, "/")
    assert began < time.time()


def test_a_core_that_is_not_found_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = worker(0, -11, 200)
    dead.dumped_core = True
    monkeypatch.setattr(judge.core_file, "find", lambda *_: "")
    found = judge_crash(CONFIG, FakeRound(specs=[spec()]), [dead], [PageSnapshot()])
    assert "core_pattern" in found.event.core


def test_with_only_a_victim_known_the_verdict_is_not_certain() -> None:
    pages = [error(100, "RuntimeError", "Connection closed by peer [::1]:99"), PageSnapshot()]
    workers = [worker(0, None, 0), worker(1, None, 0)]
    found = judge_crash(CONFIG, FakeRound(specs=[spec(), spec()]), workers, pages)
    assert not found.certain


def test_the_exception_and_its_frame_are_told() -> None:
    pages = [error(100, "ValueError", "bad batch")]
    found = judge_crash(CONFIG, FakeRound(specs=[spec()]), [worker(0, 1, 200)], pages)
    assert found.event.exception == "ValueError: bad batch"
    assert "load (train.py:3)" in found.event.line
    assert found.event.iteration == 7
    assert found.report.message == "ValueError: bad batch"


def test_the_last_lines_of_a_foreign_program_are_used(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    log.write_text("starting\nfatal: no licence\n")
    current = FakeRound(specs=[spec(str(log))])
    found = judge_crash(CONFIG, current, [worker(0, 3, 200)], [PageSnapshot()])
    assert "no licence" in found.event.line


def test_logs_that_hang_are_waited_for_once_whatever_the_number_of_ranks(monkeypatch) -> None:
    answers = threading.Event()

    def hangs(path: str, count: int) -> list[str]:
        answers.wait(30)
        return []

    waits: list[float] = []

    def within(seconds: float, call: Any, otherwise: Any) -> Any:
        waits.append(seconds)
        return deadline.within(0.01, call, otherwise)

    monkeypatch.setattr(judge, "last_lines", hangs)
    monkeypatch.setattr(judge, "within", within)
    ranks = range(8)
    workers = [worker(rank, -9, 200) for rank in ranks]
    current = FakeRound(specs=[spec("/log") for _ in ranks])
    try:
        found = judge_crash(CONFIG, current, workers, [PageSnapshot()] * 8)
    finally:
        answers.set()
    assert found.event.kind == "crash"
    assert sum(waits) <= 0.1
    for thread in threading.enumerate():
        if thread.name == "undaunted-deadline":
            thread.join(30)


def test_a_hang_names_limit_and_evidence() -> None:
    expired = Expired("heartbeat", "", 0, 2, 2.5, 2.0, "--ft-rank-heartbeat-timeout")
    seen = [RankEvidence(rank=4, local_rank=0, pid=10, page=PageSnapshot(), expired=(expired,))]
    found = judge_hang(FakeRound(), seen, [look(each, node="a", now_ns=3) for each in seen])
    assert (found.event.kind, found.event.limit_s, found.culprits) == ("hang", 2.0, (0,))
    assert "/run/stacks-round2.txt" in found.event.line


def test_a_hang_that_was_injected_says_so_before_its_stacks() -> None:
    expired = Expired("heartbeat", "", 0, 2, 2.5, 2.0, "--ft-rank-heartbeat-timeout")
    seen = [RankEvidence(rank=4, local_rank=0, pid=10, page=PageSnapshot(), expired=(expired,))]
    looked = [look(each, node="a", now_ns=3) for each in seen]
    found = judge_hang(FakeRound(faults={0: "sleep-1"}), seen, looked)
    assert found.event.fault == "sleep-1"
    assert "; injected fault sleep-1; stacks: /run" in found.event.line


def test_a_hang_in_different_collectives_is_recorded_as_such() -> None:
    expired = Expired("heartbeat", "", 0, 2, 2.5, 2.0, "--ft-rank-heartbeat-timeout")
    seen = [
        RankEvidence(rank=4 + k, local_rank=k, pid=10 + k, page=PageSnapshot(), expired=(expired,))
        for k in range(2)
    ]
    calls = (Call("barrier"), Call("all_reduce", "Float", "[4]", 4))
    looked = []
    for each, call in zip(seen, calls, strict=True):
        group = Group("0", "default_pg", enqueued=1, oldest=1, since=1, calls=(0,))
        recording = encode(Recording(each.rank, (group,), (call,)))
        answers = {each.pid: recording}
        looked.append(with_recording(look(each, node="a", now_ns=3), answers))
    found = judge_hang(FakeRound(start=SimpleNamespace(world_size=2)), seen, looked)
    assert found.event.cause == "mismatch"
    assert "called" in found.event.line


def test_ranks_that_are_just_as_suspect_are_recorded() -> None:
    expired = Expired("heartbeat", "", 0, 2, 2.5, 2.0, "--ft-rank-heartbeat-timeout")
    seen = [
        RankEvidence(rank=4 + k, local_rank=k, pid=10 + k, page=PageSnapshot(), expired=(expired,))
        for k in range(2)
    ]
    found = judge_hang(FakeRound(), seen, [look(each, node="a", now_ns=3) for each in seen])
    assert sorted([found.event.rank, *found.event.suspects]) == [4, 5]


def test_the_root_cause_is_served_to_a_launcher_above(tmp_path: Path, monkeypatch) -> None:
    pages = [error(100, "ValueError", "bad batch")]
    found = judge_crash(CONFIG, FakeRound(specs=[spec()]), [worker(0, 1, 200)], pages)
    path = tmp_path / "above.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    serve_error_file(found)
    read = error_file.read(path)
    assert read is not None
    assert read.message == "ValueError: bad batch"
    assert msgspec.json.decode(path.read_bytes())


S = 1_000_000_000


class TestMisuse:
    """Whether the program was called with wrong arguments."""

    @staticmethod
    def told(local_rank: int, code: int) -> Worker:
        ended = worker(local_rank, code, 5 * S)
        ended.signals_sent.append((15, 4 * S))
        return ended

    def test_every_rank_that_ended_by_itself_did_so_early_with_2(self) -> None:
        page = PageSnapshot(first_line_ns=100 * S)
        two = [worker(0, 2, 160 * S), worker(1, 2, 101 * S), self.told(2, -15), self.told(3, 1)]
        assert is_misuse(two, [page, page, PageSnapshot(), PageSnapshot()], announced=False) is True

    def test_a_script_that_is_no_python(self) -> None:
        error = ErrorRecord(1, "SyntaxError", "invalid syntax (train.py, line 2)", "", 7)
        page, later = (PageSnapshot(error=error, first_line_ns=ns) for ns in (None, S))
        ended = [worker(0, 1, S), self.told(1, -15)]
        assert is_misuse(ended, [page, page], announced=False) is True
        assert is_misuse(ended, [later, page], announced=False) is False, "of what it imports"

    def test_without_a_rank_that_ended_by_itself_nothing_is_known(self) -> None:
        assert is_misuse([self.told(0, -15)], [PageSnapshot()], announced=False) is None

    @pytest.mark.parametrize(
        ("ends", "page", "announced"),
        [
            ([(2, 1), (1, 1)], PageSnapshot(), False),
            ([(2, 1), (0, 1)], PageSnapshot(), False),
            ([(2, 1), (-9, 1)], PageSnapshot(), False),
            ([(2, 61)], PageSnapshot(), False),
            ([(2, 62)], PageSnapshot(first_line_ns=S), False),
            ([(2, 2)], PageSnapshot(first_line_ns=S, initialized_ns=S), False),
            ([(2, 1)], PageSnapshot(problem="garbage"), False),
            ([(2, 1)], PageSnapshot(), True),
        ],
    )
    def test_what_speaks_against_it(self, ends, page, announced) -> None:
        workers = [worker(rank, code, at * S) for rank, (code, at) in enumerate(ends)]
        assert is_misuse(workers, [page] * len(ends), announced=announced) is False

    def test_a_rank_that_was_told_may_have_begun_to_train(self) -> None:
        pages = [PageSnapshot(), PageSnapshot(initialized_ns=S)]
        assert is_misuse([worker(0, 2, S), self.told(1, -15)], pages, announced=False) is False


def config(stdout: int):
    return msgspec.structs.replace(CONFIG, run_dir="/run", log_dir="/logs", stdout=[stdout])


def failed(kind="", message="", **fields):
    error = ErrorRecord(1, kind, message, f"{kind}: {message}", 7) if kind else None
    return RankFailure(rank=1, local_rank=1, pid=7, at_ns=1, error=error, **fields)


SILENT = failed(exit_code=1)
TORCH = "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"


@pytest.fixture
def disks(monkeypatch, tmp_path):
    """Sets how many blocks are free where: ``disks({"/ckpt": 0})``; elsewhere there are plenty."""
    table = tmp_path / "mounts"
    table.write_text(
        "proc /proc proc rw,nosuid 0 0\nnone / overlay rw 0 0\nbroken\n"
        "/dev/sdb /ckpt\\040one xfs rw,noatime 0 0\n/dev/sdc /iso iso9660 ro 0 0\n"
    )
    monkeypatch.setattr(judge, "_MOUNTS", str(table))
    free, files = {}, {}

    def statvfs(path):
        blocks = 0 if path == "/proc" else 3072
        return SimpleNamespace(
            f_bavail=free.get(path, blocks),
            f_blocks=blocks,
            f_frsize=4096,
            f_files=10,
            f_favail=files.get(path, 9),
        )

    monkeypatch.setattr(os, "statvfs", statvfs)
    return free, files


@pytest.mark.parametrize(
    ("free", "files", "is_full"),
    [(0, 9, True), (15, 9, True), (16, 9, False), (100, 0, True)],
)
def test_a_full_log_directory_is_named(disks, free, files, is_full):
    disks[0]["/logs"], disks[1]["/logs"] = free, files
    expected = "; /logs is full: make room, or choose --log-dir" if is_full else ""
    assert full_disk(config(stdout=3), SILENT) == expected
    assert full_disk(config(stdout=0), SILENT) == "", "nothing is written there"


@pytest.mark.parametrize(
    "root",
    [
        failed(signal=9),
        failed("ValueError", "bad batch", exit_code=1),
    ],
)
def test_a_full_run_directory_is_named_only_where_it_may_be_the_cause(disks, root):
    disks[0]["/run"] = 0
    assert full_disk(config(stdout=0), root) == ""
    assert "/run is full" in full_disk(config(stdout=0), SILENT)


@pytest.mark.parametrize(
    "root",
    [
        failed("OSError", "[Errno 28] No space left on device: '/ckpt one/5.pt'", exit_code=1),
        failed("OSError", "[Errno 122] Disk quota exceeded", exit_code=1),
        failed("RuntimeError", TORCH, exit_code=1),
        failed(exit_code=1, last_lines="cp: error writing 'x': No space left on device"),
    ],
)
def test_a_full_disk_of_checkpoints_is_named_with_what_is_left(disks, root):
    disks[0]["/ckpt one"], disks[0]["/iso"] = 1, 0
    said = full_disk(config(stdout=0), root)
    assert said.startswith("; no room is left on /ckpt one (0 of 12 MiB free): ")
    disks[0].clear()
    assert "a disk was full" in full_disk(config(stdout=0), root)


def test_what_cannot_be_seen_is_not_full(monkeypatch):
    def statvfs(path):
        raise OSError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert full_disk(config(stdout=3), SILENT) == ""


def test_a_full_dev_shm_is_no_full_disk(disks):
    said = "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"
    disks[0]["/ckpt one"] = 0
    told = full_disk(config(stdout=0), failed("RuntimeError", said, exit_code=1))
    assert "/dev/shm" in told
    assert "/ckpt one" not in told
