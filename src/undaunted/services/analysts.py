"""The programs that read logs: some at a time, each with a deadline for a log."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.child import Helper
from undaunted.base.deadline import wait_for
from undaunted.base.process import module_command
from undaunted.base.text import format_duration
from undaunted.services.analysis import Answer, Question
from undaunted.services.results import LogResult, Stamp

if TYPE_CHECKING:
    from undaunted.base.roots import Roots

_PROGRAM = "undaunted.services.analysis"
_KILLED_S = 5.0


class Analyst:
    """One program, started when it is needed, and again after it has ended. One log at a time.

    Args:
        roots: below which it may read.
        limit_s: for one log.
    """

    def __init__(self, roots: Roots, limit_s: float) -> None:
        self._roots = roots
        self._limit_s = limit_s
        self._program: Helper | None = None
        self._turn = asyncio.Lock()  # answers come in the order of the questions

    async def read(self, path: str, stamp: Stamp, dumps: str = "", errors: str = "") -> LogResult:
        """Have a log read; the answer says what went wrong.

        Args:
            path: its real path.
            stamp: of the file, for an answer that does not say it.
            dumps: folder with dumps that belong to it, "" = what is found beside it.
            errors: file with the standard error of the job, "" = the log has it.
        """
        async with self._turn:
            return await self._read(Question(path, dumps, errors), stamp)

    async def _read(self, question: Question, stamp: Stamp) -> LogResult:
        try:
            said = await wait_for(self._ask(question), self._limit_s)
        except TimeoutError:
            await self.close()
            limit = format_duration(self._limit_s)
            return LogResult(stamp, problem=f"reading it takes longer than {limit}", late=True)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            await self.close()
            why = f"{error}"
            if isinstance(error, ConnectionError):
                why = "it was killed, or takes too much memory"
            return LogResult(stamp, problem=f"the program that reads it has ended: {why}")
        except asyncio.CancelledError:
            await self.close()
            raise
        return said.told or LogResult(stamp, problem=f"{said.code}: {said.message}")

    async def _ask(self, question: Question) -> Answer:
        if self._program is None:
            command = module_command(_PROGRAM, *self._roots.folders)
            self._program = Helper(command, os.environ, "it")
        self._program.send(msgspec.json.encode(question) + b"\n")
        return msgspec.json.decode(await self._program.line(), type=Answer)

    async def close(self) -> None:
        """End the program."""
        program, self._program = self._program, None
        if program is None:
            return
        program.kill()
        await program.ended(_KILLED_S)  # one that hangs in a disk ends with that
        program.release()
