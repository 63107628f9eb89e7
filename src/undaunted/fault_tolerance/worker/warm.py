"""The agent's side of the template: starts it, has it fork workers, gives it up when it fails."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.fault_tolerance.worker import messages
from undaunted.fault_tolerance.worker.command import boot_command
from undaunted.fault_tolerance.worker.numerics import TEMPLATE_ENVIRONMENT

if TYPE_CHECKING:
    import asyncio

    from undaunted.fault_tolerance.worker.spec import WorkerSpec

# Imports from a busy shared file system take minutes, for fresh workers just as well.
READY_DEADLINE_S = 600.0
# Longer than the template gives itself (forking.FORK_DEADLINE_S).
FORK_DEADLINE_S = 30.0
_KILL_DEADLINE_S = 10.0
_CHUNK = 65536
_ENDED = "the template ended unexpectedly (anything it said is on standard error)"

OnReady = Callable[[int, messages.Ready], object]


class WarmSpawner:
    """Owns one template. Of its coroutines only one may run at a time.

    Attributes:
        pid: of the template, None before `start`. The agent waits for it like for any child.
        unavailable_reason: why no worker can be forked from it any more, "" as long as one can.
        hopeless: another template would be of no more use.
        ready: what it imported, None until it is known.
        on_ready: called once with the template's pid and what it imported.
    """

    def __init__(self) -> None:
        """Make a spawner without a template yet."""
        self.pid: int | None = None
        self.unavailable_reason = ""
        self.hopeless = False
        self.ready: messages.Ready | None = None
        self.environment: Mapping[str, str] = {}
        self.on_ready: OnReady | None = None
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
        modules: Sequence[str],
        pass_fds: Sequence[int],
        words: Sequence[str] = (),
        later: Sequence[str] = (),
    ) -> None:
        """Start the template and return at once; failure shows in ``unavailable_reason``.

        Args:
            python: the workers' interpreter and its flags.
            env: what the environments of all workers have in common.
            modules: to import, in this order.
            pass_fds: descriptors the workers need, by number.
            words: shown by ps behind the template's own command line.
            later: to import when it has forked workers for the first time.
        """
        assert self._sock is None, "started once"
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._sock = ours
        self.environment = dict(env)
        command = boot_command(python, "template", theirs.fileno(), words)
        with theirs:
            try:
                # A new socket's buffer holds this many names; nobody reads yet.
                prepare = messages.Prepare(modules=list(modules), later=list(later))
                ours.send(messages.encode(prepare))
                fds = (*pass_fds, theirs.fileno())
                self.pid = process.spawn(command, {**env, **TEMPLATE_ENVIRONMENT}, fds)
                self._pidfd = process.open_pidfd(self.pid)
            except (OSError, messages.ProtocolError) as error:
                self._lose(f"the template could not be started: {error}", hopeless=True)

    async def wait_ready(self) -> bool:
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
                    timeout=READY_DEADLINE_S,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                for task in (answer, called_off):
                    task.cancel()
                await asyncio.gather(answer, called_off, return_exceptions=True)
            if not answer.cancelled():
                self._take_ready(answer.result())
            elif self._called_off:
                raise OSError("called off before the template was ready")
            else:
                self._lose(f"the template did not finish its imports in {READY_DEADLINE_S:g} s")
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
        import asyncio

        assert specs, "a round has workers"
        try:
            if not await self.wait_ready():
                return []
        finally:
            self._called_off = False
        self._number += 1
        try:
            answer = await asyncio.wait_for(self._fork(list(specs)), FORK_DEADLINE_S)
        except asyncio.TimeoutError:
            return await self._give_up()
        except messages.ProtocolError as error:
            self._lose(str(error))
            return []
        if isinstance(answer, messages.Forked) and len(answer.pids) == len(specs):
            return answer.pids
        if isinstance(answer, messages.Refused):
            self._lose(answer.reason, hopeless=answer.lasting)
        else:
            self._lose(_ENDED)
        return []

    def look(self) -> None:
        """Between two requests: if it has ended, ``unavailable_reason`` says so."""
        if self._pidfd is not None and process.wait_pidfd(self._pidfd, 0):
            self._lose(_ENDED)

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
        if self._pidfd is not None:
            process.signal_pidfd(self._pidfd, signal.SIGKILL)
        self.close()

    def _take_ready(self, answer: messages.AnyMessage | None) -> None:
        if not isinstance(answer, messages.Ready):
            self._lose(_ENDED)
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

        Workers run only after the agent was told of them. So once nobody holds the other end of
        the stream, what it held is the truth.
        """
        import asyncio

        assert self._pidfd is not None, "running"
        process.signal_pidfd(self._pidfd, signal.SIGKILL)
        try:
            answer = await asyncio.wait_for(self._answer(), _KILL_DEADLINE_S)
        except asyncio.TimeoutError as error:
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
            data = await asyncio.get_running_loop().sock_recv(self._sock, _CHUNK)
            if not data:
                raise EOFError
            self._received += data
        return bytes(self._received[:size])
