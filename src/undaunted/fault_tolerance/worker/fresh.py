"""A worker that starts without the template: reads its spec and goes on like a forked one."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.fault_tolerance.worker import messages

if TYPE_CHECKING:
    from undaunted.fault_tolerance.worker.spec import WorkerSpec


def read_spec(fd: int) -> WorkerSpec:
    """Read this worker's spec from the descriptor the agent passed; the environment is ours.

    Ends the process if the agent is no longer the parent.
    """
    with os.fdopen(fd, "rb") as file:
        body = file.read(messages.MAX_BODY)
    message = messages.decode(body)
    assert isinstance(message, messages.Fork), "the agent puts one Fork into it"
    (spec,) = message.specs
    if not process.die_with_parent(spec.agent_pid):
        sys.exit(1)
    return spec
