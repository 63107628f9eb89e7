"""Processes on Linux: what /proc says about them, who adopts their orphans, who they die with.

Pids are reused. Whoever keeps one for longer than a moment keeps a pidfd, or compares
`start_time`, unless it is the parent and has not waited for the process yet.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import select
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.signals import NOT_FOR_OURS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_RENICE_S = 3.0
_RENICE_PAUSE_S = 0.07  # the kernel gives no sign when it allows the next one
_AUTOGROUP = Path("/proc/self/autogroup")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ENDED = ("", "Z", "X")  # states of a process that has ended, collected or not
_PF_EXITING = 0x4  # of the flags in /proc/PID/stat, since Linux 2.6
# Numbers of system calls newer than Linux 5.0 are the same on every architecture. Some builds of
# Python lack the wrappers, because they were made on older kernel headers.
_NR_PIDFD_SEND_SIGNAL = 424
_NR_PIDFD_OPEN = 434
# spawn.h: the child's signals are set, and it leads a session (glibc 2.26, musl 1.1.18).
_SPAWN_FLAGS = 0x04 | 0x08 | 0x80


# By number of the error: how shells call the limit, which it is, and its unit.
_LIMITS = {
    errno.EMFILE: ("-n", resource.RLIMIT_NOFILE, ""),
    errno.EFBIG: ("-f", resource.RLIMIT_FSIZE, " bytes"),
}

# Nothing is imported before the current directory, which `-c` puts first, is out. Our package is
# this one, wherever else there is another; what lies beside it hides nothing.
_FIRST = (
    "import sys; sys.path[:] = [sys.argv.pop(1), *filter(None, sys.path)]; "
    "import undaunted; sys.path.append(sys.path.pop(0)); "
)
# From 3.13 on Python itself imports modules before the first line of `-c`.
_SAFE = ["-P"] if sys.version_info >= (3, 13) else []
_MODULE = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
_DEFAULTS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGXCPU,
    signal.SIGXFSZ,
)


class Stat(NamedTuple):
    """The content of ``/proc/PID/stat``.

    ``state`` is one letter (R, S, D, T, t, Z, X, I); ``start_time`` is in clock ticks since boot
    and together with ``pid`` names a process uniquely until the next boot. ``exiting``: it is on
    its way out, or a zombie; set before its files and sockets are closed. ``cpu_s`` is the CPU time
    of all its threads, in seconds; ``ended_children_cpu_s`` that of children it has waited for.
    """

    pid: int
    comm: str
    state: str
    ppid: int
    start_time: int
    exiting: bool
    cpu_s: float
    ended_children_cpu_s: float = 0.0


def read_stat(pid: int) -> Stat | None:
    """Return what the kernel says about ``pid``, or None if there is no such process."""
    try:
        raw = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return parse_stat(raw)


def parse_stat(raw: bytes) -> Stat:
    """Parse a line of ``/proc/PID/stat``; the command in it may hold spaces, brackets, anything."""
    head, _, tail = raw.rpartition(b")")
    pid, _, comm = head.partition(b" (")
    fields = tail.split()
    return Stat(
        pid=int(pid),
        comm=os.fsdecode(comm),
        state=fields[0].decode("ascii"),
        ppid=int(fields[1]),
        start_time=int(fields[19]),
        exiting=bool(int(fields[6]) & _PF_EXITING),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
        ended_children_cpu_s=(int(fields[13]) + int(fields[14])) / _TICKS_PER_S,
    )


def state(pid: int) -> str:
    """Return the state letter of a process or thread, or "" if there is none; see `ENDED`."""
    stat = read_stat(pid)
    return stat.state if stat is not None else ""


def threads(pid: int) -> list[int]:
    """Return the ids of all threads of ``pid``, the main thread first; [] = it has ended."""
    try:
        return sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return []


def thread_name(pid: int, thread: int) -> str:
    """Return the name of a thread, "" = it has ended."""
    try:
        return (
            Path(f"/proc/{pid}/task/{thread}/comm")
            .read_text("utf-8", errors="replace")
            .rstrip("\n")
        )
    except OSError:
        return ""


def name_this_thread(name: str) -> None:
    """Give the calling thread a name that other processes can see, of at most 15 bytes."""
    with contextlib.suppress(OSError):
        Path("/proc/thread-self/comm").write_text(name, "utf-8")


def catches(pid: int, number: int) -> bool:
    """Return whether ``pid`` has a handler for a signal, as the kernel says; False = unknown, too.

    A program that a process has exec'd has none of the handlers from before.
    """
    return _has_signal(pid, b"SigCgt", number)


def ignores(pid: int, number: int) -> bool:
    """Return whether ``pid`` ignores a signal, by what the kernel says; False = unknown, too."""
    return _has_signal(pid, b"SigIgn", number)


def is_dying(pid: int) -> bool:
    """Return whether ``pid`` has got SIGKILL, is on its way out for another reason, or is gone.

    Where its priority is low, a busy machine may need seconds for the rest.
    """
    if _has_signal(pid, b"ShdPnd", signal.SIGKILL) or _has_signal(pid, b"SigPnd", signal.SIGKILL):
        return True
    return is_exiting(pid)


def _has_signal(pid: int, field: bytes, number: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
        signals = int(status.partition(b"\n" + field + b":")[2].split(maxsplit=1)[0], 16)
    except (OSError, IndexError, ValueError):
        return False
    return bool(signals >> (number - 1) & 1)


def may_lower_priority() -> bool:
    """Return whether a process that lowers its priority may take its usual one again."""
    import threading  # few need it

    allowed = []

    def lower() -> None:  # priorities are those of threads, and this one ends
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, min(usual + 1, 19))
            os.setpriority(os.PRIO_PROCESS, 0, usual)
            allowed.append(True)

    trial = threading.Thread(target=lower)
    trial.start()
    trial.join()  # bounded: three system calls
    return bool(allowed)


def nice_of_session() -> int:
    """Return the priority that the session of this process has among others, 0 = the usual one.

    Kernels with autogroups share CPU time among sessions; the priority of a process counts only
    within its own.
    """
    with contextlib.suppress(OSError, ValueError):
        return int(_AUTOGROUP.read_text("utf-8").rpartition(" ")[2])
    return 0


def renice_session(nice: int) -> None:
    """Change that priority, where there are autogroups; the kernel may refuse it.

    The kernel lets all users together do it ten times a second; this waits for that, for a while.
    """
    deadline = time.monotonic() + _RENICE_S
    while True:
        try:
            _AUTOGROUP.write_text(f"{nice}", "utf-8")
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(_RENICE_PAUSE_S)
                continue
        except OSError:
            pass  # there are none, or this may not be done
        return


def signal_thread(pid: int, thread: int, number: int) -> bool:
    """Send a signal to one thread of ``pid``; False = that is not possible here."""
    send = getattr(ctypes.CDLL(None), "tgkill", None)  # musl has none
    return send is not None and send(pid, thread, number) == 0


def is_exiting(pid: int) -> bool:
    """Return whether ``pid`` is on its way out, for whatever reason, or gone."""
    stat = read_stat(pid)
    return stat is None or stat.exiting


def start_time(pid: int) -> int | None:
    """Return when ``pid`` started, in clock ticks since boot, or None if it does not exist."""
    stat = read_stat(pid)
    return stat.start_time if stat is not None else None


def is_below(pid: int, ancestor: int) -> bool:
    """Return whether ``pid`` is ``ancestor``, or a process below it."""
    while pid > 1 and pid != ancestor:
        stat = read_stat(pid)
        pid = stat.ppid if stat is not None else 0
    return pid == ancestor


def descendants(pid: int, spare: Collection[tuple[int, int]] = ()) -> list[int]:
    """Return the pids below ``pid``, parents before children; zombies are included.

    Processes of ``spare`` (pid and start time) are left out, and so is what is below them.

    Whoever forks while this looks may be missed: look again after having stopped what was found.
    A process whose parent died is found only if ``pid``, or something below it, is a subreaper.
    """
    children = defaultdict(list)
    for name in os.listdir("/proc"):
        stat = read_stat(int(name)) if name.isdigit() else None
        if stat is not None and (stat.pid, stat.start_time) not in spare:
            children[stat.ppid].append(stat.pid)
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children.pop(todo.pop(), [])
        found.extend(below)
        todo.extend(below)
    return found


def cpu_below_s(pid: int) -> float:
    """Return the CPU time of all processes below ``pid`` that live or were waited for, seconds."""
    below = [stat for child in descendants(pid) if (stat := read_stat(child)) is not None]
    own = read_stat(pid)
    ended_s = sum(stat.ended_children_cpu_s for stat in (own, *below) if stat is not None)
    return ended_s + sum(stat.cpu_s for stat in below)


def children(pid: int | str = "self") -> set[int]:
    """Return children of a process, zombies included; quick, but some may be missed.

    None is found where the kernel does not tell (CONFIG_PROC_CHILDREN): see `descendants`.
    """
    found: set[int] = set()
    with contextlib.suppress(OSError):  # a thread that has just ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            words = Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split()
            found.update(map(int, words))
    return found


def thread_count(pid: int | str = "self") -> int:
    """Return the number of threads of a process.

    Raises:
        OSError: there is no such process.
    """
    return len(os.listdir(f"/proc/{pid}/task"))


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that stands for process ``pid``, or None if it does not exist.

    The descriptor is close-on-exec and becomes readable when the process has ended. The caller
    closes it.

    Raises:
        OSError: the kernel has no pidfds (Linux before 5.3) or descriptors ran out.
    """
    try:
        if hasattr(os, "pidfd_open"):
            return os.pidfd_open(pid)
        return system_call(_NR_PIDFD_OPEN, pid, 0)
    except ProcessLookupError:
        return None


