"""Starts the workers of a round: forked from the warm template where that is safe, else fresh."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from undaunted.base import process
from undaunted.fault_tolerance.worker import messages
from undaunted.fault_tolerance.worker.command import boot_command
from undaunted.fault_tolerance.worker.warm import OnReady, WarmSpawner

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from undaunted.fault_tolerance.worker.spec import WorkerSpec

# Read when a program or a library is loaded, and too late to change in a forked worker.
# OPENBLAS_NUM_THREADS is not among them: see `numerics`.
_READ_AT_START = ("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_", "OMP_", "GOMP_", "KMP_", "MKL_")
_NAMES_READ_AT_START = ("LANG", "LANGUAGE")


# A template that ended is replaced, unless so many in a row have not forked any worker.
_IN_VAIN = 3
_REPLACED = "; another one is started"


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
        self._said: set[str] = set()
        self._warm = WarmSpawner() if warm else None
        self._start: Callable[[WarmSpawner], None] | None = None
        self._in_vain = 0  # templates since the last one that has forked workers
        self._one: asyncio.Lock | None = None
        self._called_off = 0  # times
        self._fresh = FreshSpawner(self._python, self._pass_fds)

    def report_to(
        self,
        on_fresh: Callable[[str], object],
        on_ready: OnReady | None = None,
        say: Callable[[str], object] | None = None,
    ) -> None:
        """Report what happens; call it before the first `spawn`.

        Args:
            on_fresh: called, once per reason, with why workers start fresh although warm was asked.
            on_ready: called with the template's pid and what it imported.
            say: shows a line for the user.
        """
        self._on_fresh, self._on_ready, self._say_line = on_fresh, on_ready, say
        if self._warm is not None:
            self._warm.on_ready = on_ready

    def prepare(
        self,
        env: Mapping[str, str],
        modules: Sequence[str],
        words: Sequence[str] = (),
        later: Sequence[str] = (),
    ) -> None:
        """Start the template, which imports ``modules`` while the caller does other things.

        Args:
            env: what the environments of all workers have in common.
            modules: see `preload.template_modules`.
            words: the user's program and arguments, for ps.
            later: see `preload.later_modules`.
        """
        python, fds = self._python, self._pass_fds
        self._start = lambda warm: warm.start(python, env, modules, fds, words, later)
        if self._warm is not None:
            self._start(self._warm)

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

    def look(self) -> None:
        """After the end of a child: where that was the template, another one begins to import."""
        if self._warm is None or (self._one is not None and self._one.locked()):
            return
        self._warm.look()
        lost = self._warm.unavailable_reason
        if self._begin_another() and self._say_line is not None:
            self._say_line(lost + _REPLACED)

    def _begin_another(self) -> bool:
        """Replace a template that is lost, while the ranks run; return whether one was started."""
        lost = self._warm
        if lost is None or not lost.unavailable_reason or lost.hopeless or self._start is None:
            return False
        self._in_vain += 1
        if self._in_vain > _IN_VAIN:
            return False
        self._warm = WarmSpawner()
        self._warm.on_ready = self._on_ready
        self._start(self._warm)
        return True

    def call_off(self) -> None:
        """Have every `spawn` under way end soon, if need be with an OSError."""
        self._called_off += 1
        if self._warm is not None:
            self._warm.call_off()

    def pids(self) -> set[int]:
        """Return the processes this keeps between rounds: the template, if it may fork again."""
        template = self._warm
        if template is None or template.pid is None or template.unavailable_reason:
            return set()
        return {template.pid}

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
            OSError: they cannot be started; those that had been are killed.
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
        fd = os.memfd_create("undaunted-worker", os.MFD_CLOEXEC)
        with os.fdopen(fd, "wb") as file:
            file.write(messages.encode(orders)[messages.HEADER.size :])
            file.seek(0)
            command = boot_command(self._python, "fresh", fd, (spec.target, *spec.args))
            return process.spawn(command, spec.env, (*self._pass_fds, fd))


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
