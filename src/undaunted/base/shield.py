"""Children of a rank outlive a stop signal, unless a process above them has sent it.

A scheduler signals all processes of a job, workers of data loaders too, which ranks need until they
have saved. Only a handler of the kernel learns who has sent a signal, and programs that a child
executes must not inherit anything: so there is a handler in machine code. See
docs/design/training.md for how each kind of child gets it.
"""

from __future__ import annotations

import _thread
import ctypes
import mmap
import os
import re
import signal
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from undaunted.base.signals import PROGRAMS_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# Where things are in the page behind the code: pids whose signals are heard, ended by 0; the
# parent; zeros, which are the default action for rt_sigaction; handlers from before, by signal.
_PARENT, _BEFORE = 256, 512
_MOST_PIDS = 60
_TAKEN_S = 1.0  # a child that has not begun by then is killed
_LOOK_S = 0.001
# void handler(int number, siginfo_t *info, void *context)
#     for pid in data.pids: if pid == info->si_pid: goto hear
#     if getppid() == data.parent: return
#   hear:
#     if data.before[number]: goto data.before[number]
#     rt_sigaction(number, zeros, NULL, 8); kill(getpid(), number)
# Its first 8 bytes are the address of the data.
_CODE = {
    "x86_64": (
        "0000000000000000 4c8b0df1ffffff 448b4610 4d89ca 418b02 85c0 740b 4439c0 7417 4983c204 ebee"
        "b86e000000 0f05 413b8100010000 7501 c3 4863c7 498b84c100020000 4885c0 7402 ffe0 4189f8"
        "498db108010000 31d2 41ba08000000 b80d000000 0f05 b827000000 0f05 89c7 4489c6 b83e000000"
        "0f05 c3"
    ),
    "aarch64": (
        "0000000000000000 c4ffff58 231040b9 e50304aa a64440b8 86000034 df00036b a1ffff54 0a000014"
        "e90300aa a81580d2 010000d4 e703002a e00309aa 860041b9 df00076b 41000054 c0035fd6 85200891"
        "a6d860f8 460000b4 c0001fd6 e90300aa 81200491 020080d2 030180d2 c81080d2 010000d4 881580d2"
        "010000d4 e10309aa 281080d2 010000d4 c0035fd6"
    ),
}
_SA_SIGINFO, _SA_RESTART, _SA_ONSTACK = 0x4, 0x10000000, 0x08000000
# How programs begin that `multiprocessing`, and the `multiprocess` of `datasets`, execute.
_PACKAGES = ("multiprocessing", "multiprocess")
_PROGRAM_LINES = tuple(
    f"from {package}.{module} import "
    for package in _PACKAGES
    for module in ("spawn", "forkserver")
)
# What `torch.compile` and Triton start, and wait for. They end by themselves soon.
_COMPILERS = re.compile(
    r"(.*/)?([\w-]*-)?(g\+\+|gcc|c\+\+|cc|(amd)?clang(\+\+)?|nvcc|hipcc|ptxas[\w-]*|ninja)(-\d+)?"
)
# Programs in Python of `torch.compile`: its pool compiles for Triton, the other one measures. They
# end when the rank closes their pipe.
_INDUCTORS = re.compile(r".*/torch/_inductor/(compile_worker/__main__|__autotune_main__)\.py")
_RUN_FILE = """
import runpy, sys
if sys.path[:1] == [""]:
    sys.path[0] = {folder!r}
runpy.run_path({path!r}, run_name="__main__")
"""
_PROGRAMS = {*map(int, PROGRAMS_SIGNALS)} - {int(signal.SIGXCPU)}  # the kernel sends that one
_TORCH = "torch.utils.data._utils.signal_handling"
_TORCHS = "_set_worker_signal_handlers"
# What a child of `multiprocessing` runs before its own first line; nothing in it may end the child.
_FIRST = """try:
    import sys
    sys.path.append({root!r})
    from undaunted.base import shield
    sys.path.pop()
    shield.begin({stops!r}, {above!r})
except Exception:
    pass
import signal
signal.pthread_sigmask(signal.SIG_UNBLOCK, {blocked!r})
"""


