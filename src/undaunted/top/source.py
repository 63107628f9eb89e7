"""The source of what is shown: journals and pages, read anew for each moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from undaunted.base.text import printable
from undaunted.top.journals import Journals
from undaunted.top.model import LauncherProcess, Model
from undaunted.top.pages import Pages

if TYPE_CHECKING:
    from pathlib import Path

    from undaunted.top.model import Job


class Source:
    """One run directory. Owns the mappings of the pages it looks at.

    Args:
        run_dir: the directory, or one journal.
    """

    def __init__(self, run_dir: Path) -> None:
        self._journals = Journals(run_dir)
        self._model = Model(printable(str(run_dir)))
        self._pages: dict[str, Pages] = {}

    def read(self) -> float | None:
        """Read a piece of what was added to the journals.

        Returns:
            How much of them was read, 0 to 1; None = all.
        """
        for name, events in self._journals.read():
            self._model.take(name, events)
        return self._journals.progress

    def read_all(self) -> None:
        """Read all that is there now."""
        while self.read() is not None:
            pass

    @property
    def found(self) -> bool:
        """Tell whether there is any journal."""
        return bool(self._journals.files)

    def job(self) -> Job:
        """Look at the pages; return the job as it is now."""
        processes = {}
        for name, node in self._model.nodes.items():
            opened = node.launch.opened
            if opened is None:
                continue
            pages = self._pages.get(name)
            if pages is None or pages.opened != opened:
                if pages is not None:
                    pages.close()
                pages = self._pages[name] = Pages(opened)
            looks = pages.look()
            processes[name] = LauncherProcess(
                running=pages.running,
                stopped=pages.stopped,
                front_stopped=pages.front_stopped,
                looks=looks,
                problem=pages.problem,
            )
        return self._model.job(
            processes, now_ns=time.monotonic_ns(), wall=time.time(), problems=self._problems()
        )

    def close(self) -> None:
        """Release all mappings."""
        for pages in self._pages.values():
            pages.close()

    def _problems(self) -> list[str]:
        problems = [self._journals.problem] if self._journals.problem else []
        if count := self._journals.unreadable:
            lines, were = ("1 line", "was") if count == 1 else (f"{count} lines", "were")
            problems.append(f"{lines} of the journals could not be read and {were} skipped")
        return problems
