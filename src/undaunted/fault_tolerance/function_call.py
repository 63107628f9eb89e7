"""A call of a Python function travels to the ranks, and what they return travels back.

The launcher's caller writes one file with the function's name and the arguments into a directory of
its own (0700, on a local disk, removed afterwards); each rank reads it and leaves its return value
beside it (0600). What JSON gives back unchanged goes as JSON. Everything else, and functions that
cannot be found by their names, needs cloudpickle.

Exemption from "no pickle": both ends are processes of one job, one user and one interpreter, the
caller and the ranks it has started, and the bytes never leave that directory. Whoever could change
them could change the program as well.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DIRECTORY_VARIABLE = "UNDAUNTED_CALL"
_CALL = "call.json"
_PROGRAM = str(Path(__file__).parent / "worker" / "call_function.py")
_REMEDY = "or install cloudpickle (pip install 'undaunted[notebook]')"


def program(function: Callable[..., Any]) -> list[str]:
    """Return the program of a rank that is to call this function; its argument is for people."""
    return [_PROGRAM, f"{_text(function)}()"]


def shown(argv: list[str]) -> list[str]:
    """Return a program with its arguments as its user knows it."""
    return argv[1:] if argv[0] == _PROGRAM else argv


def caller_path(target: str) -> list[str] | None:
    """Return sys.path of the caller whose function this program calls; None = it is another one."""
    if target != _PROGRAM:
        return None
    try:
        found: list[str] = json.loads((_directory() / _CALL).read_bytes())["process"]["sys_path"]
    except (OSError, KeyError, ValueError):
        return None
    return found


def write_call(directory: Path, function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Write what the ranks are to call.

    Raises:
        TypeError: the function or an argument cannot travel; the message says what to do.
        RuntimeError: the caller is a rank that is only just importing the caller's script, which
            therefore calls us outside of ``if __name__ == "__main__"``.
        OSError: the file cannot be written.
    """
    # What multiprocessing tells its own children about this process; it notices that same mistake.
    from multiprocessing.spawn import get_preparation_data

    known = get_preparation_data("rank")
    name = _name(function)
    wanted = ["sys_path", "sys_argv", "orig_dir", "dir"]
    if name is not None and name[0] == "__main__":
        wanted += ["init_main_from_name", "init_main_from_path"]
    call = {
        "process": {key: known[key] for key in wanted if key in known},
        "name": name,
        "function": None if name else _encode(function, f"the function {_text(function)}"),
        "args": [_encode(arg, f"argument {at}") for at, arg in enumerate(args, start=1)],
    }
    _write(directory / _CALL, call)


def read_call() -> tuple[Callable[..., Any], list[Any]]:
    """Become a process that can run the call, and return the function and its arguments.

    Raises:
        Exception: what importing the function's module raised.
    """
    import importlib
    from multiprocessing import process, spawn

    call = json.loads((_directory() / _CALL).read_bytes())
    sys.path[:] = call["process"]["sys_path"]
    current = process.current_process()
    current._inheriting = True  # type: ignore[attr-defined] # noqa: SLF001 - as multiprocessing does
    try:
        spawn.prepare(call["process"])
    finally:
        del current._inheriting  # type: ignore[attr-defined] # noqa: SLF001
    if call["name"] is None:
        return _decode(call["function"]), [_decode(arg) for arg in call["args"]]
    module, qualified = call["name"]
    function: Any = sys.modules["__main__"] if module == "__main__" else None
    for part in qualified.split("."):
        function = getattr(function or importlib.import_module(module), part)
    return function, [_decode(arg) for arg in call["args"]]


def forget_result(rank: int) -> None:
    """Remove what this rank returned in an earlier round."""
    _result(_directory(), rank).unlink(missing_ok=True)


def write_result(rank: int, function: Callable[..., Any], value: Any) -> None:
    """Leave for the caller what a function returned, or why that cannot travel: no rank failed.

    Raises:
        OSError: it cannot be written.
    """
    try:
        result = _encode(value, f"the return value of {_text(function)}()")
    except TypeError as error:
        result = {"refused": f"rank {rank}: {error}"}
    _write(_result(_directory(), rank), result)


def read_results(directory: Path, ranks: Sequence[int]) -> dict[int, Any]:
    """Return what each rank returned; None for one that left by ``sys.exit(0)``.

    Raises:
        TypeError: one of them cannot travel.
    """
    return {rank: _read_result(_result(directory, rank)) for rank in ranks}


def _read_result(path: Path) -> Any:
    try:
        result = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    if "refused" in result:
        raise TypeError(result["refused"])
    return _decode(result)


def _directory() -> Path:
    return Path(os.environ[DIRECTORY_VARIABLE])


def _result(directory: Path, rank: int) -> Path:
    return directory / f"result-{rank}.json"


def _name(function: Callable[..., Any]) -> tuple[str, str] | None:
    """Return module and qualified name if another process finds the function by them."""
    module, qualified = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module == "__mp_main__":  # as multiprocessing calls it in processes that it has spawned
        module = "__main__"
    found: Any = sys.modules.get(module or "")
    if module == "__main__" and not _is_file(found):
        return None  # typed in, or a cell of a notebook
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return (module, qualified) if module and found is function else None


def _is_file(main: Any) -> bool:
    return (
        getattr(main, "__spec__", None) is not None
        or Path(getattr(main, "__file__", None) or "/dev/null").is_file()
    )


def _encode(value: Any, what: str) -> dict[str, Any]:
    try:
        if _same(json.loads(text := json.dumps(value)), value):
            return {"json": text}
    except (TypeError, ValueError, RecursionError):
        pass
    try:
        import cloudpickle
    except ImportError:
        remedy = (
            "pass what JSON can hold (no tuples)"
            if not callable(value)
            else "define it at the top level of a module or script"
        )
        raise TypeError(f"{what} cannot travel between processes: {remedy}, {_REMEDY}") from None
    try:
        return {"pickle": base64.b64encode(cloudpickle.dumps(value)).decode()}
    except Exception as error:  # whatever the value's own methods raise
        raise TypeError(f"{what} cannot travel between processes: {error}") from error


def _decode(value: dict[str, Any]) -> Any:
    if "json" in value:
        return json.loads(value["json"])
    import pickle  # see the exemption above

    return pickle.loads(base64.b64decode(value["pickle"]))  # noqa: S301


def _same(copy: Any, value: Any) -> bool:
    """Whether JSON gave back what was put in, types included."""
    if type(copy) is not type(value):
        return False
    if isinstance(value, dict):
        return copy.keys() == value.keys() and all(_same(copy[key], value[key]) for key in value)
    if isinstance(value, list):
        return len(copy) == len(value) and all(map(_same, copy, value))
    return bool(copy == value) or value != value  # noqa: PLR0124 - NaN


def _text(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))


def _write(path: Path, value: object) -> None:
    """Write a file, 0600, so that a reader sees all of it or none."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(beside, flags, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(value, file)
    beside.replace(path)
