"""The section ``fault_tolerance`` of a YAML file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SECTION = "fault_tolerance"
# A file of settings is small; what is larger is another file, given by mistake.
_MAX_BYTES = 4 * 1024 * 1024


class MissingSectionError(ValueError):
    """A file has no section ``fault_tolerance``."""


def read_section(path: str | Path) -> dict[str, Any]:
    """Return the section as it stands, wherever in mappings and lists it is.

    Raises:
        OSError: the file cannot be read.
        MissingSectionError: it has no such section.
        ValueError: it is not YAML, or has several sections or one that is no mapping.
    """
    found = list(_sections(_load(Path(path))))
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


def _load(path: Path) -> object:
    import yaml

    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"{path} is larger than {_MAX_BYTES >> 20} MiB: not a file of settings")
    # The C loader is an order of magnitude faster where it is there.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(content, loader)  # noqa: S506 - both are safe loaders
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{path} is not YAML: {_in_one_line(error)}") from None


def _sections(document: object) -> Iterator[object]:
    """Find the sections, each object visited once: YAML's anchors can make circles."""
    seen: set[int] = set()
    waiting = [document]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict | list) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, dict) and SECTION in node:
            yield node[SECTION]
            continue
        waiting += node.values() if isinstance(node, dict) else node


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
