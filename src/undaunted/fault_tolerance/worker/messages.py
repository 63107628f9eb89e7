"""Messages between the agent and its template, over a stream socket.

A frame is the length of the body (4 bytes, big-endian) and the body, a JSON object whose ``type``
names one of the messages below. Text may hold lone surrogates: that is how Python carries bytes of
the environment that are not UTF-8, so the standard library's JSON is used and not msgspec's.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Literal

import msgspec

from undaunted.base.process import wait_readable

if TYPE_CHECKING:
    import socket

# Sixteen ranks with an environment of 2 MiB each, the most Linux allows by default, fit.
MAX_BODY = 64 * 1024 * 1024
HEADER = struct.Struct(">I")


class Message(msgspec.Struct, kw_only=True, frozen=True, tag_field="type"):
    """Base of all messages."""


class Group(msgspec.Struct, frozen=True):
    """Modules that a rank has imported, in order, after it had made these changes of variables."""

    environment: dict[str, str | None]  # None = not set any more
    modules: list[str]


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """Modules that ranks have imported. Too much for a frame: it is handed over in a file.

    Attributes:
        groups: the modules.
        packages: file that each package begins with.
        own: packages that only ranks can import.
        left: packages among the groups that are not to be imported.
        gives_way: the template lowers its priority meanwhile; it may take its own again.
    """

    groups: list[Group]
    packages: dict[str, str] = {}
    own: list[str] = []
    left: list[str] = []
    gives_way: bool = False


class Prepare(Message, frozen=True, tag="prepare"):
    """Agent to template, once: import these for the workers, and ``later`` what can wait.

    The program sets ``variables`` before its imports; None = not set any more. Workers note what
    they import if ``note``; file ``learned_fd`` has what earlier ones have noted.
    """

    modules: list[str]
    variables: dict[str, str | None] = {}
    later: list[str] = []
    note: bool = False
    learned_fd: int = -1


class Fork(Message, frozen=True, tag="fork"):
    """Agent to template: fork one worker per spec. ``number`` comes back in the answer."""

    number: int
    specs: list[WorkerSpec]


class Ready(Message, frozen=True, tag="ready"):
    """Template to agent: the imports took ``import_ns``; ``failed`` has an error per module.

    With ``left``, packages and why, or a ``problem``, a template that was to learn is of no use;
    without these packages another one may be. ``learned`` is how many modules it has of the ranks.
    """

    modules: list[str]
    import_ns: int
    failed: dict[str, str] = {}
    left: dict[str, str] = {}
    problem: str = ""
    learned: int = 0


class Forked(Message, frozen=True, tag="forked"):
    """Template to agent: the workers exist and will run, in the order of the specs."""

    number: int
    pids: list[int]


class Refused(Message, frozen=True, tag="refused"):
    """Template to agent: no worker of this request exists or ever will; start them fresh."""

    number: int
    reason: str
    lasting: bool = False  # another template would refuse as well


class Stopping(Message, frozen=True, tag="stopping"):
    """Agent to template: the launcher stops, and nothing more is imported."""


AnyMessage = Prepare | Fork | Stopping | Ready | Forked | Refused


class ProtocolError(Exception):
    """The other side sent something that is not a message."""


def encode(message: Message) -> bytes:
    """Return the frame of ``message``.

    Raises:
        ProtocolError: it is larger than a frame may be.
    """
    body = json.dumps(msgspec.to_builtins(message)).encode("ascii")
    if len(body) > MAX_BODY:
        raise ProtocolError(f"a message of {len(body)} bytes exceeds the limit of {MAX_BODY}")
    return HEADER.pack(len(body)) + body


def decode(body: bytes) -> AnyMessage:
    """Return the message in the body of a frame.

    Raises:
        ProtocolError: there is none.
    """
    try:
        message: AnyMessage = msgspec.convert(json.loads(body), AnyMessage)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise ProtocolError(f"not a message: {error}") from error
    return message


def body_size(header: bytes) -> int:
    """Return the size of the body that follows ``header``.

    Raises:
        ProtocolError: it is more than a frame may hold.
    """
    size: int = HEADER.unpack(header)[0]
    if size > MAX_BODY:
        raise ProtocolError(f"a frame of {size} bytes exceeds the limit of {MAX_BODY}")
    return size


def send(sock: socket.socket, message: Message, timeout_s: float) -> None:
    """Send on a blocking socket.

    Raises:
        OSError: the other side is gone, or does not read for ``timeout_s`` seconds.
        ProtocolError: the message is too large.
    """
    sock.settimeout(timeout_s)
    sock.sendall(encode(message))


def receive(sock: socket.socket, rest_timeout_s: float) -> AnyMessage | None:
    """Wait for a message on a blocking socket, without limit; None when the other side is gone.

    The same holds when it has left without reading what was sent to it, which resets the stream.

    Raises:
        OSError: the rest of a message did not come within ``rest_timeout_s`` seconds.
        ProtocolError: it is not a message.
    """
    wait_readable(sock.fileno(), None)
    sock.settimeout(rest_timeout_s)
    header = _receive_exactly(sock, HEADER.size)
    body = _receive_exactly(sock, body_size(header)) if header else b""
    return decode(body) if header and body else None


def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    """Return ``size`` bytes, or none if the stream ends before."""
    data = bytearray(size)
    view = memoryview(data)
    got = 0
    while got < size:
        try:
            count = sock.recv_into(view[got:])
        except ConnectionResetError:
            count = 0
        if count == 0:
            return b""
        got += count
    return bytes(data)


class WorkerSpec(msgspec.Struct, kw_only=True, frozen=True):
    """One rank of one round.

    Attributes:
        local_rank: index on this node.
        kind: ``script`` (a path, as in ``python script.py``), ``module`` (``python -m name``),
            ``run_path`` (runpy.run_path in the worker, torchrun's ``--run-path``) or ``program``
            (an executable, ``--no-python``).
        target: the path, module name or executable.
        args: arguments after the target.
        env: the complete environment.
        cwd: working directory.
        stdout: file that gets standard output (appended, created 0600), "" = inherit.
        stderr: the same for standard error. May equal ``stdout``.
        agent_pid: the worker ends itself at once if this is not its parent.
        evidence_signal: signal on which faulthandler writes all stacks, 0 = none.
        evidence_fd: descriptor it writes to, -1 = none.
        signal_fd: descriptor that gets the numbers of signals that it handles, -1 = none.
        numa_node: NUMA node it is bound to, -1 = none.
        numa_strict: its memory comes from that node only.
        exception_hook: record unhandled exceptions in the page.
        stop_signals: that mean to stop; children of the rank outlive them.
    """

    local_rank: int
    kind: Literal["script", "module", "run_path", "program"]
    target: str
    args: list[str]
    env: dict[str, str]
    cwd: str
    stdout: str = ""
    stderr: str = ""
    agent_pid: int
    evidence_signal: int = 0
    evidence_fd: int = -1
    signal_fd: int = -1
    numa_node: int = -1
    numa_strict: bool = True
    exception_hook: bool = True
    stop_signals: list[int] = []
