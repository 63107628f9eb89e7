"""The identity of this machine."""

from __future__ import annotations

from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return what is the same for processes of one machine until it starts anew.

    Raises:
        OSError: the kernel does not tell.
    """
    return _BOOT_ID.read_text(encoding="ascii").strip()