def signal_pidfd(pidfd: int, number: int) -> bool:
    """Send a signal to the process behind ``pidfd``; return False if it has ended."""
    try:
        if hasattr(signal, "pidfd_send_signal"):
            signal.pidfd_send_signal(pidfd, number)
        else:
            system_call(_NR_PIDFD_SEND_SIGNAL, pidfd, number, 0, 0)
    except ProcessLookupError:
        return False
    return True


def wait_pidfd(pidfd: int, timeout_s: float) -> bool:
    """Wait until the process behind ``pidfd`` has ended; return False after ``timeout_s``."""
    return wait_readable(pidfd, timeout_s)


def wait_readable(fd: int, timeout_s: float | None) -> bool:
    """Wait until ``fd`` is readable or at its end; return False after ``timeout_s`` seconds."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


def wait_for_any(fds: Sequence[int]) -> list[int]:
    """Wait, without limit, until some of ``fds`` are readable or at their end; return those.

    Negative ones are left out.
    """
    poll = select.poll()
    for fd in fds:
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll()]


def become_subreaper() -> None:
    """Adopt every orphan among the descendants of this process (not inherited by children).

    Raises:
        OSError: the kernel refused.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def is_subreaper() -> bool:
    """Return whether this process adopts every orphan among its descendants.

    Raises:
        OSError: the kernel refused, or knows no subreapers (Linux before 3.4).
    """
    answer = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(answer))
    return bool(answer.value)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> bool:
    """Have this process get ``number`` when its parent ends; return whether ``parent`` is alive.

    False means that the parent is another process than ``parent``: it ended before the request
    took effect, and no signal will come. The request follows the parent's *thread* that started
    this process; children do not inherit it.

    Raises:
        OSError: the kernel refused.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    return os.getppid() == parent


def end_descendants(
    timeout_s: float, spare: Collection[tuple[int, int]] = (), *, dying: bool = True
) -> dict[int, str]:
    """Kill and reap everything below this process, which must be a subreaper.

    Args:
        timeout_s: when to give up.
        spare: processes to leave alone with all below them: pid and start time.
        dying: also wait for processes that others have killed (`is_dying`), and return them.

    Returns:
        Names of the processes that were killed, by pid. Those that cannot die are given up after
        ``timeout_s``.
    """
    killed: dict[int, str] = {}
    deadline = time.monotonic() + timeout_s
    while left := descendants(os.getpid(), spare):
        _reap()
        # Ending a process may make us the parent of others, hence the loop.
        left = [pid for pid in left if dying or pid in killed or not is_dying(pid)]
        if not left or time.monotonic() >= deadline:
            break
        for pid in left:
            stat = read_stat(pid)
            if stat is not None and stat.state != "Z":
                killed.setdefault(pid, stat.comm)
        _kill_and_wait(left, deadline)
        _reap()
    return killed


def _kill_and_wait(pids: list[int], deadline: float) -> None:
    pidfds = [pidfd for pid in pids if (pidfd := open_pidfd(pid)) is not None]
    for pid in pids:
        with contextlib.suppress(OSError):
            _hurry(pid)
    for pidfd in pidfds:
        with contextlib.suppress(PermissionError):  # it has changed its user
            signal_pidfd(pidfd, signal.SIGKILL)
    for pidfd in pidfds:
        wait_pidfd(pidfd, max(0.0, deadline - time.monotonic()))
        os.close(pidfd)


def _hurry(pid: int) -> None:
    """Have a process that gives way to others end as soon as this one would, if that is allowed.

    Raises:
        OSError: it is not (as for most users), or the process has ended.
    """
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    if os.getpriority(os.PRIO_PROCESS, pid) > ours:
        os.setpriority(os.PRIO_PROCESS, pid, ours)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def module_command(module: str, *words: str, flags: Sequence[str] = ()) -> list[str]:
    """Return the command line that runs a module of ours as a program, with this interpreter.

    The module finds what this process finds, but for what lies in its current directory: a
    ``logging.py`` of the user's there is not for us. ``python -m`` would import it.

    Args:
        module: its full name.
        words: its arguments.
        flags: of the interpreter.
    """
    # The name comes first, for those who look at a list of processes.
    command = code_command(_MODULE, module, *words, flags=flags)
    place = command.index("-c") + 1
    command[place] = f"{module!r}; {command[place]}"
    return command


def code_command(code: str, *words: str, flags: Sequence[str] = ()) -> list[str]:
    """Like `module_command`, for a line of code that finds its arguments in ``sys.argv[1:]``."""
    return [_python(), *flags, *_SAFE, "-c", _FIRST + code, str(Path(__file__).parents[2]), *words]


def name_process(name: str) -> None:
    """Show this process under a name in ``ps`` and ``top``, if the kernel lets it.

    Args:
        name: as ``/proc/PID/comm`` has it; the kernel keeps 15 bytes.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def script_command(path: str | Path, *words: str) -> list[str]:
    """Return the command line of a script of ours that uses Python's own library only."""
    return [_python(), "-I", "-S", str(path), *words]