class _Action(ctypes.Structure):
    """``struct sigaction``, as glibc and musl have it."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_char * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Shield:
    """The handler, and what it looks at. Lives as long as the process, and in each forked child.

    Args:
        code: for this processor, from `_CODE`.

    Raises:
        OSError: memory must not be made executable here.
    """

    def __init__(self, code: bytes) -> None:
        page = mmap.PAGESIZE
        self._memory = mmap.mmap(-1, 2 * page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # For ever: a signal may come when Python has ended, and functions of `atexit(3)` run.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))
        begin = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._data = begin + page
        self._memory[: len(code)] = self._data.to_bytes(8, "little") + code[8:]
        self._handler = begin + 8
        self._libc = ctypes.CDLL(None, use_errno=True)
        use = mmap.PROT_READ | mmap.PROT_EXEC
        if self._libc.mprotect(ctypes.c_void_p(begin), ctypes.c_size_t(page), use) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    def hear(self, pids: Sequence[int]) -> None:
        """Hear signals of these processes, the last one of which is the parent."""
        page = mmap.PAGESIZE
        known = [os.getpid(), *pids[-_MOST_PIDS:], 0]
        self._memory[page : page + 4 * len(known)] = struct.pack(f"={len(known)}i", *known)
        self._memory[page + _PARENT : page + _PARENT + 4] = struct.pack("=i", pids[-1])

    def cover(self, number: int, *, handled: bool) -> None:
        """Go in front of the handler, or of the default action; not if the signal is ignored.

        ``handled``: also in front of a handler.
        """
        before, after = _Action(), _Action()
        self._libc.sigaction(number, None, ctypes.byref(before))
        handler = before.handler or 0
        if handler in (signal.SIG_IGN, self._handler) or (handler and not handled):
            return
        at = mmap.PAGESIZE + _BEFORE + 8 * number
        self._memory[at : at + 8] = struct.pack("=Q", handler)
        # Python's handlers do their work once the system call has returned that they interrupt.
        restart = before.flags & _SA_RESTART if handler else _SA_RESTART
        after.handler, after.flags = self._handler, _SA_SIGINFO | restart | _SA_ONSTACK
        self._libc.sigaction(number, ctypes.byref(after), None)


class _Process:
    """The state of this process; a forked child goes on with a copy.

    Args:
        shield: the handler.

    Attributes:
        numbers: signals that mean to stop.
        above: processes above a child, up to the rank; () in the rank itself.
    """

    def __init__(self, shield: _Shield) -> None:
        self.numbers: set[int] = set()
        self.above: tuple[int, ...] = ()
        self._shield = shield
        # by thread: the process, and the signals that it blocked, before it forks
        self._forking: dict[int, tuple[int, set[int]]] = {}

    @property
    def outlived(self) -> set[int]:
        """Signals that children outlive: those of the program's too, if nothing handles them."""
        return self.numbers | _PROGRAMS

    def cover(self) -> None:
        """In a child: put the handler in front of what there is now."""
        self._shield.hear(self.above)
        for number in self.outlived:
            self._shield.cover(number, handled=number in self.numbers)

    def before_fork(self) -> None:
        """Have signals wait until the child has the handler."""
        self.cover_terminate()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self.outlived)
        self._forking[_thread.get_ident()] = (os.getpid(), {*map(int, mask)})

    def after_fork(self) -> None:
        """In the parent: as before."""
        _, mask = self._forking.pop(_thread.get_ident())
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def after_fork_in_child(self) -> None:
        """Begin as a child."""
        parent, mask = self._forking[_thread.get_ident()]
        self._forking.clear()
        self.above = (*self.above, parent)
        try:
            self.cover()
            self.cover_loaders()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def cover_terminate(self) -> None:
        """Have `multiprocessing` wait until a child has taken somebody else's signal.

        The kernel keeps one signal of a kind for a process: one that waits hides the parent's.
        """
        for package in _PACKAGES:
            popen = getattr(sys.modules.get(f"{package}.popen_fork"), "Popen", None)
            if popen is not None and not hasattr(popen._send_signal, "undaunted"):  # noqa: SLF001
                popen._send_signal = self._surely(popen._send_signal)  # noqa: SLF001

    def _surely(self, send: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        def send_surely(child: Any, number: int) -> None:
            ours = vars(child).setdefault("undaunted_sent", set())
            # What waits after the first one is ours, and the child may have reasons to block it.
            taken = number not in {*self.outlived} - ours or _is_taken(child.pid, number)
            ours.add(number)
            send(child, number if taken else signal.SIGKILL)

        send_surely.undaunted = True  # type: ignore[attr-defined]
        return send_surely

    def cover_loaders(self) -> None:
        """In a child: stay in front of the handler that torch installs in workers of loaders."""
        module = sys.modules.get(_TORCH)
        torchs = getattr(module, _TORCHS, None)
        if torchs is None or hasattr(torchs, "undaunted"):
            return

        def install() -> None:
            torchs()
            self.cover()

        install.undaunted = True  # type: ignore[attr-defined]
        setattr(module, _TORCHS, install)


def _is_taken(pid: int, number: int) -> bool:
    """Wait until no such signal waits for a process; False = it does not take it."""
    deadline = time.monotonic() + _TAKEN_S
    while waits := _waits(pid, number):
        if time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_S)  # the kernel tells nobody
    return not waits


