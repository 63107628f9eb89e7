"""The programs that read logs: some at a time, each with a deadline for a log."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from undaunted.base.deadline import wait_for
from undaunted.base.process import module_command
from undaunted.base.text import format_duration
from undaunted.services.analysis import Answer, Question
from undaunted.services.results import Stamp, Told

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from undaunted.base.roots import Roots

_PROGRAM = "undaunted.services.analysis"
_LONGEST = 1 << 20  # bytes of an answer
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
        self._program: Process | None = None
        self._turn = asyncio.Lock()  # answers come in the order of the questions

    async def read(self, path: str, stamp: Stamp, dumps: str = "") -> Told:
        """Have a log read; what goes wrong is said in the answer.

        Args:
            path: its real path.
            stamp: of the file, for an answer that does not say it.
            dumps: folder with dumps that belong to it, "" = what is found beside it.
        """
        async with self._turn:
            return await self._read(path, stamp, dumps)

    async def _read(self, path: str, stamp: Stamp, dumps: str) -> Told:
        try:
            said = await wait_for(self._ask(Question(path, dumps)), self._limit_s)
        except TimeoutError:
            await self.close()
            limit = format_duration(self._limit_s)
            return Told(stamp, problem=f"reading it takes longer than {limit}", late=True)
        except (OSError, EOFError, ValueError, msgspec.MsgspecError) as error:
            await self.close()
            why = str(error) or "it was killed, or takes too much memory"
            return Told(stamp, problem=f"the program that reads it has ended: {why}")
        except asyncio.CancelledError:
            await self.close()
            raise
        return said.told or Told(stamp, problem=f"{said.code}: {said.message}")

    async def _ask(self, question: Question) -> Answer:
        if self._program is None:
            self._program = await asyncio.create_subprocess_exec(
                *module_command(_PROGRAM, *self._roots.folders),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=_LONGEST,
            )
        program = self._program
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write(msgspec.json.encode(question) + b"\n")
        await program.stdin.drain()
        line = await program.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        return msgspec.json.decode(line, type=Answer)

    async def close(self) -> None:
        """End the program."""
        program, self._program = self._program, None
        if program is None:
            return
        with contextlib.suppress(ProcessLookupError):
            program.kill()
        with contextlib.suppress(TimeoutError):  # it hangs in a disk: it ends with that
            await wait_for(program.wait(), _KILLED_S)
