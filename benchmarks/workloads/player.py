"""What every workload does after its first line: tell the benchmark, then do as it says.

Lines to the benchmark: ``line RANK ROUND PID NS``, ``dying NS``, ``beating NS``, ``hanging NS``
(the time of the last heartbeat). Lines from it: ``exit``, ``kill``, ``raise``, ``beat PERIOD_S``
and then ``hang`` or ``exit``.
"""

from __future__ import annotations

# The C module: importing `socket` takes milliseconds, eight times over on two cores.
import _socket
import os
import signal
import time
from collections.abc import Callable  # noqa: TC003 - importing typing takes milliseconds


def play(first_line_ns: int) -> None:
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.connect(os.environ["BENCHMARK_SOCKET"])
    # NVRx counts its cycles itself; torchrun and undaunted set this one.
    round_ = os.environ["TORCHELASTIC_RESTART_COUNT"]
    say(connection, f"line {os.environ['RANK']} {round_} {os.getpid()} {first_line_ns}")
    order, _, argument = connection.recv(100).decode().strip().partition(" ")
    if order == "kill":
        say(connection, f"dying {time.monotonic_ns()}")
        os.kill(os.getpid(), signal.SIGKILL)
    elif order == "raise":
        say(connection, f"dying {time.monotonic_ns()}")
        raise RuntimeError("the benchmark asked for this exception")
    elif order == "beat":
        beat(connection, float(argument))
    elif order != "exit":
        raise ValueError(f"order {order!r} from the benchmark is none of exit, kill, raise, beat")


def say(connection: _socket.socket, line: str) -> None:
    connection.send(f"{line}\n".encode())


def beat(connection: _socket.socket, period_s: float) -> None:
    """Send a heartbeat per ``period_s`` until told to exit, or to hang."""
    heartbeat = heartbeat_of(os.environ["BENCHMARK_LAUNCHER"])
    heartbeat()
    say(connection, f"beating {time.monotonic_ns()}")
    connection.settimeout(period_s)
    while True:
        try:
            order = connection.recv(100)
        except TimeoutError:
            heartbeat()
            continue
        if order != b"hang\n":
            return
        heartbeat()
        say(connection, f"hanging {time.monotonic_ns()}")
        while True:
            signal.pause()


def heartbeat_of(launcher: str) -> Callable[[], object]:
    if launcher == "torchrun":
        return lambda: None  # it has none
    if launcher == "nvrx":
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

        client = RankMonitorClient()
        client.init_workload_monitoring()
        return client.send_heartbeat
    import undaunted

    return undaunted.heartbeat
