"""A rank monitor by itself: a real process, ranks in processes of their own, one page."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from nvidia_resiliency_ext.fault_tolerance._rank_monitor import connection, start
from nvidia_resiliency_ext.fault_tolerance._rank_monitor.connection import (
    MonitorUnavailableError,
    connect,
)
from nvidia_resiliency_ext.fault_tolerance._rank_monitor.settings import settings_of
from undaunted.base.process import open_pidfd, wait_pidfd
from undaunted.fault_tolerance import FaultToleranceConfig, RankMonitorClient

LONG_S = 60.0
SRC = Path(__file__).parents[3] / "src"

RANK = """
import signal, sys
from undaunted.fault_tolerance import RankMonitorClient
from nvidia_resiliency_ext.fault_tolerance._rank_monitor.connection import connect
connection = connect(sys.argv[1], 3, 60)
client = RankMonitorClient()
client.init_workload_monitoring()
"""


@pytest.fixture
def monitor(tmp_path):
    """Starts monitors; each is ended and waited for."""
    started = []

    def run(path=tmp_path / "m.socket", **settings):
        started.append(start.start(FaultToleranceConfig(**settings), str(path)))
        return started[-1]

    yield run
    for process in started:
        process.terminate()
        process.join(LONG_S)
        assert process.exitcode is not None


def rank(path, code) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RANK + textwrap.dedent(code), str(path)],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.e2e
def test_a_rank_that_is_silent_is_ended(monitor, tmp_path, capfd):
    path = tmp_path / "m.socket"
    process = monitor(rank_heartbeat_timeout=0.3, workload_check_interval=0.2)
    assert process.is_alive()
    assert path.stat().st_mode & 0o777 == 0o600
    with rank(path, "print('here', flush=True); client.send_heartbeat(); signal.pause()") as child:
        assert child.stdout.readline() == "here\n"
        assert child.wait(LONG_S) == -signal.SIGKILL
    process.terminate()
    process.join(LONG_S)
    assert process.exitcode == 0
    assert not path.exists()
    said = capfd.readouterr().err
    assert "rank 3 (process" in said
    assert "no heartbeat for" in said
    assert "(limit 0.3 s, configured)" in said
    assert "ended with SIGKILL" in said


@pytest.mark.e2e
def test_a_signal_that_is_ignored_is_sent_again(monitor, tmp_path):
    monitor(
        rank_section_timeouts={"step": 0.2},
        rank_termination_signal="SIGTERM",
        workload_check_interval=0.1,
    )
    code = """
    seen = []
    def on_signal(number, frame):
        seen.append(number)
        if len(seen) == 2:
            print("twice", flush=True)
            client.end_section("step")
    signal.signal(signal.SIGTERM, on_signal)
    client.start_section("step")
    while len(seen) < 2:
        signal.pause()
    client.shutdown_workload_monitoring()
    connection.close()
    """
    with rank(tmp_path / "m.socket", code) as child:
        assert child.stdout.readline() == "twice\n"
        assert child.wait(LONG_S) == 0


@pytest.mark.e2e
def test_one_rank_after_another_has_the_page(monitor, tmp_path):
    path = str(tmp_path / "m.socket")
    monitor(rank_heartbeat_timeout=None, safety_factor=3, rank_section_timeouts={"step": 50})
    first = connect(path, 0, LONG_S)
    with pytest.raises(MonitorUnavailableError, match="did not give its page within"):
        connect(path, 1, 0.05)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    assert client.cfg.rank_section_timeouts == {"step": 50.0}
    assert client.cfg.safety_factor == 3.0
    client.send_heartbeat()
    client.send_heartbeat()
    assert client.calculate_and_set_hb_timeouts()
    assert client.cfg.rank_heartbeat_timeout == 60.0
    with rank(path, "print('attached', flush=True)") as waiting:
        client.shutdown_workload_monitoring()
        first.close()
        assert waiting.stdout.readline() == "attached\n"
        assert waiting.wait(LONG_S) == 0


@pytest.mark.e2e
def test_what_needs_a_launcher_is_refused(monitor, tmp_path):
    monitor()
    connected = connect(str(tmp_path / "m.socket"), 0, LONG_S)
    from undaunted.progress.writer import current_writer

    assert b"no launcher" in current_writer().request(b'{"action": "ShutdownWorkload"}', LONG_S)
    assert b"takes only limits" in current_writer().request(b"{", LONG_S)
    assert b"make no sense" in current_writer().request(b'{"timeouts": {"x": 1}}', LONG_S)
    assert current_writer().request(b'{"confirm": true}', LONG_S) == b"ok"
    connected.close()


@pytest.mark.e2e
def test_nothing_is_imported_from_the_current_directory(tmp_path, monkeypatch):
    for name in ("asyncio", "logging", "msgspec", "undaunted"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a decoy was imported')")
    monkeypatch.chdir(tmp_path)
    process = start.start(FaultToleranceConfig(), str(tmp_path / "m"))
    process.terminate()
    process.join(LONG_S)
    assert process.exitcode == 0


@pytest.mark.e2e
def test_it_ends_with_the_process_that_started_it(tmp_path):
    code = f"""
        import sys
        sys.path.insert(0, {str(SRC)!r})
        from undaunted.fault_tolerance import FaultToleranceConfig
        from nvidia_resiliency_ext.fault_tolerance._rank_monitor.start import start
        print(start(FaultToleranceConfig(), {str(tmp_path / "m")!r}).pid, flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        pidfd = open_pidfd(int(parent.stdout.readline()))
        parent.kill()
    try:
        assert wait_pidfd(pidfd, LONG_S)
    finally:
        os.close(pidfd)


@pytest.mark.e2e
def test_a_path_that_cannot_be_used_is_said(tmp_path, monitor):
    with pytest.raises(RuntimeError, match="did not start: No such file or directory"):
        monitor(tmp_path / "no" / "m.socket")
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeError, match="exists and is no socket"):
        monitor(tmp_path / "file")
    left = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    left.bind(str(tmp_path / "old"))
    left.close()
    assert monitor(tmp_path / "old").is_alive()


