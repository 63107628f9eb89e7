"""The modules that the template imports for a program, found without running any of it."""

from __future__ import annotations

import ast
import io
import os
import sys
import tokenize
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.worker.imports import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

# Importing these has no effect but time and memory, so workers may share one import of them.
# Modules of users may read the rank, open files or start threads: only on request (--preload).
_ROOTS = ("torch", "numpy")
# Likewise, and it imports torch's distributed checkpoint.
_OURS = "undaunted.checkpointing"
# A program that imports nothing but these does without torch, unless it has others loaded.
_WITHOUT_TORCH = frozenset((*sys.stdlib_module_names, "numpy"))
_LOAD_OTHERS = ("importlib", "runpy")
# The first step of an optimizer imports this, which takes as long as torch itself; a template does
# when workers have, see `imports`.
LATER: tuple[str, ...] = ("torch._dynamo",)
_MAX_SOURCE = 4 * 1024 * 1024


def template_modules(kind: str, target: str, cwd: str, preload: list[str]) -> list[str]:
    """Return what a template for this program imports, in order and without repetition.

    Args:
        kind: as in WorkerSpec.
        target: as in WorkerSpec.
        cwd: working directory of the workers.
        preload: what the user asked for.
    """
    path = program_file(kind, target, cwd)
    tree = parsed(path) if path is not None else None
    if tree is None:
        return list(dict.fromkeys(["torch", *preload]))
    # Of a module, the packages that it is in run as well, and are not read here.
    torch = [] if kind != "module" and _does_without_torch(tree) else ["torch"]
    return list(dict.fromkeys([*torch, *preload_names(tree), *preload]))


def program_file(kind: str, target: str, cwd: str) -> str | None:
    """Return the file with the program's first line, where that is known without an import."""
    if kind == "module":
        base = os.path.join(cwd, *target.split("."))  # noqa: PTH118 - mirrors sys.path[0]
        candidates = [base + ".py", base + "/__main__.py"]
    elif kind in ("script", "run_path"):
        base = os.path.join(cwd, target)  # noqa: PTH118
        candidates = [base, base + "/__main__.py"]
    else:
        candidates = []
    return next((path for path in candidates if os.path.isfile(path)), None)  # noqa: PTH113


def parsed(script_path: str) -> ast.Module | None:
    """Return what a script says.

    None if it cannot be read or parsed: running it will show what is wrong with it.
    """
    try:
        with open(script_path, "rb") as file:  # noqa: PTH123
            source = file.read(_MAX_SOURCE + 1)
        if len(source) > _MAX_SOURCE:
            return None
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        return ast.parse(source.decode(encoding))
    except (OSError, SyntaxError, ValueError, LookupError, RecursionError, MemoryError):
        return None


def preload_names(tree: ast.Module) -> list[str]:
    """Return the modules of torch, numpy and ours that a script imports at its top level.

    For ``from a import b`` both ``a`` and ``a.b`` are named, since ``b`` may be a module. What
    comes after torch, and after a statement that names one of `SETTINGS`, is left out.
    """
    statements = list(_top_level(tree.body))
    while statements and not any(map(_is_harmless, _imported(statements[-1]))):
        statements.pop()  # what comes after the last of these imports need not be looked at
    names: dict[str, None] = {}
    for statement in statements:
        if any(name.partition(".")[0] == "torch" for name in names) and _names_setting(statement):
            break
        names |= dict.fromkeys(filter(_is_harmless, _imported(statement)))
    return list(names)


def _names_setting(statement: ast.stmt) -> bool:
    words = (
        node.arg if isinstance(node, ast.keyword) else getattr(node, "value", None)
        for node in ast.walk(statement)
    )
    return any(isinstance(word, str) and word.startswith(SETTINGS) for word in words)


def _does_without_torch(tree: ast.Module) -> bool:
    """Whether no import of a script, wherever in it, can bring torch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            return False
        for name in _imported(node):
            root = name.partition(".")[0]
            known = root in _WITHOUT_TORCH and root not in _LOAD_OTHERS
            if not known and name != "undaunted":
                return False
    return True


def _is_harmless(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in _ROOTS or f"{name}.".startswith(f"{_OURS}.")


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when the module does, also inside of if, try and with."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and not _is_type_checking(statement.test):
            yield from _top_level([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            yield from _top_level([*statement.body, *statement.orelse, *statement.finalbody])
        elif isinstance(statement, ast.With):
            yield from _top_level(statement.body)


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return bool(name == "TYPE_CHECKING")


def _imported(statement: ast.AST) -> Iterator[str]:
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            yield alias.name
    elif isinstance(statement, ast.ImportFrom) and statement.level == 0 and statement.module:
        yield statement.module
        for alias in statement.names:
            if alias.name != "*":
                yield f"{statement.module}.{alias.name}"
