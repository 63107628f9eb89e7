"""`undaunted serve`: what cannot be served is said; a real service over sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import signal
import socket
import ssl
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.cli.test_flight import make
from tests.coordinator.wire.certificates import make_certificate
from undaunted.base.process import module_command
from undaunted.cli import serve
from undaunted.cli.serve import SERVE, main
from undaunted.fault_tolerance.agent.attribution import AttributionClient
from undaunted.services.server import MOST_WAITING

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "0123456789abcdef"
DEADLINE_S = 60.0
FAILED = "0: iteration 5 | loss 3\n0: torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\n"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").write_text(FAILED)
    (tmp_path / "secret").write_text("secret")
    return tmp_path / "logs"


def test_a_missing_package_is_named(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.delitem(serve.sys.modules, "undaunted.services.server", raising=False)
    monkeypatch.setitem(serve.sys.modules, "uvicorn", None)
    assert main([f"--allowed-root={logs}"]) == 2
    assert "pip install 'undaunted[services]'" in capsys.readouterr().err


def test_variables_of_nvrx_count_and_options_go_before() -> None:
    environ = {
        "NVRX_ATTRSVC_HOST": "127.0.0.2",
        "NVRX_ATTRSVC_PORT": "9000",
        "NVRX_ATTRSVC_ALLOWED_ROOT": "/a:/b",
        "NVRX_ATTRSVC_RATE_LIMIT_ANALYZE": "7/minute",
        "PET_PORT": "9001",
    }
    parsed = SERVE.parse(["--host=127.0.0.1"], environ)
    options = parsed.options
    assert (options.host, options.port, options.rate_limit_analyze) == ("127.0.0.1", 9000, 7)
    assert options.allowed_root == [Path("/a"), Path("/b")]
    assert parsed.source("port") == "NVRX_ATTRSVC_PORT"


def test_the_ledger_is_in_the_users_state() -> None:
    options = SERVE.parse([], {}).options
    assert serve.state_dir(options, {"XDG_STATE_HOME": "/s"}) == Path("/s/undaunted/serve")
    assert serve.state_dir(options, {}) == Path("~/.local/state/undaunted/serve").expanduser()
    named = SERVE.parse(["--state-dir=/x"], {}).options
    assert serve.state_dir(named, {"XDG_STATE_HOME": "/s"}) == Path("/x")


# --- a real service -------------------------------------------------------------------------------


class Running:
    """A service that answers at a port, or at a Unix socket."""

    def __init__(self, process: subprocess.Popen[str], line: str) -> None:
        self.process = process
        self.line = line
        self.where = line.split("listens at ")[1].partition(",")[0]

    def request(
        self, method: str, path: str, body: Any = None, token: str = "", **connecting: Any
    ) -> tuple[int, Any]:
        kind: Any = http.client.HTTPConnection
        scheme, _, rest = self.where.partition("://")
        if scheme == "https":
            kind = http.client.HTTPSConnection
        connection = kind(
            "localhost" if scheme == "unix" else rest, timeout=DEADLINE_S, **connecting
        )
        if scheme == "unix":
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(rest)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            connection.request(method, path, body and json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        is_json = response.headers["content-type"] == "application/json"
        return response.status, json.loads(content) if is_json else content.decode()

    def get(self, path: str, **query: Any) -> tuple[int, Any]:
        asked = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
        return self.request("GET", f"{path}?{asked}")


@contextmanager
def running(logs: Path, *words: str, by: int = signal.SIGTERM) -> Iterator[Running]:
    command = module_command(
        "undaunted.cli.main",
        *("serve", f"--allowed-root={logs}", f"--state-dir={logs.parent / 'state'}"),
        *(words if any(word.startswith("--unix") for word in words) else ("--port=0", *words)),
    )
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        assert "listens at" in line, line + process.stderr.read()
        yield Running(process, line)
        process.send_signal(by)
        assert process.wait(DEADLINE_S) == (-by if by == signal.SIGKILL else 0)
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        process.stderr.close()


@pytest.mark.e2e
def test_a_log_is_answered_and_known_after_a_kill(logs: Path) -> None:
    path = str(logs / "a.log")
    about = {"log_path": path, "user": "me", "job_id": "7", "analysis_intent": "terminal"}
    with running(logs) as service:
        assert "asks for no token" in service.line
        status, answer = service.get("/logs", log_path=path)
        assert (status, answer["recommendation"]["action"]) == (200, "RESTART")
        assert "gpu_out_of_memory" in answer["result"]["result"]
    many = [logs / f"{number}.log" for number in range(40)]
    for one in many:
        one.write_text(FAILED)
    with running(logs, by=signal.SIGKILL) as service:  # most of them wait to be read then
        for one in many:
            assert service.request("POST", "/logs", {**about, "log_path": str(one)})[0] == 200
    with running(logs) as service:
        found = service.get("/jobs", limit=1000)[1]["jobs"]
        assert {row["log_path"] for row in found} == {path, *map(str, many)}
        assert {row["job_id"] for row in found if row["log_path"] != path} == {"7"}
        answer = service.get("/logs", log_path=many[-1])[1]  # the last one of the queue
        assert answer["result"]["findings"]
        left = [row for row in service.get("/jobs", limit=1000)[1]["jobs"] if row["wanted"]]
        assert len(left) <= 1  # another program may not be done yet: nobody has asked for these
        assert service.get("/stats")[1]["logs"] == len(many) + 1


@pytest.mark.e2e
def test_who_waits_for_an_answer_does_not_hold_up_the_end(logs: Path) -> None:
    with (logs / "long.log").open("w") as file:
        file.truncate(1 << 40)  # takes no space, and hours to read
    with ThreadPoolExecutor() as pool, running(logs) as service:
        asked = pool.submit(service.get, "/logs", log_path=logs / "long.log")
        while not service.get("/inflight")[1]["inflight"]:
            assert not asked.done()
        service.process.terminate()
        status, answer = asked.result(DEADLINE_S)
        assert (status, answer["recommendation"]["action"]) == (200, "UNKNOWN")
        assert service.process.stderr is not None
        assert service.process.stderr.read() == ""


@pytest.mark.e2e
def test_a_batch_job_that_was_requeued_and_whose_ranks_hang(logs: Path) -> None:
    started = "profiling.py:1   - Cycle: {} Event: rendezvous_started Node: n0 Rank: 0 Time: x\n"
    failed = "0: iteration 5 | loss 3\n0: torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\n"
    folder = logs / "17"
    folder.mkdir()
    (folder / "first.log").write_text(started.format(0) + failed + started.format(1) + failed)
    os.utime(folder / "first.log", (1, 1))
    (folder / "second.log").write_text(
        "[rank0]:[E1124 10:00:00.000000 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600000 ms\n"
    )
    make(folder / "checkpoints")
    block = f"<< START PATHS >>\nLOGS_DIR={folder}\n<< END PATHS >>\n"
    (logs / "slurm-17.out").write_text(block + block)
    about = {"log_path": str(logs / "slurm-17.out"), "job_id": 17, "cycle_id": 1}
    with running(logs) as service:
        status, said = service.request("POST", "/logs", about)
        assert (status, said["mode"]) == (200, "PENDING")
        answer = service.get("/logs", log_path=about["log_path"])[1]
        assert (answer["mode"], answer["sched_restarts"]) == ("SPLITLOG", 1)
        assert answer["log_file"] == str(folder / "second.log")
        assert answer["result"]["hanging_ranks"] == [2]
        first = {"log_path": about["log_path"], "file": "first.log"}
        for number in (0, 1):
            answer = service.get("/logs", **first, wl_restart=number)[1]
            assert (answer["wl_restart"], answer["wl_restart_count"]) == (number, 2)
            assert answer["result"]["findings"][0]["cause"] == "gpu_out_of_memory"
        assert service.get("/logs", **first, wl_restart=2)[0] == 404
        said = service.request("POST", "/logs", {**about, "analysis_intent": "terminal"})[1]
        assert (said["mode"], said["logs_dir"]) == ("SPLITLOG", str(folder))
        assert said["files_analyzed"] == 2


@pytest.mark.e2e
def test_hostile_paths(logs: Path) -> None:
    os.mkfifo(logs / "fifo")
    (logs / "out").symlink_to(logs.parent / "secret")
    (logs / "up").symlink_to(logs.parent)
    (logs / "loop").symlink_to("loop")
    (logs / "empty").touch()
    with (logs / "huge").open("wb") as file:
        file.truncate(10 << 30)
    expected = {
        f"{logs}/../secret": (403, "outside_root"),
        f"{logs}/out": (403, "outside_root"),
        f"{logs}/up/secret": (403, "outside_root"),
        "/proc/self/environ": (403, "outside_root"),
        "/proc/1/fd/0": (403, "outside_root"),
        "/dev/zero": (403, "outside_root"),
        f"{logs}/fifo": (400, "not_regular"),
        f"{logs}/empty": (400, "empty_file"),
        f"{logs}/loop": (400, "invalid_path"),
        f"{logs}/a\0b": (400, "invalid_path"),
        f"{logs}/{'x' * 5000}": (400, "invalid_path"),
        "a.log": (400, "invalid_path"),
        f"{logs}/gone": (404, "not_found"),
    }
    with running(logs, "--analysis-timeout=8s") as service:
        for path, (status, code) in expected.items():
            for route in ("/logs", "/print"):
                if (route, code) != ("/print", "empty_file"):
                    said = service.get(route, log_path=path)
                    assert (said[0], said[1]["error_code"]) == (status, code), (route, path)
                    assert "secret" not in said[1]["message"].replace(path, "")
            said = service.request("POST", "/logs", {"log_path": path})
            assert (said[0], said[1]["error_code"]) == (status, code), path
        answer = service.get("/logs", log_path=logs / "huge")[1]
        assert answer["recommendation"]["action"] == "TIMEOUT"
        assert answer["result"]["state"] == "timeout"
        status, answer = service.get("/logs", log_path=logs / "a.log")
        assert answer["recommendation"]["action"] == "RESTART"
        peak = Path(f"/proc/{service.process.pid}/status").read_text().split("VmHWM:")[1]
        assert int(peak.split()[0]) < 200_000  # kB


@pytest.mark.e2e
def test_the_token_is_asked_for(logs: Path) -> None:
    file = logs.parent / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    with running(logs, "--host=0.0.0.0", f"--token-file={file}") as service:
        assert "asks for the token" in service.line
        for path in ("/healthz", "/stats", "/jobs", "/print?log_path=/etc/passwd", "/gone"):
            for token in ("", TOKEN[:-1], TOKEN + "0", "é"):
                assert service.request("GET", path, token=token)[0] == 401
        assert service.request("GET", "/healthz", token=TOKEN) == (
            *(200, {"status": "ok", "issues": []}),
        )
    with running(logs, "--host=0.0.0.0", "--insecure") as service:
        assert "INSECURE" in service.line
        assert service.request("GET", "/healthz")[0] == 200


@pytest.mark.e2e
def test_clients_that_say_nothing_keep_nobody_out(logs: Path) -> None:
    with running(logs, by=signal.SIGINT) as service, contextlib.ExitStack() as silent:
        host, _, port = service.where.removeprefix("http://").partition(":")
        for _ in range(MOST_WAITING + 50):
            silent.enter_context(socket.create_connection((host, int(port)), DEADLINE_S))
        assert service.request("GET", "/healthz")[0] == 200
        assert service.process.stderr is not None
        assert "takes the place of the oldest" in service.process.stderr.readline()


@pytest.mark.e2e
def test_over_tls(logs: Path) -> None:
    made = make_certificate(logs.parent, "server", "IP:127.0.0.1")
    trusting = ssl.create_default_context(cafile=str(made.cert))
    with running(logs, f"--tls-cert={made.cert}", f"--tls-key={made.key}") as service:
        assert service.where.startswith("https://127.0.0.1:")
        path = f"/logs?log_path={logs}/a.log"
        assert service.request("GET", path, context=trusting)[0] == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            service.request("GET", path)


@pytest.mark.e2e
def test_the_launchers_client_over_tls_with_a_token(
    logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_certificate(logs.parent, "server", "IP:127.0.0.1")
    token = logs.parent / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.cert))
    answers: queue.Queue[Any] = queue.Queue()
    words = (f"--tls-cert={made.cert}", f"--tls-key={made.key}", f"--token-file={token}")
    with running(logs, *words) as service:
        client = AttributionClient(
            service.where, answers.put, answers.put, job="7", token=TOKEN.encode()
        )
        client.round_over(0, str(logs / "a.log"))
        answer = answers.get(timeout=DEADLINE_S)
        assert client.close(DEADLINE_S)
    assert (answer.action, "gpu_out_of_memory" in answer.text) == ("RESTART", True)


@pytest.mark.e2e
def test_a_unix_socket_of_this_user(logs: Path, capsys: Any) -> None:
    path = logs.parent / "s"
    with running(logs, f"--unix={path}") as service:
        assert service.where == f"unix://{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        assert service.get("/logs", log_path=logs / "a.log")[0] == 200
        words = [f"--allowed-root={logs}", f"--unix={path}", f"--state-dir={logs.parent / 'other'}"]
        assert main(words) == 2
        assert f"another program listens at {path}" in capsys.readouterr().err
        assert service.get("/healthz")[0] == 200
    assert not path.exists()
    with running(logs, f"--unix={path}", by=signal.SIGKILL):
        pass
    assert path.is_socket()
    with running(logs, f"--unix={path}") as service:
        assert service.get("/healthz")[0] == 200


@pytest.mark.e2e
def test_one_service_to_a_ledger(logs: Path, capsys: Any) -> None:
    with running(logs):
        words = [f"--allowed-root={logs}", "--port=0", f"--state-dir={logs.parent / 'state'}"]
        assert main(words) == 2
        assert "in use by another service; --state-dir names another" in capsys.readouterr().err
