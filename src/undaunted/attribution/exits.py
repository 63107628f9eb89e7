"""Says in words how a process ended, with what usually causes it. Pure."""

from __future__ import annotations

import signal

_SIGNALS = {
    "SIGKILL": "not sent by this launcher: a person, the scheduler or the out-of-memory killer",
    "SIGTERM": "not sent by this launcher: a person, the scheduler or the program itself",
    "SIGSEGV": "invalid memory access in native code",
    "SIGBUS": "often /dev/shm is full or too small: look at `df -h /dev/shm`",
    "SIGABRT": (
        "native code gave up: a failed assertion or an uncaught C++ exception; inside a collective "
        "often because of another rank"
    ),
    "SIGILL": "an instruction this processor lacks: built for another one?",
    "SIGFPE": "arithmetic error in native code, such as a division by zero",
    "SIGXCPU": "its limit of processor time, see `ulimit -t`",
    "SIGXFSZ": "its limit of file size, see `ulimit -f`",
    "SIGSYS": "a system call that a security filter forbids",
    "SIGPIPE": "it wrote to a pipe nobody reads",
    "SIGHUP": "its terminal or session was closed",
    "SIGINT": "interrupted, as by Ctrl-C",
}
_CODES = {
    2: "often a wrong command-line argument",
    126: "found, but not executable",
    127: "command not found",
}
_SHELL_BASE = 128


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; real-time signals as ``SIGRTMIN+n``."""
    try:
        return signal.Signals(number).name
    except ValueError:
        offset = number - signal.SIGRTMIN
        return f"SIGRTMIN+{offset}" if offset > 0 else f"signal {number}"


def death_in_words(number: int, *, oom_kills: int = 0) -> str:
    """Say that a signal ended a process, and why.

    Args:
        number: the signal.
        oom_kills: by how much the out-of-memory counter rose meanwhile, see `oom`.
    """
    name = signal_name(number)
    if for_want_of_memory(number, oom_kills):
        return (
            "was killed by SIGKILL: most likely the kernel's out-of-memory killer "
            f"(its counter oom_kill rose by {oom_kills})"
        )
    return f"was killed by {name}" + (f" ({_SIGNALS[name]})" if name in _SIGNALS else "")


def for_want_of_memory(number: int | None, oom_kills: int) -> bool:
    """Return whether the signal that ended a process was likely for want of memory.

    Args:
        number: the signal, None = it ended otherwise.
        oom_kills: by how much the out-of-memory counter rose meanwhile.
    """
    return number == signal.SIGKILL and oom_kills > 0


def end_in_words(code: int) -> str:
    """Say how a process ended, by its exit code or minus the number of the signal."""
    return death_in_words(-code) if code < 0 else exit_in_words(code)


def exit_in_words(code: int) -> str:
    """Say with which code a process exited, and what that means where it means something."""
    meaning = _CODES.get(code, "")
    if _SHELL_BASE < code < _SHELL_BASE + signal.NSIG:
        meaning = f"as shells report a death by {signal_name(code - _SHELL_BASE)}"
    return f"exited with code {code}" + (f" ({meaning})" if meaning else "")
