"""docs/nvrx-names.md and the thin modules, from the tables in compat/nvidia-resiliency-ext/names.

``problems`` checks the tables against the modules: what they promise is there, what they call
missing is not, and no module is left out.
"""

from __future__ import annotations

import builtins
import importlib
import textwrap
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = REPOSITORY / "compat/nvidia-resiliency-ext"
ROOT = "nvidia_resiliency_ext"
SOURCE = PROJECT / "src" / ROOT
# Tables in the order of the page, with their headings.
TABLES = {
    "fault_tolerance": "In-job restart",
    "inprocess": "Restart inside the process",
    "checkpointing": "Checkpoints",
    "attribution": "Attribution",
    "ptl_resiliency": "Lightning",
    "services": "Services",
    "shared_utils": "Tools",
}
KEYS = {"names", "differs", "missing", "about", "from", "lazy", "not_built"}
_LONGEST = 100  # of a line
_MADE = "# Made from names/*.yaml by `make generated`.\n"
_FUTURE = "from __future__ import annotations\n"
HEAD = """\
# The names of NVRx

This page lists undaunted's `nvidia_resiliency_ext`, module by module: the names that programs
import, and what differs from NVRx 0.4 to 0.6. [Migration](migrate.md) says how to install it and
move a job, [the design](design/compat.md) why it is built as it is.

A name of NVRx that is not listed is an inner part of it that undaunted has no use for. Names that
are not built raise `ImportError`, so that programs that try an import go on without them.

<!-- Generated from compat/nvidia-resiliency-ext/names: make generated -->
"""


def rows(table: str) -> dict[str, dict[str, Any]]:
    """Read a table: modules below the package, each with its row."""
    path = PROJECT / "names" / f"{table}.yaml"
    found = yaml.safe_load(path.read_text()) if path.exists() else None
    return {module: row or {} for module, row in (found or {}).items()}


def all_rows() -> dict[str, dict[str, Any]]:
    """Read all tables."""
    return {module: row for table in TABLES for module, row in rows(table).items()}


def names_of(row: dict[str, Any]) -> list[str]:
    """Return the names that a row provides, in their order on the page."""
    given = row.get("names")
    if given is None and isinstance(row.get("from"), dict):
        given = " ".join(row["from"].values())
    return sorted((given or "").split(), key=_order)


def not_built() -> dict[str, str]:
    """Return the sentence for each area that is not built."""
    found = ((module, row.get("not_built")) for module, row in all_rows().items())
    return {module: " ".join(sentence.split()) for module, sentence in found if sentence}


def files() -> dict[Path, str]:
    """Return the modules that are made from the tables: those whose row has `about`, or no code."""
    found = {}
    for module, row in all_rows().items():
        if "about" in row:
            found[_path(module)] = _lazy(module, row) if "lazy" in row else _thin(row)
        elif "not_built" in row:
            found[_path(module)] = _refusing(module, not_built()[module])
    return found


def _path(module: str) -> Path:
    path = SOURCE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _thin(row: dict[str, Any]) -> str:
    sources = row.get("from", {})
    if isinstance(sources, str):
        sources = {sources: row["names"]}
    head = _head(row)
    lines = _imports(sources)
    return head if not lines else "\n".join([head, _FUTURE, *lines]) + "\n"


def _lazy(module: str, row: dict[str, Any]) -> str:
    """Return a package whose names and modules are imported when they are first used."""
    package = f"{ROOT}.{module}"
    built = [name for name, one in all_rows().items() if "not_built" not in one]
    below = [name.removeprefix(f"{module}.") for name in built if name.startswith(f"{module}.")]
    children = sorted(name for name in below if "." not in name)
    places = {
        name: source.removeprefix(f"{package}.")
        for source, names in row["from"].items()
        for name in names.split()
    } | dict.fromkeys(children, "")
    imports = _imports({package: " ".join(children), **row["from"]}, "    ")
    return "\n".join(
        [
            *(_head(row), _FUTURE, "from typing import TYPE_CHECKING\n"),
            *("from undaunted.base.lazy_names import lazy_names\n", "if TYPE_CHECKING:"),
            *(*imports, "", "_MODULES = {"),
            *(f'    "{name}": "{place}",' for name, place in places.items()),
            *("}", "", "__all__ = [*_MODULES]  # noqa: PLE0604 - all of them are text", ""),
            "__getattr__ = lazy_names(__name__, _MODULES)\n",
        ]
    )


def _head(row: dict[str, Any]) -> str:
    return f'{_MADE}"""{" ".join(row["about"].split())}"""\n'


def _imports(sources: dict[str, str], indent: str = "") -> list[str]:
    return [
        _import(source, name, indent)
        for source, names in sorted(sources.items())
        for name in sorted(names.split(), key=_order)
    ]


def _import(source: str, name: str, indent: str) -> str:
    line = f"{indent}from {source} import {name} as {name}"
    if hasattr(builtins, name):
        return f"{line}  # noqa: A004 - NVRx's name"
    if len(line) <= _LONGEST:
        return line
    return f"{indent}from {source} import (\n{indent}    {name} as {name},\n{indent})"


def _refusing(module: str, sentence: str) -> str:
    text = textwrap.wrap(f"undaunted has no {ROOT}.{module}. {sentence}", 90, drop_whitespace=False)
    said = "\n".join(f'    "{part}"' for part in text)
    return (
        f'{_MADE}"""Not built: importing this says so."""\n\n{_FUTURE}\n'
        f"raise ImportError(\n{said},\n    name=__name__,\n)\n"
    )


def _order(name: str) -> tuple[int, str]:
    """As ruff sorts names that are imported: constants, classes, the rest."""
    kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
    return kind, name.lower()


def modules() -> set[str]:
    """Return the modules below the package, without private ones and areas that are not built."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name and not any(part[0] == "_" for part in parts if part != "__init__"):
            found.add(name)
    return found - set(not_built())


def problems() -> list[str]:
    """Return what is stale in the tables."""
    found = []
    for name, row in all_rows().items():
        if unknown := set(row) - KEYS:
            found.append(f"{name}: unknown keys {sorted(unknown)}")
        if "not_built" in row:
            continue
        try:
            module = importlib.import_module(f"{ROOT}.{name}")
        except ImportError as error:
            found.append(f"{name}: cannot be imported: {error}")
            continue
        found += [
            f"{name}: {one} is not there" for one in names_of(row) if not hasattr(module, one)
        ]
        found += [
            f"{name}: {one} is called missing, and is there"
            for one in row.get("missing", {})
            if hasattr(module, one)
        ]
    found += [f"{name} is in no table" for name in sorted(modules() - all_rows().keys())]
    return found


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for table, heading in TABLES.items():
        found = {name: row for name, row in rows(table).items() if "not_built" not in row}
        lines = [f"## {heading}", "", "| module | provided | differs |", "|---|---|---|"]
        lines += [
            f"| `{name}` | {_names(row)} | {' '.join(_differs(row).split())} |"
            for name, row in sorted(found.items())
        ]
        parts.append("\n".join(lines) + "\n")
    lines = ["## Not built", "", "| package | |", "|---|---|"]
    lines += [f"| `{area}` | {sentence} |" for area, sentence in sorted(not_built().items())]
    return "\n".join([*parts, "\n".join(lines) + "\n"])


def _names(row: dict[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in names_of(row))


def _differs(row: dict[str, Any]) -> str:
    parts = [row["differs"]] if "differs" in row else []
    parts += [f"No `{name}`: {why}" for name, why in row.get("missing", {}).items()]
    return " ".join(parts)
