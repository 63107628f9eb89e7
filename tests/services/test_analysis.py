"""What a log is said to tell of, and what happens to the program when a log is hostile."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

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


def test_an_end_is_no_failure(roots: Roots) -> None:
    told = analyse(put(roots, "a.log", "iteration 5 | loss 3\niteration 6 | loss 3\n"), roots)
    assert (told.findings, told.step, told.stop) == ((), 6, False)


def test_nothing_outside_is_read(roots: Roots, tmp_path: Path) -> None:
    Path(roots.folders[0], "out").symlink_to(tmp_path / "secret.log")
    for path in (f"{roots.folders[0]}/out", str(tmp_path / "secret.log")):
        with pytest.raises(RefusedError, match="is not below"):
            analyse(path, roots)


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
        analyst._program.kill()
        await analyst._program.wait()
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
