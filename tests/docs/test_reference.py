"""The pages that list things list all of them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from undaunted.coordinator.policy.messages import Outcome
from undaunted.fault_tolerance import run_config
from undaunted.fault_tolerance.launch_config import LaunchConfig

DOCS = Path(__file__).parents[2] / "docs"
# What torchrun and NVRx's ft_launcher read, besides PET_*.
READ_BY_OTHERS = [
    "CROSS_SLURM_PROCID",
    "FT_LAUNCHER_LOGLEVEL",
    "GROUP_RANK",
    "LLM_API_KEY_FILE",
    "NVRX_DISABLE_RANK_MONITORS",
    "NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE",
    "NVRX_GPUS_PER_NUMA",
    "NVRX_INFRA_RANK_FROM_NODENAME",
    "NVRX_INJECT_GPU_FAILURE",
    "NVRX_LOG_DEBUG",
    "NVRX_LOG_MAX_FILE_SIZE_KB",
    "NVRX_LOG_MAX_LOG_FILES",
    "NVRX_LOG_TO_STDOUT",
    "NVRX_NODE_LOCAL_TMPDIR",
    "NVRX_REPLACEMENT_GROUP_ID",
    "OMP_NUM_THREADS",
    "PYTHON_EXEC",
    "SLURMD_NODENAME",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_JOB_ID",
    "SLURM_JOB_NUM_NODES",
    "SLURM_JOB_USER",
    "SLURM_NNODES",
    "SLURM_PROCID",
    "SLURM_RESTART_COUNT",
    "SLURM_TASKS_PER_NODE",
    "SLURM_TOPOLOGY_ADDR",
    "SLURM_TOPOLOGY_ADDR_PATTERN",
    "SLURM_TOPOLOGY_NODES_PER_BLOCK",
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_HEALTH_CHECK_PORT",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
    "TORCHELASTIC_TIMER_FILE",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    "TORCH_ELASTIC_WORKER_IDENTICAL",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
]


def words(page: str) -> set[str]:
    """What stands in code marks, divided at anything but names."""
    return set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", (DOCS / page).read_text()))))


def test_every_field_of_a_launch() -> None:
    fields = {field.name for field in dataclasses.fields(LaunchConfig)}
    assert fields - words("python-api.md") == set()


@pytest.mark.parametrize("variable", READ_BY_OTHERS)
def test_every_variable_that_others_read(variable: str) -> None:
    assert variable in words("environment.md"), "say what it does here, or why nothing"


def test_every_end_and_its_code() -> None:
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", (DOCS / "exit-codes.md").read_text(), re.MULTILINE)
    told = {(int(code), text) for code, text in rows}
    for outcome in Outcome:
        label = f"`{outcome.value.replace('_', ' ')}`"
        assert [1 for code, text in told if code == outcome.exit_code and label in text], outcome


def test_every_signal_that_is_passed_on() -> None:
    page = (DOCS / "exit-codes.md").read_text()
    for number in run_config.STOP_SIGNALS:
        import signal

        assert signal.Signals(number).name in page
