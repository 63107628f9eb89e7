"""In a rank: notes what its program imports, in which order, and in which environment.

The agent asks for it when training is under way (see `witness`), and has another template import
the same, so that restarts need not: see docs/design/warm-imports.md. Only installed packages are
told, and ours: modules of the user may do anything when they are imported.

Nothing in here raises, or imports: it stands in the way of all imports of the program.
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

    from undaunted.fault_tolerance.worker.messages import WorkerSpec

_INSTALLED = ("/site-packages/", "/dist-packages/")
_PYTHONS = os.path.dirname(os.__file__) + "/"  # noqa: PTH120 - pathlib need not be there
_OURS = "undaunted"
_OUR_VARIABLES = "UNDAUNTED_"
_MOST = 50_000
_MOST_BYTES = 16 * 1024 * 1024


class RankImports(msgspec.Struct, frozen=True):
    """Modules and packages that a rank has imported.

    Attributes:
        groups: installed modules.
        packages: file that each installed package begins with.
        own: packages that are neither installed nor Python's.
    """

    groups: list[Group]
    packages: dict[str, str] = {}
    own: list[str] = []


class Notes:
    """Stands before Python's own finders, is asked for each module that is new, and finds none."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._before = environment
        self._raw: object = None
        self._changes: dict[str, str | None] = {}
        self._found: dict[str, dict[str, str | None]] = {}  # a name asked for again goes last

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Note that ``name`` is about to be imported."""
        del path, target
        try:
            self._look_at_environment()
            if len(self._found) < _MOST:
                self._found.pop(name, None)
                self._found[name] = self._changes
        except Exception:  # noqa: BLE001, S110 - the program imports, whatever happens here
            pass

    def _look_at_environment(self) -> None:
        # To compare what it keeps takes a microsecond, where to copy it takes a hundred.
        raw = getattr(os.environ, "_data", None)
        if raw is None or raw != self._raw:
            self._raw = raw.copy() if raw is not None else None
            self._changes = changes(self._before, os.environ.copy())

    def tell(self) -> RankImports:
        """Return what was imported until now."""
        groups: list[Group] = []
        packages: dict[str, str] = {}
        for name, environment in list(self._found.items()):
            if not (origin := installed_file(name)):
                continue
            if not groups or groups[-1].environment != environment:
                groups.append(Group(environment, []))
            groups[-1].modules.append(name)
            if "." not in name:
                packages[name] = origin
        return RankImports(groups, packages, self._own(packages))

    def _own(self, packages: Mapping[str, object]) -> list[str]:
        names = (name for name in self._found if "." not in name and name not in packages)
        return [name for name in names if _is_own(name)]


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that are not the same, with their values; None = not set any more.

    Without ours, which are other ones in each process, and what is no text.
    """
    new: dict[str, str | None] = {k: v for k, v in now.items() if before.get(k) != v}
    new |= dict.fromkeys(before.keys() - now.keys())
    return {
        name: value
        for name, value in new.items()
        if not name.startswith(_OUR_VARIABLES) and _is_text(name + (value or ""))
    }


def _is_text(value: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def installed_file(name: str) -> str:
    """Return the file of a module that is there and installed, or ours; else ""."""
    origin = getattr(_spec(name), "origin", None)
    if not isinstance(origin, str):
        return ""
    return origin if name.partition(".")[0] == _OURS or _is_installed(origin) else ""


def _is_own(name: str) -> bool:
    """Whether a package is there, and neither installed nor Python's."""
    spec = _spec(name)
    places = [
        getattr(spec, "origin", None),
        *(getattr(spec, "submodule_search_locations", None) or ()),
    ]
    paths = [place for place in places if isinstance(place, str) and "/" in place]
    return bool(paths) and not any(
        _is_installed(path) or path.startswith(_PYTHONS) for path in paths
    )


def _is_installed(path: str) -> bool:
    return any(place in f"{path}/" for place in _INSTALLED)


def _spec(name: str) -> object:
    """Return what a module was found by; nothing is loaded by that, as some modules would be."""
    try:
        return object.__getattribute__(sys.modules.get(name), "__dict__").get("__spec__")
    except AttributeError:
        return None


_notes: Notes | None = None


def ranks_to_ask(specs: Sequence[WorkerSpec]) -> set[int]:
    """Return the local ranks of a round that are asked: the others note nothing."""
    return {specs[0].local_rank, specs[-1].local_rank}


def begin(environment: Mapping[str, str]) -> None:
    """Note the imports of this process from now on, and changes of its environment."""
    global _notes  # noqa: PLW0603 - there is one table of modules
    _notes = Notes(environment)
    sys.meta_path.insert(0, _notes)


def answer() -> bytes:
    """Return `RankImports` for the agent, and note nothing more; b"" = nothing was noted."""
    global _notes
    notes, _notes = _notes, None
    if notes is None:
        return b""
    # Another list: an import that goes through this one must not miss the next finder.
    sys.meta_path = [finder for finder in sys.meta_path if finder is not notes]
    try:
        return zlib.compress(msgspec.msgpack.encode(notes.tell()), 1)
    except Exception:  # noqa: BLE001 - restarts are slower then
        return b""


def decode(answer: bytes) -> RankImports | None:
    """Return what a rank has told; None = nothing, or nothing that can be understood."""
    try:
        data = zlib.decompressobj().decompress(answer, _MOST_BYTES)
        return msgspec.msgpack.decode(data, type=RankImports) if answer else None
    except (zlib.error, msgspec.MsgspecError):
        return None
