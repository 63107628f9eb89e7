"""What the front and signals say."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

from undaunted.fault_tolerance.agent.outside import Outside
from undaunted.fault_tolerance.run_config import STOP_SIGNALS


class Heard:
    def __init__(self) -> None:
        self.words: list[str] = []
        self.gone = asyncio.Event()

    def stop(self, number: int, again: bool) -> None:
        self.words.append(signal.Signals(number).name + (" again" if again else ""))

    def kill(self) -> None:
        self.words.append("kill")

    def front_gone(self) -> None:
        self.gone.set()


def listen(*, said: bytes, own: int = 0) -> list[str]:
    async def main() -> list[str]:
        front, agent = socket.socketpair()
        heard = Heard()
        with front, agent:
            outside = Outside(
                agent, STOP_SIGNALS, stop=heard.stop, kill=heard.kill, front_gone=heard.front_gone
            )
            outside.open()
            if own:
                os.kill(os.getpid(), own)
                await asyncio.sleep(0)
            front.send(said)
            front.shutdown(socket.SHUT_RDWR)
            await asyncio.wait_for(heard.gone.wait(), 10)
            outside.close()
        return heard.words

    return asyncio.run(main())


def test_a_second_interrupt_means_kill() -> None:
    assert listen(said=bytes([signal.SIGINT, signal.SIGINT])) == ["SIGINT", "kill"]


def test_a_signal_that_comes_twice_is_told_as_such() -> None:
    said = bytes([signal.SIGTERM, signal.SIGHUP, signal.SIGTERM])
    assert listen(said=said) == ["SIGTERM", "SIGHUP", "SIGTERM again"]


def test_the_agents_own_signals_count_as_well() -> None:
    assert "SIGTERM" in listen(said=bytes([signal.SIGHUP]), own=signal.SIGTERM)[:2]
