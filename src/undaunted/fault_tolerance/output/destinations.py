"""The destinations of each rank's streams in a round, and their last lines. Opens nothing.

| asked for | the rank writes to | console | log of the round |
|---|---|---|---|
| nothing | the launcher's own stream | all | no |
| ``-r`` | stdout.log, stderr.log | no | no |
| ``-t`` | stdout.log, stderr.log | all, with prefix | no |
| log per round alone | output.log, removed afterwards | no | all |
| log per round and ``-r`` | stdout.log, stderr.log | no | all |
| log per round and ``-t`` | stdout.log, stderr.log | all, with prefix | all |

Each stream of each rank has a row. Ranks that ``--local-ranks-filter`` hides have ``-r``
for what they do not have already, and ``-r`` instead of ``-t``.
"""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from undaunted.base.text import one_line
from undaunted.fault_tolerance.run_config import TO_BOTH

if TYPE_CHECKING:
    from collections.abc import Collection

    from undaunted.fault_tolerance.run_config import RunConfig

Stream = Literal["stdout", "stderr", "output"]  # output: both of them

_TAIL_CAP_BYTES = 64 * 1024
_EXTENSION = ".log"


def log_path(log_dir: str | Path, round_no: int, local_rank: int, stream: Stream) -> str:
    """Path of one stream of a rank in a round, laid out as torchrun does."""
    return str(Path(round_dir(log_dir, round_no), str(local_rank), f"{stream}.log"))


def round_dir(log_dir: str | Path, round_no: int) -> str:
    """Directory of the files of a round."""
    return str(Path(log_dir, f"attempt_{round_no}"))


def last_lines(path: str, count: int, cap_bytes: int = _TAIL_CAP_BYTES) -> list[str]:
    """Read the last lines of a file, for a crash report. Never raises.

    Args:
        path: the file; missing or unreadable means no lines.
        count: how many lines at most.
        cap_bytes: how much of the end of the file is looked at; a longer line loses its start.

    Returns:
        Lines without their ends; bytes that are not UTF-8 show as replacement characters.
    """
    if count <= 0:
        return []
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        start = max(0, os.fstat(fd).st_size - cap_bytes)
        data = os.pread(fd, cap_bytes, start)
    except OSError:
        return []
    finally:
        os.close(fd)
    lines = data.decode(errors="replace").splitlines()
    return lines[-count:]


class Destination(NamedTuple):
    """The destination of one stream of a rank.

    Attributes:
        path: absolute path of a file; "" = the launcher's own stream.
        shown: the file is copied to the console.
        temporary: the file is only there for the log of the round.
    """

    path: str = ""
    shown: bool = False
    temporary: bool = False


class RankOutput(NamedTuple):
    """The destination of one rank's output."""

    stdout: Destination
    stderr: Destination


STREAMS: dict[int, Stream] = {1: "stdout", 2: "stderr"}
"""By number of the launcher's own descriptor."""
_WORDS: dict[Stream, str] = {"stdout": "standard output", "stderr": "standard error"}


def without_reader() -> set[Stream]:
    """Return the streams of the launcher that nobody reads any more: who writes there fails."""
    poll = select.poll()
    for fd in STREAMS:
        poll.register(fd, 0)  # errors are told anyway
    gone = select.POLLERR | select.POLLHUP
    return {STREAMS[fd] for fd, events in poll.poll(0) if events & gone}


def in_words(streams: Collection[Stream]) -> str:
    """Name streams of the launcher for people."""
    return " and ".join(_WORDS[stream] for stream in _WORDS if stream in streams)


def own_layout(
    config: RunConfig, round_no: int, local_rank: int, unread: Collection[Stream] = ()
) -> RankOutput:
    """Files as torchrun lays them out; also for streams of the launcher that nobody reads."""

    def destination(stream: Stream, where: int) -> Destination:
        to_file = where or stream in unread
        path = log_path(config.log_dir, round_no, local_rank, stream) if to_file else ""
        return Destination(path, where == TO_BOTH)

    return RankOutput(
        destination("stdout", config.stdout[local_rank]),
        destination("stderr", config.stderr[local_rank]),
    )


def for_round_log(
    config: RunConfig, round_no: int, local_rank: int, output: RankOutput
) -> RankOutput:
    """Give streams that go to the launcher a file that the log of the round is made from.

    It is the same file for both, so that lines keep their order.
    """
    if not config.applog_prefix:
        return output
    path = log_path(config.log_dir, round_no, local_rank, "output")
    temporary = Destination(path, temporary=True)
    return RankOutput(*(stream if stream.path else temporary for stream in output))


def round_log_path(prefix: str, round_no: int) -> str:
    """``/logs/train.txt`` → ``/logs/train_cycle3.txt``; ``.log`` where there is no extension."""
    base, extension = os.path.splitext(prefix)  # noqa: PTH122 - keeps what pathlib normalises
    return f"{base}_cycle{round_no}{extension or _EXTENSION}"


def line_prefix(config: RunConfig, local_rank: int, rank: int) -> bytes:
    """Prefix of a rank's lines on the console."""
    prefix = config.log_line_prefix_template
    for name, value in (
        ("role_name", one_line(config.role)),
        ("local_rank", str(local_rank)),
        ("rank", str(rank)),
        ("hostname", socket.gethostname()),
    ):
        prefix = prefix.replace("${" + name + "}", value)
    return prefix.encode(errors="surrogateescape")