def _waits(pid: int, number: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines()
    except OSError:
        return False
    pending = (int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd")))
    return any(mask >> (number - 1) & 1 for mask in pending)


_here: _Process | None = None


def begin(numbers: Iterable[int], above: Sequence[int] = ()) -> bool:
    """Have children that begin from now on outlive signals; return whether that is possible here.

    Args:
        numbers: signals that mean to stop.
        above: in a child that `multiprocessing` has executed: the processes above it.
    """
    global _here  # noqa: PLW0603 - one for the process
    code = _CODE.get(os.uname().machine, "") if sys.maxsize > 1 << 32 else ""
    if _here is None:
        if not code:
            return False
        try:
            _here = _Process(_Shield(bytes.fromhex(code)))
        except OSError:
            return False
        os.register_at_fork(
            before=_here.before_fork,
            after_in_parent=_here.after_fork,
            after_in_child=_here.after_fork_in_child,
        )
        _shield_executed(_here)
    _here.numbers.update(map(int, numbers))
    if above:
        _here.above = (*above,)
        _here.cover()
        _shield_loaders(_here)
    return True


def _shield_executed(here: _Process) -> None:
    """Have Python processes that `multiprocessing` and inductor execute begin with `begin`."""
    import _posixsubprocess
    import subprocess

    execute: Callable[..., int] = _posixsubprocess.fork_exec

    def fork_exec(words: Sequence[object], *rest: object) -> int:
        inductors = _is_of_inductor(words)
        ours = inductors or any(map(_is_of_multiprocessing, words))
        if not ours and not _is_compiler(words):
            return execute(words, *rest)
        here.cover_terminate()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, here.outlived)
        try:
            if not ours:  # it blocks them until its end
                return execute(words, *rest)
            first = _FIRST.format(
                root=str(Path(__file__).parents[2]),
                stops=sorted(here.numbers),
                above=(*here.above, os.getpid()),
                blocked=sorted(here.outlived.difference(map(int, mask))),
            )
            if inductors:
                return execute(_begun_first(words, first), *rest)
            new = [first + word if _is_of_multiprocessing(word) else word for word in words]
            return execute(new, *rest)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    _posixsubprocess.fork_exec = fork_exec  # type: ignore[assignment]
    if hasattr(subprocess, "_fork_exec"):  # for compilers: it has its own name for the function
        subprocess._fork_exec = fork_exec  # noqa: SLF001
    vars(subprocess)["_USE_POSIX_SPAWN"] = False  # else Triton's compilers do not come here


def _shield_loaders(here: _Process) -> None:
    """In a child that was executed: look for torch when it has read what it is to run."""
    from multiprocessing.process import BaseProcess

    run: Callable[..., int] = BaseProcess._bootstrap  # type: ignore[attr-defined]  # noqa: SLF001

    def bootstrap(self: BaseProcess, *arguments: object, **more: object) -> int:
        here.cover_loaders()
        return run(self, *arguments, **more)

    BaseProcess._bootstrap = bootstrap  # type: ignore[attr-defined]  # noqa: SLF001


def _is_compiler(words: Sequence[object]) -> bool:
    name = words[0] if len(words) > 0 else ""
    text = os.fsdecode(name) if isinstance(name, str | bytes | os.PathLike) else ""
    return _COMPILERS.fullmatch(text) is not None


def _is_of_inductor(words: Sequence[object]) -> bool:
    name = words[1] if len(words) > 1 else ""
    return isinstance(name, str) and _INDUCTORS.fullmatch(name) is not None


def _begun_first(words: Sequence[object], first: str) -> list[object]:
    """Return the command of a Python file that runs these lines before its own."""
    interpreter, path, *rest = words
    folder = os.path.dirname(str(path))  # noqa: PTH120 - as Python puts it into `sys.path`
    return [interpreter, "-c", first + _RUN_FILE.format(path=path, folder=folder), *rest]


def _is_of_multiprocessing(word: object) -> TypeGuard[str]:
    return isinstance(word, str) and word.startswith(_PROGRAM_LINES)
