"""The command line of `undaunted slurm-monitor`: what it checks, and what it makes of it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from undaunted.cli.messages import UsageError
from undaunted.cli.slurm_monitor import SLURM_MONITOR, build_config, main
from undaunted.services.slurm import monitor
from undaunted.services.slurm.monitor import Files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from undaunted.services.slurm.monitor import Config


def config(*words: str, environ: Mapping[str, str] | None = None) -> Config:
    environ = environ or {"HOME": "/home/me"}
    return build_config(SLURM_MONITOR.parse(words, environ), environ)


def refused(*words: str) -> str:
    with pytest.raises(UsageError) as caught:
        config(*words)
    return str(caught.value)


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    made = config()
    assert made.service == "http://127.0.0.1:8000"
    assert str(made.directory) == "/home/me/.local/state/undaunted/slurm-monitor"
    assert (made.users, made.partitions, made.listener, made.period_s) == ("", "", None, 180.0)
    assert made.names.match("any")


def test_variables_of_nvrx_and_options_before_them(tmp_path: Path) -> None:
    environ = {
        "NVRX_ATTRSVC_ENDPOINT": "http://logs:8000",
        "NVRX_SMONSVC_INTERVAL": "60",
        "NVRX_SMONSVC_USER": "alice",
        "NVRX_SMONSVC_PARTITIONS": "batch batch_long",
        "NVRX_SMONSVC_JOB_PATTERN": "train.*",
        "NVRX_SMONSVC_TIMEOUT": "5",
        "XDG_STATE_HOME": str(tmp_path),
        "PET_INTERVAL": "1",
    }
    made = config("--user", "bob,carol", "-v", environ=environ)
    assert (made.service, made.period_s, made.timeout_s) == ("http://logs:8000", 60.0, 5.0)
    assert (made.users, made.partitions) == ("bob,carol", "batch,batch_long")
    assert made.names.match("train-7")
    assert not made.names.match("pretrain")
    assert made.directory == tmp_path / "undaunted" / "slurm-monitor"


def test_status_pages_listen_before_anything_is_done() -> None:
    made = config("--port", "0")
    assert made.listener is not None
    with made.listener:
        host, port = made.listener.getsockname()
        assert host == "127.0.0.1"
        assert f"--port {port} of 127.0.0.1 cannot be listened at" in refused("--port", str(port))


def test_a_directory_that_is_in_use_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = Files(tmp_path)
    try:
        assert main(["--state-dir", str(tmp_path), "--port", "0"]) == 2
    finally:
        files.close()
    said = capsys.readouterr().err
    assert f"{tmp_path} cannot be used: another monitor uses it" in said
    assert "--state-dir" in said


def test_a_signal_right_after_the_start_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: Config) -> int:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGHUP)
        return 0

    before = signal.getsignal(signal.SIGUSR1)
    monkeypatch.setattr(monitor, "run", run)
    assert main(["--state-dir", str(tmp_path)]) == 0
    assert signal.getsignal(signal.SIGUSR1) is before
