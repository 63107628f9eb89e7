"""A worker's page as the bootstrap uses it: whatever goes wrong with it, training goes on."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from undaunted.fault_tolerance.worker.spec import WorkerSpec
    from undaunted.progress.writer import PageWriter


class Page:
    """Passes calls on to the writer of the page, as long as there is one that works."""

    def __init__(self, local_rank: int, writer: PageWriter | None) -> None:
        self._local_rank = local_rank
        self._writer = writer

    @classmethod
    def attach(cls, spec: WorkerSpec) -> Page:
        """Attach to the page named in the environment, if there is one."""
        page = cls(spec.local_rank, None)
        value = os.environ.get("UNDAUNTED_PAGE", "")
        if value:
            try:
                from undaunted.progress.writer import PageWriter

                page._writer = PageWriter.attach(value)
                if not page._writer.attached:
                    page.complain("it is not monitored", page._writer.reason)
            except Exception as error:  # noqa: BLE001 - monitoring must not stop training
                page.complain("it is not monitored", error)
        return page

    def milestone_first_line(self) -> None:
        """Say that the user's program begins now."""
        if self._writer is not None:
            try:
                self._writer.milestone("first_line")
            except Exception as error:  # noqa: BLE001 - monitoring must not stop training
                self._lose(error)

    def arm_evidence(self, number: int) -> None:
        """Say that stacks are written on signal ``number``."""
        if self._writer is not None:
            try:
                self._writer.arm_evidence(number)
            except Exception as error:  # noqa: BLE001 - monitoring must not stop training
                self._lose(error)

    def record_error(self, error: BaseException) -> None:
        """Record the exception that ends the program. Python reports it as well."""
        if self._writer is not None:
            try:
                self._writer.record_error(error)
            except Exception as problem:  # noqa: BLE001 - the report that follows matters more
                self._lose(problem)

    def program_ended(self) -> None:
        """Give what the interpreter still has to do a whole heartbeat timeout of its own."""
        if self._writer is not None and self._writer.beats:
            self._writer.heartbeat()

    def complain(self, consequence: str, reason: object) -> None:
        """Say on standard error what this rank goes without, and why."""
        print(f"undaunted: local rank {self._local_rank}: {consequence}: {reason}", file=sys.stderr)

    def _lose(self, error: Exception) -> None:
        self._writer = None
        self.complain("it is not monitored from now on", error)
