"""Client and server of NVRx's names without the launcher: in processes of their own, one page."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from nvidia_resiliency_ext.fault_tolerance import (
    FaultToleranceConfig,
    RankMonitorClient,
    RankMonitorClientError,
    RankMonitorServer,
    WorkloadAction,
    WorkloadControlRequest,
)
from nvidia_resiliency_ext.fault_tolerance.data import (
    FT_LAUNCHER_IPC_SOCKET_ENV_VAR,
    FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR,
)
from nvidia_resiliency_ext.fault_tolerance.ipc_connector import IpcConnector

LONG_S = 60.0

RANK = """
import signal
import nvidia_resiliency_ext.fault_tolerance as ft
client = ft.RankMonitorClient()
client.init_workload_monitoring()
"""


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Starts a server, and puts its path into the environment."""
    started = []

    def start(**settings):
        path = str(tmp_path / "rank.socket")
        cfg = FaultToleranceConfig(**settings)
        started.append(RankMonitorServer.run_in_subprocess(cfg, path, mp_ctx=multiprocessing))
        monkeypatch.setenv(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, path)
        monkeypatch.setenv("RANK", "0")
        return started[-1]

    yield start
    for server in started:
        server.terminate()
        server.join(LONG_S)
        assert not server.is_alive()


@pytest.fixture
def client(serve):
    serve(rank_heartbeat_timeout=None, rank_section_timeouts={"step": 70}, safety_factor=2)
    client = RankMonitorClient()
    yield client
    client.shutdown_workload_monitoring()


def rank(code) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RANK + textwrap.dedent(code)]
    return subprocess.Popen(
        command, env=os.environ | {"RANK": "3"}, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("settings", "code", "why"),
    [
        ({"initial_rank_heartbeat_timeout": 0.3}, "", "no first heartbeat for"),
        ({"rank_heartbeat_timeout": 0.3}, "client.send_heartbeat()", "no heartbeat for"),
        (
            # The last section that was opened has time; the first one has not.
            {"rank_section_timeouts": {"outer": 0.3, "inner": 1000}},
            "client.start_section('outer'); client.start_section('inner')",
            "section 'outer' open for",
        ),
        (
            {"rank_section_timeouts": {"a": 100}, "rank_out_of_section_timeout": 0.3},
            "client.start_section('a'); client.end_all_sections()",
            "outside of sections for",
        ),
    ],
)
def test_a_rank_that_hangs_is_ended(serve, settings, code, why, capfd):
    serve(**settings)
    with rank(f"{code}\nprint('here', flush=True)\nsignal.pause()") as child:
        assert child.stdout.readline() == "here\n"
        assert child.wait(LONG_S) == -signal.SIGKILL
    assert f"rank 3 (process {child.pid}): {why}" in capfd.readouterr().err


@pytest.mark.e2e
def test_a_crash_before_the_first_heartbeat_does_not_poison_the_monitor(serve):
    server = serve(rank_heartbeat_timeout=50)
    for code in (
        "client.send_heartbeat(); signal.raise_signal(9)",
        "signal.raise_signal(9)",
        "signal.raise_signal(9)",
    ):
        assert rank(code).communicate(timeout=LONG_S) == ("", None)
    with rank("client.send_heartbeat(); client.shutdown_workload_monitoring()") as last:
        assert last.wait(LONG_S) == 0
    assert server.is_alive()


@pytest.mark.e2e
def test_life_of_a_client(client):
    with pytest.raises(RankMonitorClientError, match="call init_workload_monitoring first"):
        client.send_heartbeat()
    client.init_workload_monitoring()
    with pytest.raises(RankMonitorClientError, match="was called already"):
        client.init_workload_monitoring()
    assert isinstance(client.cfg, FaultToleranceConfig)
    assert client.cfg.rank_section_timeouts == {"step": 70.0}
    for _ in range(2):
        client.send_heartbeat()
        client.start_section("step")
        client.start_section("not in the configuration")
        client.end_section("not in the configuration")
        client.end_section("step")
    assert client.calculate_and_set_section_timeouts()
    assert client.section_timeouts.calculated_sections == {"step"}
    assert client.cfg.rank_section_timeouts["step"] == 60.0, "the server has taken it"
    state = client.state_dict()[client.CURRENT_TIMEOUTS_STATE_KEY]
    assert state["section"]["calculated_sections"] == ["step"]
    client.shutdown_workload_monitoring()
    client.shutdown_workload_monitoring()
    client.init_workload_monitoring(num_warmup_iters=1)
    client.load_state_dict({client.CURRENT_TIMEOUTS_STATE_KEY: state})
    client.shutdown_workload_monitoring()
    with pytest.raises(TypeError, match="not a whole number"):
        client.init_workload_monitoring(num_warmup_iters="many")
    client.init_workload_monitoring()


