"""Has this rank record its state, if ``UNDAUNTED_DIGESTS`` asks for it; without importing torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.digests.generators import Generators, after_import
from undaunted.digests.observer import Observer, Past
from undaunted.digests.record import VARIABLE, Recorder, file_of, read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def install(environ: Mapping[str, str] = os.environ) -> Callable[[], None] | None:
    """Record from now on, before the user's first line.

    Reads ``UNDAUNTED_DIGESTS``, ``RANK`` and ``TORCHELASTIC_RESTART_COUNT``.

    Returns:
        What ends it; None if nobody asks for records, or there is no place for them.
    """
    if not environ.get(VARIABLE):
        return None
    directory, rank = Path(environ[VARIABLE]), _number(environ, "RANK")
    try:
        directory.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        print(f"undaunted: rank {rank}: its state is not recorded: {error}", file=sys.stderr)
        return None
    return _install(environ, directory, rank)


def _install(environ: Mapping[str, str], directory: Path, rank: int) -> Callable[[], None]:
    from undaunted.progress import api, writer

    generators = Generators(directory, rank)
    observer = Observer(
        Recorder(directory, rank),
        generators,
        rank=rank,
        round_=_number(environ, "TORCHELASTIC_RESTART_COUNT"),
        announce=lambda iteration: writer.current_writer().step(iteration),
        past=lambda: _past(file_of(directory, rank)),
    )
    undo = [generators.watch()]
    pid = os.getpid()

    def step(iteration: object, digest: object) -> None:
        if os.getpid() == pid:  # else a child that was forked with this hook
            observer.step(iteration, digest)

    def hook() -> None:
        from undaunted.digests.hooks import Hooks

        undo.append(Hooks(observer).remove)

    undo.append(after_import("torch", hook))
    api.on_step = step

    def end() -> None:
        api.on_step = None
        for one in undo:
            one()

    return end


def _past(path: Path) -> Past:
    try:
        return Past(read_file(path)[0])
    except FileNotFoundError:  # this is the first process
        return Past(())


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0
