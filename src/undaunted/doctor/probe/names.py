"""Names: what this host is called, and whether other hosts can be found and reached."""

from __future__ import annotations

import queue
import socket
import threading
import time
from typing import TYPE_CHECKING

from undaunted.base.text import format_duration
from undaunted.doctor.facts import Names, Remote
from undaunted.doctor.probe.kernel import ROOT, read_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from undaunted.coordinator.wire.address import Address

LOOK_UP_S = 5.0
CONNECT_S = 3.0
# Of all hosts together: those that are not through by then are named.
ALL_S = 30.0
_AT_ONCE = 64


def look_up(host: str, timeout_s: float = LOOK_UP_S) -> tuple[tuple[str, ...], str]:
    """Return the numeric addresses of a name and why there are none.

    The look-up runs in a daemon thread, which is left behind when time runs out.
    """
    answers: queue.SimpleQueue[tuple[tuple[str, ...], str]] = queue.SimpleQueue()

    def run() -> None:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            answers.put((tuple(dict.fromkeys(str(one[4][0]) for one in found)), ""))
        except (OSError, UnicodeError) as error:
            text = getattr(error, "strerror", None) or "it cannot be a name"
            answers.put(((), f"the name cannot be resolved: {text}"))

    threading.Thread(target=run, name="undaunted-look-up", daemon=True).start()
    try:
        return answers.get(timeout=timeout_s)
    except queue.Empty:
        late = format_duration(timeout_s)
        return (), f"the name server has not answered within {late}"


def of_names(root: Path = ROOT) -> Names:
    """Return what this host is called and where that leads."""
    host = socket.gethostname()
    addresses, problem = look_up(host)
    inet6 = read_text(root / "proc/net/if_inet6")
    return Names(
        host=host,
        addresses=addresses,
        local=local_addresses(read_text(root / "proc/net/fib_trie") or "", inet6 or ""),
        problem=problem,
        ipv6=bool(inet6),
        interfaces=_interfaces(),
        loopback=_loopback(),
    )


def _interfaces() -> tuple[str, ...]:
    try:
        return tuple(name for _, name in socket.if_nameindex())
    except OSError:
        return ()


def _loopback() -> str:
    """Return why nobody can connect to 127.0.0.1, where the ranks of one node meet."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def local_addresses(fib_trie: str, if_inet6: str) -> tuple[str, ...]:
    """Return the addresses of this host, from the files of ``/proc/net`` with these names."""
    found = []
    last = ""
    for line in fib_trie.splitlines():
        words = line.split()
        if words[:1] == ["|--"] and len(words) == 2:
            last = words[1]
        elif words == ["/32", "host", "LOCAL"] and last:
            found.append(last)
    for line in if_inet6.splitlines():
        digits = line.partition(" ")[0]
        try:
            found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
        except (ValueError, OSError):
            continue
    return tuple(dict.fromkeys(found))


def of_remotes(hosts: Sequence[Address], all_s: float = ALL_S) -> tuple[Remote, ...]:
    """Resolve and reach hosts, some at once, in ``all_s`` seconds at most."""
    deadline = time.monotonic() + all_s
    todo: queue.SimpleQueue[Address] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Address, Remote]] = queue.SimpleQueue()
    for address in hosts:
        todo.put(address)

    def run() -> None:
        while time.monotonic() < deadline:
            try:
                address = todo.get_nowait()
            except queue.Empty:
                return
            done.put((address, reach(address)))

    for _ in range(min(_AT_ONCE, len(hosts))):
        threading.Thread(target=run, name="undaunted-reach", daemon=True).start()
    late = f"not looked at within {format_duration(all_s)}, as others did not answer"
    found = {address: Remote(host=address.host, problem=late) for address in hosts}
    try:
        for _ in hosts:
            address, remote = done.get(timeout=max(0.0, deadline - time.monotonic()))
            found[address] = remote
    except queue.Empty:
        pass
    return tuple(found[address] for address in hosts)


def reach(address: Address, look_up_s: float = LOOK_UP_S, connect_s: float = CONNECT_S) -> Remote:
    """Resolve one name, and connect to its addresses, one after the other; not to port 0."""
    addresses, problem = look_up(address.host, look_up_s)
    if problem or not address.port:
        return Remote(host=address.host, addresses=addresses, port=address.port, problem=problem)
    began = time.monotonic()
    problem, answer = "", ""
    for number in addresses:
        try:
            socket.create_connection((number, address.port), timeout=connect_s).close()
            answer = "open"
        except ConnectionRefusedError:
            answer = answer or "refused"
        except OSError as error:
            text = error.strerror or f"no answer within {format_duration(connect_s)}"
            problem = f"port {address.port} at {number}: {text}"
        if answer == "open":
            break
    return Remote(
        host=address.host,
        addresses=addresses,
        port=address.port,
        answer=answer,
        problem="" if answer else problem,
        seconds=time.monotonic() - began,
    )
