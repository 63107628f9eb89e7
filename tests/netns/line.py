"""A bad line between two network namespaces: frames come late, or not at all.

    python line.py PID NAME PID NAME DELAY_S LOSS

It is one device (TAP) in the namespace of each process, and what one of them sends comes out of the
other. It ends with its standard input. Kernels can do the same (netem), but many are built without.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

TUN = "/dev/net/tun"
_TUNSETIFF, _TAP, _NO_HEADER = 0x400454CA, 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_FRAME = 1 << 16


def device(pid: str, name: str) -> int:
    """Make a device in the namespace of a process; return its descriptor."""
    with open(f"/proc/{pid}/ns/net") as space:  # noqa: PTH123 - for its descriptor
        if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns: {pid}")
    made = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(made, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP | _NO_HEADER))
    return made


def carry(ends: tuple[int, int], delay_s: float, loss: float) -> None:
    """Carry frames both ways until standard input ends."""
    other = dict(zip(ends, reversed(ends), strict=True))
    chance = random.Random(1)
    under_way: list[tuple[float, int, int, bytes]] = []  # when they come, and their order
    count = 0
    while True:
        wait_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        readable, _, _ = select.select([0, *ends], [], [], wait_s)
        if 0 in readable:
            return
        for end in readable:
            try:
                frame = os.read(end, _FRAME)
            except OSError:  # the device is down
                continue
            count += 1
            if chance.random() >= loss:
                heapq.heappush(under_way, (time.monotonic() + delay_s, count, other[end], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(under_way)
            try:
                os.write(end, frame)
            except OSError:  # the device is down
                continue


if __name__ == "__main__":
    first, second = device(*sys.argv[1:3]), device(*sys.argv[3:5])
    print("ready", flush=True)
    carry((first, second), float(sys.argv[5]), float(sys.argv[6]))
