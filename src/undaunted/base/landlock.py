"""Programs that can read files in some places alone, and write none: Landlock, Linux 5.13.

What counts is where a file lies when it is opened, whatever links led to it.

As a program: places, ``--``, and the command line that it becomes.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base.process import module_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # alike on all machines
_PR_SET_NO_NEW_PRIVS = 38
_BELOW_PATH = _VERSION = 1
# From the kernel's uapi/linux/landlock.h.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_ALL = (1 << 13) - 1  # of the first version
_NOTHING = "/dev/null"
# Of the interpreter; the time zone; and what tells whether other processes run.
_SYSTEM = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/proc")


def confined(places: Iterable[str], command: Sequence[str]) -> list[str]:
    """Return the command line of a program of ours that reads in these places, and its own files.

    Where the kernel has no Landlock, it is not confined.

    Args:
        places: folders and files.
        command: of the program, as `undaunted.base.process.module_command` returns it.
    """
    found = sys.path if getattr(sys.flags, "safe_path", False) else sys.path[1:]  # 0: of the script
    package = str(Path(__file__).parents[2])
    own = (*_SYSTEM, sys.prefix, sys.base_prefix, package, *filter(None, found))
    return module_command("undaunted.base.landlock", *places, *own, "--", *command)


def is_there() -> bool:
    """Return whether the kernel has it."""
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION) > 0
    except OSError:
        return False


def read_only(places: Iterable[str]) -> bool:
    """Confine this thread, and what it starts from now on, for ever.

    Args:
        places: folders and files that may be read, with all below them, and run; those that are
            not there are left out. `/dev/null` may be written to.

    Returns:
        False where the kernel cannot: nothing is confined then.

    Raises:
        OSError: it can, and refuses.
    """
    if not is_there():
        return False
    rights = struct.pack("Q", _ALL)
    ruleset = _call(_CREATE_RULESET, rights, ctypes.c_size_t(len(rights)), 0)
    try:
        for place in places:
            with suppress(OSError):
                _allow(ruleset, place, _READ_FILE | _READ_DIR | _EXECUTE)
        _allow(ruleset, _NOTHING, _READ_FILE | _WRITE_FILE)
        if _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return True


def _allow(ruleset: int, place: str, rights: int) -> None:
    fd = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= ~_READ_DIR
        _call(_ADD_RULE, ruleset, _BELOW_PATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)


def _call(number: int, *arguments: object) -> int:
    found: int = _libc().syscall(ctypes.c_long(number), *arguments)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    border = sys.argv.index("--")
    read_only(sys.argv[1:border])
    os.execv(sys.argv[border + 1], sys.argv[border + 1 :])  # noqa: S606 - no shell is wanted
