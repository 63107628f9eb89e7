"""Why the GPU of a slow rank has low clocks: heat, or power. The driver knows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from undaunted.fault_tolerance.agent.clearing import DeviceProvider, find_provider

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.health.device_memory import DeviceUse

_ANSWER_S = 10.0  # the driver takes a second or more to begin


async def throttled(environ: Mapping[str, str], pid: int) -> list[DeviceUse]:
    """Return the devices that a process uses and whose clocks are lower than they should be.

    None also where nobody can say: no driver, no answer in time, or a driver that knows the process
    by another number, as in a container.

    Args:
        environ: of the ranks.
        pid: of the process.
    """
    program = find_provider(environ)
    if not program:
        return []
    try:
        provider = DeviceProvider(program, environ)
    except OSError:
        return []
    try:
        answer = await asyncio.wait_for(provider.ask(), _ANSWER_S)
    except (OSError, ValueError, TimeoutError, asyncio.TimeoutError):
        return []
    finally:
        provider.kill()
        provider.release()
    return [device for device in answer.devices if device.throttled and pid in device.pids()]
