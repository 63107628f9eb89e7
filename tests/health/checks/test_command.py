from __future__ import annotations

import sys

import pytest

from undaunted.health.check import Finding, Settings
from undaunted.health.checks import command
from undaunted.health.checks.command import CommandCheck, judge


@pytest.mark.parametrize(
    ("code", "output", "found"),
    [
        (0, b"all is well", None),
        (0, b"", None),
        (3, b"first\nfan 2 is lost\n", Finding("exit code 3: fan 2 is lost")),
        (1, b"", Finding("exit code 1: it printed nothing")),
        (-9, b"x", Finding("signal 9: x")),
        (0, b'{"healthy": false, "text": "no fan"}', Finding("no fan")),
        (1, b'{"healthy": true}', None),
        (0, b'{"healthy": null, "text": "no tool"}', Finding("no tool", failed=False)),
        (0, b'{"healthy": false}', Finding("no reason given")),
        (0, b'{"healthy": "yes"}', Finding("healthy is 'yes': true, false or null")),
        (3, b"[" * 4000, Finding(f"exit code 3: {'[' * 200}")),
        (2, b'{"other": 1}', Finding('exit code 2: {"other": 1}')),
        (0, b"\xff\xfe", None),
    ],
)
def test_exit_code_or_json(code: int, output: bytes, found: Finding | None) -> None:
    assert judge(code, output) == found


def test_a_program_is_run_without_a_shell() -> None:
    script = "import sys; print(sys.argv[1]); sys.exit(4)"
    (check,) = command.checks(Settings(commands=((sys.executable, "-c", script, "$HOME; x"),)))
    assert check.run({}) == Finding("exit code 4: $HOME; x")
    assert check.subject == sys.executable


def test_one_that_is_not_there_says_nothing() -> None:
    found = CommandCheck(("/no/such/program",)).run({})
    assert found is not None
    assert not found.failed


def test_one_that_does_not_end_is_ended() -> None:
    waits = "import signal; signal.pause()"
    found = CommandCheck((sys.executable, "-c", waits), limit_s=0.05).run({})
    assert found == Finding("it did not end within 0.05 s")


def test_of_much_output_the_end_counts() -> None:
    script = "import sys; sys.stdout.write('x' * 1_000_000 + '\\nfan 2 is lost'); sys.exit(1)"
    assert CommandCheck((sys.executable, "-c", script)).run({}) == Finding(
        "exit code 1: fan 2 is lost"
    )
