"""The launcher and the plug-ins with the real NeMo-Run."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.docs.blocks import find_blocks
from tests.integrations.commands import environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

BLOCKS = find_blocks((Path(__file__).parents[3] / "docs" / "torchx.md").read_text())

# NeMo-Run warns when it is imported, so that it is not imported here.
BEGIN = """
    from dataclasses import dataclass, field
    import nemo_run as run
    from nemo_run.run.torchx_backend.packaging import package
    from undaunted.integrations.megatron.config import FaultToleranceConfig
    from undaunted.integrations.nemo_run import *

    @dataclass
    class Part:
        exit_signal_handler: bool = False
        exit_signal_handler_for_dataloader: bool = False
        use_nsys_profiler: bool = True

    @dataclass
    class Container:
        train: Part = field(default_factory=Part)
        profiling: Part = field(default_factory=Part)
        ft: FaultToleranceConfig | None = None

    def pretrain(config: Container): ...
    def plain(): ...

    def slurm(**more):
        tunnel = run.LocalTunnel(job_dir="jobs")
        return run.SlurmExecutor(account="a", tunnel=tunnel, ntasks_per_node=4, **more)
"""


def run(folder: Path, *command: str, **env: str) -> str:
    """Run a command that finds undaunted; return what it prints."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**environment(folder / "bin"), "NEMORUN_HOME": str(folder / "home"), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def check(folder: Path, program: str) -> str:
    program = textwrap.dedent(BEGIN) + textwrap.dedent(program)
    return run(folder, sys.executable, "-c", program)


def test_a_job_of_nemo_run_survives_the_kill_of_a_rank(tmp_path: Path) -> None:
    """The lines of the page."""
    for block in BLOCKS:
        if block.action == "write":
            (tmp_path / block.path).write_text(block.code)
    shell = next(block for block in BLOCKS if "python submit.py" in block.code)
    printed = run(tmp_path, "bash", "-c", shell.code)
    assert "restart 1 of 3" in printed
    for rank in range(2):
        # Rank 0 may have been stopped before it had saved what both had just done.
        assert re.search(rf"rank {rank} began at (9|10), ends at 20", printed)


def test_a_plugin_of_the_page_adds_no_arguments(tmp_path: Path) -> None:
    (program,) = [block.code for block in BLOCKS if "no_arguments" in block.code]
    (tmp_path / "submit.py").write_text(program)
    (tmp_path / "train.py").write_text("import sys\nprint('arguments:', sys.argv[1:])\n")
    run(tmp_path, sys.executable, "submit.py")
    (log,) = tmp_path.glob("home/**/train.py/0/stdout.log")
    text = log.read_text()
    assert "2 restarts allowed" in text + log.with_name("stderr.log").read_text()
    assert text.count("arguments: []") == 2


def test_plugins_change_scripts_and_executors(tmp_path: Path) -> None:
    check(
        tmp_path,
        """
        script, executor = run.Script("train.py", entrypoint="python", args=["--lr", "1"]), slurm()
        FaultTolerancePlugin(num_in_job_restarts=7).setup(script, executor)
        PreemptionPlugin(preempt_time=45).setup(script, executor)
        assert script.args == [
            "--lr",
            "1",
            "ft.enable_ft_package=true",
            "ft.calc_ft_timeouts=true",
            "train.exit_signal_handler=True",
            "train.exit_signal_handler_for_dataloader=False",
        ], script.args
        assert isinstance(executor.launcher, run.FaultTolerance)
        assert executor.launcher == Undaunted(
            max_restarts=7, initial_rank_heartbeat_timeout=1800, rank_heartbeat_timeout=300
        )
        assert (executor.retries, executor.signal) == (2, "TERM@45")
        assert executor.env_vars == {"PET_EXIT_CODES": "simple"}

        script, executor = run.Script("train.py"), run.LocalExecutor()
        executor.env_vars["PET_EXIT_CODES"] = "all"
        seen = []
        FaultTolerancePlugin(
            calc_ft_timeouts=False,
            script_args_converter_fn=lambda args: seen.append(args) or ["--ft"],
        ).setup(script, executor)
        PreemptionPlugin(script_args_converter_fn=lambda args: []).setup(script, executor)
        PreemptionPlugin(enable_exit_handler=False).setup(script, executor)
        assert script.args == ["--ft"]
        assert seen == [FaultTolerancePluginScriptArgs(True, False)]
        assert executor.env_vars == {"PET_EXIT_CODES": "all"}
        """,
    )


def test_plugins_change_partials(tmp_path: Path) -> None:
    check(
        tmp_path,
        """
        for config in (Container(), run.Config(Container, train=run.Config(Part),
                                               profiling=run.Config(Part))):
            task, executor = run.Partial(pretrain, config=config), slurm()
            FaultTolerancePlugin(calc_ft_timeouts=False).setup(task, executor)
            PreemptionPlugin(enable_exit_handler_for_data_loader=True).setup(task, executor)
            config = task.config
            assert (config.ft.enable_ft_package, config.ft.calc_ft_timeouts) == (True, False)
            assert config.train.exit_signal_handler
            assert config.train.exit_signal_handler_for_dataloader
            assert config.profiling.use_nsys_profiler is False
            assert executor.retries == 2
        task, executor = run.Partial(plain), run.LocalExecutor()
        FaultTolerancePlugin().setup(task, executor)
        PreemptionPlugin().setup(task, executor)
        assert isinstance(executor.launcher, Undaunted)
        """,
    )


def test_nemo_run_starts_ft_launcher_with_the_options_of_the_launcher(tmp_path: Path) -> None:
    check(
        tmp_path,
        """
        launcher = Undaunted(rank_heartbeat_timeout=90)
        executor = run.LocalExecutor(ntasks_per_node=4, launcher=launcher).clone()
        (role,) = package("train", run.Script("train.py", entrypoint="python"), executor).roles
        words = " ".join(role.args)
        assert role.entrypoint == "ft_launcher"
        assert "--max-restarts 3 " in words
        assert "--ft-rank_heartbeat_timeout 90 " in words
        assert "--nproc-per-node 4 " in words
        """,
    )
