"""Records of logs on disk: none that was kept is lost."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING

import pytest

from tests.coordinator.wire.talk import on_loop
from undaunted.services import ledger as module
from undaunted.services.ledger import Ledger, LedgerError
from undaunted.services.results import Log

if TYPE_CHECKING:
    from pathlib import Path


def again(directory: Path) -> list[Log]:
    ledger = Ledger(directory)
    try:
        return ledger.read()
    finally:
        ledger.close()


@on_loop
async def test_records_are_there_when_keep_returns(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "state" / "serve")
    assert ledger.read() == []
    logs = [Log(f"/{number}", number, wanted=True) for number in range(20)]
    await asyncio.gather(*(ledger.keep(log, lambda: logs) for log in logs))
    ledger.close()
    assert again(tmp_path / "state" / "serve") == logs
    for path in (tmp_path / "state" / "serve").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "state" / "serve").stat().st_mode & 0o777 == 0o700


@on_loop
async def test_those_that_come_together_are_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(module.os, "fsync", synced.append)
    ledger = Ledger(tmp_path)
    logs = [Log(f"/{number}") for number in range(100)]
    await asyncio.gather(*(ledger.keep(log, lambda: logs) for log in logs))
    ledger.close()
    assert 0 < len(synced) <= 3
    assert again(tmp_path) == logs


@on_loop
async def test_lines_that_are_cut_off_or_damaged_are_passed_over(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    await ledger.keep(Log("/a"), list)
    with (tmp_path / "ledger.jsonl").open("ab") as file:
        file.write(b'{"path": 7}\nno json\n\xff\n[[[[\n{"path":"/b"}\n{"path":"/c","wan')
    before = (tmp_path / "ledger.jsonl").read_bytes()
    logs = ledger.read()
    assert logs == [Log("/a"), Log("/b")]
    assert ledger.damaged is not None
    assert ledger.damaged.read_bytes() == before
    ledger.write_anew(logs)
    assert (tmp_path / "ledger.jsonl").read_bytes() == b'{"path":"/a"}\n{"path":"/b"}\n'
    ledger.close()


@on_loop
async def test_a_last_line_that_is_cut_off_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_bytes(b'{"path":"/a"}\n{"path":"/c","wan')
    ledger = Ledger(tmp_path)
    assert (ledger.read(), ledger.damaged) == ([Log("/a")], None)
    ledger.close()


@on_loop
async def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ledger.jsonl")
    ledger = Ledger(tmp_path)
    with pytest.raises(module.LedgerError, match="no file"):
        ledger.read()
    ledger.close()


@on_loop
async def test_a_long_ledger_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FEW", 10)
    ledger = Ledger(tmp_path)
    for number in range(200):
        log = Log("/a", number)
        await ledger.keep(log, lambda log=log: [log])
        lines = (tmp_path / "ledger.jsonl").read_bytes().count(b"\n")
        assert lines <= 16
    ledger.close()
    assert again(tmp_path)[-1] == Log("/a", 199)


@on_loop
async def test_a_full_disk_is_said_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path)
    await ledger.keep(Log("/a"), list)
    write = os.write

    def fill(fd: int, content: bytes) -> int:
        if len(content) > 4:
            return write(fd, content[:4])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "write", fill)
    with pytest.raises(OSError, match="No space left"):
        await ledger.keep(Log("/b"), list)
    assert ledger.problem == "No space left on device"
    assert ledger.read() == [Log("/a")]
    monkeypatch.undo()
    await ledger.keep(Log("/c"), list)
    assert ledger.problem == ""
    assert ledger.read() == [Log("/a"), Log("/b"), Log("/c")]
    ledger.close()


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@on_loop
async def test_what_waits_for_a_full_disk_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = os.write
    ledger = Ledger(tmp_path)
    monkeypatch.setattr(module.os, "write", full)
    for number in range(100):
        with pytest.raises(OSError, match="No space left"):
            await ledger.keep(Log(f"/{number % 2}", number), list)
    monkeypatch.setattr(
        module.os, "write", lambda fd, part: written.append(len(part)) or write(fd, part)
    )
    await ledger.keep(Log("/a"), list)
    ledger.close()
    assert again(tmp_path) == [Log("/0", 98), Log("/1", 99), Log("/a")]
    assert written == [(tmp_path / "ledger.jsonl").stat().st_size]


@on_loop
async def test_a_start_on_a_full_disk_waits_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ledger.jsonl").write_bytes(b'{"path":"/a"}\n{"path":"/c","wan')
    ledger = Ledger(tmp_path)
    monkeypatch.setattr(module.os, "write", full)
    ledger.write_anew(logs := ledger.read())
    assert (logs, ledger.problem) == ([Log("/a")], "No space left on device")
    with pytest.raises(OSError, match="No space left"):
        await ledger.keep(Log("/b"), lambda: [*logs, Log("/b")])
    monkeypatch.undo()
    await ledger.keep(Log("/b"), lambda: [*logs, Log("/b")])
    ledger.close()
    assert (ledger.problem, again(tmp_path)) == ("", [Log("/a"), Log("/b")])


@on_loop
async def test_a_damaged_ledger_on_a_full_disk_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ledger.jsonl").write_bytes(b'{"path":"/a"}\nno json\n')
    ledger = Ledger(tmp_path)
    monkeypatch.setattr(module.os, "write", full)
    logs = ledger.read()
    with pytest.raises(LedgerError, match="No space left"):
        ledger.write_anew(logs)
    ledger.close()
    monkeypatch.undo()
    ledger = Ledger(tmp_path)
    ledger.write_anew(ledger.read())
    await ledger.keep(Log("/b"), list)
    monkeypatch.setattr(module.os, "write", full)
    ledger.write_anew(logs)  # at the end: the newer file stays
    ledger.close()
    assert again(tmp_path) == [Log("/a"), Log("/b")]


def test_one_service_to_a_directory(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    with pytest.raises(LedgerError, match="in use by another service"):
        Ledger(tmp_path)
    ledger.close()
    Ledger(tmp_path).close()


def test_directories_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="file"):
        Ledger(tmp_path / "file")
    (tmp_path / "ledger.jsonl").mkdir()
    ledger = Ledger(tmp_path)
    with pytest.raises(LedgerError, match=r"ledger\.jsonl"):
        ledger.read()
    with pytest.raises(LedgerError, match=r"ledger\.jsonl"):
        ledger.write_anew([])
    ledger.close()