def _python() -> str:
    """Return the interpreter's path, which one inside of another program may not know.

    Raises:
        OSError: it is not where it would be installed either.
    """
    if sys.executable:
        return sys.executable
    path = Path(sys.exec_prefix, "bin", "python{}.{}".format(*sys.version_info))
    if not path.is_file():
        raise FileNotFoundError(
            errno.ENOENT, "sys.executable is empty, and no Python is here: set it", str(path)
        )
    return str(path)


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    pass_fds: Sequence[int],
    blocked: Sequence[int] = NOT_FOR_OURS,
) -> int:
    """Start a program in a session of its own and return its pid; the caller waits for it.

    The signal mask is ``blocked``. By default it spares a program of ours the signals that
    schedulers send to all processes of a job. The dispositions that Python changes, and those of
    signals that a launcher may handle, are the defaults again.
    Standard streams are inherited, and of all other descriptors those in ``pass_fds`` and those
    that are inheritable anyway.

    Raises:
        OSError: the program cannot be started; ``filename`` says which.
    """
    # In the child, a descriptor loses close-on-exec by being duplicated onto itself from elsewhere
    # (C libraries before glibc 2.29 do not handle a direct duplicate of itself).
    spare = max(pass_fds, default=2) + 1
    actions: list[tuple[int, ...]] = []
    for fd in pass_fds:
        actions += [(os.POSIX_SPAWN_DUP2, fd, spare), (os.POSIX_SPAWN_DUP2, spare, fd)]
    if pass_fds:
        actions.append((os.POSIX_SPAWN_CLOSE, spare))
    try:
        return os.posix_spawnp(
            argv[0],
            list(argv),
            dict(env),
            file_actions=actions,
            setsid=True,
            setsigmask=blocked,
            setsigdef=_DEFAULTS,
        )
    except NotImplementedError:  # Python was built for a C library without POSIX_SPAWN_SETSID
        return _spawn_by_libc(argv, env, actions, blocked)


