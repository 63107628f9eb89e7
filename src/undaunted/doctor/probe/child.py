"""Programs that are asked something and may hang or crash: what each says, or why it does not."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING, NamedTuple

from undaunted.base.child import Program, Programs
from undaunted.base.text import format_duration, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from undaunted.base.child import ProgramEnd


class Said(NamedTuple):
    """What a program has said.

    Attributes:
        output: its standard output, at most 1 MiB, as far as it came.
        problem: why that is not all, "" = it is.
        late: it was killed at its deadline.
    """

    output: bytes
    problem: str = ""
    late: bool = False


class Children(Programs):
    """Owner of the programs; its threads may ask at the same time. A context manager."""

    def ask(
        self, argv: Sequence[str], deadline_s: float, env: Mapping[str, str] | None = None
    ) -> Said:
        """Run a program in a session of its own, without input; return what it says.

        Args:
            argv: program and arguments.
            deadline_s: then it and what it has started in its session is killed, seconds.
            env: its environment, None = as here.
        """
        try:
            end = self.run(Program(argv, deadline_s, env=env))
        except InterruptedError:
            return Said(b"", "interrupted")
        except OSError as error:
            return Said(b"", f"cannot be started: {error.strerror}")
        if end.code is None:
            return Said(end.output, f"no answer within {format_duration(deadline_s)}", late=True)
        return Said(end.output, _problem(end.code, end))


def _problem(code: int, end: ProgramEnd) -> str:
    if not code:
        return ""
    lines = end.errors.decode("utf-8", "replace").strip().splitlines()
    last = f": {one_line(lines[-1], longest=200)}" if lines else ""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}{last}"
    return f"exit code {code}{last}"
