"""docs/nvrx-names.md, from the tables in compat/nvidia-resiliency-ext/names.

``problems`` checks the tables against the modules: what they promise is there, what they call
missing is not, and no module is left out.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
PROJECT = REPOSITORY / "compat/nvidia-resiliency-ext"
ROOT = "nvidia_resiliency_ext"
# Tables in the order of the page, with their headings.
TABLES = {
    "fault_tolerance": "In-job restart",
    "inprocess": "Restart inside the process",
    "checkpointing": "Checkpoints",
    "attribution": "Who was it",
    "ptl_resiliency": "Lightning",
    "services": "Services",
    "shared_utils": "Tools",
}
KEYS = {"names", "differs", "missing"}
HEAD = """\
# The names of NVRx

What `nvidia_resiliency_ext` of undaunted has, module by module: the names that programs import,
and what differs from NVRx 0.4 to 0.6. How to install it, and move a job: [migration](migrate.md).
Why it is built as it is: [design](design/compat.md).

A name of NVRx that is not listed is an inner part of it that undaunted has no use for. What is not
built raises `ImportError`, so that programs that try an import go on without it.

<!-- Generated from compat/nvidia-resiliency-ext/names: make generated -->
"""


def rows(table: str) -> dict[str, dict[str, Any]]:
    """Read a table: modules below the package, each with its row."""
    path = PROJECT / "names" / f"{table}.yaml"
    found = yaml.safe_load(path.read_text()) if path.exists() else None
    return {module: row or {} for module, row in (found or {}).items()}


def not_built() -> dict[str, str]:
    """Return the sentence for each area that is not built."""
    sentences: dict[str, str] = importlib.import_module(f"{ROOT}._not_built").SENTENCES
    return sentences


def modules() -> set[str]:
    """Return the modules below the package, without private ones and areas that are not built."""
    source = PROJECT / "src" / ROOT
    found = set()
    for path in source.rglob("*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name and not any(part[0] == "_" for part in parts if part != "__init__"):
            found.add(name)
    return found - set(not_built())


def problems() -> list[str]:
    """Return what is stale in the tables."""
    found = []
    listed: set[str] = set()
    for table in TABLES:
        for name, row in rows(table).items():
            listed.add(name)
            where = f"names/{table}.yaml, {name}"
            if unknown := set(row) - KEYS:
                found.append(f"{where}: unknown keys {sorted(unknown)}")
            try:
                module = importlib.import_module(f"{ROOT}.{name}")
            except ImportError as error:
                found.append(f"{where}: cannot be imported: {error}")
                continue
            found += [
                f"{where}: {one} is not there"
                for one in row.get("names", "").split()
                if not hasattr(module, one)
            ]
            found += [
                f"{where}: {one} is called missing, and is there"
                for one in row.get("missing", {})
                if hasattr(module, one)
            ]
    found += [f"{name} is in no table" for name in sorted(modules() - listed)]
    return found


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for table, heading in TABLES.items():
        found = rows(table)
        if not found:
            continue
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
    return ", ".join(f"`{name}`" for name in row.get("names", "").split())


def _differs(row: dict[str, Any]) -> str:
    parts = [row["differs"]] if "differs" in row else []
    parts += [f"No `{name}`: {why}" for name, why in row.get("missing", {}).items()]
    return " ".join(parts)
