"""Jobs of a few processes that wrap a function, without any launcher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import warm
from tests.ports import free_ports
from tests.said import lines_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

PROGRAM = Path(__file__).with_name("rank_program.py")
DEADLINE_S = 100.0


@dataclass(frozen=True)
class Outcome:
    """How one process ended, and what it has told."""

    code: int
    told: list[dict[str, Any]]
    stderr: str

    def results(self) -> list[Any]:
        return [line["result"] for line in self.told if "result" in line]


class Job:
    """A context manager; kills what is left."""

    def __init__(
        self,
        tmp_path: Path,
        ranks: int,
        scenario: str,
        *,
        variables: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.ranks = ranks
        self._directory = tmp_path
        arguments = [scenario, json.dumps(settings)]
        port = str(free_ports(2))
        self.processes: list[subprocess.Popen[bytes]] = []
        for rank in range(ranks):
            environ = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                **(variables or {}),
            }
            environ.pop("UNDAUNTED_INPROCESS", None)
            with (
                self._file(rank, "out").open("wb") as out,
                self._file(rank, "err").open("wb") as err,
            ):
                self.processes.append(
                    warm.Popen(
                        [sys.executable, str(PROGRAM), *arguments],
                        env=environ,
                        stdout=out,
                        stderr=err,
                    )
                )

    def __enter__(self) -> Job:  # noqa: PYI034
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def wait(self) -> list[Outcome]:
        """Until all processes have ended."""
        deadline = time.monotonic() + DEADLINE_S
        try:
            for process in self.processes:
                process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job hangs\n{self._everything()}") from None
        return [self._outcome(rank) for rank in range(self.ranks)]

    def _outcome(self, rank: int) -> Outcome:
        out = self._file(rank, "out").read_text()
        told = [json.loads(line) for line in lines_of(out)]
        code = self.processes[rank].returncode
        return Outcome(code, told, self._file(rank, "err").read_text())

    def _everything(self) -> str:
        files = (self._file(rank, kind) for rank in range(self.ranks) for kind in ("out", "err"))
        return "\n".join(f"{file.name}:\n{file.read_text()}" for file in files)

    def _file(self, rank: int, kind: str) -> Path:
        return self._directory / f"rank{rank}.{kind}"
