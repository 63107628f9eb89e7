"""A program that reads dumps, of which nothing is trusted, and writes recordings.

Dumps lie in directories that all of a cluster may write to. A pickle may call any function: here
none is found, so nothing of it runs. It may claim ten gigabytes, or be made so that it takes for
ever: a separate process has a limit of memory and an alarm for each file, and may die of either.

On standard input: rank and path of each file, each ended by a zero byte. On standard output: for
each file, in their order, a length in four bytes, one byte that says what follows (`RECORDING` or
`PROBLEM`), and that.
"""

from __future__ import annotations

import gc
import io
import os
import pickle
import resource
import signal
import stat
import sys
from typing import Any, NoReturn

import msgspec

from undaunted.attribution.flight.recording import NotADumpError, Recording, encode, reduce
from undaunted.base.process import die_with_parent
from undaunted.base.text import one_line

RECORDING = b"R"
PROBLEM = b"P"
LARGEST_FILE = 64 << 20  # bytes; 2,000 entries are 300 kB, with stacks some MB
_MEMORY = 640 << 20  # bytes of addresses
_SECONDS = 30  # for one file; ordinary ones take milliseconds
_PROTO = b"\x80"  # with which a pickle of torch begins


class _Data(pickle.Unpickler):
    """Reads pickles of plain data: dictionaries, lists, tuples, texts, numbers."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise NotADumpError(f"refused: it wants to use {module}.{name}; dumps hold data only")

    def persistent_load(self, pid: Any) -> NoReturn:  # noqa: ARG002
        raise NotADumpError("refused: it refers to something outside of it; dumps hold data only")


def load(data: bytes) -> object:
    """Return what a dump holds, a pickle or JSON, without trusting it.

    Memory is bounded only by the limits of the process.

    Raises:
        NotADumpError: it is neither; the message says why.
    """
    head = data[:64].lstrip()
    try:
        if head.startswith(b"{"):
            return msgspec.json.decode(data)
        if head.startswith(_PROTO):
            # One that can be peeked into is read in large pieces: half the time.
            return _Data(io.BufferedReader(io.BytesIO(data))).load()
    except NotADumpError:
        raise
    except MemoryError:
        raise NotADumpError("refused: it takes more memory than a dump would") from None
    except RecursionError:
        raise NotADumpError("refused: it is nested deeper than a dump is") from None
    except Exception as error:  # noqa: BLE001 - whatever a broken pickle makes the interpreter raise
        kind = "JSON" if head.startswith(b"{") else "pickle"
        raise NotADumpError(f"broken {kind}: {one_line(str(error), 200)}") from None
    raise _neither(data)


def _neither(head: bytes) -> NotADumpError:
    if not head:
        return NotADumpError("it is empty")
    first = ascii(head.lstrip()[:1].decode("latin-1"))
    return NotADumpError(f"it is neither a pickle nor a JSON object: it begins with {first}")


def read(path: str, rank: int) -> Recording:
    """Read one file.

    Raises:
        NotADumpError: it is no dump, or cannot be read.
    """
    try:
        data = _content(path)
    except OSError as error:
        raise NotADumpError(f"cannot be read: {error.strerror}") from None
    try:
        return reduce(load(data), rank)
    except NotADumpError:
        raise
    except MemoryError:
        raise NotADumpError("refused: it takes more memory than a dump would") from None
    except Exception as error:  # noqa: BLE001 - data of any shape
        text = one_line(f"{type(error).__name__}: {error}", 200)
        raise NotADumpError(f"it has not the form of a dump: {text}") from None


def _content(path: str) -> bytes:
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - opening one may set it off
        raise NotADumpError("it is no regular file")
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with io.FileIO(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise NotADumpError("it is no regular file")
        head = file.read(64)
        if head and not head.lstrip().startswith((b"{", _PROTO)):
            raise _neither(head)
        if status.st_size > LARGEST_FILE:
            raise NotADumpError(
                f"refused: {status.st_size >> 20} MiB; at most {LARGEST_FILE >> 20} MiB are read"
            )
        return head + file.read(status.st_size)


def main() -> int:
    """Read the files that standard input names."""
    die_with_parent(os.getppid())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # it ends the process, whatever it is in
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.disable()  # dumps have no circles, and each is dropped at once
    words = sys.stdin.buffer.read().split(b"\0")
    for rank, path in zip(words[0::2], words[1::2], strict=False):
        signal.alarm(_SECONDS)
        try:
            said = RECORDING + encode(read(os.fsdecode(path), int(rank)))
        except NotADumpError as error:
            said = PROBLEM + str(error).encode("utf-8", "replace")
        sys.stdout.buffer.write(len(said).to_bytes(4, "big") + said)
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
