"""What the statements of a file change for imports that come after them, found without running any.

Of each statement it is known whether it runs always, perhaps, or when a function is called. What
may change an import of torch is told to `prologue`, which goes through the files of a program.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

_ENVIRON = ("os.environ", "os.environb", "posix.environ")
_TABLES = (*_ENVIRON, "sys.path", "sys.modules")
# What is called of a table without changing it; and what a table is given to.
_READING = (
    *("get", "copy", "items", "keys", "values", "index", "count", "__contains__", "__getitem__"),
)
_PASSIVE = (
    *("all", "any", "copy.copy", "dict", "enumerate", "iter", "len", "list", "print", "repr"),
    *("set", "sorted", "str", "tuple"),
)
_HOOKS = ("sys.meta_path", "sys.path_hooks", "sys.path_importer_cache")
_RUN_CODE = ("exec", "execfile", "runpy.run_path", "runpy.run_module", "site.addsitedir")
_CHANGE_MUCH = ("load_dotenv", "patch_all", "setLoggerClass")
_OWN_BUSINESS = ("stdout", "argv", "excepthook", "displayhook", "dont_write_bytecode")
# Where a statement stands.
ALWAYS, PERHAPS, IN_FUNCTION = 2, 1, 0


class TorchImported(Exception):  # noqa: N818 - no error
    """The prologue is over."""


class Obstacle(Exception):  # noqa: N818 - no error
    """A statement for which torch is left to the ranks; ``lasting``: see `prologue.Prologue`."""

    def __init__(self, text: str, *, lasting: bool = True) -> None:
        super().__init__(text)
        self.lasting = lasting


class Reader(Protocol):
    """Is told what statements do: see `prologue.FileReader`."""

    call: str

    def set(self, name: str, value: str | None, statement: str, where: int) -> None:
        """A statement sets a variable."""

    def value(self, name: str) -> str | None:
        """What a variable has by now."""

    def changes(self, name: str, statement: str) -> None:
        """A statement sets a variable to what cannot be known."""

    def add_directory(self) -> None:
        """A statement adds a directory to ``sys.path``."""

    def imported(self, name: str, where: int, statement: str) -> None:
        """A statement imports a module."""

    def is_foreign(self, name: str) -> bool:
        """Whether a module is neither the user's nor Python's nor ours."""


class Statements:
    """Goes through the statements of one file.

    Args:
        reader: is told what they import and change.
        path: of the file.
        tree: what is in it.
        main: it is the program itself.
    """

    def __init__(self, reader: Reader, path: str, tree: ast.Module, *, main: bool) -> None:
        self._reader = reader
        self._path = path
        self._main = main
        self._aliases = dict(_aliases(tree))
        self._line = 0

    def block(self, body: Iterable[ast.stmt], where: int) -> None:
        """Go through statements one after another."""
        for statement in body:
            self._line = statement.lineno
            self._statement(statement, where)

    def _statement(self, node: ast.stmt, where: int) -> None:
        perhaps = min(where, PERHAPS)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for part in (*node.decorator_list, node.args):
                    self._scan(part, where)
                self.block(node.body, IN_FUNCTION)
            case ast.ClassDef():
                self.block(node.body, where)
            case ast.If():
                self._if(node, where)
            case ast.For() | ast.AsyncFor() | ast.While():
                self._scan(node.test if isinstance(node, ast.While) else node.iter, where, node)
                self.block([*node.body, *node.orelse], perhaps)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._scan(item.context_expr, where)
                self.block(node.body, where)
            case ast.Try(handlers=parts) | ast.Match(cases=parts):
                for body in (getattr(node, "body", []), *(part.body for part in parts)):
                    self.block(body, perhaps)
                rest = [*getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
                self.block(rest, perhaps)
            case ast.Import() | ast.ImportFrom():
                self._import(node, where)
            case _:
                self._simple(node, where)

    def _if(self, node: ast.If, where: int) -> None:
        named = ast.unparse(node.test)
        if named in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self.block(node.orelse, where)
        elif named in ("__name__ == '__main__'", "'__main__' == __name__"):
            self.block(node.body if self._main else node.orelse, where)
        else:
            self._scan(node.test, where)
            for branch in (node.body, node.orelse):
                self._branch(branch, min(where, PERHAPS))

    def _branch(self, body: Iterable[ast.stmt], where: int) -> None:
        """Go through one of several ways: what runs in another is not over with torch in it."""
        try:
            self.block(body, where)
        except TorchImported:
            if self._reader.call:
                raise

    def _import(self, node: ast.Import | ast.ImportFrom, where: int) -> None:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            base = node.module or ""
            if node.level:
                base = self._absolute(node.level, base)
                if not base:
                    return
            names = [base, *(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")]
        for name in names:
            self._reader.imported(name, where, self._here())

    def _absolute(self, level: int, module: str) -> str:
        """Return the name of a module that is imported by its place."""
        folder, parts = Path(self._path).parent, [module] if module else []
        for _ in range(level - 1):
            folder = folder.parent
        while (folder / "__init__.py").exists() and folder.name.isidentifier():
            parts.insert(0, folder.name)
            folder = folder.parent
        return ".".join(parts)

    def _simple(self, node: ast.stmt, where: int) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                self._scan(value, where, node)
                for target in targets:
                    self._store(target, _text(value), where)
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self._scan(value, where, node)
                    self._store(target, _text(value), where)
            case ast.AugAssign(target=target, op=ast.BitOr(), value=value) if self._is(
                target, _ENVIRON
            ):
                self._update([value], where)
            case ast.AugAssign(target=target, op=ast.Add(), value=value) if self._is(
                target, ("sys.path",)
            ):
                self._scan(value, where)
                self._reader.add_directory()
            case ast.AugAssign(target=target, value=value):
                self._scan(value, where)
                self._store(target, "", where)
            case ast.Delete(targets=targets):
                for target in targets:
                    self._store(target, None, where, known=True)
            case ast.Expr(value=value):
                self._scan(value, where, node)
            case _:
                for child in ast.iter_child_nodes(node):
                    self._scan(child, where, node)

    def _store(
        self, target: ast.AST, value: str | None, where: int, *, known: bool = False
    ) -> None:
        """A statement assigns ``value``, None = what is not known; or deletes what is ``known``."""
        match target:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._store(part, None, where)
            case ast.Subscript(value=of, slice=key) if self._is(of, _ENVIRON):
                self._set(key, value, where, known=known or value is not None)
            case ast.Subscript(value=of) if self._is(of, _TABLES):
                self._object_to(f"changes {self._name(of)}", lasting=self._name(of) != "sys.path")
            case ast.Attribute(value=of, attr=attribute):
                name = self._name(target)
                if name in _TABLES:
                    self._object_to(f"changes {name}", lasting=name != "sys.path")
                if self._name(of) == "sys" and attribute in _OWN_BUSINESS:
                    return
                if name.partition(".")[0] and self._is_module(of):
                    self._object_to(f"changes {name}")
            case ast.Starred(value=of):
                self._store(of, None, where)

    def _set(self, key: ast.AST, value: str | None, where: int, *, known: bool) -> None:
        name = _text(key)
        if name is None:
            self._object_to("changes os.environ", lasting=False)
        elif known:
            self._reader.set(name, value, self._here(), where)
        else:
            self._reader.changes(name, self._here())

    def _update(self, parts: Iterable[ast.AST], where: int) -> None:
        for part in parts:
            match part:
                case ast.Dict(keys=keys, values=values):
                    for key, value in zip(keys, values, strict=True):
                        text = _text(value)
                        self._scan(value, where)
                        self._set(key or part, text, where, known=text is not None)
                case ast.keyword(arg=str(name), value=value):
                    text = _text(value)
                    self._scan(value, where)
                    self._set(ast.Constant(name), text, where, known=text is not None)
                case _:
                    self._object_to("changes os.environ", lasting=False)

    def _scan(self, node: ast.AST, where: int, parent: ast.AST | None = None) -> None:
        """Look at an expression."""
        match node:
            case ast.Call():
                # Only of a call that is all of a statement is it known that it is made.
                alone = isinstance(parent, (ast.Expr, ast.Assign, ast.AnnAssign))
                self._call(node, where if alone else min(where, PERHAPS))
            case ast.Subscript(value=of) if self._is(of, _TABLES):
                self._scan(node.slice, where)
            case ast.Attribute(value=of, attr=attribute) if self._is(of, _TABLES):
                if attribute not in _READING:
                    self._object_to(f"hands on {self._name(node)}")
            case ast.Attribute() | ast.Name() if self._name(node) in _TABLES:
                if not isinstance(parent, (ast.For, ast.AsyncFor, ast.comprehension, ast.Compare)):
                    self._object_to(f"hands on {self._name(node)}", lasting=False)
            case ast.Attribute() | ast.Name() if self._name(node) in _HOOKS:
                self._object_to(f"uses {self._name(node)}")
            case ast.BinOp(op=ast.BitOr() | ast.Add()) | ast.Dict() | ast.Starred():
                self._scan_all(ast.iter_child_nodes(node), where, spare=True, parent=node)
            case ast.Lambda():
                self._scan(node.body, IN_FUNCTION)
            case ast.IfExp() | ast.BoolOp():
                self._scan_all(ast.iter_child_nodes(node), min(where, PERHAPS), parent=node)
            case ast.NamedExpr(value=value):
                self._scan(value, where)
            case _:
                self._scan_all(ast.iter_child_nodes(node), where, parent=node)

    def _scan_all(
        self, nodes: Iterable[ast.AST], where: int, parent: ast.AST, *, spare: bool = False
    ) -> None:
        """Look at expressions; the table itself may be among them where it is only read."""
        for node in nodes:
            if not (spare and self._is(node, _TABLES)):
                self._scan(node, where, parent)

    def _call(self, call: ast.Call, where: int) -> None:
        name = self._name(call.func)
        table, _, method = name.rpartition(".")
        if table in _ENVIRON:
            self._call_of_environ(call, method, where)
            return
        if table in _HOOKS:
            self._object_to(f"changes {table}")
        if table in _TABLES:
            self._call_of_table(table, method)
        elif not name:
            self._scan(call.func, where)
        else:
            self._call_by_name(call, name, where)
        spare = name in _PASSIVE
        self._scan_all(call.args, where, call, spare=spare)
        for keyword in call.keywords:
            read = spare or keyword.arg in ("env", None)
            self._scan_all([keyword.value], where, call, spare=read)

    def _call_of_table(self, table: str, method: str) -> None:
        if table == "sys.path" and method in ("append", "extend"):
            self._reader.add_directory()
        elif method not in _READING:
            self._object_to(f"changes {table}", lasting=table != "sys.path")

    def _call_by_name(self, call: ast.Call, name: str, where: int) -> None:
        first = call.args[0] if call.args else None
        if name in ("os.putenv", "os.unsetenv"):
            self._reader.changes(_text(first) or "a variable", self._here())
        elif name in _RUN_CODE or name.rpartition(".")[2] in _CHANGE_MUCH:
            self._object_to(f"calls {name}")
        elif name in ("setattr", "delattr") and first is not None and self._is_module(first):
            self._object_to(f"changes {self._name(first)}")
        elif name.startswith("warnings.") and _text(first) == "error":
            self._object_to("turns warnings into errors")
        elif where != IN_FUNCTION and name in ("importlib.import_module", "__import__"):
            if (module := _text(first)) is None or module.startswith("."):
                self._object_to(f"calls {name}")
            self._reader.imported(module, where, self._here())
        elif where != IN_FUNCTION and self._is_foreign(call.func):
            self._reader.call = self._reader.call or f"{self._here()} calls {name}"

    def _call_of_environ(self, call: ast.Call, method: str, where: int) -> None:
        match method, call.args:
            case ("setdefault", [key, value]) if _text(value) is not None and self._is_set(key):
                pass
            case ("__setitem__" | "setdefault", [key, value]):
                self._set(key, _text(value), where, known=_text(value) is not None)
            case ("pop" | "__delitem__", [key, *_]):
                self._set(key, None, where, known=True)
            case ("update", _):
                self._update([*call.args, *call.keywords], where)
            case _ if method not in _READING:
                self._object_to("changes os.environ", lasting=False)
        self._scan_all([*call.args, *(k.value for k in call.keywords)], where, call)

    def _is_set(self, key: ast.AST) -> bool:
        name = _text(key)
        return name is not None and self._reader.value(name) is not None

    def _is_module(self, node: ast.AST) -> bool:
        """Whether a name is that of something imported."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._aliases

    def _is_foreign(self, node: ast.AST) -> bool:
        return self._is_module(node) and self._reader.is_foreign(self._name(node))

    def _is(self, node: ast.AST, names: tuple[str, ...]) -> bool:
        return self._name(node) in names

    def _name(self, node: ast.AST) -> str:
        """Return what a chain of names stands for, "" = it is none."""
        match node:
            case ast.Name(id=name):
                return self._aliases.get(name, name)
            case ast.Attribute(value=of, attr=name):
                return f"{base}.{name}" if (base := self._name(of)) else ""
            case _:
                return ""

    def _here(self) -> str:
        return f"{short(self._path)}:{self._line}"

    def _object_to(self, what: str, *, lasting: bool = True) -> NoReturn:
        raise Obstacle(f"{self._here()} {what}", lasting=lasting)


def _aliases(tree: ast.Module) -> Iterable[tuple[str, str]]:
    """Yield the names that imports of a file give, and what they stand for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                if alias.name == "*" and node.module in ("os", "sys"):
                    for name in ("environ", "path", "modules", "meta_path", "path_hooks", "putenv"):
                        yield name, f"{node.module}.{name}"
                else:
                    yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _text(node: ast.AST | None) -> str | None:
    """Return the text that a constant is, None = it is something else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Call(func=ast.Name(id="str"), args=[ast.Constant(value=int(number))]):
            return str(number)
        case _:
            return None


def short(path: str) -> str:
    """Return the name of a file, for a line."""
    return os.path.basename(path)  # noqa: PTH119 - of text
