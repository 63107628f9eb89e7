"""Command lines of templates and fresh workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_BOOT = str(Path(__file__).resolve().with_name("boot.py"))


def boot_command(python: Sequence[str], mode: str, fd: int, words: Sequence[str]) -> list[str]:
    """Return the command line of a process of ours.

    Args:
        python: the interpreter and its flags.
        mode: ``template`` or ``fresh``.
        fd: what it reads its orders from.
        words: the user's program, for those who look for it with ps or pgrep.
    """
    return [*python, "-u", _BOOT, mode, str(fd), *words]
