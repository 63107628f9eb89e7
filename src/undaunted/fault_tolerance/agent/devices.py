"""Questions to the driver of this node's devices, through a provider program.

The protocol is in `health.device_memory`. Two ask: `clearing`, whether memory is free again, and
`Throttling`, why the GPU of a slow rank has low clocks (heat, or power).
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from undaunted.base import process
from undaunted.base.child import Helper
from undaunted.base.deadline import wait_for
from undaunted.health import device_memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from undaunted.health.device_memory import DeviceUse

# A program that takes the place of the provider for NVIDIA.
PROVIDER_VARIABLE = "UNDAUNTED_DEVICE_PROVIDER"
_NVML = Path(device_memory.__file__).with_name("nvml.py")
_ANSWER_S = 10.0  # the driver takes a second or more to begin
_MOST = 8  # providers at a time; one that the driver holds up stays although it was killed


def find_provider(environ: Mapping[str, str]) -> str:
    """Return the path of the program that answers for this node's devices, "" = there are none."""
    return environ.get(PROVIDER_VARIABLE) or (str(_NVML) if device_memory.present() else "")


class DeviceProvider(Helper):
    """A provider program that runs. Its first question is sent at once."""

    def __init__(self, path: str, environ: Mapping[str, str]) -> None:
        super().__init__(process.script_command(path), environ, "the device provider")
        self._unanswered = 0
        self._send()

    async def ask(self) -> device_memory.Answer:
        """Ask for the state of the devices now.

        Raises:
            OSError: the provider is gone.
            ValueError: it said something else.
        """
        self._send()
        while True:
            line = await self.line()
            self._unanswered -= 1
            if self._unanswered == 0:  # what it said to earlier questions is old
                return device_memory.decode(line)

    def _send(self) -> None:
        self._unanswered += 1
        with contextlib.suppress(OSError):  # it is gone: the answer says so
            self.send(b"\n")


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
