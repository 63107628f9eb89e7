"""Which lines are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.fault_tolerance.output.filters import DeviceListFilter

DEVICES = b"""\
Character devices:
  1 mem
195 nvidia
195 nvidiactl
511 nvidia-uvm

Block devices:
  7 loop
259 blkext
"""


def test_a_copy_of_proc_devices_is_dropped() -> None:
    keeps = DeviceListFilter()
    assert keeps(b"before\n" + DEVICES + b"after 1\n  7 loop\n") == b"before\nafter 1\n  7 loop\n"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_it_may_come_in_any_pieces_of_whole_lines(size: int) -> None:
    keeps = DeviceListFilter()
    lines = (b"before\n" + DEVICES + b"after\n").splitlines(keepends=True)
    pieces = [b"".join(lines[i : i + size]) for i in range(0, len(lines), size)]
    assert b"".join(map(keeps, pieces)) == b"before\nafter\n"


def test_lines_of_nvidia_devices_are_dropped_wherever_they_are() -> None:
    keeps = DeviceListFilter()
    assert keeps(b"195 nvidia-caps\nrank 195 nvidia card\n") == b"rank 195 nvidia card\n"


@given(st.lists(st.binary().map(lambda text: text.replace(b"\n", b"") + b"\n")))
def test_other_lines_are_kept(lines: list[bytes]) -> None:
    data = b"".join(lines)
    if b"devices:" not in data and b"nvidia" not in data:
        assert DeviceListFilter()(data) == data
