from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from undaunted.health.check import Finding, Settings
from undaunted.health.checks import gpu
from undaunted.health.checks.gpu import Gpus, GpuState, judge

if TYPE_CHECKING:
    import ctypes

    from tests.health.checks.conftest import Tree

OK, NOT_SUPPORTED, LOST = 0, 3, 15


class Library:
    """Stands in for the driver's library."""

    def __init__(self, actions: list[int]) -> None:
        self.actions = actions
        self.begun = 0
        self.begin_code = OK
        self.lost: set[int] = set()
        self.field_code = OK

    def nvmlInit_v2(self) -> int:  # noqa: N802 - the library's names, here and below
        self.begun += 1
        return self.begin_code

    def nvmlErrorString(self, code: int) -> bytes:  # noqa: N802
        return {LOST: b"GPU is lost"}.get(code, b"other")

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.actions)
        return OK

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index + 1
        return LOST if index in self.lost else OK

    def nvmlDeviceGetUUID(self, handle: ctypes.c_void_p, name: Any, _size: int) -> int:  # noqa: N802
        name.value = f"GPU-{handle.value}".encode()
        return OK

    def nvmlDeviceGetFieldValues(self, handle: Any, count: int, value: Any) -> int:  # noqa: N802
        assert count == 1
        assert value._obj.field == 230
        value._obj.code = self.field_code
        value._obj.value.unsigned_int = self.actions[handle.value - 1]
        return OK


def test_healthy_gpus_and_the_library_begins_once() -> None:
    library = Library([0, 0])
    check = Gpus(None, library)
    assert check.run({}) is None
    assert check.run({}) is None
    assert library.begun == 1


def test_what_the_driver_wants() -> None:
    found = Gpus(None, Library([0, 1, 99])).run({})
    assert found == Finding(
        "GPU 1 (GPU-2) needs a reset of the GPU; GPU 2 (GPU-3) needs recovery action 99"
    )


def test_a_lost_gpu() -> None:
    library = Library([0, 0])
    library.lost = {1}
    found = Gpus(None, library).run({})
    assert found is not None
    assert found.failed
    assert found.text.startswith("GPU 1 does not answer: ")
    assert "GPU is lost" in found.text
    assert Gpus("0", library).run({}) is None  # it is not the job's


def test_a_driver_that_does_not_tell_is_no_fault() -> None:
    library = Library([2])
    library.field_code = NOT_SUPPORTED
    found = Gpus(None, library).run({})
    assert found is not None
    assert not found.failed
    library = Library([2])
    library.begin_code = NOT_SUPPORTED
    check = Gpus(None, library)
    found = check.run({})
    assert found is not None
    assert not found.failed
    library.begin_code = OK
    found = check.run({})  # it begins anew
    assert found is not None
    assert found.failed


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undaunted.health.nvml._LIBRARY", "libnothing-of-this-name.so")
    found = Gpus(None).run({})
    assert found is not None
    assert not found.failed


@pytest.mark.parametrize(
    ("visible", "counts"),
    [
        (None, True),
        ("1", True),
        ("0, 1", True),
        ("GPU-b", True),
        ("0", False),
        ("GPU-a", False),
        ("", False),
        ("-1,1", False),
        ("MIG-xyz", True),
    ],
)
def test_only_devices_of_the_job_count(visible: str | None, counts: bool) -> None:
    states = [GpuState(0, "GPU-a", action=0), GpuState(1, "GPU-b", action=2)]
    assert (judge(states, visible) is not None) is counts


def test_a_lost_device_that_may_be_meant_counts() -> None:
    states = [GpuState(0, "GPU-a", action=0), GpuState(1, problem="lost")]
    found = judge(states, "GPU-b")
    assert found is not None
    assert found.failed


def test_only_where_there_are_gpus(tree: Tree) -> None:
    settings = Settings(root=str(tree.root))
    tree.write("dev/nvidiactl", "")
    assert gpu.checks(settings) == []
    tree.write("dev/nvidia0", "")
    (check,) = gpu.checks(settings)
    assert check.periodic
    assert gpu.checks(settings._replace(visible_devices="")) == []
    assert gpu.checks(settings._replace(gpus=False)) == []
