"""The layer rule: a package imports only what lies below it.

``BANDS`` is the house from the cellar up. A package may import from every lower band, and inside
its own band only along ``ARROWS``. Imports inside functions and for type checking count as well: a
layer must not know the ones above, whenever it asks. docs/design/layers.md explains the table.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"
ROOT = "undaunted"
SIMULATOR = "simulator"  # beside src: it may import from every layer, and no layer from it

BANDS = (
    (
        "base",
        "faults",
        "data",
        "digests",
        "journal",
        "progress",
        "health",
        "coordinator",
        "agreement",
        "shared_utils",
    ),
    ("attribution", "checkpointing", "inprocess", "fault_tolerance", "training"),
    ("chaos", "doctor", "top", "services", "integrations", "cli", "__main__"),
)
# Inside a band. The arrows form no circle.
ARROWS = {
    "faults": {"base", "progress"},  # faults are triggered by iterations and leave a trace
    "data": {"base"},  # a progress bar
    "digests": {"base", "progress"},  # taken at steps
    "journal": {"base"},
    "progress": {"base"},
    "health": {"base"},
    "coordinator": {"base"},
    "agreement": {"base", "coordinator"},  # which has the addresses of this machine
    "shared_utils": {"base", "faults"},  # tools under the names that users of NVRx know
    "inprocess": {"attribution"},  # one judge of hangs
    "training": {"checkpointing"},
    "fault_tolerance": {"attribution", "checkpointing", "inprocess"},
    "cli": {"chaos", "doctor", "services", "top"},  # one module per command
    "__main__": {"cli"},  # python -m undaunted
}
# Of the packages of the simulator, which have layers of their own.
SIMULATOR_ARROWS = {
    "virtual": set[str](),
    "coordination": {"etcd", "virtual"},
    "etcd": {"virtual"},
    "inprocess": {"virtual"},
    "replay": {"coordination", "virtual"},
    "register": set[str](),
}
# The one module that `__init__` modules import: it imports nothing of ours.
LAZY_NAMES = "undaunted.base.lazy_names"
# `undaunted/__init__.py` is the public face: it may hand out names of these, and nobody inside
# imports from it except those who tell the version.
FACE_OF = {"coordinator", "progress"}
MAY_IMPORT_FACE = {"checkpointing", "cli", "fault_tolerance", "inprocess", "services"}


@dataclass(frozen=True)
class Import:
    """One import of a module of ours by another, at a line."""

    importer: str
    imported: str
    line: int
    at_import_time: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


def package_of(module: str) -> str:
    """The layer a module belongs to; the face is the empty string."""
    return [*module.split("."), ""][1]


def modules(src: Path = SRC, root: str = ROOT) -> dict[str, Path]:
    found = {}
    for path in sorted((src / root).rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


class ImportFinder(ast.NodeVisitor):
    """Collects what one module imports from the house."""

    def __init__(self, module: str, known: set[str], *, is_package: bool) -> None:
        self.module = module
        self.known = known
        self.package = module if is_package else module.rpartition(".")[0]
        self.at_import_time = True
        self.found: list[Import] = []

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            above = self.package.split(".")[: len(self.package.split(".")) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            name = f"{base}.{alias.name}"
            self.add(name if name in self.known else base, node.lineno)

    def add(self, name: str, line: int) -> None:
        if name.partition(".")[0] in (ROOT, SIMULATOR):
            self.found.append(Import(self.module, name, line, self.at_import_time))

    def visit_later(self, node: ast.AST) -> None:
        before, self.at_import_time = self.at_import_time, False
        self.generic_visit(node)
        self.at_import_time = before

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = visit_later  # noqa: N815 - ast's names

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) not in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self.generic_visit(node)
            return
        before, self.at_import_time = self.at_import_time, False
        for statement in node.body:
            self.visit(statement)
        self.at_import_time = before
        for statement in node.orelse:
            self.visit(statement)


def imports(src: Path = SRC, root: str = ROOT) -> list[Import]:
    paths = modules(src, root)
    found: list[Import] = []
    for module, path in paths.items():
        finder = ImportFinder(module, set(paths), is_package=path.name == "__init__.py")
        finder.visit(ast.parse(path.read_text(), str(path)))
        found += finder.found
    return found


def allowed(importer: str, imported: str) -> bool:
    """Whether the layer may import from the other one."""
    if importer == imported:
        return True
    if importer == "":
        return imported in FACE_OF
    if imported == "":
        return importer in MAY_IMPORT_FACE
    band = {package: number for number, packages in enumerate(BANDS) for package in packages}
    if band[importer] != band[imported]:
        return band[importer] > band[imported]
    return imported in ARROWS.get(importer, set())


def circles(found: list[Import]) -> list[set[str]]:
    """Groups of modules that name each other in a circle, in whatever kind of import."""
    graph: dict[str, set[str]] = {}
    for one in found:
        if one.importer != one.imported:
            graph.setdefault(one.importer, set()).add(one.imported)
    reached = {module: _reached(graph, module) for module in graph}
    groups = {
        frozenset(other for other in there if module in reached.get(other, ()))
        for module, there in reached.items()
        if module in there
    }
    return [set(group) for group in groups]


def _reached(graph: dict[str, set[str]], module: str) -> set[str]:
    """Modules to which a way of one import or more leads from this one."""
    seen: set[str] = set()
    waiting = [*graph.get(module, ())]
    while waiting:
        if (other := waiting.pop()) not in seen:
            seen.add(other)
            waiting += graph.get(other, ())
    return seen


def test_every_package_has_its_place() -> None:
    known = {package for band in BANDS for package in band}
    here = {package_of(module) for module in modules()} - {""}
    assert here <= known, (
        f"{sorted(here - known)} not in BANDS: decide where it belongs, and say so there"
    )


def test_every_package_is_on_the_map_for_contributors() -> None:
    guide = (SRC.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    packages = {path.parent.name for path in (SRC / ROOT).glob("*/__init__.py")}
    assert {name for name in packages if f"| `src/{ROOT}/{name}` |" not in guide} == set()


def test_arrows_stay_in_their_band_and_form_no_circle() -> None:
    TopologicalSorter(ARROWS).prepare()
    for package, targets in ARROWS.items():
        (band,) = (band for band in BANDS if package in band)
        assert targets <= set(band)


def test_layers_import_only_what_is_below() -> None:
    wrong = [
        str(one)
        for one in imports()
        if one.imported.partition(".")[0] == SIMULATOR
        or not allowed(package_of(one.importer), package_of(one.imported))
    ]
    assert not wrong, "imports against the layer table:\n  " + "\n  ".join(wrong)


def test_packages_of_the_simulator_import_only_what_is_below() -> None:
    wrong = [
        str(one)
        for one in imports(SRC.parent, SIMULATOR)
        if one.imported.partition(".")[0] == SIMULATOR
        and (here := package_of(one.importer)) in SIMULATOR_ARROWS
        and (there := package_of(one.imported)) in SIMULATOR_ARROWS
        and here != there
        and there not in SIMULATOR_ARROWS[here]
    ]
    assert not wrong, "imports against SIMULATOR_ARROWS:\n  " + "\n  ".join(wrong)
    here = {path.parent.name for path in (SRC.parent / SIMULATOR).glob("*/__init__.py")}
    assert here == set(SIMULATOR_ARROWS)


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Imports for type checking and in functions count: files that name each other are one concept
    in pieces, or one of them stands in the wrong place.
    """
    found = [sorted(group) for group in circles(imports() + imports(SRC.parent, SIMULATOR))]
    assert not found, f"modules that import each other in a circle: {found}"


