"""The rank's side of the mailbox: rare requests to the agent, each with a deadline."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from time import monotonic_ns
from typing import TYPE_CHECKING

from undaunted.base.descriptors import identity, is_still
from undaunted.progress import layout, record

if TYPE_CHECKING:
    from collections.abc import Callable

# How often the page is looked at for a reply where no eventfd tells of it.
_POLL_S = 0.05


class Mailbox:
    """Sends requests through one page, one after another.

    Args:
        page: the page, as bytes.
        kick: wakes the agent.
        ack_fd: eventfd the agent writes after it answered, -1 = none.
    """

    def __init__(self, page: memoryview, kick: Callable[[], None], ack_fd: int) -> None:
        self._page = page
        self._kick = kick
        self._ack_fd, self._ack_file = ack_fd, identity(ack_fd)
        self._busy = threading.Lock()

    def request(self, payload: bytes, timeout_s: float) -> bytes:
        """Ask and wait for the answer; see `PageWriter.request`."""
        if len(payload) > layout.REQUEST_BYTES:
            raise ValueError(
                f"a request of {len(payload)} bytes is too long, {layout.REQUEST_BYTES} is the most"
            )
        deadline_ns = monotonic_ns() + round(timeout_s * 1e9)
        if not self._busy.acquire(timeout=max(0.0, timeout_s)):
            raise TimeoutError(f"another thread's request took longer than {timeout_s:g} s")
        try:
            number = self._send(payload)
            while (left_s := (deadline_ns - monotonic_ns()) / 1e9) > 0:
                found = record.read(self._page, layout.REPLY, layout.REPLY_BYTES)
                if found and found[0] == number:
                    return found[1]
                self._wait_for_ack(left_s)
        finally:
            self._busy.release()
        raise TimeoutError(f"the launcher did not answer within {timeout_s:g} s")

    def _send(self, payload: bytes) -> int:
        # The number before is the page's, not ours: another process may have had the page. Modulo,
        # as it may be garbage.
        number: int = self._page.cast("Q")[layout.REQUEST + 1] % 2**32 + 1
        record.write(self._page, layout.REQUEST, number, payload)
        self._kick()
        return number

    def _wait_for_ack(self, left_s: float) -> None:
        poll = select.poll()
        if not is_still(self._ack_fd, self._ack_file):
            poll.poll(min(left_s, _POLL_S) * 1000)
            return
        poll.register(self._ack_fd, select.POLLIN)
        if poll.poll(left_s * 1000):
            with contextlib.suppress(OSError):
                os.eventfd_read(self._ack_fd)
