"""The user's program: which kind it is, and whether it is there, before anything is started."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from undaunted.base.text import did_you_mean
from undaunted.cli.messages import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.cli.command import Command
    from undaunted.cli.options import RunParsed

_ANSWER_S = 120.0  # an interpreter on a busy network file system
_LONGEST_ANSWER = 200
_OLDEST_PYTHON = (3, 11)
_ANSWER = "undaunted asks: "
# For any Python; a wrapper may print as well. Nothing in the current directory is imported.
_QUESTION = f"""
import os, sys
del sys.path[0:1]
try:
    os.fstat(int(sys.argv[1]))
    passes = 1
except OSError:
    passes = 0
try:
    import msgspec
    found = 1
except ImportError:
    found = 0
print("{_ANSWER}%d %d %d %d" % (sys.version_info[0], sys.version_info[1], found, passes))
"""

Kind = Literal["script", "module", "run_path", "program"]


def current_directory() -> str:
    """Return the current directory.

    Raises:
        UsageError: it is gone.
    """
    try:
        return os.getcwd()  # noqa: PTH109 - pathlib gives the same, wrapped
    except FileNotFoundError:
        raise UsageError("the current directory no longer exists; cd to one that does") from None


def program_kind(parsed: RunParsed, command: Command[Any]) -> Kind:
    """Tell how to run the target.

    Args:
        parsed: the command line.
        command: whose it is.

    Raises:
        UsageError: no target, or flags that exclude one another.
    """
    if not parsed.target:
        raise UsageError(f"the script is missing: undaunted {command.name} {command.usage}")
    if parsed.options.module:
        others = {"run-path": parsed.options.run_path, "no-python": parsed.options.no_python}
        for other, is_on in others.items():
            if is_on:
                raise UsageError(f"--module and --{other} exclude one another; keep one of them")
        return "module"
    if parsed.options.run_path:
        return "run_path"
    return "program" if parsed.options.no_python else "script"


def check_program(
    kind: Kind, target: str, cwd: str, python: str, environ: Mapping[str, str]
) -> None:
    """Check that the target can be started.

    Raises:
        UsageError: it is not there or may not be read or executed; says what to do.
    """
    if kind == "program":
        _check_executable(target, cwd, environ)
        return
    if python != sys.executable and not _executable(_candidates(python, cwd, environ)):
        raise UsageError(
            f"PYTHON_EXEC: {python!r} is no executable here; name an interpreter, or unset it"
        )
    if kind == "module":
        _check_module(target, cwd, python)
    else:
        _check_script(target, cwd)


def check_interpreter(python: str) -> None:
    """Ask another interpreter than ours, once, whether ranks can run in it.

    Raises:
        UsageError: they cannot, or it gives no answer; says what to do.
    """
    from undaunted.base.child import Program, run

    try:
        with open(os.devnull, "rb") as inherited:  # noqa: PTH123 - a device, not a path
            argv = [python, "-c", _QUESTION, str(inherited.fileno())]
            end = run(Program(argv, _ANSWER_S, pass_fds=[inherited.fileno()]))
    except OSError as error:
        raise UsageError(f"PYTHON_EXEC: {python} cannot be run: {error.strerror}") from None
    if end.code is None:
        raise UsageError(
            f"PYTHON_EXEC: {python} did not run a line of Python within {_ANSWER_S:g} s"
        )
    said = end.output.decode(errors="replace").partition(_ANSWER)[2].split("\n")[0].split()
    if len(said) != 4 or not all(word.isdecimal() for word in said):
        words = end.errors.decode(errors="replace").strip().split("\n")[-1][:_LONGEST_ANSWER]
        raise UsageError(
            f"PYTHON_EXEC: {python} does not run Python (exit code {end.code}): {words}\n"
            "  Name an interpreter, or a program that hands its arguments on to one"
        )
    major, minor, msgspec, passes = map(int, said)
    if (major, minor) < _OLDEST_PYTHON:
        raise UsageError(
            f"PYTHON_EXEC: {python} is Python {major}.{minor}; ranks need Python "
            f"{_OLDEST_PYTHON[0]}.{_OLDEST_PYTHON[1]} or newer"
        )
    if not passes:
        raise UsageError(
            f"PYTHON_EXEC: {python} closes the descriptors that the launcher gives to ranks\n"
            "  Name an interpreter, or a program that calls exec. Python's subprocess closes them, "
            "unless it is given close_fds=False"
        )
    if not msgspec:
        raise UsageError(
            f"PYTHON_EXEC: {python} has no msgspec, which ranks need: install undaunted there\n"
            f"  {shlex.quote(python)} -m pip install undaunted"
        )


def _check_script(target: str, cwd: str) -> None:
    if target == "-":
        raise UsageError(
            "the script is -, standard input, which can be read only once; each rank of each "
            "round reads it: write it to a file"
        )
    path = Path(cwd, target)
    if not path.exists():
        hint = did_you_mean(path.name, _names(path.parent))
        if not hint and "/" not in target and not target.endswith(".py"):
            hint = "; for a module use -m, for an executable --no-python"
        raise UsageError(f"script {target!r} not found in {cwd}{hint}")
    if path.is_fifo() or path.is_socket() or path.is_char_device():
        raise UsageError(
            f"script {target!r} comes from a pipe or device, which can be read only once; "
            "each rank of each round reads it: write it to a file"
        )
    if path.is_dir() and not (path / "__main__.py").exists():
        raise UsageError(f"script {target!r} is a directory without a __main__.py; name the file")
    if not os.access(path, os.R_OK):
        raise UsageError(f"script {target!r} may not be read by this user; see chmod")


def _check_module(target: str, cwd: str, python: str) -> None:
    """Look for the top-level module. Others would have to be imported to be found."""
    top = target.partition(".")[0]
    if not all(part.isidentifier() for part in target.split(".")):
        remedy = "; leave out -m for a file" if "/" in target or target.endswith(".py") else ""
        raise UsageError(f"{target!r} is not the name of a module{remedy}")
    if python != sys.executable:
        return  # another interpreter has other modules
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    if top in sys.modules or PathFinder.find_spec(top, [cwd]) or find_spec(top):
        return
    hint = did_you_mean(top, [name.removesuffix(".py") for name in _names(Path(cwd))])
    raise UsageError(f"module {target!r} not found in {cwd} or the interpreter's path{hint}")


def _check_executable(target: str, cwd: str, environ: Mapping[str, str]) -> None:
    candidates = _candidates(target, cwd, environ)
    if _executable(candidates):
        return
    if files := [path for path in candidates if path.is_file()]:
        raise UsageError(f"{str(files[0])!r} is not executable; chmod +x, or leave out --no-python")
    where = "" if "/" in target else " on the PATH (for the current directory write ./NAME)"
    raise UsageError(f"executable {target!r} not found{where}")


def _candidates(target: str, cwd: str, environ: Mapping[str, str]) -> list[Path]:
    if "/" in target:
        return [Path(cwd, target)]
    folders = environ.get("PATH", os.defpath).split(os.pathsep)
    return [Path(cwd, folder, target) for folder in folders]


def _executable(candidates: list[Path]) -> bool:
    return any(path.is_file() and os.access(path, os.X_OK) for path in candidates)


def _names(directory: Path) -> list[str]:
    try:
        return [path.name for path in directory.iterdir()]
    except OSError:
        return []
