"""What a job from Python means as a command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from undaunted.cli import run
from undaunted.cli.options import RUN
from undaunted.fault_tolerance.launch_config import LaunchConfig, options


def test_only_what_was_given_is_an_option() -> None:
    given = LaunchConfig(
        1,
        1,
        2,
        run_dir=Path("/run"),
        tee={0: 3, 1: 2},
        local_ranks_filter=[0, 1],
        shutdown_timeout=5,
        preload=["numpy", "json"],
    )
    found = options(given, "run")
    assert {
        "--tee=0:3,1:2",
        "--run-dir=/run",
        "--local-ranks-filter=0,1",
        "--term-timeout=5",
        "--workers-stop-timeout=5",
        "--preload=numpy,json",
        "--max-restarts=3",
    } <= set(found)
    assert not [
        option for option in options(LaunchConfig(1, 1, 2), "run") if "stop-timeout" in option
    ]


def test_fields_of_torch_and_nvrx_mean_options(tmp_path: Path) -> None:
    config = LaunchConfig(
        1,
        1,
        2,
        None,
        rdzv_backend="etcd",
        rdzv_configs={"timeout": 900},
        monitor_interval=5,
        tee=3,
        term_timeout=60,
        workers_stop_timeout=7,
        shutdown_timeout=1,
        restart_policy="min-healthy",
        signals_to_handle="SIGTERM,SIGUSR1",
        virtual_local_rank=True,
    )
    (tmp_path / "train.py").touch()
    parsed = RUN.parse([*options(config, "run"), "train.py"], {})
    found, notice = run.build_config(parsed, {}, str(tmp_path))
    assert notice == ""
    assert (found.nproc_per_node, found.run_id, found.role) == (2, "run", "default_role")
    assert (found.term_timeout_s, found.stop_timeout_s) == (60, 7)
    assert found.signals == (15, 10)
    assert found.virtual_local_rank


def test_several_nodes(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    config = LaunchConfig(
        2,
        4,
        8,
        run_id="job7",
        rdzv_endpoint="127.0.0.1:29400",
        rdzv_configs={"rank": 1, "is_host": True, "lease": 2, "timeout": 9},
        rdzv_timeout=60,
        node_name="node1",
        elastic=True,
        fault_tol_cfg=None,
    )
    parsed = RUN.parse([*options(config, "job7"), "train.py"], {})
    found, _ = run.build_config(parsed, {}, str(tmp_path))
    assert (found.run_id, found.node) == ("job7", "node1")
    assert found.nodes is not None
    assert (found.nodes.min_nodes, found.nodes.max_nodes, found.nodes.elastic) == (2, 4, True)
    assert found.nodes.endpoints == ["127.0.0.1:29400"]
    assert (found.nodes.infra_rank, found.nodes.is_host) == (1, True)
    assert (found.nodes.lease_s, found.nodes.first_round_timeout_s) == (2, 60)


def test_nodes_are_named_as_the_launcher_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    config = LaunchConfig(2, 2, 1, run_id="job7", rdzv_endpoint="127.0.0.1:29400")
    monkeypatch.setenv("SLURMD_NODENAME", "node3")
    assert config.node == "node3"
    assert "--node-name=node3" in options(config, "job7")


def test_where_metrics_go(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    config = LaunchConfig(
        1, 1, 1, metrics_port=0, metrics_address="::1", otlp_endpoint="http://127.0.0.1:4318"
    )
    parsed = RUN.parse([*options(config, "run"), "train.py"], {})
    found, _ = run.build_config(parsed, {}, str(tmp_path))
    assert found.metrics is not None
    assert (found.metrics.port, found.metrics.address) == (0, "::1")
    assert found.metrics.otlp_endpoint == "http://127.0.0.1:4318"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_nodes": 0}, "min_nodes 0, max_nodes 1: give 1 or more"),
        ({"min_nodes": 2}, "min_nodes 2, max_nodes 1: .* min_nodes not above max_nodes"),
        ({"max_nodes": 2}, "several nodes need a place to meet: give rdzv_endpoint"),
        ({"max_nodes": 2, "rdzv_endpoint": "host0:29400"}, "give run_id, a name of this job"),
        ({"shutdown_timeout": -1}, "shutdown_timeout -1: give 0 or more seconds"),
        ({"term_timeout": -2}, "term_timeout -2"),
        ({"fault_tol_cfg": {"segment": 3}}, r"give a FaultToleranceConfig\(\.\.\.\)"),
        ({"numa_options": object()}, "numa_options .*NVRX_GPUS_PER_NUMA"),
        ({"logs_specs": object()}, "logs_specs object .*redirects"),
        ({"duplicate_stdout_filters": ["loss"]}, "duplicate_stdout_filters .*grep"),
        ({"duplicate_stderr_filters": ["loss"]}, "duplicate_stderr_filters .*grep"),
        ({"options": {"logs_specs": "mine"}}, "'logs_specs' .*redirects"),
        ({"options": {"duplicate-stdout-filters": "x"}}, "'duplicate-stdout-filters' .*grep"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LaunchConfig(**{"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 1, **fields})


@pytest.mark.torch
def test_logs_specs_of_torch() -> None:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

    specs = DefaultLogsSpecs(log_dir="/logs", tee=Std.ALL, local_ranks_filter={1})
    assert {"--log-dir=/logs", "--tee=3", "--redirects=0", "--local-ranks-filter=1"} <= set(
        options(LaunchConfig(1, 1, 2, specs), "run")
    )
    with pytest.raises(ValueError, match="logs_specs says what tee says; leave one"):
        LaunchConfig(1, 1, 2, specs, tee=3)


def test_every_option_can_be_given_from_python(tmp_path: Path) -> None:
    further = {
        "advice": "act",
        "log-max-bytes": "64M",
        "slow_ranks": "stop",
        "no-python": True,
        "flight-recorder": None,
    }
    (tmp_path / "train.py").touch()
    found = options(LaunchConfig(1, 1, 2, options=further), "run")
    assert {"--advice=act", "--log-max-bytes=64M", "--slow-ranks=stop", "--no-python"} <= set(found)
    assert not [option for option in found if "flight" in option]
    parsed = RUN.parse([*options(LaunchConfig(1, 1, 2, options=further), "run"), "true"], {})
    assert parsed


@pytest.mark.parametrize("name", ["--advice", "advice=act", "", "max-restarts", "max_restarts"])
def test_an_option_that_is_none_or_has_a_field_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="options"):
        LaunchConfig(1, 1, 2, options={name: 1})
