from __future__ import annotations

import contextlib
import json
import os
import pickle
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attribution.flight.dumps import job
from undaunted.attribution.flight import reader
from undaunted.attribution.flight.recording import NotADumpError, decode

if TYPE_CHECKING:
    from pathlib import Path


class Malicious:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_pickle(protocol: int) -> None:
    dump = job(2)[0].dump()

    assert reader.load(pickle.dumps(dump, protocol=protocol)) == dump


def test_json() -> None:
    dump = json.loads(json.dumps(job(2)[0].dump()))

    assert reader.load(json.dumps(dump).encode()) == dump


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_nothing_of_a_pickle_is_run(protocol: int, tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(NotADumpError, match="mkdir"):
        reader.load(pickle.dumps({"entries": [Malicious(str(made))]}, protocol=protocol))

    assert not made.exists()


@pytest.mark.parametrize(
    "code",
    [
        b"\x80\x02cos\nsystem\n(S'true'\ntR.",
        b"\x80\x02(S'true'\nios\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02}(Pname\n.",  # something outside of it
        b"\x80\x02K\x01Q.",
        b"\x80\x02\x82\x01.",  # an extension
        b"\x80\x05\x97.",  # a buffer beside it
        b"\x80\x02}K\x01b.",
        b"\x80\x02]",
        b"\x80\x02.",
        b"\x80\xff.",
        b"\x80",
        b"{",
        b'{"a": 1}}',
        b"",
        b"hello",
        b"\x00" * 40,
        b"\x1b]0;owned\x07",
    ],
)
def test_what_is_no_data_is_refused(code: bytes) -> None:
    with pytest.raises(NotADumpError) as raised:
        reader.load(code)

    assert str(raised.value).isprintable()


@pytest.mark.parametrize("text", [b"[]", b"[[1]]", b"5", b'"x"', b"null"])
def test_json_that_is_no_object_is_named_as_that(text: bytes) -> None:
    with pytest.raises(NotADumpError, match="JSON object: it begins with"):
        reader.load(text)


def test_deep_json_is_refused() -> None:
    with pytest.raises(NotADumpError):
        reader.load(b'{"entries": ' + b"[" * 100_000)


def claims_memory(pickled: bytes | bytearray) -> bool:
    """Whether a few bytes may ask for any amount of it: that is for a process with a limit."""
    return any(code in pickled for code in b"r\x8e\x8d\x96\x8b\x94")


@given(st.binary(max_size=200).filter(lambda data: not claims_memory(data)))
def test_any_bytes(data: bytes) -> None:
    for head in (b"", b"\x80\x02", b"\x80\x04", b"{"):
        with contextlib.suppress(NotADumpError):
            reader.load(head + data)


@given(st.data())
def test_a_damaged_pickle(data: st.DataObject) -> None:
    good = bytearray(pickle.dumps(job(2)[0].dump(), protocol=2))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(2, len(good) - 1))
        good[place] = data.draw(st.integers(0, 255))
    if not claims_memory(good):
        with contextlib.suppress(NotADumpError):
            reader.load(bytes(good))


HOSTILE = {
    "claims 10 GB of bytes": b"\x80\x04\x8e" + struct.pack("<Q", 10 << 30),
    "claims 10 GB of text": b"\x80\x04\x8d" + struct.pack("<Q", 10 << 30),
    "claims a frame of 10 GB": b"\x80\x04\x95" + struct.pack("<Q", 10 << 30),
    "claims a bytearray of 10 GB": b"\x80\x05\x96" + struct.pack("<Q", 10 << 30),
    "claims a number of 2 GB": b"\x80\x02\x8b" + struct.pack("<i", (1 << 31) - 1),
    "remembers at place 2 billion": b"\x80\x02K\x01r" + struct.pack("<I", (1 << 31) - 1) + b".",
    "nests a million lists": b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
    "nests a million tuples": b"\x80\x02)" + b"\x85" * 1_000_000 + b".",
    "doubles a list fifty times": b"\x80\x02]q\x00K\x01a"
    + b"".join(b"]q%c(h%ch%ce" % (n + 1, n, n) for n in range(50))
    + b".",
    "a very long number": b"\x80\x02L" + b"9" * 1_000_000 + b"L\n.",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_cost_little_memory(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "_dump_0").write_bytes(content)
    good = job(2)[1].write(tmp_path)
    said, peak = run_reader(tmp_path / "_dump_0", good)

    assert said[-1][:1] == reader.RECORDING
    assert decode(said[-1][1:]).rank == 1
    assert said[0][:1] == reader.PROBLEM
    assert peak < 700 << 20


# A process's own peak: wait4 adds that of the process which has started it.
TELLS_ITS_PEAK = """
import sys
from undaunted.attribution.flight.reader import main
main()
peak, = (line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak.split()[1], file=sys.stderr)
"""


def run_reader(*files: Path) -> tuple[list[bytes], int]:
    """Return what the program says of files, whose ranks are their places, and its peak memory."""
    words = b"".join(b"%d\0%s\0" % (place, os.fsencode(file)) for place, file in enumerate(files))
    program = subprocess.run(
        [sys.executable, "-c", TELLS_ITS_PEAK], input=words, capture_output=True, check=True
    )
    output = program.stdout
    said = []
    while output:
        length = int.from_bytes(output[:4], "big")
        said.append(output[4 : 4 + length])
        output = output[4 + length :]
    return said, int(program.stderr.split()[-1]) << 10


def test_files_that_are_none(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo_1"
    os.mkfifo(fifo)
    large = tmp_path / "large_2"
    large.write_bytes(b"\x80\x02")
    os.truncate(large, reader.LARGEST_FILE + 1)
    log = tmp_path / "log_3"
    log.write_bytes(b"step 1\n")
    os.truncate(log, 100 << 30)  # of which only the head is read
    said, _ = run_reader(tmp_path / "absent_0", fifo, large, log)

    assert [one[:1] for one in said] == [reader.PROBLEM] * 4
    assert [
        word in one
        for word, one in zip((b"No such", b"regular", b"MiB", b"JSON"), said, strict=True)
    ]
