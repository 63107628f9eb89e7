"""What a program does before its first import of torch, found without running any of it.

The template imports torch before the program begins. A worker must not differ from a new process by
that, so the template sets the variables of the environment that the program sets to constants. It
leaves torch to the ranks if the program changes something else that an import may depend on: other
values of variables, ``sys.path``, hooks, modules. Modules that lie beside the program are read as
well. When in doubt, torch is left to the ranks: that is slower, and never wrong.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from undaunted.fault_tolerance.worker.preload import parsed, program_file
from undaunted.fault_tolerance.worker.statements import (
    ALWAYS,
    IN_FUNCTION,
    Obstacle,
    Statements,
    TorchImported,
    short,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# Packages that import torch when they are imported.
_BRING_TORCH = frozenset(
    (
        *("torch", "torchvision", "torchaudio", "torchtitan", "lightning", "pytorch_lightning"),
        *("accelerate", "deepspeed", "megatron", "peft", "timm", "trl"),
    )
)
# A file of one of these names beside the program is what torch and numpy import there.
_IMPORTED_BY_TORCH = frozenset(
    (
        *("torch", "numpy", "functorch", "torchgen", "typing_extensions", "filelock", "fsspec"),
        *("sympy", "mpmath", "networkx", "jinja2", "markupsafe", "triton", "nvidia", "optree"),
        *("opt_einsum", "psutil", "yaml", "pandas", "setuptools"),
    )
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
# Packages whose calls change nothing for torch.
_HARMLESS = frozenset(
    (
        *("absl", "click", "hydra", "loguru", "matplotlib", "numpy", "omegaconf", "pandas"),
        *("rich", "tqdm", "typer"),
    )
)
_INSTALLED = ("/site-packages/", "/dist-packages/")
_PYTHONS = os.path.dirname(os.__file__) + "/"  # noqa: PTH120 - as the interpreter writes it
_MOST_FILES = 300


class Prologue(NamedTuple):
    """What comes before torch.

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
    reader = FileReader(environ, _BRING_TORCH | {"numpy"} if without_torch else _BRING_TORCH)
    try:
        reader.program(kind, target, cwd)
    except TorchImported:
        if reader.call:
            return Prologue({}, reader.call, lasting=True)
    except Obstacle as obstacle:
        return Prologue({}, str(obstacle), obstacle.lasting)
    except RecursionError:
        return Prologue({}, f"{target} is nested too deeply to be read", lasting=True)
    return Prologue(reader.variables)


class FileReader:
    """Goes through files in the order in which they run."""

    def __init__(self, environ: Mapping[str, str], last: frozenset[str]) -> None:
        self.variables: dict[str, str | None] = {}
        self._last = last
        self.call = ""  # the first one of a package that is not the user's
        self._environ = environ
        self._places: list[str] = []  # sys.path[0], and what is found without it
        self._read: set[str] = set()
        self._added = False  # directories to sys.path

    def program(self, kind: str, target: str, cwd: str) -> None:
        """Read the program; see `read_prologue`."""
        if kind == "module":
            self._places = [cwd, *sys.path]
            self._shadows(cwd)
            self._import(f"{target}.__main__", ALWAYS)
            return
        path = program_file(kind, target, cwd)
        if path is None:
            return  # it is not there, or comes from a pipe: `cli.program` has looked
        folder = cwd if kind == "run_path" else str(Path(path).resolve().parent)
        self._places = [folder, *sys.path]
        self._shadows(folder)
        self.file(path, ALWAYS, main=True)

    def file(self, path: str, where: int, *, main: bool = False) -> None:
        """Read a file that was not read yet."""
        if path in self._read:
            return
        self._read.add(path)
        tree = parsed(path)
        if tree is None:
            raise Obstacle(f"{short(path)} cannot be read as Python")
        if len(self._read) > _MOST_FILES:
            raise Obstacle(f"{short(path)} is one of more than {_MOST_FILES} modules")
        Statements(self, path, tree, main=main).block(tree.body, where)

    def set(self, name: str, value: str | None, statement: str, where: int) -> None:
        """Note that a statement sets a variable."""
        if self.value(name) == value or name.startswith(_READ_LATER):
            return
        if where != ALWAYS or name.startswith(_NUMERICS):
            self.changes(name, statement)
        self.variables[name] = value

    def value(self, name: str) -> str | None:
        """What a variable has by now, None = it is not set."""
        return self.variables.get(name, self._environ.get(name))

    def changes(self, name: str, statement: str) -> None:
        """Note that a statement sets a variable to what cannot be known."""
        if not name.startswith(_READ_LATER):
            raise Obstacle(f"{statement} sets {name}", lasting=name.startswith(_NUMERICS))

    def add_directory(self) -> None:
        """Note that the program adds a directory to ``sys.path``."""
        self._added = True

    def imported(self, name: str, where: int, statement: str) -> None:
        """Note that a module is imported, and read it if it is the user's."""
        root = name.partition(".")[0]
        if root in self._last or f"{name}.".startswith("undaunted.checkpointing."):
            if where != IN_FUNCTION:
                raise TorchImported
            return
        if root in sys.stdlib_module_names or root == "undaunted":
            return
        if not self._import(name, where) and self._added:
            raise Obstacle(
                f"{statement} imports {root} from a directory that it adds to sys.path",
                lasting=False,
            )

    def is_foreign(self, name: str) -> bool:
        """Whether a module is neither the user's nor Python's nor ours."""
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
        if name.endswith(".__main__") or not _is_installed(spec.origin or ""):
            self._module(spec.origin, list(spec.submodule_search_locations or ()), rest, where)
        return True

    def _module(self, origin: str | None, folders: list[str], rest: list[str], where: int) -> None:
        if origin is not None and origin.endswith(".py"):
            self.file(origin, where)
        if not rest:
            return
        for folder in folders:
            base = Path(folder, rest[0])
            file = base / "__init__.py" if base.is_dir() else Path(f"{base}.py")
            if base.is_dir() or file.is_file():
                there = str(file) if file.is_file() else None
                self._module(there, [str(base)], rest[1:], where)
                return

    def _shadows(self, folder: str) -> None:
        """Look for modules beside the program that hide others, which torch imports."""
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            return
        for name in names:
            stem, dot, _ = name.partition(".")
            package = not dot and Path(folder, name, "__init__.py").exists()
            if stem in _IMPORTED_BY_TORCH and (package or name.endswith((".py", ".so"))):
                raise Obstacle(f"{name}, beside the program, hides another {stem}")


def _is_installed(origin: str) -> bool:
    return any(place in origin for place in _INSTALLED) or origin.startswith(_PYTHONS)
