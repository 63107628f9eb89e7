"""In a rank: notes what its program imports, in which order, and in which environment.

The agent asks for it when training is under way (see `witness`), and has another template import
the same, so that restarts need not: see docs/design/warm-imports.md. Only installed packages are
told, and ours: modules of the user may do anything when they are imported.
"""

from __future__ import annotations

import os
import sys
import zlib
from typing import TYPE_CHECKING

import msgspec

from undaunted.fault_tolerance.worker.messages import Group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

# Parts of torch are imported late, and read variables that a program sets after `import torch`.
_LATE = "torch"
_INSTALLED = ("/site-packages/", "/dist-packages/")
_OURS = "undaunted"
_OURS_SET = "UNDAUNTED_"
_MOST = 50_000
MOST_BYTES = 16 * 1024 * 1024


class Told(msgspec.Struct, frozen=True):
    """What a rank has imported. ``packages``: time and size of the file that each begins with."""

    groups: list[Group]
    packages: dict[str, tuple[int, int]] = {}


class Notes:
    """Stands before Python's own finders, is asked for each module that is new, and finds none."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._before = environment
        self._changes: dict[str, str | None] = {}
        self._found: list[tuple[str, dict[str, str | None]]] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Note that ``name`` is about to be imported."""
        del path, target
        package, _, rest = name.partition(".")
        if not rest or (package == _LATE and "." not in rest):
            self._changes = changes(self._before, os.environ)
        if len(self._found) < _MOST:
            self._found.append((name, self._changes))

    def tell(self) -> Told:
        """Return what was imported until now."""
        groups: list[Group] = []
        packages: dict[str, tuple[int, int]] = {}
        seen = set()
        for name, environment in list(self._found):
            if name in seen or not (origin := _origin(name)):
                continue
            seen.add(name)
            if not groups or groups[-1].environment != environment:
                groups.append(Group(environment, []))
            groups[-1].modules.append(name)
            if "." not in name:
                packages[name] = _stamp(origin)
        return Told(groups, packages)


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that are not the same, with their values; None = not set any more.

    Ours do not count: they are another one in each process.
    """
    now = dict(after)
    new: dict[str, str | None] = {k: v for k, v in now.items() if before.get(k) != v}
    new |= dict.fromkeys(before.keys() - now.keys())
    return {name: value for name, value in new.items() if not name.startswith(_OURS_SET)}


def _origin(name: str) -> str:
    """Return the file of a module that is there and installed, else ""."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    origin = getattr(spec, "origin", None)
    if not isinstance(origin, str):
        return ""
    ours = name.partition(".")[0] == _OURS
    return origin if ours or any(place in origin for place in _INSTALLED) else ""


def _stamp(origin: str) -> tuple[int, int]:
    try:
        about = os.stat(origin)  # noqa: PTH116 - pathlib need not be there
    except OSError:
        return 0, 0
    return about.st_mtime_ns, about.st_size


_notes: Notes | None = None


def begin(environment: Mapping[str, str]) -> None:
    """Note the imports of this process from now on, and changes of its environment."""
    global _notes  # noqa: PLW0603 - there is one table of modules
    _notes = Notes(environment)
    sys.meta_path.insert(0, _notes)


def answer() -> bytes:
    """Return `Told` for the agent, and note nothing more; b"" = nothing was noted."""
    global _notes
    notes, _notes = _notes, None
    if notes is None:
        return b""
    if notes in sys.meta_path:
        sys.meta_path.remove(notes)
    return zlib.compress(msgspec.msgpack.encode(notes.tell()), 1)


def decode(answer: bytes) -> Told | None:
    """Return what a rank has told; None = nothing, or nothing that can be understood."""
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(answer, MOST_BYTES)
        return msgspec.msgpack.decode(data, type=Told) if answer else None
    except (zlib.error, msgspec.MsgspecError):
        return None