@pytest.mark.e2e
def test_a_forked_child_does_not_end_monitoring(client):
    client.init_workload_monitoring()
    pid = os.fork()
    if not pid:
        client.shutdown_workload_monitoring()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    for _ in range(2):
        client.send_heartbeat()
    assert client.calculate_and_set_hb_timeouts(), "the server still answers"
    assert client.cfg.rank_heartbeat_timeout == 60.0


@pytest.mark.e2e
def test_strict_mode(serve):
    serve(skip_section_response=False)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    client.send_heartbeat()
    client.start_section("a")
    client.end_section("a")
    client.shutdown_workload_monitoring()


@pytest.mark.e2e
def test_run_in_a_process_of_the_caller(tmp_path, monkeypatch):
    path = str(tmp_path / "rank.socket")
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    server = context.Process(
        target=RankMonitorServer.run, args=(FaultToleranceConfig(), path, ready, False)
    )
    server.start()
    assert ready.wait(LONG_S)
    monkeypatch.setenv(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, path)
    monkeypatch.setenv("RANK", "0")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    assert client.cfg.rank_heartbeat_timeout == 2700.0
    client.shutdown_workload_monitoring()
    server.terminate()
    server.join(LONG_S)
    assert server.exitcode == 0
    server.close()


def test_a_path_where_nobody_answers(tmp_path, monkeypatch):
    monkeypatch.setenv(FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, str(tmp_path / "none"))
    client = RankMonitorClient()
    with pytest.raises(RuntimeError, match="the rank of this process is not known"):
        client.init_workload_monitoring()
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(RankMonitorClientError, match=r"no rank monitor answers at .*IPC_SOCKET"):
        client.init_workload_monitoring()
    assert not client.is_initialized


def test_control_requests_go_to_the_launchers_socket(tmp_path, monkeypatch):
    request = WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "bad GPU")
    client = RankMonitorClient()
    with pytest.raises(RuntimeError, match="there is no launcher to ask"):
        client.send_workload_control_request(request)
    path = str(tmp_path / "launcher.socket")
    monkeypatch.setenv(FT_LAUNCHER_IPC_SOCKET_ENV_VAR, path)
    monkeypatch.setenv("RANK", "5")
    with pytest.raises(RankMonitorClientError, match="did not take it"):
        client.send_workload_control_request(request)
    launcher = IpcConnector(path)
    launcher.start_receiving()
    client.send_workload_control_request(request)
    ((rank, received),) = launcher.fetch_received()
    launcher.stop_receiving()
    assert (rank.global_rank, rank.pid, received) == (5, os.getpid(), request)


@pytest.mark.e2e
def test_a_monitor_that_dies_does_not_disturb_training(serve, caplog):
    server = serve(rank_heartbeat_timeout=50)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    server.kill()
    server.join(LONG_S)
    assert server.exitcode == -signal.SIGKILL
    client.send_heartbeat()
    client.send_heartbeat()
    client.start_section("step")
    client.end_all_sections()
    assert not client.calculate_and_set_hb_timeouts()
    assert "not applied: the rank monitor has ended" in caplog.text, "and nobody was waited for"
    assert client.hb_timeouts.were_calculated
    client.shutdown_workload_monitoring()
    with pytest.raises(RankMonitorClientError, match="no rank monitor answers"):
        client.init_workload_monitoring()
    serve(rank_heartbeat_timeout=50)
    client.init_workload_monitoring()
    client.send_heartbeat()
    client.shutdown_workload_monitoring()
