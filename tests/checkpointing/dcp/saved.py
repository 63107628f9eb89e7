"""Checkpoints in a folder, made with nothing but the torch side: what the writer would do."""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, Any

from undaunted.agreement.agreement import Alone
from undaunted.checkpointing.dcp.saving import Planned, Saver, Staged
from undaunted.checkpointing.errors import AGREED
from undaunted.checkpointing.format.manifest import FORMAT_VERSION, File, Manifest
from undaunted.checkpointing.memory.arena import Arena

if TYPE_CHECKING:
    from pathlib import Path

BLOCK_BYTES = 1 << 12


def alone() -> Alone:
    return Alone("session", AGREED)


def write(folder: Path, staged: Staged, arena: Arena) -> None:
    """Write the files of one rank from its arena."""
    folder.mkdir(exist_ok=True)
    for image in staged.files:
        content = arena.memory[image.offset : image.offset + image.size]
        (folder / image.name).write_bytes(content)


def checksums(content: bytes, block_bytes: int = BLOCK_BYTES) -> str:
    blocks = (content[at : at + block_bytes] for at in range(0, len(content), block_bytes))
    return "".join(f"{zlib.crc32(block):08x}" for block in blocks)


def manifest_of(folder: Path, world_size: int = 1, block_bytes: int = BLOCK_BYTES) -> Manifest:
    """The manifest of what lies in a folder."""
    files = {}
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        files[path.name] = File(size=len(content), crc32=checksums(content, block_bytes))
    return Manifest(
        format=FORMAT_VERSION,
        step=1,
        epoch=0,
        world_size=world_size,
        session="session",
        attempt=0,
        structure="",
        block_bytes=block_bytes,
        files=files,
        saved_at=time.time(),
        writer="test",
    )


def save(folder: Path, state: dict[str, Any], saver: Saver | None = None) -> Planned:
    """Save the state of the only rank."""
    planned = (saver or Saver(alone())).plan(state, 10)
    arena = Arena.create("test", planned.arena_bytes() + (1 << 20))
    try:
        staged = planned.stage(arena)
        write(folder, staged, arena)
        (folder / ".metadata").write_bytes(planned.metadata([staged.report]))
    finally:
        arena.close()
    return planned


class Folder:
    """The part of a storage that loading needs; the step does not matter."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = str(path)
        self.shared: dict[str, bool] = {}  # by file, as it was opened last

    def open(self, step: int, name: str, *, shared: bool = False) -> Opened:
        self.shared[name] = shared
        return Opened(self.path / name)

    def locate(self, step: int) -> str:
        return str(self.path)


class Opened:
    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        self._file.seek(offset)
        if self._file.readinto(buffer) != len(buffer):
            raise EOFError(f"{self._file.name} ends early")

    def close(self) -> None:
        self._file.close()
