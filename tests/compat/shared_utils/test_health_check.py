"""NVRx's checks are ours: what is wrong is False, what cannot be checked is True."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from nvidia_resiliency_ext.shared_utils import health_check as module
from nvidia_resiliency_ext.shared_utils.storage_probe import _storage_path_probe
from nvidia_resiliency_ext.testing_utils import health_check_injector as injector
from undaunted.health.check import Check, Finding, skipped

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Fake(Check):
    name = "fake"

    def __init__(self, *findings: Finding | Exception | None) -> None:
        self.findings = list(findings)

    def run(self, seen: dict[str, Any]) -> Finding | None:
        seen["looks"] = seen.get("looks", 0) + 1
        found = self.findings.pop(0) if len(self.findings) > 1 else self.findings[0]
        if isinstance(found, Exception):
            raise found
        return found


class Hangs(Check):
    name = "hanging"
    deadline_s = 0.05

    def __init__(self, until: threading.Event) -> None:
        self.until = until

    def run(self, seen: dict[str, Any]) -> Finding | None:
        self.until.wait(30)
        return None


def checking(*checks: Check) -> module._Checks:
    one = module._Checks()
    one._checks = list(checks)
    return one


@pytest.mark.parametrize(
    ("finding", "well"),
    [(None, True), (Finding("bad"), False), (skipped("no tool"), True), (ValueError("bug"), True)],
)
def test_only_what_is_wrong_is_false(finding: Finding | Exception | None, well: bool) -> None:
    assert checking(Fake(None), Fake(finding))() is well


def test_what_cannot_be_checked_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_said", set())
    one = checking(Fake(skipped("no driver")))
    with caplog.at_level(logging.WARNING):
        assert [one(), one(), one()] == [True] * 3
    assert len([each for each in caplog.messages if "no driver" in each]) == 1


def test_silence_is_a_failure() -> None:
    until = threading.Event()
    try:
        assert checking(Hangs(until))() is False
    finally:
        until.set()


def test_a_failure_is_told_while_it_checks_for_ever() -> None:
    async def main() -> None:
        failed = asyncio.Event()

        async def on_failure() -> None:
            failed.set()

        one = checking(Fake(None, None, Finding("bad")))
        one.interval, one.on_failure = 0.001, on_failure
        task = asyncio.create_task(one.async_check())
        await asyncio.wait_for(failed.wait(), 20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert one._seen[one._checks[0]]["looks"] >= 3

    asyncio.run(main())


@pytest.mark.parametrize(
    "make",
    [
        module.GPUHealthCheck,
        lambda: module.GPUHealthCheck(device_index=0, interval=5, on_failure=None),
        module.NVLHealthCheck,
        lambda: module.NVLHealthCheck(0),
        module.NVLinkWindowHealthCheck,
        module.NicHealthCheck,
        lambda: module.NicHealthCheck(device_index=0, link_down_path_template="/x/{dev_name}"),
        module.NicLinkStateHealthCheck,
        module.NodeHealthCheck,
        lambda: module.NodeHealthCheck("/no/such/socket", args=["--no-slurm"]),
        lambda: module.NodeHealthCheck(endpoint="unix:///no/such/socket"),
        module.StoragePathHealthCheck,
    ],
)
def test_a_machine_without_such_hardware_is_healthy(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "has_gpus", lambda root: False)
    monkeypatch.setattr(module, "nics", lambda root: [])
    assert make()() is True


def test_a_service_is_asked_what_the_caller_wants() -> None:
    one = module.NodeHealthCheck("unix:///s", args=["--group", "gpu"], request_timeout_sec=5)
    (check,) = one._checks
    assert isinstance(check, module.Endpoint)
    assert (check.subject, check._arguments, check._timeout_s) == ("/s", ("--group", "gpu"), 5)
    assert module.NodeHealthCheck(endpoint="/s").args[:2] == ("--no-slurm", "--group")


def test_mounts_are_looked_for_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Check] = [Fake(None)]
    monkeypatch.setattr(module.mounts, "checks", lambda settings: found)
    one = module.DistributedStorageHealthCheck(interval=5)
    assert one() is True
    found[0] = Fake(Finding("no answer"))
    assert one() is False


def test_storage_paths(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert module.StoragePathHealthCheck([str(tmp_path), str(tmp_path / "file"), ""])() is True
    assert module.StoragePathHealthCheck([str(tmp_path / "none")])() is False
    assert module.StoragePathHealthCheck(["."])() is False


def test_links_that_are_lost_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_numbers", lambda index: [])
    one = module.NVLinkWindowHealthCheck(window_count=3, threshold=2)
    lost, fine = Finding("link 1 was active and is not"), None
    one._checks = [Fake(lost, fine, lost, fine, fine, fine)]
    one._looks = [module.deque(maxlen=3)]
    assert [one() for _ in range(6)] == [True, True, False, True, True, True]


def test_paths_by_what_is_wrong_with_them(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    paths = [str(tmp_path), str(tmp_path / "file"), "here", str(tmp_path / "none"), ""]
    assert _storage_path_probe(paths) == {
        "invalid": ["here"], "missing": [str(tmp_path / "none")], "unreadable": [],
    }  # fmt: skip
    assert _storage_path_probe() == {"invalid": [], "missing": [], "unreadable": []}


def test_a_gpu_fails_in_the_cycle_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injector, "_current_cycle", -1)
    monkeypatch.setattr(module, "has_gpus", lambda root: False)
    for name in ("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NODEID", "CROSS_SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NVRX_INJECT_GPU_FAILURE", "1:0,2:7")
    check = module.GPUHealthCheck()
    assert check() is True
    told = []
    for cycle in range(3):
        injector.set_current_cycle(cycle)
        told.append(check())
    assert told == [True, False, True]
    with pytest.raises(ValueError, match="NVRX_INJECT_GPU_FAILURE"):
        injector.HealthCheckInjector({"NVRX_INJECT_GPU_FAILURE": "x"})
