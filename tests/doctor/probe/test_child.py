from __future__ import annotations

import os
import resource
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from undaunted.doctor.probe.child import Children, Said

if TYPE_CHECKING:
    from pathlib import Path


def ask(code: str, deadline_s: float = 60.0) -> Said:
    with Children() as children:
        return children.ask([sys.executable, "-I", "-S", "-c", code], deadline_s)


def test_an_answer() -> None:
    assert ask("print('yes')") == Said(b"yes\n")


def test_what_came_before_a_bad_end_counts() -> None:
    said = ask("import sys; print('half', flush=True); sys.exit('no more')")
    assert said == Said(b"half\n", "exit code 1: no more")
    killed = ask("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert killed == Said(b"", "killed by SIGSEGV")


def test_a_program_that_hangs() -> None:
    with Children() as children:  # a shell has begun long before the deadline
        said = children.ask(["/bin/sh", "-c", "echo half; exec sleep 600"], 1.0)
    assert said == Said(b"half\n", "no answer within 1.0 s", late=True)


def test_no_such_program() -> None:
    with Children() as children:
        said = children.ask(["/no/such/program"], 1.0)
    assert said == Said(b"", "cannot be started: No such file or directory")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_too_much_to_say(stream: str) -> None:
    """What is beyond 1 MiB is read, and dropped."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    code = f"import sys\nfor _ in range(300): sys.{stream}.write('x' * 1_000_000)"
    said = ask(code)
    assert len(said.output) == (1024 * 1024 if stream == "stdout" else 0)
    assert not said.problem
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_close_ends_what_runs_and_starts_nothing_more(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    command = ["/bin/sh", "-c", f"echo yes > {begun}; exec sleep 600"]
    answers = []
    children = Children()
    thread = threading.Thread(target=lambda: answers.append(children.ask(command, 60.0)))
    thread.start()
    assert begun.read_text() == "yes\n"
    children.close()
    thread.join(30)
    assert answers == [Said(b"", "killed by SIGKILL")]
    assert children.ask(command, 60.0).problem == "interrupted"
