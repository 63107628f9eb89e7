"""Starts the workers of a round: forked from the warm template where that is safe, else fresh.

`WarmSpawner` is the agent's side of the template: it starts it, has it fork workers, and gives it
up when it fails. `FreshSpawner` starts an interpreter for each worker. `Spawner` chooses.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from undaunted.base import process
from undaunted.base.memory import open_memfd
from undaunted.fault_tolerance.worker import messages
from undaunted.fault_tolerance.worker.numerics import TEMPLATE_ENVIRONMENT

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Mapping, Sequence

    from undaunted.fault_tolerance.worker.messages import WorkerSpec

# Read when a program or a library is loaded, and too late to change in a forked worker.
# OPENBLAS_NUM_THREADS is not among them: see `numerics`.
_READ_AT_START = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_", "OMP_", "GOMP_", "KMP_", "MKL_")
_NAMES_READ_AT_START = ("LANG", "LANGUAGE")


# A template that ended is replaced, unless so many in a row have not forked any worker.
_IN_VAIN = 3
_REPLACED = "; another one is started"
_NOT_MISSED = "; the ranks are well: the next restart imports some modules itself, and takes longer"
# Imports from a busy shared file system take minutes, for fresh workers just as well.
READY_DEADLINE_S = 600.0
# At the lowest priority, beside ranks that use all cores.
_LEARN_DEADLINE_S = 3600.0
# Longer than the template gives itself (template.FORK_DEADLINE_S).
FORK_DEADLINE_S = 30.0
_KILL_DEADLINE_S = 10.0
_CHUNK_BYTES = 65536
_ENDING_S = 0.5  # from the end of the stream to that of the process

OnReady = Callable[[int, messages.Ready], object]
CodeOf = Callable[[int], int | None]
_BOOT = str(Path(__file__).resolve().with_name("boot.py"))


@dataclass(frozen=True)
class Spawned:
    """The workers of a round. ``reason`` says why they are fresh although warm was asked."""

    pids: list[int]
    mode: Literal["warm", "fresh"]
    reason: str = ""


class Spawner:
    """Starts workers and decides how. `close` ends the template, not the workers."""

    def __init__(
        self,
        python: str | Sequence[str],
        *,
        warm: bool,
        pass_fds: Sequence[int],
    ) -> None:
        """Make a spawner; nothing is started.

        Args:
            python: the workers' interpreter, alone or with flags.
            warm: whether to fork workers where possible.
            pass_fds: descriptors the workers need, by number.
        """
        self._python = [python] if isinstance(python, str) else list(python)
        self._pass_fds = tuple(pass_fds)
        self._on_fresh: Callable[[str], object] | None = None
        self._on_ready: OnReady | None = None
        self._say_line: Callable[[str], object] | None = None
        self._code_of: CodeOf | None = None
        self._said: set[str] = set()
        self._warm = WarmSpawner() if warm else None
        self._start: Callable[..., None] | None = None
        self._successor: WarmSpawner | None = None  # imports what was learned
        self._in_vain = 0  # templates since the last one that has forked workers
        self._one: asyncio.Lock | None = None
        self._called_off = 0  # times
        self._fresh = FreshSpawner(self._python, self._pass_fds)

    def report_to(
        self,
        on_fresh: Callable[[str], object],
        on_ready: OnReady | None = None,
        say: Callable[[str], object] | None = None,
        code_of: CodeOf | None = None,
    ) -> None:
        """Report what happens; call it before the first `spawn`.

        Args:
            on_fresh: called, once per reason, with why workers start fresh although warm was asked.
            on_ready: called with the template's pid and what it imported.
            say: shows a line for the user.
            code_of: takes the exit code of an ended child, or minus the number of its signal.
        """
        self._on_fresh, self._on_ready, self._say_line = on_fresh, on_ready, say
        self._code_of = code_of
        if self._warm is not None:
            self._warm.on_ready, self._warm.code_of = on_ready, code_of

    def prepare(
        self,
        env: Mapping[str, str],
        modules: Sequence[str],
        words: Sequence[str] = (),
        later: Sequence[str] = (),
        note: bool = False,
        variables: Mapping[str, str | None] | None = None,
    ) -> None:
        """Start the template, which imports ``modules`` while the caller does other things.

        Args:
            env: what the environments of all workers have in common.
            modules: see `preload.template_modules`.
            words: the user's program and arguments, for ps.
            later: what it imports when workers have, see `imports.Later`.
            note: whether workers note what they import, for `learn`.
            variables: that the program sets before it imports anything, see `prologue`.
        """
        prepare = messages.Prepare(
            modules=list(modules), variables=dict(variables or {}), later=list(later), note=note
        )
        self._start = partial(
            WarmSpawner.start,
            python=self._python,
            env=env,
            prepare=prepare,
            pass_fds=self._pass_fds,
            words=words,
        )
        if self._warm is not None:
            self._start(self._warm)

    @property
    def warm(self) -> bool:
        """Return whether there is a template, or will be."""
        return self._warm is not None

    async def spawn(self, specs: Sequence[WorkerSpec]) -> Spawned:
        """Start one worker per spec, one request after another. The caller waits for the processes.

        Raises:
            OSError: they cannot be started.
        """
        import asyncio  # the template is started before anything slow is imported

        self._one = self._one or asyncio.Lock()
        before = self._called_off
        async with self._one:
            if self._called_off != before:
                raise OSError("called off before it began")
            return await self._spawn(specs)

    async def _spawn(self, specs: Sequence[WorkerSpec]) -> Spawned:
        reason = ""
        if self._warm is not None:
            reason = fresh_reason(specs, self._warm.environment)
            if not reason and (pids := await self._warm.spawn(specs)):
                self._in_vain = 0
                return Spawned(pids, "warm")
            reason = reason or self._warm.unavailable_reason
            self._say(reason, replaced=self._begin_another())
        return Spawned(self._fresh.spawn(specs), "fresh", reason)

    def replace_dead_template(self) -> None:
        """Start another template if this one has died. Called when any child has exited."""
        if self._warm is None or (self._one is not None and self._one.locked()):
            return
        self._warm.look()
        lost = self._warm.unavailable_reason
        if self._begin_another() and self._say_line is not None:
            self._say_line(lost + _REPLACED)

    def replace_no_more(self) -> None:
        """The launcher stops: a template that ends from now on is not missed."""
        self._start = None
        if self._warm is not None and not (self._one is not None and self._one.locked()):
            self._warm.rest()

    def _begin_another(self) -> bool:
        """Replace a template that is lost, while the ranks run; return whether one was started."""
        lost = self._warm
        if lost is None or not lost.unavailable_reason or lost.hopeless or self._start is None:
            return False
        self._in_vain += 1
        if self._in_vain > _IN_VAIN:
            return False
        self._warm = WarmSpawner()
        self._warm.on_ready, self._warm.code_of = self._on_ready, self._code_of
        self._start(self._warm)
        return True

    @property
    def has_learned(self) -> bool:
        """Return whether workers find imported what earlier ones have imported."""
        return self._warm is not None and self._warm.has_learned

    async def learn(self, learned: messages.Learned) -> messages.Ready | None:
        """Start a template that imports what ranks have; once it has, workers come from it.

        Until then they are forked from the one that there is.

        Returns:
            What it has imported, or what has to be left out; None = it came to nothing.
        """
        if self._start is None or self._warm is None or self._warm.unavailable_reason:
            return None
        import asyncio

        successor = self._successor = WarmSpawner()
        successor.code_of = self._code_of
        try:
            self._start(successor, learned=learned)
            ready = await successor.wait_ready(_LEARN_DEADLINE_S)
            if not ready and self._start is not None and self._say_line is not None:
                self._say_line(successor.unavailable_reason + _NOT_MISSED)
            if not ready or not successor.has_learned:
                return successor.ready
            self._one = self._one or asyncio.Lock()
            async with self._one:
                before, self._warm = self._warm, successor
                before.close()  # it may have to let workers go that it has just forked
            return successor.ready
        finally:
            self._successor = None
            if self._warm is not successor:
                successor.end()

    def call_off(self) -> None:
        """Have every `spawn` under way end soon, if need be with an OSError."""
        self._called_off += 1
        if self._warm is not None:
            self._warm.call_off()

    def pids(self) -> set[int]:
        """Return the processes this keeps between rounds: templates that may fork again."""
        templates = (self._warm, self._successor)
        return {
            template.pid
            for template in templates
            if template is not None and template.pid and not template.unavailable_reason
        }

    async def close(self) -> None:
        """End the template. May be called twice."""
        self._start = None
        if self._warm is not None:
            self._warm.close()

    def _say(self, reason: str, *, replaced: bool) -> None:
        if self._on_fresh is None or reason in self._said:
            return
        if replaced:  # the end of each is said
            reason += _REPLACED
        else:
            self._said.add(reason)
        self._on_fresh(reason)


class FreshSpawner:
    """Starts a new interpreter per worker."""

    def __init__(self, python: Sequence[str], pass_fds: Sequence[int]) -> None:
        """Make a spawner; arguments as for `Spawner`."""
        self._python = list(python)
        self._pass_fds = tuple(pass_fds)

    def spawn(self, specs: Sequence[WorkerSpec]) -> list[int]:
        """Start one worker per spec and return their pids: all of them or none.

        Raises:
            OSError: they cannot be started; workers that had been are killed.
        """
        pids: list[int] = []
        try:
            for spec in specs:
                pids.append(self._spawn(spec))  # noqa: PERF401 - the ones before an error count
        except OSError:
            for pid in pids:
                os.kill(pid, 9)
            raise
        return pids

    def _spawn(self, spec: WorkerSpec) -> int:
        orders = messages.Fork(number=0, specs=[spec])
        fd = open_memfd("undaunted-worker")
        with os.fdopen(fd, "wb") as file:
            file.write(messages.encode(orders)[messages.HEADER.size :])
            file.seek(0)
            command = boot_command(self._python, "fresh", fd, (spec.target, *spec.args))
            return process.spawn(command, spec.env, (*self._pass_fds, fd), blocked=())


def fresh_reason(specs: Sequence[WorkerSpec], template_env: Mapping[str, str]) -> str:
    """Return why these workers may not be forked from a template with this environment, or ""."""
    for spec in specs:
        if spec.kind == "program":
            return "the program is no Python script"
        for name in sorted(spec.env.keys() | template_env.keys()):
            mine, its = spec.env.get(name), template_env.get(name)
            if mine != its and _is_read_at_start(name):
                return (
                    f"{name} is {_quoted(mine)} for local rank {spec.local_rank} and "
                    f"{_quoted(its)} for the template, and is read only when a process starts"
                )
    return ""


def _is_read_at_start(name: str) -> bool:
    return name.startswith(_READ_AT_START) or name in _NAMES_READ_AT_START


def _quoted(value: str | None) -> str:
    return "not set" if value is None else repr(value)


class WarmSpawner:
    """Owns one template. Of its coroutines only one may run at a time.

    Attributes:
        pid: of the template, None before `start`. The agent waits for it like for any child.
        unavailable_reason: why no worker can be forked from it any more, "" as long as one can.
        hopeless: another template would be of no more use.
        ready: what it imported, None until it is known.
        on_ready: called once with the template's pid and what it imported.
        code_of: see `Spawner.report_to`.
    """

    def __init__(self) -> None:
        """Make a spawner without a template yet."""
        self.pid: int | None = None
        self.unavailable_reason = ""
        self.hopeless = False
        self.ready: messages.Ready | None = None
        self.environment: Mapping[str, str] = {}
        self.on_ready: OnReady | None = None
        self.code_of: CodeOf | None = None
        self._sock: socket.socket | None = None
        self._pidfd: int | None = None
        self._received = bytearray()
        self._number = 0
        self._called_off = False
        self._wake: asyncio.Event | None = None  # set when a wait was called off

    def start(
        self,
        python: Sequence[str],
        env: Mapping[str, str],
        prepare: messages.Prepare,
        pass_fds: Sequence[int],
        words: Sequence[str] = (),
        learned: messages.Learned | None = None,
    ) -> None:
        """Start the template and return at once; failure shows in ``unavailable_reason``.

        Args:
            python: the workers' interpreter and its flags.
            env: what the environments of all workers have in common.
            prepare: what it imports.
            pass_fds: descriptors the workers need, by number.
            words: shown by ps behind the template's own command line.
            learned: what else it imports, as ranks have.
        """
        assert self._sock is None, "started once"
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._sock = ours
        self.environment = dict(env)
        command = boot_command(python, "template", theirs.fileno(), words)
        with theirs, _learned_file(learned) as learned_fd:
            try:
                # A new socket's buffer holds this many names; nobody reads yet.
                note = prepare.note and learned is None
                asked = msgspec.structs.replace(prepare, note=note, learned_fd=learned_fd)
                ours.send(messages.encode(asked))
                fds = [*pass_fds, theirs.fileno(), *([learned_fd] if learned_fd >= 0 else [])]
                self.pid = process.spawn(command, {**env, **TEMPLATE_ENVIRONMENT}, fds)
                self._pidfd = process.open_pidfd(self.pid)
            except (OSError, messages.ProtocolError) as error:
                self._lose(f"the template could not be started: {error}", hopeless=True)

    @property
    def has_learned(self) -> bool:
        """Return whether it has imported what ranks have, and may fork workers."""
        ready = self.ready
        return ready is not None and ready.learned > 0 and not ready.left and not ready.problem

    async def wait_ready(self, deadline_s: float) -> bool:
        """Wait until the template has imported everything; return whether it can fork.

        Raises:
            OSError: it was called off; nothing else has changed.
        """
        import asyncio  # the template is started before anything slow is imported

        if self.ready is None and not self.unavailable_reason:
            self._wake = asyncio.Event()
            if self._called_off:
                self._wake.set()
            answer = asyncio.ensure_future(self._receive())
            called_off = asyncio.ensure_future(self._wake.wait())
            try:
                await asyncio.wait(
                    {answer, called_off},
                    timeout=deadline_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                for task in (answer, called_off):
                    task.cancel()
                await asyncio.gather(answer, called_off, return_exceptions=True)
            if not answer.cancelled():
                await self._take_ready(answer.result())
            elif self._called_off:
                raise OSError("called off before the template was ready")
            else:
                self._lose(f"the template did not finish its imports in {deadline_s:g} s")
        return not self.unavailable_reason

    def call_off(self) -> None:
        """Have a `spawn` that waits for the template end with an OSError."""
        self._called_off = True
        if self._wake is not None:
            self._wake.set()

    async def spawn(self, specs: Sequence[WorkerSpec]) -> list[int]:
        """Fork one worker per spec.

        Returns:
            Their pids, or none, with ``unavailable_reason`` set: then no worker exists or will.

        Raises:
            OSError: it was called off, and no worker exists; or the template is stuck and cannot
                even be killed, so nobody knows.
        """
        from undaunted.base.deadline import wait_for

        assert specs, "a round has workers"
        try:
            if not await self.wait_ready(READY_DEADLINE_S):
                return []
        finally:
            self._called_off = False
        self._number += 1
        try:
            answer = await wait_for(self._fork(list(specs)), FORK_DEADLINE_S)
        except TimeoutError:
            return await self._give_up()
        except messages.ProtocolError as error:
            self._lose(str(error))
            return []
        if isinstance(answer, messages.Forked) and len(answer.pids) == len(specs):
            return answer.pids
        if isinstance(answer, messages.Refused):
            self._lose(answer.reason, hopeless=answer.lasting)
        else:
            await self._ended()
        return []

    def look(self) -> None:
        """Between two requests: if it has ended, ``unavailable_reason`` says so."""
        if self._pidfd is not None and process.wait_pidfd(self._pidfd, 0):
            self._lose_ended(gone=True)

    def rest(self) -> None:
        """Between two requests: have it try no more imports, which the ranks' last save may need.

        It comes to nothing if the template has ended, or reads nothing.
        """
        if self._sock is not None and self.ready is not None:
            with contextlib.suppress(OSError):
                self._sock.send(messages.encode(messages.Stopping()))

    def end(self) -> None:
        """End the template, whatever it does."""
        if self._pidfd is not None:
            process.signal_pidfd(self._pidfd, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Let the template end; it does when the socket closes. May be called twice."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _lose(self, reason: str, *, hopeless: bool = False) -> None:
        self.unavailable_reason = self.unavailable_reason or reason
        self.hopeless = hopeless
        self.end()

    async def _ended(self) -> None:
        """The stream is at its end, or holds no message; the process ends as well, in a moment."""
        from undaunted.base.deadline import readable

        gone = self._pidfd is not None and await readable(self._pidfd, _ENDING_S)
        self._lose_ended(gone=gone)

    def _lose_ended(self, *, gone: bool) -> None:
        """Give it up; where it has ended by itself, say how."""
        from undaunted.attribution.exits import end_in_words

        self.end()  # before its code is asked for, which may lead to another look
        code = self.code_of(self.pid) if gone and self.code_of and self.pid else None
        how = "" if code is None else f": it {end_in_words(code)}"
        self._lose(f"the template ended unexpectedly{how} (anything it said is on standard error)")

    async def _take_ready(self, answer: messages.AnyMessage | None) -> None:
        if not isinstance(answer, messages.Ready):
            await self._ended()
            return
        self.ready = answer
        if self.on_ready is not None and self.pid is not None:
            self.on_ready(self.pid, answer)

    async def _fork(self, specs: list[WorkerSpec]) -> messages.AnyMessage | None:
        import asyncio

        assert self._sock is not None, "ready means running"
        assert self._pidfd is not None, "as long as the socket"
        # One that somebody has stopped would keep the restart waiting until the deadline.
        process.signal_pidfd(self._pidfd, signal.SIGCONT)
        frame = messages.encode(messages.Fork(number=self._number, specs=specs))
        # If it is gone already, or goes now, the end of the stream says so below.
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(self._sock, frame)
        return await self._answer()

    async def _answer(self) -> messages.AnyMessage | None:
        """Return the answer to the last request, not one that came late to an earlier one."""
        while True:
            answer = await self._receive()
            if not isinstance(answer, (messages.Forked, messages.Refused)):
                return answer
            if answer.number == self._number:
                return answer

    async def _give_up(self) -> list[int]:
        """End a template that does not answer; return the workers it has started all the same.

        Workers run only after the agent was sent their pids. So once nobody holds the other end of
        the stream, what it held is the truth.
        """
        from undaunted.base.deadline import wait_for

        assert self._pidfd is not None, "running"
        process.signal_pidfd(self._pidfd, signal.SIGKILL)
        try:
            answer = await wait_for(self._answer(), _KILL_DEADLINE_S)
        except TimeoutError as error:
            problem = f"the template, pid {self.pid}, does not answer and cannot be killed"
            self._lose(problem)
            raise OSError(problem) from error
        self._lose(f"the template did not fork in {FORK_DEADLINE_S:g} s")
        return answer.pids if isinstance(answer, messages.Forked) else []

    async def _receive(self) -> messages.AnyMessage | None:
        """Return the next message, None if there will be none. Cancelling it loses nothing."""
        try:
            header = await self._peek(messages.HEADER.size)
            size = messages.HEADER.size + messages.body_size(header)
            frame = await self._peek(size)
            del self._received[:size]
            return messages.decode(frame[messages.HEADER.size :])
        except (EOFError, ConnectionError, messages.ProtocolError):
            return None

    async def _peek(self, size: int) -> bytes:
        """Return the first ``size`` bytes not taken yet."""
        import asyncio

        assert self._sock is not None, "running"
        while len(self._received) < size:
            data = await asyncio.get_running_loop().sock_recv(self._sock, _CHUNK_BYTES)
            if not data:
                raise EOFError
            self._received += data
        return bytes(self._received[:size])


@contextlib.contextmanager
def _learned_file(learned: messages.Learned | None) -> Iterator[int]:
    """Yield a descriptor of a file of what was learned, -1 if nothing was."""
    fd = -1
    if learned is not None:
        from undaunted.fault_tolerance.worker import warm_imports  # when there is time

        fd = warm_imports.write(learned)
    try:
        yield fd
    finally:
        if fd >= 0:
            os.close(fd)


def boot_command(python: Sequence[str], mode: str, fd: int, words: Sequence[str]) -> list[str]:
    """Return the command line of a process of ours.

    Args:
        python: the interpreter and its flags.
        mode: ``template`` or ``fresh``.
        fd: what it reads its orders from.
        words: the user's program, for people who look for it with ps or pgrep.
    """
    return [*python, "-u", _BOOT, mode, str(fd), *words]
