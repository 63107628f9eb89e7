"""In a rank: tells the agent, when it asks, what the Flight Recorder of this process holds.

That is a recording after a hang, or now and then, out of the times of its entries, how long the
rank has worked by itself in its steps (`slow_ranks.own_times`), and at which lines of the program
(`slow_ranks.lines`). Once, it tells what the program has imported (`import_notes`).

One thread, which sleeps until it is asked; while it is asked for times, it looks at the stack of
the main thread ten times a second. Nothing in here raises, keeps the rank waiting, or needs an
agent that answers. Imported before the user's program: at the time of a hang an import may wait for
ever.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import select
import signal
import socket
import sys
import threading
import time
import warnings
from collections import deque
from functools import partial

import msgspec

from undaunted.attribution.flight.recorder import calls, record
from undaunted.attribution.flight.recording import encode
from undaunted.base import process
from undaunted.base.descriptors import close_own, identity, is_still, move_high
from undaunted.fault_tolerance.slow_ranks import own_times
from undaunted.fault_tolerance.slow_ranks.lines import Lines, stack_of
from undaunted.fault_tolerance.slow_ranks.own_times import OwnTimes, Step
from undaunted.fault_tolerance.worker import import_notes
from undaunted.progress import writer

# Set by `undaunted run`: name of the agent's abstract Unix socket, without the leading NUL.
VARIABLE = "UNDAUNTED_RECORDINGS"
# A question: its number, then what is asked for.
RECORDING, TIMES, IMPORTS = b"r", b"t", b"i"
QUESTION_BYTES = 1 + 1
# An answer: the number of the question, then how many bytes follow: none, if there is no recording.
HEAD_BYTES = 1 + 4
MOST_BYTES = {RECORDING: 64 * 1024, TIMES: 64 * 1024, IMPORTS: 1024 * 1024}
# Name of the thread, as other processes see it.
THREAD = "ud-witness"
_LOOKS = 5
# How often the stack of the main thread is looked at while times are asked for. Never at even
# intervals: a step may take as long as one.
_LOOK_S = 0.1
_LOOK_COST = 2000  # a look may take this part of the time
_NO_LOOKS_AFTER_S = 240.0  # without a question for times: more than the longest time between two
# How long a wait for a question may last. The program may put another file in the socket's place in
# the moment between a look at the descriptor and the wait, which then is for that file.
_WAIT_MS = 5000
_MOST_COLLECTIONS = 4096  # between two questions; of more, the last ones count


def begin(stacks: int = 0) -> None:
    """Connect to the agent, if the environment names it, and answer it from now on.

    Args:
        stacks: signal on which faulthandler writes all stacks, 0 = none. The agent sends it to this
            thread, as it would interrupt a sleep in C of another one.
    """
    name = os.environ.pop(VARIABLE, "")
    if not name:
        return
    with contextlib.suppress(OSError, RuntimeError):  # it is looked at without
        _begin(name, stacks)


def _begin(name: str, stacks: int) -> None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock = socket.socket(fileno=move_high(sock.detach()))
    try:
        sock.setblocking(False)  # where the agent does not accept, it goes without
        sock.connect(f"\0{name}")
        sock.setblocking(True)
        _let_the_rank_fork()
        file = identity(sock.fileno())
        _start(sock, file, stacks)
    except BaseException:
        sock.close()
        raise
    os.register_at_fork(after_in_child=partial(close_own, sock, file))


def _start(sock: socket.socket, file: str, stacks: int) -> None:
    """Start the thread, which takes no other signal: all of them are for the main thread."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {stacks})
    try:
        args = (sock, file)
        threading.Thread(target=_serve, args=args, name="undaunted-witness", daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _let_the_rank_fork() -> None:
    """This thread holds no lock that a forked child could miss: Python need not warn of it."""
    if sys.version_info >= (3, 12):
        warnings.filterwarnings(
            "ignore", r"This process \(pid=\d+\) is multi-threaded", DeprecationWarning
        )


def _are_mixed() -> bool:
    """Whether groups were aborted and made anew, maybe of other ranks: then nothing is sure."""
    abort = sys.modules.get("undaunted.inprocess.abort")
    return abort is not None and abort.aborted.is_set()


def _serve(sock: socket.socket, file: str) -> None:
    process.name_this_thread(THREAD)
    times = Times()
    gc.callbacks.append(times.collections.note)
    asked = select.poll()
    asked.register(sock, select.POLLIN)
    try:
        while True:
            while _is_ours(sock, file) and not asked.poll(times.wait_ms()):
                times.look()
            if len(question := _receive(sock, file)) != QUESTION_BYTES:
                break
            number, what = question[:1], question[1:]
            body = import_notes.answer() if what == IMPORTS else _recorded(times, what)
            body = body if len(body) <= MOST_BYTES.get(what, 0) else b""
            if not _is_ours(sock, file):
                break
            sock.sendall(number + len(body).to_bytes(4, "big") + body)
    except OSError:
        pass  # the agent is gone


def _receive(sock: socket.socket, file: str) -> bytes:
    return sock.recv(QUESTION_BYTES, socket.MSG_WAITALL) if _is_ours(sock, file) else b""


def _is_ours(sock: socket.socket, file: str) -> bool:
    """Whether the program has left it open; if not, its number may belong to another file."""
    ours = is_still(sock.fileno(), file)
    if not ours:
        sock.detach()
    return ours


def _recorded(times: Times, what: bytes) -> bytes:
    if _are_mixed():
        return b""
    return times.answer() if what == TIMES else _recording()


def _recording() -> bytes:
    recording = record()
    return b"" if recording is None else encode(recording)


class Collections:
    """The time that the garbage collector works.

    Python runs a signal's handler in whatever Python code comes next. In a callback of the
    collector, what a handler raises is printed and lost: Ctrl-C, a program's own way to end, an
    in-process restart. So nothing here is Python code while a collection lasts: `note` reads an
    attribute, which is a property of functions in C.
    """

    def __init__(self) -> None:
        self._begun: deque[int] = deque(maxlen=_MOST_COLLECTIONS)
        self._ended: deque[int] = deque(maxlen=_MOST_COLLECTIONS)
        phases = {"start": _stamps(self._begun), "stop": _stamps(self._ended)}
        # What `gc.callbacks` is given: called with the name of the phase, and what is known of it.
        self.note = partial(getattr, type("Phases", (), phases)())

    def take_ns(self) -> int:
        """Return how long collections took since the last call, in ns; of the last thousands."""
        total = 0
        while self._ended:
            ended = self._ended.popleft()
            begun = 0
            while self._begun and self._begun[0] <= ended:
                begun = self._begun.popleft()
            total += ended - begun if begun else 0
        return total


def _stamps(times: deque[int]) -> property:
    """Return a property that notes the time when it is read, without Python code."""
    return property(partial(next, map(times.append, iter(time.monotonic_ns, None))))


class Times:
    """The work of the rank by itself since it was asked last."""

    def __init__(self) -> None:
        self._told_ns = 0  # steps until then have been told
        self.collections = Collections()
        self._lines = Lines()
        self._random = random.Random()  # noqa: S311 - not the program's, which must not notice
        self._looks_until = 0.0  # time.monotonic; 0 = nobody has asked for times
        self._look_s = 0.0  # how long the last one took

    def wait_ms(self) -> int:
        """Return how long to wait for a question before `look`."""
        if not self._is_asked:
            return _WAIT_MS
        every_s = max(_LOOK_S, self._look_s * _LOOK_COST)
        return max(1, round(1000 * every_s * self._random.uniform(0.5, 1.5)))

    @property
    def _is_asked(self) -> bool:
        return time.monotonic() < self._looks_until

    def look(self) -> None:
        """Note at which line the main thread is, if somebody asks for times."""
        if not self._is_asked:
            return
        began_ns = time.thread_time_ns()
        with contextlib.suppress(Exception):
            main = threading.main_thread().ident or 0
            self._lines.note(stack_of(sys._current_frames().get(main)))  # noqa: SLF001
        self._look_s = (time.thread_time_ns() - began_ns) / 1e9

    def answer(self) -> bytes:
        """Return `OwnTimes`, b"" if there is nothing new to say."""
        try:
            return self._answer()
        except Exception:  # noqa: BLE001 - training goes on, and so does this thread
            return b""

    def _answer(self) -> bytes:
        began_ns = time.thread_time_ns()
        page = writer.current
        stored = list(page.steps) if isinstance(page, writer.PageWriter) else []
        steps = [Step(at_ns, number - 1, cpu_ns) for at_ns, number, cpu_ns in stored]
        if len(steps) <= writer.CHUNK or steps[-1 - writer.CHUNK].begun_ns < self._told_ns:
            return b""  # no whole chunk: torch need not dump
        self._looks_until = time.monotonic() + _NO_LOOKS_AFTER_S
        ahead_ns = _wall_ahead_ns()
        at_ns, waited = calls()
        called_ns = [each - ahead_ns for each in at_ns]
        chunks, self._told_ns = own_times.chunks(steps, called_ns, self._told_ns, waited=waited)
        gc_us = self.collections.take_ns() // 1000
        looks, lines = self._lines.looks, self._lines.counts()
        cost_us = (time.thread_time_ns() - began_ns) // 1000
        return msgspec.msgpack.encode(OwnTimes(chunks, gc_us, cost_us, looks, lines))


def _wall_ahead_ns() -> int:
    """How far the wall clock is ahead of the monotonic one, by the quickest of a few looks.

    On a busy machine this thread may have to wait between two clocks.
    """
    looks = []
    for _ in range(_LOOKS):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        looks.append((after - before, wall - (before + after) // 2))
    return min(looks)[1]
