"""Command lines and files that the guides of NVRx and Megatron-Bridge show, as they stand."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.cli import run
from undaunted.cli.messages import UsageError
from undaunted.cli.options import RUN

if TYPE_CHECKING:
    from pathlib import Path

    from undaunted.fault_tolerance.run_config import RunConfig

# Each stands before the name of a script.
LINES = (
    # options that the NVRx guide names one by one, with the values it gives them
    "--max-restarts 3 --ft-restart-policy any-failed",
    "--max-restarts 3 --ft-restart-policy min-healthy --nnodes 1",
    "--ft-node-health-check-endpoint /var/run/nodehealth.sock",
    "--ft-node-health-check-endpoint unix:///var/run/nodehealth.sock",
    "--ft-node_health_check_endpoint /var/run/nodehealth.sock",
    "--ft-attrsvc-host 127.0.0.1 --ft-attrsvc-port 8000",
    "--ft_attrsvc_host 127.0.0.1 --ft_attrsvc_port 8000",
    (
        "--max-restarts 3 --ft-gpu-memory-reclaim-timeout 50.0 --ft-gpu-memory-tolerance-mb 512.0 "
        "--ft-gpu-memory-poll-interval 2.0"
    ),
    "--ft-use-infra-group-rank=True",
    "--ft-use-infra-group-rank=False",
    "--nproc-per-node=8",
    # the launch command of Megatron-Bridge
    (
        "--rdzv_backend=c10d --rdzv_endpoint=127.0.0.1:29500 --nnodes=1 --nproc-per-node=8 "
        "--ft-param-rank_section_timeouts=setup:600,step:180,checkpointing:420 "
        "--ft-param-rank_out_of_section_timeout=300"
    ),
    # what its plug-in for NeMo-Run turns its options into
    (
        "--ft-param-workload_check_interval=5 --ft-param-initial_rank_heartbeat_timeout=1800 "
        "--ft-param-rank_heartbeat_timeout=300 --ft-param-rank_termination_signal=SIGKILL "
        "--ft-param-log_level=INFO --ignore-missing-fault-tol-cfg --max-restarts 3"
    ),
    # flags of later versions that ask for what is the case
    (
        "--ft-enable-log-server false --ft-log-server-port 50051 --ft-log-aggregator-count 0 "
        "--ft-log-leaf-max-queue-chunks -1 --ft-log-server-graceful-shutdown-timeout 60"
    ),
    "--ft-no-restart-exit-code 93 --ft-rdzv-impl barrier --ft-rdzv_impl legacy",
    (
        "--nnodes 1:1 --rdzv-backend c10d --rdzv-endpoint localhost --rdzv-id 7 "
        "--rdzv-conf timeout=900,join_timeout=300,is_host=1 --node-rank 0 --local-addr 127.0.0.1"
    ),
    "--ft-attribution-endpoint http://127.0.0.1:8000 --ft-attribution-stop-action log",
    "--ft-attribution-endpoint localhost --ft-attribution-llm-model m",
    (
        "--ft_attribution_endpoint unix:///run/attribution.sock "
        "--ft-per-cycle-applog-prefix /tmp/app.log"
    ),
    "--ft-enable-dist-storage-healthcheck true",
    "--ft_enable_dist_storage_healthcheck true",
    "--ft-storage-health-check-path '/data/checkpoints,/mnt/dataset'",
    "--ft_storage_health_check_path '/data/checkpoints,/mnt/dataset'",
)
FILES = (
    ('attrsvc_host: "127.0.0.1"\n  attrsvc_port: 8000', "--ft-cfg-path ft.yaml"),
    ("use_infra_group_rank: false", "--ft-cfg-path ft.yaml"),
    ('storage_healthcheck_path: "/data/checkpoints,/mnt/dataset"', "--ft-cfg-path ft.yaml"),
)


def build(tmp_path: Path, line: str, **environ: str) -> RunConfig:
    (tmp_path / "train.py").touch()
    parsed = RUN.parse([*shlex.split(line), "train.py"], environ)
    return run.build_config(parsed, environ, str(tmp_path))[0]


@pytest.mark.parametrize("line", LINES)
def test_lines_are_accepted(tmp_path: Path, line: str) -> None:
    assert build(tmp_path, line).target == "train.py"


@pytest.mark.parametrize(("text", "line"), FILES)
def test_files_are_accepted(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "ft.yaml").write_text(f"fault_tolerance:\n  {text}\n")
    assert build(tmp_path, line).target == "train.py"


def test_what_they_mean(tmp_path: Path) -> None:
    megatron: Any = build(tmp_path, LINES[11]).limits
    assert megatron.sections == {"setup": 600, "step": 180, "checkpointing": 420}
    assert megatron.out_of_section_s == 300
    nemo: Any = build(tmp_path, LINES[12]).limits
    assert (nemo.initial_heartbeat_s, nemo.heartbeat_s) == (1800, 300)
    assert build(tmp_path, LINES[3]).node_health_socket == "/var/run/nodehealth.sock"


def test_gpus_of_the_numa_example_are_a_number(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="NVRX_GPUS_PER_NUMA"):
        build(tmp_path, "--nproc-per-node=8", NVRX_GPUS_PER_NUMA="four")
