from __future__ import annotations

import sys
import threading
import types
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from undaunted.inprocess.exception import HealthCheckError
from undaunted.inprocess.exception import TimeoutError as TookTooLong
from undaunted.inprocess.health_check import (
    ChainedGPUHealthCheck,
    ChainedNicHealthCheck,
    ChainedNVLHealthCheck,
    CudaHealthCheck,
    FaultCounter,
    FaultCounterExceeded,
    nearest_nics,
    visible_device,
)
from undaunted.inprocess.state import FrozenState

if TYPE_CHECKING:
    from pathlib import Path

STATE = FrozenState(rank=3, world_size=4)
FAULT = FrozenState(rank=3, world_size=4, fn_exception=ValueError("bad batch"))
OK, LOST = 0, 15


def with_cuda(synchronize: Any, *, in_use: bool = True) -> Any:
    cuda = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: in_use,
        current_device=lambda: 1,
        set_device=lambda device: None,
        synchronize=synchronize,
    )
    return types.SimpleNamespace(cuda=cuda)


def test_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", with_cuda(pytest.fail, in_use=False))
    assert CudaHealthCheck()(STATE) is STATE
    monkeypatch.delitem(sys.modules, "torch")
    assert CudaHealthCheck()(STATE) is STATE


def test_cuda_works(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setitem(
        sys.modules, "torch", with_cuda(lambda: threads.append(threading.get_ident()))
    )
    assert CudaHealthCheck()(STATE) is STATE
    in_time, after = threads
    assert in_time != threading.get_ident() == after


def test_cuda_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    over, ended = threading.Event(), threading.Event()

    def hang() -> None:
        over.wait(60)
        ended.set()

    monkeypatch.setitem(sys.modules, "torch", with_cuda(hang))
    try:
        with pytest.raises(TookTooLong, match="CudaHealthCheck has taken longer"):
            CudaHealthCheck(timedelta(milliseconds=10))(STATE)
    finally:
        over.set()
        assert ended.wait(60)


def test_cuda_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("illegal memory access")

    monkeypatch.setitem(sys.modules, "torch", with_cuda(fail))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        CudaHealthCheck()(STATE)


def test_faults_are_counted() -> None:
    counter = FaultCounter(2)
    for _ in range(5):
        assert counter(STATE) is STATE
    assert counter(FAULT) is counter(FAULT) is FAULT
    with pytest.raises(FaultCounterExceeded, match=r"rank 3 has raised 3 times.*=2.*bad batch"):
        counter(FAULT)


def test_faults_without_limit() -> None:
    counter = FaultCounter()
    assert all(counter(FAULT) is FAULT for _ in range(100))


# --- hardware -------------------------------------------------------------------------------------


class Library:
    """The driver's, for one device with one link."""

    def __init__(self) -> None:
        self.nvmlInit_v2 = lambda: OK
        self.nvmlErrorString = lambda code: b"GPU is lost"
        self.nvmlDeviceGetUUID = lambda handle, name, size: OK
        self.code = OK
        self.action = 0
        self.link = 1

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802 - the library's names
        count._obj.value = 2
        return OK

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index + 1
        return self.code if index == 1 else OK

    def nvmlDeviceGetFieldValues(self, handle: Any, count: int, value: Any) -> int:  # noqa: N802
        value._obj.value.unsigned_int = self.action if handle.value == 2 else 0
        return OK

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int, active: Any) -> int:  # noqa: N802
        active._obj.value = self.link
        return OK if link == 0 else 3


CHAINED = [ChainedGPUHealthCheck, ChainedNVLHealthCheck, ChainedNicHealthCheck]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    counters = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters"
    counters.mkdir(parents=True)
    (counters / "link_downed").write_text("2")
    return tmp_path


@pytest.mark.parametrize("check", CHAINED)
@pytest.mark.parametrize("device", [None, 0, 7])
def test_absent_hardware(check: Any, device: int | None, tmp_path: Path) -> None:
    assert check(device_index=device, root=str(tmp_path))(STATE) is STATE


