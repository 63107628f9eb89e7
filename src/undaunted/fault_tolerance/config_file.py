"""Settings from YAML: the section ``fault_tolerance`` of a file, or all options of a command."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from undaunted.base.deadline import within

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from yaml.nodes import Node

SECTION = "fault_tolerance"
# Name of the file `elastic_launch` makes of an object; messages call it so, its user knows no path.
OF_A_CALL = "fault_tol_cfg"
# A file of settings is small; what is larger is another file, given by mistake.
_MAX_BYTES = 4 * 1024 * 1024
_READ_S = 10.0


class MissingSectionError(ValueError):
    """A file has no section ``fault_tolerance``."""


def read_section(path: str | Path) -> dict[str, Any]:
    """Return the section as it stands, wherever in mappings and lists it is.

    Raises:
        OSError: the file cannot be read.
        MissingSectionError: it has no such section.
        ValueError: it is not YAML, has several sections, or one that is no mapping or gives a
            setting twice.
    """
    found = list(_sections(_load(Path(path), SECTION)))
    if not found:
        raise MissingSectionError(f"{path} has no section {SECTION!r}; put the settings under it")
    if len(found) > 1:
        raise ValueError(f"{path} has {len(found)} sections {SECTION!r}; keep one of them")
    section = found[0]
    if section is None:  # all of its lines are comments
        return {}
    if not isinstance(section, dict):
        raise ValueError(f"{path}: {SECTION!r} is {section!r}, not settings such as NAME: VALUE")  # noqa: TRY004
    wrong = [key for key in section if not isinstance(key, str)]
    if wrong:
        raise ValueError(f"{path}: {wrong[0]!r} in {SECTION!r} is not the name of a setting")
    return section


def read_texts(path: str | Path) -> dict[str, Any]:
    """Return a whole file: texts as they are written, lists and mappings of them, by name.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not YAML, is no mapping, or has a name twice.
    """
    document = _load(Path(path), "", as_text=True) or {}
    if not isinstance(document, dict):
        raise ValueError(f"{path} has no lines such as NAME: VALUE")  # noqa: TRY004
    return document


def write_section(path: str | Path, values: Mapping[str, Any]) -> None:
    """Write a file that has only this section, mode 0600; an old one is replaced.

    Raises:
        OSError: it cannot be written.
    """
    import yaml

    text = yaml.safe_dump({SECTION: dict(values)}, sort_keys=False)
    temporary = Path(f"{path}.tmp-{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _load(path: Path, section: str, *, as_text: bool = False) -> object:
    """Return what is in a file.

    Args:
        path: of the file.
        section: in which no name may come twice; "" = the whole file.
        as_text: leave values as they are written; YAML takes 2:4 for 124, and ``on`` for true.
    """
    import yaml

    content = _read(path)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"{path} is larger than {_MAX_BYTES >> 20} MiB: not a file of settings")
    # The C loader is an order of magnitude faster where it is there.
    name = "BaseLoader" if as_text else "SafeLoader"
    loader_class = getattr(yaml, f"C{name}", None) or getattr(yaml, name)
    try:
        loader = loader_class(content)
        try:
            document = loader.get_single_node()
            twice = _given_twice(document, section)
            found = None if document is None or twice else loader.construct_document(document)
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{path} is not YAML: {_in_one_line(error)}") from None
    if twice:
        where = f" in {section!r}" if section else ""
        raise ValueError(f"{path}: {twice!r} is given twice{where}; keep one of them")
    return cast("object", found)


def _read(path: Path) -> bytes:
    """Read a file that may be the end of a pipe, or lie on a file system that hangs."""

    def attempt() -> bytes | OSError:
        try:
            with path.open("rb") as file:
                return file.read(_MAX_BYTES + 1)
        except OSError as error:
            return error

    late: bytes | OSError = OSError(errno.ETIMEDOUT, f"no answer within {_READ_S:g} s")
    content = within(_READ_S, attempt, late)
    if isinstance(content, OSError):
        raise content
    return content


def _given_twice(document: Node | None, section: str) -> str:
    """Return a name that a mapping in the section has twice, of which YAML would take the last."""
    seen: set[int] = set()
    waiting: list[tuple[Any, bool]] = [(document, not section)]
    while waiting:
        node, inside = waiting.pop()
        if node is None or isinstance(node.value, str) or id(node) in seen:
            continue
        seen.add(id(node))
        if node.id == "sequence":
            waiting += [(each, inside) for each in node.value]
            continue
        names = [str(key.value) for key, _ in node.value]
        if inside and (twice := [name for name in names if names.count(name) > 1]):
            return twice[0]
        pairs = zip(names, node.value, strict=True)
        waiting += [(value, inside or name == section) for name, (_, value) in pairs]
    return ""


def _sections(document: object) -> Iterator[object]:
    """Find the sections, each object visited once: YAML's anchors can make circles."""
    seen: set[int] = set()
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict | list) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, dict):
            if SECTION in node:
                yield node[SECTION]
            waiting += [value for key, value in node.items() if key != SECTION]
        else:
            waiting += node


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
