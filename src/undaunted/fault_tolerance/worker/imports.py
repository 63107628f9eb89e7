"""The template's imports, and what each of them left behind that would make forking unsafe."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass, field
from typing import Any

from undaunted.base.process import thread_count

# Files below /dev that are no devices with state of their own, or are everybody's.
_HARMLESS = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/pts/",
    "/dev/ptmx",
    "/dev/console",
    "/dev/shm/",  # noqa: S108 - nothing is created there
    "/dev/mqueue/",
)


@dataclass
class Imports:
    """What was imported, what failed with which error, and who is to blame for what.

    ``blame`` maps what was found after an import ("a thread", a device file) to the module.
    """

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    blame: dict[str, str] = field(default_factory=dict)

    def load(self, name: str) -> None:
        """Import ``name``; a failure, of whatever kind, is noted."""
        try:
            _import(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the user's module
            self.failed[name] = f"{type(error).__name__}: {error}"
        else:
            self.done.append(name)
        for finding in _unsafe():
            self.blame.setdefault(finding, name)

    def objection(self) -> str:
        """Return why this process may not fork workers, or ""."""
        findings = [
            f"{finding} (since the import of {self.blame[finding]})"
            if finding in self.blame
            else finding
            for finding in _unsafe()
        ]
        return f"the template has {', '.join(findings)}" if findings else ""


def _import(name: str) -> None:
    """Import a module, or accept that ``a.b`` names an attribute of module ``a``."""
    parent, _, last = name.rpartition(".")
    if parent in sys.modules and hasattr(sys.modules[parent], last):
        return
    importlib.import_module(name)


def _unsafe() -> list[str]:
    """Return what this process has that a forked worker could not share."""
    found = []
    if (count := thread_count()) > 1:
        found.append(f"{count} threads")
    found += [f"{path} open" for path in open_devices()]
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "cuda") and torch.cuda.is_initialized():
        found.append("CUDA initialised")
    return found


def open_devices() -> list[str]:
    """Return the device files this process has open, standard streams apart."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            continue
        if path.startswith("/dev/") and int(name) > 2 and not path.startswith(_HARMLESS):
            found.add(path)
    return sorted(found)