def _spawn_by_libc(
    argv: Sequence[str],
    env: Mapping[str, str],
    actions: Sequence[tuple[int, ...]],
    blocked: Sequence[int],
) -> int:
    """Do the same with functions of the C library: the one that is here has what it takes."""
    libc = ctypes.CDLL(None)
    # Larger than these structures are anywhere.
    attributes, files, signals = (ctypes.create_string_buffer(1024) for _ in range(3))
    libc.posix_spawnattr_init(attributes)
    libc.posix_spawnattr_setflags(attributes, ctypes.c_short(_SPAWN_FLAGS))
    for numbers, put in (
        (blocked, libc.posix_spawnattr_setsigmask),
        (_DEFAULTS, libc.posix_spawnattr_setsigdefault),
    ):
        libc.sigemptyset(signals)
        for number in numbers:
            libc.sigaddset(signals, number)
        put(attributes, signals)
    libc.posix_spawn_file_actions_init(files)
    for kind, *fds in actions:
        add = "adddup2" if kind == os.POSIX_SPAWN_DUP2 else "addclose"
        getattr(libc, f"posix_spawn_file_actions_{add}")(files, *fds)
    words = [os.fsencode(word) for word in argv]
    variables = [os.fsencode(f"{name}={value}") for name, value in env.items()]
    pid = ctypes.c_int()
    try:
        number = libc.posix_spawnp(
            ctypes.byref(pid),
            words[0],
            files,
            attributes,
            (ctypes.c_char_p * (len(words) + 1))(*words),
            (ctypes.c_char_p * (len(variables) + 1))(*variables),
        )
    finally:
        libc.posix_spawn_file_actions_destroy(files)
        libc.posix_spawnattr_destroy(attributes)
    if number:
        raise OSError(number, os.strerror(number), argv[0])
    return pid.value


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        _raise_errno(f"prctl({option}, {value})")


def system_call(number: int, *words: int | bytes) -> int:
    """Make a system call for which this build of Python has no function.

    Raises:
        OSError: the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = (word if isinstance(word, bytes) else ctypes.c_long(word) for word in words)
    result: int = libc.syscall(ctypes.c_long(number), *numbers)
    if result < 0:
        _raise_errno(f"system call {number}")
    return result


def _raise_errno(what: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{what}: {os.strerror(number)}")


def refusal(error: OSError) -> str:
    """Say why the system refused something; also the limit of this process that was reached."""
    why = error.strerror or str(error)
    option, number, unit = _LIMITS.get(error.errno or 0, ("", 0, ""))
    limit = resource.getrlimit(number)[0] if option else resource.RLIM_INFINITY
    if limit == resource.RLIM_INFINITY:
        return why
    return f"{why} (ulimit {option} is {limit}{unit}: raise it)"
