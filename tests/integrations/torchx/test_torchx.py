"""`ft_ddp` with the real TorchX."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.blocks import find_blocks
from tests.integrations.commands import environment
from undaunted.integrations import torchx as adapter
from undaunted.integrations.torchx import ft_ddp

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PAGE = find_blocks((Path(__file__).parents[3] / "docs" / "torchx.md").read_text())


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for block in PAGE:
        if block.action == "write":
            (tmp_path / block.path).write_text(block.code)
    return tmp_path


@pytest.fixture
def runner() -> Iterator[Any]:
    from torchx.runner import get_runner

    with get_runner() as runner:
        yield runner


def run(job: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command that finds TorchX and undaunted."""
    return subprocess.run(
        command,
        cwd=job,
        env={**environment(job / "bin"), "TMPDIR": str(job), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=150,
    )


def test_a_job_of_torchx_survives_the_kill_of_a_rank(job: Path) -> None:
    """The lines of the page."""
    shell = next(block for block in PAGE if block.language == "bash")
    done = run(job, "bash", "-c", shell.code)
    assert done.returncode == 0, done.stdout
    assert "restart 1 of 3" in done.stdout
    for rank in range(2):
        # Rank 0 may have been stopped before it had saved what both had just done.
        assert re.search(rf"rank {rank} began at (9|10), ends at 20", done.stdout)
    again = run(job, "undaunted", "run", "train.py")  # killed after its last save
    assert "rank 0 began at 20, ends at 20" in again.stdout, again.stdout


def test_a_job_without_restarts_fails(job: Path) -> None:
    component = [f"{adapter.__file__}:ft_ddp", "-j", "1x2", "--script", "train.py"]
    options = ["--scheduler", "local_cwd", *component, "--max_restarts", "0"]
    done = run(job, "torchx", "run", *options, PET_INJECT_FAULT="sigkill:rank=0,iteration=3")
    assert done.returncode != 0


def test_the_page_says_how_it_is_used_in_python(job: Path) -> None:
    program = next(block for block in PAGE if block.language == "python" and not block.path)
    done = run(job, sys.executable, "-c", program.code)
    assert done.returncode == 0, done.stdout
    assert "undaunted run --max-restarts 10 " in done.stdout


def test_the_component_has_the_arguments_of_torchx() -> None:
    import inspect

    from torchx.components import dist

    theirs = inspect.signature(dist.ddp).parameters
    ours = inspect.signature(ft_ddp).parameters
    assert set(ours) - set(theirs) == {"max_restarts"}
    assert set(theirs) - set(ours) == {"rdzv_backend"}
    changed = {name for name in set(ours) & set(theirs) if ours[name] != theirs[name]}
    assert changed == {"image"}
    assert ft_ddp(script="train.py").roles[0].image == theirs["image"].default


@pytest.mark.parametrize(
    ("scheduler", "arguments"), [("slurm", {"partition": "debug"}), ("kubernetes", {"queue": "q"})]
)
def test_a_scheduler_takes_it(runner: Any, scheduler: str, arguments: dict[str, str]) -> None:
    app = ft_ddp("--lr", "a b", script="train.py", j="2:4x8", gpu=8, env={"PET_ADVICE": "act"})
    request = str(runner.dryrun(app, scheduler, arguments))
    assert "undaunted run --max-restarts 3 " in request
    assert "torchrun " not in request
    for words in ("--nnodes 2:4", "--nproc_per_node 8", ":29500", "PET_ADVICE"):
        assert words in request
    assert request.count("undaunted run") == 4


def test_wrong_arguments_are_refused_as_by_torchx() -> None:
    with pytest.raises(ValueError, match="exactly one of"):
        ft_ddp(script="train.py", m="train")
    with pytest.raises(ValueError, match="-j"):
        ft_ddp(script="train.py", j="many")


def test_a_launcher_of_torchx_that_we_do_not_know_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torchx.components import dist

    app = dist.ddp(script="train.py")
    app.roles[0].args = ["-c", "python -m torch.distributed.run train.py"]
    monkeypatch.setattr(dist, "ddp", lambda *_, **__: app)
    with pytest.raises(RuntimeError, match="'python'"):
        ft_ddp(script="train.py")
