"""Which devices count, and what keeps a restart waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from undaunted.health.device_memory import (
    MIB,
    DeviceUse,
    Held,
    decode,
    describe,
    held,
    present,
    visible,
)

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1024 * MIB
DEVICES = [DeviceUse(index=i, uuid=f"GPU-{'abcd'[i]}{i}", used=i * MIB) for i in range(4)]


def indexes(environ: dict[str, str]) -> list[int]:
    return [device.index for device in visible(DEVICES, environ)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0,2", [0, 2]),
        ("3, 1", [3, 1]),
        ("", []),
        ("-1", []),
        ("1,9,2", [1]),
        ("GPU-c2,0", [2, 0]),
        ("GPU-d", [3]),
        ("GPU-", []),
        ("nonsense", []),
    ],
)
def test_visible_devices_follow_the_rules_of_the_driver(value: str, expected: list[int]) -> None:
    assert indexes({"CUDA_VISIBLE_DEVICES": value}) == expected


def test_all_devices_are_visible_without_the_variable() -> None:
    assert indexes({}) == [0, 1, 2, 3]


def test_memory_of_parts_of_a_device_is_unknown() -> None:
    found = visible(DEVICES, {"CUDA_VISIBLE_DEVICES": "MIG-0123"})
    assert [device.used for device in found] == [None] * 4


def ask(
    *devices: DeviceUse, ended: tuple[int, ...] = (7,), alive: tuple[int, ...] = (), ranks: int = 8
) -> list[Held]:
    return held(
        devices,
        set(ended),
        tolerance=512 * MIB,
        ranks=ranks,
        is_alive=lambda pid: pid in alive,
    )


def test_a_device_without_our_processes_and_with_little_memory_in_use_is_free() -> None:
    assert ask(DeviceUse(index=0, used=512 * MIB)) == []


def test_a_listed_process_of_the_round_is_waited_for_whatever_the_memory() -> None:
    found = ask(DeviceUse(index=1, used=0, processes={"7": None}))
    assert found == [Held(index=1, pids=(7,), used=0)]


def test_memory_in_use_is_waited_for_where_processes_are_not_listed() -> None:
    """As in most containers."""
    assert ask(DeviceUse(index=0, used=2 * GIB)) == [Held(index=0, used=2 * GIB)]


def test_what_other_living_processes_hold_is_not_waited_for() -> None:
    busy = DeviceUse(index=0, used=3 * GIB, processes={"100": 3 * GIB})
    assert ask(busy, alive=(100,)) == []
    assert ask(busy) == [Held(index=0, used=3 * GIB)], "nobody can see 100: it may be one of ours"


def test_memory_is_looked_at_only_on_as_many_devices_as_there_are_ranks() -> None:
    devices = [DeviceUse(index=i, used=2 * GIB) for i in range(2)]
    assert [one.index for one in ask(*devices, ranks=1)] == [0]


def test_a_device_that_cannot_be_asked_is_not_waited_for() -> None:
    assert ask(DeviceUse(index=0, problem="GPU is lost")) == []


def test_the_line_says_who_holds_what() -> None:
    found = [Held(index=0, pids=(7, 8), used=2 * GIB), Held(index=3, used=600 * MIB)]
    names = {7: "python"}
    assert describe(found, lambda pid: names.get(pid, "")) == (
        "GPU 0: 2048 MiB in use, pid 7 (python), 8 (ended) listed; GPU 3: 600 MiB in use"
    )


def test_answers_of_providers() -> None:
    answer = decode(b'{"devices": [{"index": 0, "used": 5, "processes": {"7": null}}]}\n')
    assert answer.devices == [DeviceUse(index=0, used=5, processes={"7": None})]
    assert decode(b'{"error": "no driver"}').error == "no driver"


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"devices": [{}]}', b"\xff\x00"])
def test_anything_else_is_no_answer(line: bytes) -> None:
    with pytest.raises(ValueError, match="no answer"):
        decode(line)


def test_devices_are_found_by_their_files(tmp_path: Path) -> None:
    assert not present(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    assert not present(tmp_path), "a driver without a device"
    (tmp_path / "dev" / "nvidia0").touch()
    assert present(tmp_path)
