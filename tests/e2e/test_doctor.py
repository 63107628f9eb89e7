"""The whole command on this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.ports import free_ports
from undaunted.base import process
from undaunted.base.inotify import Inotify

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e
DEADLINE_S = 110.0


def start(*args: str, **env: str) -> subprocess.Popen[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "UNDAUNTED"))}
    return subprocess.Popen(
        [sys.executable, "-m", "undaunted.cli.main", "doctor", *args],
        env={**inherited, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(doctor: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = doctor.communicate(timeout=DEADLINE_S)
    finally:
        doctor.kill()
        doctor.communicate()
    return doctor.returncode, out, err


@pytest.mark.slow
def test_all_of_it_twice_at_once(tmp_path: Path) -> None:
    places = ("--checkpoint-dir", str(tmp_path), "--log-dir", str(tmp_path / "later"))
    doctors = [start("--json", *places, TMPDIR=str(tmp_path)) for _ in range(2)]
    for doctor in doctors:
        code, out, err = finish(doctor)
        assert err == ""
        report = json.loads(out)
        assert code == (1 if any(f["severity"] == "fail" for f in report["findings"]) else 0)
        assert [step["ok"] for step in report["self_test"]["steps"]] == [True] * 4, report
        assert [trial["problem"] for trial in report["facts"]["trials"]] == ["", ""]
        assert "D01" not in {finding["id"] for finding in report["findings"]}, report
    assert list(tmp_path.iterdir()) == []


def test_places_that_cannot_be_written() -> None:
    # /proc is a file system that takes no files, and /dev/full one that is always full.
    places = ("--checkpoint-dir", "/proc/sys", "--log-dir", "/dev/full")
    code, out, _ = finish(start("--no-self-test", "--json", *places))
    assert code == 1
    found = [f["found"] for f in json.loads(out)["findings"] if f["id"] == "L21"]
    assert any(text.startswith("/proc/sys (checkpoints): ") for text in found)
    assert "/dev/full (logs): /dev/full is no directory" in found


def test_hosts_that_are_not_there() -> None:
    code, out, _ = finish(start("--no-self-test", "--hosts", "no.such.host.invalid,127.0.0.1"))
    assert code == 1
    assert "FAIL  N01  network: no.such.host.invalid: the name" in out
    assert "127.0.0.1:" not in out


def test_a_torch_that_is_broken_and_a_port_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12 is missing')")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        args = ("--no-self-test", "--json", "--rdzv-endpoint", f"127.0.0.1:{port}")
        code, out, _ = finish(start(*args, PYTHONPATH=str(tmp_path)))
    assert code == 1
    found = {f["id"]: f for f in json.loads(out)["findings"]}
    assert found["D03"]["severity"] == "fail"
    assert found["D03"]["found"].endswith("ImportError: libcudart.so.12 is missing")
    assert found["N03"]["found"].endswith(f"somebody listens at port {port} already")


def test_two_nodes_meet() -> None:
    endpoint = f"127.0.0.1:{free_ports(2)}"
    args = ("--no-self-test", "--nnodes", "2", "--rdzv-endpoint", endpoint)
    token = "0123456789abcdef"
    one = start(*args, UNDAUNTED_TOKEN=token, SLURMD_NODENAME="n1", NCCL_ALGO="Ring")
    other = start(*args, UNDAUNTED_TOKEN=token, SLURMD_NODENAME="n2")
    for doctor in (one, other):
        _, out, _ = finish(doctor)
        assert "met 2 nodes: " in out
        assert "WARN  N02  nodes of the job: NCCL_ALGO: " in out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=str)
def test_a_signal_leaves_nothing(tmp_path: Path, number: signal.Signals, code: int) -> None:
    watch = Inotify()
    try:
        watch.watch(str(tmp_path))
        doctor = start(TMPDIR=str(tmp_path))
        while not list(tmp_path.glob("undaunted-doctor-*")):  # the directory of the self-test
            assert process.wait_readable(watch.fileno(), DEADLINE_S)
            watch.drain()
        doctor.send_signal(number)
    finally:
        watch.close()
    ended, out, err = finish(doctor)
    assert ended == code
    assert (out, err) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_has_enough() -> None:
    doctor = start("--no-self-test")
    assert doctor.stdout is not None
    doctor.stdout.close()
    doctor.stdout = None
    code, _, err = finish(doctor)
    assert (code, err) == (0, "")