@pytest.mark.e2e
def test_a_monitor_leaves_the_socket_of_another_that_took_its_path(tmp_path, monitor):
    first, _ = monitor(), monitor()
    first.terminate()
    first.join(LONG_S)
    connect(str(tmp_path / "m.socket"), 0, LONG_S).close()


def test_nobody_at_the_path(tmp_path):
    with pytest.raises(MonitorUnavailableError, match="no rank monitor answers"):
        connect(str(tmp_path / "none"), 0, LONG_S)


def test_monitors_of_other_users_are_refused(tmp_path, monkeypatch):
    path = str(tmp_path / "m")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(1)
        monkeypatch.setattr(connection, "peer", lambda sock: (1, 4711))
        with pytest.raises(MonitorUnavailableError, match="belongs to a process of user 4711"):
            connect(path, 0, LONG_S)


def test_what_is_no_monitor_is_refused(tmp_path):
    path = str(tmp_path / "m")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(1)
        answer = threading.Thread(target=lambda: _answer(listening))
        answer.start()
        with pytest.raises(MonitorUnavailableError, match="does not lead to a rank monitor"):
            connect(path, 0, LONG_S)
        answer.join(LONG_S)


def _answer(listening):
    connected, _ = listening.accept()
    with connected, Path(os.devnull).open() as file:
        socket.send_fds(connected, [b"12"], [file.fileno()])
        connected.recv(100)


def test_settings_follow_the_configuration():
    cfg = FaultToleranceConfig(
        rank_heartbeat_timeout=7,
        initial_rank_heartbeat_timeout=None,
        rank_section_timeouts="step:5,warmup:9",
        rank_out_of_section_timeout="1m",
        num_warmup_iterations=2,
        skip_section_response=False,
        rank_termination_signal="SIGTERM",
    )
    made = settings_of(cfg, "/p", 4)
    assert (made.path, made.parent, made.signal, made.again_s) == ("/p", 4, signal.SIGTERM, 5.0)
    limits = made.limits
    assert (limits.heartbeat_s, limits.initial_heartbeat_s) == (7.0, None)
    assert (limits.warmup_s, limits.warmup_iterations) == (9.0, 2)
    assert (limits.out_of_section_s, limits.confirm, limits.learn) == (60.0, True, False)
