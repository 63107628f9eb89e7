"""The last copies of ranks are not lost when a job ends without having finished."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import msgspec

from undaunted.attribution.exits import end_in_words
from undaunted.base import process
from undaunted.base.child import Companion
from undaunted.base.deadline import wait_for
from undaunted.base.text import format_duration
from undaunted.checkpointing.keeping.client import LastBegun, LastEnded
from undaunted.journal.events import LastCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from undaunted.checkpointing.keeping.shelf import Shelf
    from undaunted.journal.writer import JournalWriter

PROGRAM = "undaunted.checkpointing.keeping.last"
# For the program to begin, and then at least for writing.
LEAST_S = 60.0
_ENDING_S = 10.0  # for a program that has nothing more to say
_PAGE = "UNDAUNTED_PAGE"  # of the rank; this program is none
_decoder = msgspec.json.Decoder(LastBegun | LastEnded)


async def write_last_copies(
    shelf: Shelf,
    environment: Mapping[str, str],
    bytes_per_s: float,
    code_of: Callable[[int], int | None],
    number: int,
    journal: JournalWriter,
    say: Callable[[str], None],
) -> None:
    """Have copies that are newer than every checkpoint written out, one place after the other.

    Args:
        shelf: has the copies; their processes have ended.
        environment: of a rank of the last round.
        bytes_per_s: a copy gets the time that it takes at this speed, and at least `LEAST_S`;
            0 = none is written.
        code_of: takes the exit code of a child that has ended, or minus the number of its signal.
        number: the last round.
        journal: gets what became of it, as part of round ``number``.
        say: shows a line.
    """
    places: dict[str, list[tuple[str, int]]] = {}
    for key, fd in shelf.arenas().items():
        places.setdefault(key.place, []).append((f"{key.rank}:{key.slot}", fd))
    env = {name: value for name, value in environment.items() if name != _PAGE}
    for place, arenas in places.items() if bytes_per_s else ():
        await _write(place, arenas, env, bytes_per_s, code_of, number, journal, say)


async def _write(
    place: str,
    arenas: Sequence[tuple[str, int]],
    env: Mapping[str, str],
    bytes_per_s: float,
    code_of: Callable[[int], int | None],
    number: int,
    journal: JournalWriter,
    say: Callable[[str], None],
) -> None:
    began, allowed_s = time.monotonic(), LEAST_S
    begun, outcome = LastBegun(step=-1, bytes=0), "failed"
    try:
        async with _Program(place, arenas, env) as program:
            said = await wait_for(program.says(), allowed_s)
            if isinstance(said, LastBegun):
                begun, allowed_s = said, max(LEAST_S, said.bytes / bytes_per_s)
                say(
                    f"writing the copy of step {begun.step} ({begun.bytes / 1e9:.3g} GB), which is "
                    f"in memory only, to {place}: at most {format_duration(allowed_s)}"
                )
                said = await wait_for(program.says(), allowed_s)
            why = said.problem if isinstance(said, LastEnded) else await program.death(code_of)
    except TimeoutError:
        outcome, why = "given_up", f"not done within {format_duration(allowed_s)}"
    except (OSError, ValueError) as error:
        why = str(error)
    if not why and begun.step < 0:
        return  # a checkpoint is as new
    if not why:
        outcome = "written"
    journal.record(
        LastCopy(
            round=number,
            step=begun.step,
            bytes=begun.bytes,
            place=place,
            outcome=outcome,
            why=why,
            allowed_s=allowed_s,
            seconds=time.monotonic() - began,
        )
    )


class _Program:
    """The program that writes; it is killed when the block is left before its end."""

    def __init__(
        self, place: str, arenas: Sequence[tuple[str, int]], env: Mapping[str, str]
    ) -> None:
        self._place = place
        self._arenas = arenas
        self._env = env

    async def __aenter__(self) -> _Program:  # noqa: PYI034 - private
        reader, writer = os.pipe2(os.O_CLOEXEC)
        with os.fdopen(writer, "wb"):
            words = (f"{name}:{fd}" for name, fd in self._arenas)
            argv = process.module_command(PROGRAM, self._place, str(writer), *words)
            try:
                fds = [writer, *(fd for _, fd in self._arenas)]
                self._program = Companion(argv, self._env, fds)
            except OSError:
                os.close(reader)
                raise
        self._said = asyncio.StreamReader()
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._said), os.fdopen(reader, "rb", buffering=0)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._transport.close()
        self._program.kill()
        self._program.release()

    async def says(self) -> LastBegun | LastEnded | None:
        """Return what it says next; None = it says nothing more."""
        line = await self._said.readline()
        return _decoder.decode(line) if line else None

    async def death(self, code_of: Callable[[int], int | None]) -> str:
        """Say how it ended without a last word, also if another part has reaped it."""
        if not await self._program.ended(_ENDING_S):
            raise TimeoutError
        code = self._program.code
        if code is None:
            code = code_of(self._program.pid)
        if code is None:
            return "the program that writes it has ended"
        return f"the program that writes it {end_in_words(code)}"