def test_package_inits_import_nothing_of_ours() -> None:
    """They are lazy: importing one module must not drag in its siblings."""
    inits = {module for module, path in modules().items() if path.name == "__init__.py"} - {ROOT}
    eager = [
        str(one)
        for one in imports()
        if one.importer in inits and one.at_import_time and one.imported != LAZY_NAMES
    ]
    assert not eager, "package __init__s that are not lazy:\n  " + "\n  ".join(eager)


# --- the test of the test -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("importer", "imported", "expected"),
    [
        ("cli", "base", True),
        ("fault_tolerance", "attribution", True),
        ("fault_tolerance", "coordinator", True),
        ("attribution", "fault_tolerance", False),
        ("progress", "journal", False),
        ("progress", "fault_tolerance", False),
        ("base", "", False),
        ("cli", "", True),
        ("", "progress", True),
        ("", "cli", False),
        ("integrations", "training", True),
        ("training", "integrations", False),
        ("cli", "integrations", False),
    ],
)
def test_allowed(importer: str, imported: str, expected: bool) -> None:
    assert allowed(importer, imported) is expected


def test_imports_are_found_wherever_they_are(tmp_path: Path) -> None:
    package = tmp_path / ROOT / "journal"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "writer.py").write_text("from . import reader\n")
    (package / "reader.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from .writer import Writer\n"
        "if TYPE_CHECKING:\n"
        "    from undaunted.cli import main\n"
        "def late():\n"
        "    import undaunted.progress.area\n"
        "try:\n"
        "    import torch\n"
        "except ImportError:\n"
        "    from ..base import text\n"
    )
    found = imports(tmp_path)
    here = {(i.importer.rpartition(".")[2], i.imported, i.at_import_time) for i in found}
    assert here == {
        ("writer", "undaunted.journal.reader", True),
        ("reader", "undaunted.journal.writer", True),
        ("reader", "undaunted.cli", False),
        ("reader", "undaunted.progress.area", False),
        ("reader", "undaunted.base", True),
    }
    assert circles(found) == [{"undaunted.journal.reader", "undaunted.journal.writer"}]


# Rooms in which a reader meets many words at once.
@pytest.mark.parametrize(
    "room", ["attribution", "chaos", "cli", "doctor", "journal", "services", "top"]
)
def test_a_class_has_a_name_of_its_own_in_its_room(room: str) -> None:
    places: dict[str, list[str]] = {}
    for file in (SRC / ROOT / room).rglob("*.py"):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(file.name)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
