from __future__ import annotations

import sys

from undaunted.doctor.probes import Children, Said


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


def test_nothing_is_asked_after_the_end() -> None:
    with Children() as children:
        pass
    assert children.ask(["/bin/true"], 60.0).problem == "interrupted"
