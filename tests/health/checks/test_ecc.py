from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.health.checks.test_gpu import LOST, NOT_SUPPORTED, OK, Library
from undaunted.health.check import Finding, Settings
from undaunted.health.checks import ecc
from undaunted.health.checks.ecc import GpuMemory, Memory

if TYPE_CHECKING:
    from tests.health.checks.conftest import Tree


class EccLibrary(Library):
    """Counts errors of its devices; None = that kind has no such memory."""

    def __init__(self, errors: list[int | None]) -> None:
        super().__init__([0] * len(errors))
        self.errors = errors

    def nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: int, since: int, place: Any) -> int:  # noqa: N802
        assert (kind, since) == (1, 0)
        errors = self.errors[handle.value - 1]
        if errors is None:
            return NOT_SUPPORTED
        place._obj.value = errors
        return OK


def test_counters_of_main_memory_must_not_rise(tree: Tree) -> None:
    seen: dict[str, Any] = {}
    check = Memory(str(tree.root))
    nothing = check.run(seen)
    assert nothing is not None
    assert not nothing.failed
    for name, count in (("mc0", 2), ("mc1", 0)):
        tree.write(f"sys/devices/system/edac/mc/{name}/ue_count", f"{count}\n")
    assert check.run(seen) is None, "what there was is of others"
    tree.write("sys/devices/system/edac/mc/mc1/ue_count", "3\n")
    assert check.run(seen) == Finding("mc1: 3 uncorrected since the start")
    tree.write("sys/devices/system/edac/mc/mc1/ue_count", "no number\n")
    unknown = check.run(seen)
    assert unknown is not None
    assert not unknown.failed


def test_counters_of_gpus_must_not_rise() -> None:
    library, seen = EccLibrary([4, None, 0]), {}
    check = GpuMemory(library)
    assert check.run(seen) is None
    library.errors = [4, None, 1]
    assert check.run(seen) == Finding("GPU 2: 1 uncorrected since the start")
    assert library.begun == 1
    library.lost = {2}
    assert check.run(seen) is None, "the check of GPUs says that it is lost"


def test_a_driver_that_does_not_begin_says_nothing() -> None:
    library = EccLibrary([0])
    library.begin_code = LOST
    found = GpuMemory(library).run({})
    assert found is not None
    assert not found.failed


def test_what_is_checked(tree: Tree) -> None:
    root = str(tree.root)
    assert ecc.checks(Settings(root=root)) == []
    assert [each.subject for each in ecc.checks(Settings(root=root, ecc=True))] == ["main memory"]
    tree.write("dev/nvidia0", "")
    subjects = [each.subject for each in ecc.checks(Settings(root=root, ecc=True))]
    assert subjects == ["main memory", "GPUs"]
