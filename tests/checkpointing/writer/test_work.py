"""The jobs of a writer process, done in this one."""

from __future__ import annotations

import queue
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.checkpointing.writer.processes import BLOCK, LONG_S
from undaunted.checkpointing.files import places
from undaunted.checkpointing.format.image import Image
from undaunted.checkpointing.writer.connection import Connection
from undaunted.checkpointing.writer.messages import Failed, FromWriter, Write, Written
from undaunted.checkpointing.writer.options import WriterOptions
from undaunted.checkpointing.writer.page import Page, create
from undaunted.checkpointing.writer.work import Work, Worker

if TYPE_CHECKING:
    from pathlib import Path

    from undaunted.checkpointing.files.blocks import WriteOptions

MEMORY = memoryview(bytes(range(256)) * 1024)  # 256 KiB


@pytest.fixture
def page():
    page = Page(create())
    yield page
    page.close()


@pytest.fixture
def trainer(page: Page, tmp_path: Path):
    """The trainer's end of a connection to a worker that runs on a thread."""
    ours, theirs = socket.socketpair()
    works: queue.SimpleQueue[Work] = queue.SimpleQueue()
    worker = Worker(str(tmp_path), WriterOptions(threads=2, bandwidth=1e12), page, theirs)
    thread = threading.Thread(target=worker.run, args=(works,))
    thread.start()
    connection = Connection(ours, FromWriter)
    connection.works = works  # type: ignore[attr-defined]
    yield connection
    connection.close()
    theirs.shutdown(socket.SHUT_RDWR)
    works.put(Work(Write(99, 0, str(tmp_path), [], BLOCK), MEMORY))  # cannot be answered
    thread.join(LONG_S)
    theirs.close()


def work(target: Path | str, *files: Image, memory: memoryview | None = MEMORY) -> Work:
    return Work(Write(7, 0, str(target), list(files), BLOCK), memory)


def answer(trainer: Connection, what: Work) -> Written | Failed:
    trainer.works.put(what)
    (found,) = trainer.receive() or ()
    assert isinstance(found, Written | Failed)
    assert what.memory is None
    return found


def test_written(trainer: Connection, page: Page, tmp_path: Path) -> None:
    before = time.monotonic()
    found = answer(trainer, work(tmp_path / "a", Image("x", 0, 3 * BLOCK), Image("y", 4096, 5)))
    assert isinstance(found, Written)
    assert (found.bytes, list(found.crc32)) == (3 * BLOCK + 5, ["x", "y"])
    assert (tmp_path / "a" / "y").read_bytes() == bytes(MEMORY[4096:4101])
    progress = page.look()
    assert (progress.job, progress.bytes) == (7, 3 * BLOCK + 5)
    assert before <= progress.at_s <= time.monotonic()


def test_what_was_begun_is_removed(trainer: Connection, tmp_path: Path) -> None:
    (tmp_path / "a" / "y").mkdir(parents=True)
    found = answer(trainer, work(tmp_path / "a", Image("x", 0, 5), Image("y", 0, 5)))
    assert isinstance(found, Failed)
    assert found.message.startswith(f"{tmp_path}/a/y: Is a directory [EISDIR]")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["y"]


def test_cancelled_before_it_began(trainer: Connection, tmp_path: Path) -> None:
    given_up = work(tmp_path / "a", Image("x", 0, 5))
    given_up.cancelled.set()
    assert answer(trainer, given_up) == Failed(f"{tmp_path}/a: cancelled")
    assert not (tmp_path / "a").exists()


def test_what_makes_no_sense(trainer: Connection, tmp_path: Path) -> None:
    found = answer(trainer, work(tmp_path / "a", memory=None))
    assert found == Failed(f"{tmp_path}/a: ValueError: there is no arena in slot 0")


def test_objects_go_through_their_storage(
    trainer: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Objects:
        def write(self, target, image, memory, wrote) -> str:
            wrote(image.size)
            return f"{target} {image.name} {len(memory)}"

    opened: list[tuple[str, int]] = []

    def open_storage(url: str, options: WriteOptions) -> Objects:
        opened.append((url, options.threads))
        return Objects()

    monkeypatch.setattr(places, "open_storage", open_storage)
    for _ in range(2):
        found = answer(trainer, work("s3://bucket/a", Image("x", 0, 5)))
        assert isinstance(found, Written)
        assert found.crc32 == {"x": f"s3://bucket/a x {len(MEMORY)}"}
    assert opened == [(str(tmp_path), 2)]
