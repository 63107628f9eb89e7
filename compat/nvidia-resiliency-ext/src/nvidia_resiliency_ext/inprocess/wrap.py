"""The wrapper that makes a function restartable, and one call of it."""

from __future__ import annotations

from typing import Any

from undaunted.inprocess import wrap
from undaunted.inprocess.wrap import CallWrapper as CallWrapper


class Wrapper(wrap.Wrapper):
    """That of undaunted. With the store that is NVRx's default, every iteration has a fresh one."""

    def make_base_store(self) -> Any:
        """Return the store of another ``store_factory``; None = there is none."""
        from nvidia_resiliency_ext.inprocess.store import TCPStore

        return None if self.store_factory is TCPStore else super().make_base_store()
