import os
import signal
import threading
import time

import pytest

from nvidia_resiliency_ext.shared_utils.log_aggregator import main
from undaunted.fault_tolerance.output.stamps import stamp

DEADLINE_S = 60.0


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.delenv("NVRX_NODE_LOCAL_TMPDIR", raising=False)
    path = tmp_path / "messages"
    path.mkdir(mode=0o700)
    for rank in (1, 0):
        (path / f"rank_{rank}_7.msg.1").write_text(f"{stamp(rank)} of rank {rank}\n")
    return path


def lines(path):
    return [line.split(" ", 1)[1] for line in path.read_text().splitlines()]


def test_once(tmp_path, directory, monkeypatch):
    log = tmp_path / "logs" / "node.log"
    monkeypatch.setenv("NVRX_NODE_LOCAL_TMPDIR", str(directory))
    assert main(["--log_file", str(log), "--once"]) == 0
    assert lines(log) == ["of rank 0", "of rank 1"]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, "file"])
def test_until_it_is_told_to_end(tmp_path, directory, end):
    log, stop = tmp_path / "node.log", tmp_path / "stop"

    before = signal.getsignal(signal.SIGTERM)

    def act():
        deadline = time.monotonic() + DEADLINE_S
        while signal.getsignal(signal.SIGTERM) is before and time.monotonic() < deadline:
            os.sched_yield()
        with (directory / "rank_0_7.msg.1").open("a") as file:
            file.write(f"{stamp(2)} last\n")
        if end == "file":
            stop.touch()
        else:
            os.kill(os.getpid(), end)

    actor = threading.Thread(target=act)
    actor.start()
    argv = [f"--temp-dir={directory}", "--log-file", str(log), "--wait-file", str(stop)]
    assert main(argv) == 0
    actor.join(DEADLINE_S)
    assert lines(log) == ["of rank 0", "of rank 1", "last"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--log-file", "/l"], "Give --temp-dir or NVRX_NODE_LOCAL_TMPDIR"),
        (["--temp-dir", "/d"], "Give --log-file"),
        (["--log-file"], "--log-file needs a value"),
        (["--frob"], "unknown option --frob; see --help"),
        (["file"], "unknown option file; see --help"),
    ],
)
def test_mistakes(directory, argv, message, capsys):
    assert main(argv) == 2
    assert message in capsys.readouterr().err


def test_a_directory_that_cannot_be_used(tmp_path, directory, capsys):
    (tmp_path / "file").touch()
    assert main(["--temp-dir", str(tmp_path / "file"), "--log-file", "l"]) == 1
    assert f"{tmp_path}/file is no directory" in capsys.readouterr().err


def test_what_is_in_the_way_is_named(tmp_path, directory, capsys):
    (tmp_path / "file").touch()
    argv = ["--temp-dir", str(directory), "--log-file", str(tmp_path / "file" / "log"), "--once"]
    assert main(argv) == 1
    assert f"log_aggregator: {tmp_path}/file/log: Not a dir" in capsys.readouterr().err
    missing = str(tmp_path / "missing")
    assert main(["--temp-dir", missing, "--log-file", str(tmp_path / "log"), "--once"]) == 1
    assert f"there is no directory {missing}" in capsys.readouterr().err
    assert not (tmp_path / "missing").exists()


def test_help(capsys):
    assert main(["--help"]) == 0
    assert "--wait-file FILE" in capsys.readouterr().out
