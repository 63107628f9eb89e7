from __future__ import annotations

from typing import Any

from undaunted.health.check import Finding, skipped
from undaunted.health.checks.nvlink import NvLinks

OK, NOT_SUPPORTED, LOST = 0, 3, 15


class Library:
    """One device with links."""

    def __init__(self, *active: bool) -> None:
        self.active = list(active)
        self.handle_code = OK
        self.nvmlInit_v2 = lambda: OK
        self.nvmlErrorString = lambda code: b"GPU is lost"
        self.nvmlDeviceGetHandleByIndex_v2 = lambda number, handle: self.handle_code
        self.nvmlDeviceGetNvLinkState = self.state

    def state(self, handle: Any, link: int, active: Any) -> int:
        if link >= len(self.active):
            return NOT_SUPPORTED
        active._obj.value = self.active[link]
        return OK


def test_a_link_that_was_active() -> None:
    library = Library(True, False, True)
    seen: dict[str, Any] = {}
    check = NvLinks(0, library)
    assert check.run(seen) is None
    library.active = [True, True, False]
    assert check.run(seen) == Finding("link 2 was active and is not")
    library.active = [True, True, True]
    assert check.run(seen) is None


def test_a_device_without_links() -> None:
    assert NvLinks(0, Library()).run({}) is None


def test_a_device_that_does_not_answer_says_nothing_about_links() -> None:
    library = Library(True)
    library.handle_code = LOST
    assert NvLinks(3, library).run({}) == skipped("nvmlDeviceGetHandleByIndex_v2: GPU is lost (15)")
