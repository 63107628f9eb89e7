"""Why the GPU of a slow rank has low clocks: heat, or power. The driver knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.base.deadline import wait_for
from undaunted.fault_tolerance.agent.clearing import DeviceProvider, find_provider

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.health.device_memory import DeviceUse

_ANSWER_S = 10.0  # the driver takes a second or more to begin
_MOST = 8  # providers at a time; one that the driver holds up stays although it was killed


class Throttling:
    """Asks the driver. Owns the provider programs that it starts.

    Args:
        environ: of the ranks.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._providers: list[DeviceProvider] = []

    def pids(self) -> set[int]:
        """The provider programs that run: they belong to no round."""
        self._providers = [each for each in self._providers if not each.reap()]
        return {each.pid for each in self._providers}

    def close(self) -> None:
        """End the programs, and hold nothing any more."""
        for provider in self._providers:
            provider.kill()
            provider.release()
        self._providers.clear()

    async def devices(self, pid: int) -> list[DeviceUse]:
        """Return the devices that a process uses and whose clocks are lower than they should be.

        None also where nobody can say: no driver, no answer in time, or a driver that knows the
        process by another number, as in a container.
        """
        program = find_provider(self._environ)
        if not program or len(self.pids()) >= _MOST:
            return []
        try:
            provider = DeviceProvider(program, self._environ)
        except OSError:
            return []
        self._providers.append(provider)
        try:
            answer = await wait_for(provider.ask(), _ANSWER_S)
        except (OSError, ValueError):
            return []
        finally:
            provider.kill()
        return [device for device in answer.devices if device.throttled and pid in device.pids()]
