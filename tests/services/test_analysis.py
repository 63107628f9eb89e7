"""What a log is said to tell of, and what happens to the program when a log is hostile."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.cli.test_flight import make
from tests.coordinator.wire.talk import on_loop
from undaunted.base.roots import RefusedError, Roots
from undaunted.services.analysis import analyse
from undaunted.services.analysts import Analyst

LIMIT_S = 60.0
STAMP = (1, 2, 3)
OOM = "1: iteration 5 | loss 3\n1: torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\n"


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    (tmp_path / "logs").mkdir()
    (tmp_path / "secret.log").write_text(OOM)
    return Roots([tmp_path / "logs"])


def put(roots: Roots, name: str, content: str = OOM) -> str:
    path = Path(roots.folders[0], name)
    path.write_text(content)
    return str(path)


def test_a_log_tells_of_a_failure(roots: Roots) -> None:
    path = put(roots, "a.log")
    Path(roots.folders[0], "link").symlink_to(path)
    told = analyse(f"{roots.folders[0]}/link", roots)
    (found,) = told.findings
    assert (found.cause, found.ranks) == ("gpu_out_of_memory", (1,))
    assert found.source == f"{path}:2"
    assert (told.step, told.stop, told.problem) == (5, False, "")
    assert told.stamp[1] == len(OOM)


def test_a_rank_may_stand_in_the_name_of_the_file(roots: Roots) -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\n"
    assert analyse(put(roots, "rank3.log", line), roots).findings[0].ranks == (3,)


def test_what_all_ranks_say_before_a_step_speaks_for_stopping(roots: Roots) -> None:
    lines = [f"{rank}: ModuleNotFoundError: No module named 'x'" for rank in range(2)]
    content = "0: world_size=2\n" + "".join(
        f"{rank}: Traceback (most recent call last):\n{line}\n" for rank, line in enumerate(lines)
    )
    assert analyse(put(roots, "a.log", content), roots).stop


def test_errors_may_be_in_a_file_of_their_own(roots: Roots, tmp_path: Path) -> None:
    steps = put(roots, "17.out", "step 1 loss 3\nstep 2 loss 3\n")
    errors = put(roots, "17.err", "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\n")
    (found,) = analyse(steps, roots, errors=errors).findings
    assert (found.cause, found.source) == ("gpu_out_of_memory", f"{errors}:1")
    for unread in ("", f"{errors}.gone", str(tmp_path / "secret.log")):
        assert not analyse(steps, roots, errors=unread).findings


def test_an_end_is_no_failure(roots: Roots) -> None:
    told = analyse(put(roots, "a.log", "iteration 5 | loss 3\niteration 6 | loss 3\n"), roots)
    assert (told.findings, told.step, told.stop) == ((), 6, False)


def test_nothing_outside_is_read(roots: Roots, tmp_path: Path) -> None:
    Path(roots.folders[0], "out").symlink_to(tmp_path / "secret.log")
    for path in (f"{roots.folders[0]}/out", str(tmp_path / "secret.log")):
        with pytest.raises(RefusedError, match="is not below"):
            analyse(path, roots)


# --- rounds, and other files ----------------------------------------------------------------------


def event(cycle: int, name: str) -> str:
    return f"profiling.py:1   - Cycle: {cycle} Event: {name} Node: n0 Rank: 0 Time: x\n"


def test_rounds_in_one_log_are_told_apart(roots: Roots) -> None:
    failed = "1: iteration 5 | loss 3\n1: torch.OutOfMemoryError: CUDA out of memory\n"
    went_on = "1: iteration 6 | loss 3\n1: ValueError: bad batch\n"
    log = event(0, "rendezvous_started") + failed + event(1, "failure_detected")
    log += event(1, "rendezvous_started") + went_on.replace(
        "1: V", "1: Traceback (most recent call last):\n1: V"
    )
    told = analyse(put(roots, "a.log", log + event(2, "rendezvous_started") + "set-up\n"), roots)
    first, second = told.rounds
    assert [one.findings[0].cause for one in told.rounds] == ["gpu_out_of_memory", "program_error"]
    assert (first.step, second.step) == (5, 6)
    assert first.findings[0].source.endswith("a.log:3")
    assert second.findings[0].source.endswith("a.log:8")


def test_a_batch_script_says_where_ranks_write(roots: Roots) -> None:
    block = "<< START PATHS >>\nLOGS_DIR=/logs/17\n<< END PATHS >>\n"
    told = analyse(put(roots, "slurm.out", block + block), roots)
    assert (told.starts, told.logs_dir, told.findings) == (2, "/logs/17", ())


TIMEOUT = (
    "[rank0]:[E1124 10:00:00.000000 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600000 milliseconds\n"
)


def dumped(roots: Roots, where: str, log: str = TIMEOUT) -> str:
    """Write a log, and dumps into a folder; rank 2 has not come."""
    folder = Path(roots.folders[0], where)
    folder.mkdir(parents=True)
    make(folder)
    return put(roots, "a.log", log)


@pytest.mark.parametrize("where", ["checkpoints", "elsewhere", "."])
def test_dumps_tell_who_was_waited_for(roots: Roots, where: str) -> None:
    if where == ".":
        make(Path(roots.folders[0]))
        path = put(roots, "a.log", TIMEOUT)
    else:
        named = f"TORCH_FR_DUMP_TEMP_FILE={roots.folders[0]}/elsewhere/_dump_\n"
        path = dumped(roots, where, (named if where == "elsewhere" else "") + TIMEOUT)
    told = analyse(path, roots)
    assert told.hanging == (2,)
    assert told.findings[0].ranks == (2,)
    assert told.dumps == os.path.normpath(f"{roots.folders[0]}/{where}")


def test_dumps_of_a_run_whose_logs_are_in_a_folder_of_it(roots: Roots) -> None:
    dumped(roots, "run/checkpoints")
    Path(roots.folders[0], "run/logs").mkdir()
    assert analyse(put(roots, "run/logs/a.log", TIMEOUT), roots).hanging == (2,)


def test_dumps_that_do_not_belong_to_a_log_do_not_count(roots: Roots, tmp_path: Path) -> None:
    path = dumped(roots, "checkpoints")
    assert analyse(put(roots, "oom.log"), roots).dumps == ""  # its cause is known
    assert analyse(put(roots, "end.log", "iteration 5\n"), roots).dumps == ""
    folder = Path(roots.folders[0], "checkpoints")
    for file in folder.iterdir():
        os.utime(file, (1, 1))
    assert analyse(path, roots).dumps == ""
    assert analyse(path, roots, dumps=str(folder)).hanging == (2,)  # somebody says that they do
    folder.rename(tmp_path / "outside")
    folder.symlink_to(tmp_path / "outside")
    assert analyse(path, roots, dumps=str(folder)).hanging == ()
    folder.unlink()
    folder.mkdir()
    for file in (tmp_path / "outside").iterdir():
        (folder / file.name).symlink_to(file)
    assert analyse(path, roots, dumps=str(folder)).hanging == ()


# --- the program ----------------------------------------------------------------------------------


@on_loop
async def test_a_program_reads_one_log_after_the_other(roots: Roots, tmp_path: Path) -> None:
    analyst = Analyst(roots, LIMIT_S)
    try:
        path = put(roots, "a.log")
        assert await analyst.read(path, STAMP) == analyse(path, roots)
        assert analyst._program is not None
        pid = analyst._program.pid
        refused = await analyst.read(str(tmp_path / "secret.log"), STAMP)
        assert refused.problem.startswith("outside_root: ")
        assert (refused.stamp, refused.late) == (STAMP, False)
        assert await analyst.read(path, STAMP) == analyse(path, roots)
        assert analyst._program.pid == pid
    finally:
        await analyst.close()


@on_loop
async def test_a_program_that_has_ended_costs_one_log(roots: Roots) -> None:
    analyst = Analyst(roots, LIMIT_S)
    try:
        path = put(roots, "a.log")
        await analyst.read(path, STAMP)
        assert analyst._program is not None
        os.kill(analyst._program.pid, signal.SIGKILL)
        assert await analyst._program.ended(LIMIT_S)
        ended = await analyst.read(path, STAMP)
        assert "has ended" in ended.problem
        assert (await analyst.read(path, STAMP)).findings
    finally:
        await analyst.close()


@on_loop
async def test_a_log_that_takes_too_long_is_given_up(roots: Roots) -> None:
    analyst = Analyst(roots, 0.0)  # not even the start of the program is in time
    late = await analyst.read(put(roots, "a.log"), STAMP)
    assert late.late
    assert "longer than" in late.problem
    assert analyst._program is None


@on_loop
async def test_who_gives_up_leaves_no_program(roots: Roots) -> None:
    analyst = Analyst(roots, LIMIT_S)
    task = asyncio.ensure_future(analyst.read(put(roots, "a.log"), STAMP))
    while analyst._program is None:
        await asyncio.sleep(0)
    pid = analyst._program.pid
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