@pytest.mark.parametrize("check", CHAINED)
def test_a_device_that_cannot_be_named(
    check: Any, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert check(1, root=str(node), library=Library())(STATE) is STATE


def test_gpu(node: Path) -> None:
    library = Library()
    ours, others = (
        ChainedGPUHealthCheck(device_index=device, root=str(node), library=library)
        for device in (1, 0)
    )
    assert ours(STATE) is STATE
    library.action = 1
    with pytest.raises(HealthCheckError, match=r"rank 3: GPU 1 .* needs a reset"):
        ours(STATE)
    assert others(STATE) is STATE
    library.code = LOST
    with pytest.raises(HealthCheckError, match="GPU 1 does not answer"):
        ours(STATE)


def test_a_lost_nvlink_is_only_logged(node: Path, caplog: pytest.LogCaptureFixture) -> None:
    library = Library()
    check = ChainedNVLHealthCheck(1, root=str(node), library=library)
    check(STATE)
    assert not caplog.messages
    library.link = 0
    assert check(STATE) is STATE
    assert caplog.messages == ["rank 3: NVLink of its GPU: link 0 was active and is not"]


def test_nic(node: Path) -> None:
    counter = node / "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed"
    check = ChainedNicHealthCheck(0, root=str(node))
    assert check(STATE) is STATE
    counter.write_text("3")
    with pytest.raises(HealthCheckError, match="rank 3: mlx5_0 port 1 has lost its link"):
        check(STATE)


def test_a_driver_that_hangs(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over, ended = threading.Event(), threading.Event()
    library = Library()

    def hang() -> int:
        over.wait(60)
        ended.set()
        return OK

    library.nvmlInit_v2 = hang
    check = ChainedGPUHealthCheck(1, root=str(node), library=library)
    assert check._check is not None
    monkeypatch.setattr(check._check, "deadline_s", 0.01)
    try:
        with pytest.raises(HealthCheckError, match="GPU has taken longer than 0:00:00"):
            check(STATE)
    finally:
        over.set()
        assert ended.wait(60)


@pytest.mark.parametrize(
    ("visible", "device"),
    [(None, "2"), ("4,5,6", "6"), ("GPU-a, GPU-b ,GPU-c", "GPU-c"), ("7", "7"), ("", None)],
)
def test_the_third_rank_of_a_node(visible: str | None, device: str | None) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert visible_device(2, environ) == device


def test_fewer_devices_than_ranks() -> None:
    assert visible_device(2, {"CUDA_VISIBLE_DEVICES": "0,1"}) is None


@pytest.fixture
def switches(tmp_path: Path) -> Path:
    """Two switches, each with a GPU and a card."""
    for switch in (1, 2):
        bridge = tmp_path / f"sys/devices/pci0000:00/0000:0{switch}:00.0"
        (bridge / f"0000:{switch}A:00.0").mkdir(parents=True)
        (bridge / f"0000:{switch}b:00.0").mkdir()
        (tmp_path / f"proc/driver/nvidia/gpus/0000:{switch}B:00.0").mkdir(parents=True)
        gpu = tmp_path / f"sys/bus/pci/devices/0000:{switch}b:00.0"
        gpu.parent.mkdir(parents=True, exist_ok=True)
        gpu.symlink_to(bridge / f"0000:{switch}b:00.0")
        nic = tmp_path / f"sys/class/infiniband/mlx5_{switch}"
        nic.mkdir(parents=True)
        (nic / "device").symlink_to(bridge / f"0000:{switch}A:00.0")
    return tmp_path


def test_the_card_behind_the_same_switch(switches: Path) -> None:
    assert nearest_nics(0, str(switches)) == ["mlx5_1"]
    assert nearest_nics(1, str(switches)) == ["mlx5_2"]


def test_all_count_where_nothing_is_known(switches: Path, tmp_path: Path) -> None:
    assert nearest_nics(2, str(switches)) == ["mlx5_1", "mlx5_2"]
    assert nearest_nics(0, str(tmp_path / "nothing")) == []
