"""The work of a program before its first import of torch, found without running any of it.

The template imports torch before the program begins. A worker must not differ from a new process by
that, so the template sets the variables of the environment that the program sets to constants. It
leaves torch to the ranks if the program changes something else that an import may depend on: other
values of variables, ``sys.path``, hooks, modules. Modules that lie beside the program are read as
well, and those that it names of installed packages, for variables. When in doubt, torch is left to
the ranks: that is slower, and never wrong.
"""

from __future__ import annotations

import ast
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from undaunted.fault_tolerance.function_call import caller_path
from undaunted.fault_tolerance.worker.preload import parsed, program_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Packages that import torch when they are imported.
_BRING_TORCH = frozenset(
    [
        "torch",
        "torchvision",
        "torchaudio",
        "torchtitan",
        "lightning",
        "pytorch_lightning",
        "accelerate",
        "deepspeed",
        "megatron",
        "peft",
        "timm",
        "trl",
    ]
)
# A file of one of these names beside the program is what torch and numpy import there.
_IMPORTED_BY_TORCH = frozenset(
    [
        "torch",
        "numpy",
        "functorch",
        "torchgen",
        "typing_extensions",
        "filelock",
        "fsspec",
        "sympy",
        "mpmath",
        "networkx",
        "jinja2",
        "markupsafe",
        "triton",
        "nvidia",
        "optree",
        "opt_einsum",
        "psutil",
        "yaml",
        "pandas",
        "setuptools",
    ]
) | (sys.stdlib_module_names - {"test", "__future__"})
# Beginnings of variables that are read after the imports of torch and numpy, if at all.
_READ_LATER = (
    *("NCCL_", "GLOO_", "UCX_", "FI_", "MASTER_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_"),
    *("LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_", "CUDA_LAUNCH_"),
    *("CUBLAS_WORKSPACE_", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "PYTHONHASHSEED"),
    *("WANDB_", "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "DATASETS_", "MLFLOW_"),
    *("COMET_", "NEPTUNE_", "CLEARML_", "TF_", "XLA_", "JAX_", "HYDRA_", "UNDAUNTED_"),
)
# Their threads are those of the workers' environments, see `numerics`.
_NUMERICS = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_")
# Those that count where an installed package sets them.
_SET_BY_PACKAGES = ("TORCH", "PYTORCH", "OMP_NUM_", "MKL_NUM_", "OPENBLAS_NUM_")
_ENVIRON = ("os.environ", "os.environb", "posix.environ")
_TABLES = (*_ENVIRON, "sys.path", "sys.modules")
_READING = frozenset(
    ("get", "copy", "items", "keys", "values", "index", "count", "__contains__", "__getitem__")
)
_PASSIVE = frozenset(
    [
        "all",
        "any",
        "copy.copy",
        "dict",
        "enumerate",
        "iter",
        "len",
        "list",
        "print",
        "repr",
        "set",
        "sorted",
        "str",
        "tuple",
    ]
)
_HOOKS = ("sys.meta_path", "sys.path_hooks", "sys.path_importer_cache")
_RUN_CODE = ("exec", "execfile", "runpy.run_path", "runpy.run_module", "site.addsitedir")
# What they change is found by libraries in C when these are loaded.
_CHANGE_LOADING = (
    *("ctypes.CDLL", "ctypes.PyDLL", "ctypes.cdll.LoadLibrary", "ctypes.pydll.LoadLibrary"),
    *("sys.setdlopenflags", "os.sched_setaffinity"),
)
_CHANGE_MUCH = ("load_dotenv", "patch_all", "setLoggerClass")
_IMPORT = ("importlib.import_module", "__import__")
_OWN_BUSINESS = ("stdout", "argv", "excepthook", "displayhook", "dont_write_bytecode")
# Packages whose calls change nothing for torch.
_HARMLESS = frozenset(
    [
        "absl",
        "click",
        "hydra",
        "loguru",
        "matplotlib",
        "numpy",
        "omegaconf",
        "pandas",
        "rich",
        "tqdm",
        "typer",
    ]
)
_INSTALLED = ("/site-packages/", "/dist-packages/")
_PYTHONS = os.path.dirname(os.__file__) + "/"  # noqa: PTH120 - as the interpreter writes it
_MOST_FILES = 300
# Where a statement stands.
_ALWAYS, _PERHAPS, _IN_FUNCTION = 2, 1, 0


class Prologue(NamedTuple):
    """The work before the import of torch.

    Attributes:
        variables: that the program sets, None = that it takes away.
        obstacle: the statement for which torch is left to the ranks, "" = none.
        lasting: nor may a template import what the ranks have imported.
    """

    variables: dict[str, str | None]
    obstacle: str = ""
    lasting: bool = False


def read_prologue(
    kind: str, target: str, cwd: str, environ: Mapping[str, str], *, without_torch: bool = False
) -> Prologue:
    """Read a program, and the modules of the user that it imports, as far as torch.

    Args:
        kind: as in WorkerSpec.
        target: as in WorkerSpec.
        cwd: working directory of the workers.
        environ: what the environments of all workers have in common.
        without_torch: the template imports numpy only.
    """
    reader = _Reader(environ, _BRING_TORCH | {"numpy"} if without_torch else _BRING_TORCH)
    try:
        reader.program(kind, target, cwd)
    except _TorchImported:
        if reader.call:
            return Prologue({}, reader.call, lasting=True)
    except _Obstacle as obstacle:
        return Prologue({}, str(obstacle), obstacle.lasting)
    except RecursionError:
        return Prologue({}, f"{target} is nested too deeply to be read", lasting=True)
    return Prologue(reader.variables)


class _TorchImported(Exception):  # noqa: N818 - no error
    """The prologue is over."""


class _Obstacle(Exception):  # noqa: N818 - no error
    def __init__(self, text: str, *, lasting: bool = True) -> None:
        super().__init__(text)
        self.lasting = lasting


class _Setting(_Obstacle):
    """It is a variable."""


class _Reader:
    """Goes through files in the order in which they run."""

    def __init__(self, environ: Mapping[str, str], last: frozenset[str]) -> None:
        self.variables: dict[str, str | None] = {}
        self._last = last
        self.call = ""  # the first one of a package that is not the user's
        self._environ = environ
        self._places: list[str] = []  # sys.path[0], and what is found without it
        self._read: set[str] = set()
        self._added = False  # directories to sys.path
        self._foreign = False  # an installed package is read, for the variables that it sets

    def program(self, kind: str, target: str, cwd: str) -> None:
        if kind == "module":
            self._places = [cwd, *sys.path]
            self._shadows(cwd)
            self._import(f"{target}.__main__", _ALWAYS)
            return
        if (places := caller_path(target)) is not None:
            # The function's process has made its imports, and its variables are inherited.
            for place in places:
                if place not in sys.path:
                    self._shadows(place or cwd)
            return
        path = program_file(kind, target, cwd)
        if path is None:
            return  # it is not there, or comes from a pipe: `cli.program` has looked
        folder = cwd if kind == "run_path" else os.path.dirname(os.path.realpath(path))  # noqa: PTH120
        self._places = [folder, *sys.path]
        self._shadows(folder)
        self.file(path, _ALWAYS, main=True)

    def file(self, path: str, where: int, *, main: bool = False) -> None:
        if path in self._read:
            return
        self._read.add(path)
        tree = parsed(path)
        if tree is None:
            raise _Obstacle(f"{_short(path)} cannot be read as Python")
        if len(self._read) > _MOST_FILES:
            raise _Obstacle(f"{_short(path)} is one of more than {_MOST_FILES} modules")
        _File(self, path, tree, main=main, foreign=self._foreign).block(tree.body, where)

    def set(self, name: str, value: str | None, statement: str, where: int) -> None:
        """Note that a statement sets a variable."""
        if self.variables.get(name, self._environ.get(name)) == value or self._spares(name):
            return
        if where != _ALWAYS or name.startswith(_NUMERICS):
            raise _Setting(f"{statement} sets {name}", lasting=name.startswith(_NUMERICS))
        self.variables[name] = value

    def default(self, name: str, value: str, statement: str, where: int) -> None:
        if self.variables.get(name, self._environ.get(name)) is None:
            self.set(name, value, statement, where)

    def changes(self, name: str, statement: str) -> None:
        """Note that a statement sets a variable to what cannot be known."""
        if not self._spares(name):
            raise _Setting(f"{statement} sets {name}", lasting=name.startswith(_NUMERICS))

    def _spares(self, name: str) -> bool:
        """Whether torch does not read this variable as it is imported."""
        if self._foreign and not name.startswith(_SET_BY_PACKAGES):
            return True
        return name.startswith(_READ_LATER)

    def add_directory(self) -> None:
        self._added = True

    def imported(self, name: str, where: int, statement: str) -> None:
        """Note that a module is imported, and read it if it is the user's."""
        root = name.partition(".")[0]
        if root in self._last or f"{name}.".startswith("undaunted.checkpointing."):
            if where != _IN_FUNCTION:
                raise _TorchImported
            return
        if root in sys.stdlib_module_names or root == "undaunted" or self._foreign:
            return
        if not self._import(name, where) and self._added:
            raise _Obstacle(
                f"{statement} imports {root} from a directory that it adds to sys.path",
                lasting=False,
            )

    def is_foreign(self, name: str) -> bool:
        """Return whether a module is neither the user's nor Python's nor ours."""
        root = name.partition(".")[0]
        if root in sys.stdlib_module_names or root == "undaunted" or root in _HARMLESS:
            return False
        spec = PathFinder.find_spec(root, self._places)
        return spec is not None and _is_installed(spec.origin or "")

    def _import(self, name: str, where: int) -> bool:
        """Read a module and the packages it is in; return whether it is there."""
        root, *rest = name.split(".")
        spec = PathFinder.find_spec(root, self._places)
        if spec is None:
            return False
        installed = _is_installed(spec.origin or "")
        if name.endswith(".__main__") or not installed:
            self._module(spec.origin, list(spec.submodule_search_locations or ()), rest, where)
        elif root not in _HARMLESS and not self._foreign:
            self._foreign = True
            try:
                self._module(spec.origin, list(spec.submodule_search_locations or ()), rest, where)
            finally:
                self._foreign = False
        return True

    def _module(self, origin: str | None, folders: list[str], rest: list[str], where: int) -> None:
        if origin is not None and origin.endswith(".py"):
            program = rest == ["__main__"] and not origin.endswith("/__init__.py")
            self.file(origin, where, main=program or origin.endswith("/__main__.py"))
        elif origin is not None:
            self._cannot_read(origin)
        if not rest:
            return
        for folder in folders:
            base = os.path.join(folder, rest[0])  # noqa: PTH118
            file = f"{base}/__init__.py" if os.path.isdir(base) else f"{base}.py"  # noqa: PTH112
            if os.path.isfile(file) or os.path.isdir(base):  # noqa: PTH112, PTH113
                there = file if os.path.isfile(file) else None  # noqa: PTH113
                self._module(there, [base], rest[1:], where)
                return
            for name in _listed(folder):
                if name.startswith(f"{rest[0]}.") and name.endswith((".so", ".pyc")):
                    self._cannot_read(os.path.join(folder, name))  # noqa: PTH118

    def _cannot_read(self, path: str) -> None:
        """A module without a source: nobody knows what it does."""
        if not self._foreign:
            raise _Obstacle(f"{_short(path)} cannot be read", lasting=False)

    def _shadows(self, folder: str) -> None:
        """Look for modules beside the program that hide others, which torch imports."""
        for name in _listed(folder):
            stem, dot, _ = name.partition(".")
            package = not dot and os.path.exists(os.path.join(folder, name, "__init__.py"))  # noqa: PTH110, PTH118
            if stem in _IMPORTED_BY_TORCH and (package or name.endswith((".py", ".so"))):
                raise _Obstacle(f"{name}, beside the program, hides another {stem}")


class _File:
    """Goes through one file."""

    def __init__(
        self, reader: _Reader, path: str, tree: ast.Module, *, main: bool, foreign: bool
    ) -> None:
        self._reader = reader
        self._path = path
        self._main = main
        self._foreign = foreign  # installed: only the variables that it sets matter
        self._aliases = dict(_aliases(tree))
        self._line = 0

    def block(self, body: Iterable[ast.stmt], where: int) -> None:
        for statement in body:
            self._line = statement.lineno
            try:
                self._statement(statement, where)
            except _Obstacle as obstacle:
                if not self._foreign or isinstance(obstacle, _Setting):
                    raise

    def _statement(self, node: ast.stmt, where: int) -> None:
        perhaps = min(where, _PERHAPS)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for part in (*node.decorator_list, node.args):
                    self._scan(part, where)
                self.block(node.body, _IN_FUNCTION)
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
                self._branch(branch, min(where, _PERHAPS))

    def _branch(self, body: Iterable[ast.stmt], where: int) -> None:
        """Go through one of several ways: what runs in another is not over with torch in it."""
        try:
            self.block(body, where)
        except _TorchImported:
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
                self._store(target, None, where)
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
            case ast.Subscript(value=of, slice=key):
                self._scan(of, where, target)
                self._scan(key, where, target)
            case ast.Attribute(value=of, attr=attribute):
                name = self._name(target)
                if name in _TABLES:
                    self._object_to(f"changes {name}", lasting=name != "sys.path")
                if self._name(of) == "sys" and attribute in _OWN_BUSINESS:
                    return
                if name.partition(".")[0] and self._is_module(of):
                    self._object_to(f"changes {name}")
                self._scan(of, where, target)
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
                self._call(node, where if alone else min(where, _PERHAPS))
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
                self._scan(node.args, where)
                self._scan(node.body, _IN_FUNCTION)
            case ast.IfExp() | ast.BoolOp():
                self._scan_all(ast.iter_child_nodes(node), min(where, _PERHAPS), parent=node)
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
        elif name in (*_RUN_CODE, *_CHANGE_LOADING) or name.rpartition(".")[2] in _CHANGE_MUCH:
            self._object_to(f"calls {name}")
        elif name in ("setattr", "delattr") and first is not None and self._is_module(first):
            self._object_to(f"changes {self._name(first)}")
        elif name.startswith("warnings.") and _text(first) == "error":
            self._object_to("turns warnings into errors")
        elif where != _IN_FUNCTION and name in _IMPORT:
            if (module := _text(first)) is None or module.startswith("."):
                self._object_to(f"calls {name}")
            self._reader.imported(module, where, self._here())
        elif where != _IN_FUNCTION and not self._foreign and self._is_foreign(call.func):
            self._reader.call = self._reader.call or f"{self._here()} calls {name}"

    def _call_of_environ(self, call: ast.Call, method: str, where: int) -> None:
        match method, call.args:
            case ("setdefault", [key, value]) if _text(key) is not None:
                text = _text(value)
                if text is None:
                    self._reader.changes(_text(key) or "", self._here())
                else:
                    self._reader.default(_text(key) or "", text, self._here(), where)
            case ("__setitem__", [key, value]):
                self._set(key, _text(value), where, known=_text(value) is not None)
            case ("pop" | "__delitem__", [key, *_]):
                self._set(key, None, where, known=True)
            case ("update", _):
                self._update([*call.args, *call.keywords], where)
            case _ if method not in _READING:
                self._object_to("changes os.environ", lasting=False)
        self._scan_all([*call.args, *(k.value for k in call.keywords)], where, call)

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
            case ast.Attribute(attr=name) if f"os.{name}" in _ENVIRON:
                return f"os.{name}"  # also as an attribute of a module that has imported os
            case ast.Attribute(value=of, attr=name):
                return f"{base}.{name}" if (base := self._name(of)) else ""
            case ast.Subscript(slice=ast.Constant(value="environ" | "environb" as name)):
                return f"os.{name}"  # of the dict of a module
            case ast.Subscript(value=of, slice=key) if self._is(of, ("sys.modules",)):
                return _text(key) or ""
            case ast.Call(func=of, args=[key]) if self._is(of, _IMPORT):
                return _text(key) or ""
            case ast.Call(func=ast.Name(id="getattr"), args=[of, key, *_]):
                base, text = self._name(of), _text(key)
                return f"{base}.{text}" if base and text else ""
            case _:
                return ""

    def _here(self) -> str:
        return f"{_short(self._path)}:{self._line}"

    def _object_to(self, what: str, *, lasting: bool = True) -> NoReturn:
        raise _Obstacle(f"{self._here()} {what}", lasting=lasting)


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


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


def _is_installed(origin: str) -> bool:
    return any(place in origin for place in _INSTALLED) or origin.startswith(_PYTHONS)


def _short(path: str) -> str:
    return os.path.basename(path)  # noqa: PTH119 - of text
