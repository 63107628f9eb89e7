"""The commands of undaunted for programs that a framework starts by name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_COMMANDS = {"undaunted": "main", "ft_launcher": "ft_launcher"}


def environment(folder: Path) -> dict[str, str]:
    """Variables for a program that finds undaunted's commands, and Python's, of this environment.

    Args:
        folder: where the commands are written.
    """
    folder.mkdir(exist_ok=True)
    for name, function in _COMMANDS.items():
        command = folder / name
        program = f"import sys; from undaunted.cli.main import {function}; sys.exit({function}())"
        command.write_text(f"#!{sys.executable}\n{program}\n")
        command.chmod(0o700)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
