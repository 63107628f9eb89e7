"""Completion in real shells: somebody types a part of an option, and TAB."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

DEADLINE_S = 60.0
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\(B|[=>]|\][^\x07]*\x07)")
# Where a shell looks for its settings, and the settings.
SHELLS = {
    "bash": (".bashrc", 'PS1="READY> "\neval "$(undaunted completion bash)"\n'),
    "zsh": (".zshrc", 'PS1="READY> "\neval "$(undaunted completion zsh)"\n'),
    "fish": (
        ".config/fish/config.fish",
        "function fish_prompt; echo 'READY> '; end\nundaunted completion fish | source\n",
    ),
}
# Runs a shell at a terminal of its own, of this program's input and output.
AT_TERMINAL = "import pty, sys; pty.spawn(sys.argv[1:])"


class Terminal:
    """A shell at a terminal, and all that it has shown."""

    def __init__(self, shell: str, home: Path) -> None:
        command = [sys.executable, "-c", AT_TERMINAL, shell, "-i"]
        environ = {
            "HOME": str(home),
            "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(sys.path),
            "TERM": "xterm",
            "COLUMNS": "200",
        }
        self._process = subprocess.Popen(
            command, env=environ, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._shown = b""

    def type(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())
        self._process.stdin.flush()

    def wait_for(self, *words: str) -> None:
        """Read until the terminal has shown all of these words."""
        assert self._process.stdout is not None
        output, deadline = self._process.stdout.fileno(), time.monotonic() + DEADLINE_S
        while not all(word in self.shown for word in words):
            left_s = deadline - time.monotonic()
            assert left_s > 0, self.shown
            assert select.select([output], [], [], left_s)[0], self.shown
            data = os.read(output, 65536)
            assert data, self.shown
            self._shown += data

    @property
    def shown(self) -> str:
        return ESCAPES.sub("", self._shown.decode(errors="replace"))

    def close(self) -> None:
        self.type("\x15exit\r")  # Ctrl-U: the line is empty again
        try:
            self._process.communicate(timeout=DEADLINE_S)
        finally:
            self._process.kill()
            self._process.communicate()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_offers_the_options_that_begin_so(shell: str, tmp_path: Path) -> None:
    pytest.importorskip("argcomplete", reason="argcomplete is in the group 'test': `make setup`")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    name, settings = SHELLS[shell]
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(settings)
    program = tmp_path / "bin" / "undaunted"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m undaunted "$@"\n')
    program.chmod(0o755)
    terminal = Terminal(shell, tmp_path)
    try:
        terminal.wait_for("READY> ")
        terminal.type("undaunted run --ma\t\t")
        terminal.wait_for("--master-addr", "--master-port", "--max-restarts")
    finally:
        terminal.close()
