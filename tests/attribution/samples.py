"""Stacks of real two-rank gloo jobs, and small builders of evidence."""

from __future__ import annotations

from pathlib import Path

from undaunted.attribution.evidence import RankEvidence
from undaunted.progress.snapshot import PageSnapshot
from undaunted.progress.timeouts import Expired

_STACKS = Path(__file__).parent / "stacks"
SECOND = 1_000_000_000


def sample(name: str) -> str:
    """Text of one sample file."""
    return (_STACKS / f"{name}.txt").read_text()


def stack(*frames: str) -> str:
    """A dump of one thread; frames as ``file:line:function``, innermost first."""
    lines = []
    for frame in frames:
        file, line, function = frame.split(":")
        lines.append(f'  File "{file}", line {line} in {function}')
    return "\n".join(["Current thread 0x00007fa1 (most recent call first):", *lines, ""])


IN_ALL_REDUCE = sample("allreduce-rank0")
IN_LOAD_BATCH = sample("allreduce-rank1")


def late(
    age_s: float = 12.0, limit_s: float = 10.0, watch: str = "heartbeat", at_s: float = 100.0
) -> tuple[Expired, ...]:
    """A limit passed at ``at_s``."""
    deadline = int(at_s * SECOND)
    since = deadline - int(limit_s * SECOND)
    source = "--ft-rank-heartbeat-timeout" if watch == "heartbeat" else "configured"
    name = "eval" if watch == "section" else ""
    return (Expired(watch, name, since, deadline, age_s, limit_s, source),)  # type: ignore[arg-type]


def rank(
    number: int,
    stacks: str | None = IN_ALL_REDUCE,
    *,
    state: str = "S",
    iteration: int | None = 118,
    expired: tuple[Expired, ...] = (),
    reason: str = "",
    heartbeat_s: float | None = 99.5,
) -> RankEvidence:
    """What was seen of one rank."""
    beat = None if heartbeat_s is None else int(heartbeat_s * SECOND)
    page = PageSnapshot(pid=4700 + number, iteration=iteration, heartbeat_ns=beat)
    return RankEvidence(
        rank=number, local_rank=number % 4, pid=4700 + number, page=page, expired=expired,
        state=state, stacks=stacks, reason=reason,
    )  # fmt: skip


# Messages of errors, as gloo, NCCL and torch's store raise them when a peer is gone.
LOST_PEER = (
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:41",
    "[gloo/transport/tcp/pair.cc:547] Connection reset by peer [127.0.0.1]:3141",
    "[gloo/transport/tcp/pair.cc:589] Application timeout caused pair closure",
    "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation",
    "[gloo/transport/tcp/pair.cc:446] writev error: Broken pipe",
    "[gloo/transport/uv/socket.cc:120] Socket closed",
    "Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error",
    "Rank 1 failed to pass monitoredBarrier in 2000 ms",
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting",
    "NCCL error: remote process exited or there was a network error, NCCL version 2.27.5",
    "NCCL communicator was aborted on rank 1.",
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42)",
    "recvVector failed on SocketImpl(fd=3): Failed to recv, got 0 bytes",
    "Connection was likely closed. Did the remote server shutdown or crash?",
    "sendBytes failed on SocketImpl(fd=41, addr=[localhost]:4): Broken pipe",
    "wait timeout after 300000ms, keys: /default_pg/0//cuda//0",
    "The client socket has timed out after 60000ms while trying to connect to (n1, 29500).",
    "Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
    "Broken pipe",
    "Connection refused",
)
# Those that mean a peer only where they are all that an error says.
ALONE = ("Broken pipe", "Connection refused")
