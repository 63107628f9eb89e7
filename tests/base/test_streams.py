from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from undaunted.base.streams import open_closed_streams, take_any_text

_PROGRAM = """
import os, sys
from undaunted.base.streams import open_closed_streams
open_closed_streams()
print("out", flush=True)
print("err", file=sys.stderr, flush=True)
assert sys.stdin.read() == ""
where = [os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)]
open(sys.argv[1], "w").write(" ".join(where))
assert all(os.get_inheritable(fd) for fd in range(3))
"""


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_lead_nowhere(tmp_path, closed):
    seen = tmp_path / "seen"
    shell = f'exec "$0" -c "$1" "$2" {closed}'
    command = ["sh", "-c", shell, sys.executable, _PROGRAM, str(seen)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 0
    targets = seen.read_text().split()
    for fd in range(1, 3):
        assert (targets[fd] == os.devnull) == (f"{fd}>&-" in closed)
    assert (done.stdout, done.stderr) == (
        b"" if "1>&-" in closed else b"out\n",
        b"" if "2>&-" in closed else b"err\n",
    )


@pytest.mark.parametrize(
    ("for_programs", "written"), [(False, b"gr\\xfcn \\u2603"), (True, "grün ☃".encode())]
)
def test_any_text_may_be_printed(monkeypatch, for_programs, written):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    take_any_text(for_programs=for_programs)
    stream.write("grün ☃")
    stream.flush()
    assert stream.buffer.getvalue() == written


def test_open_streams_stay_as_they_are():
    before = (sys.stdin, sys.stdout, sys.stderr)
    open_closed_streams()
    assert (sys.stdin, sys.stdout, sys.stderr) == before


def test_what_is_said_is_copied(tmp_path):
    path = tmp_path / "said"
    program = (
        "import os, sys\nfrom undaunted.base.streams import copy_stderr\ncopy_stderr(sys.argv[1])\n"
        "print('one', file=sys.stderr)\nprint('\\udc80', file=sys.stderr)\n"
        "os.write(2, b'of others\\n')\nassert sys.stderr.fileno() == 2"
    )
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 0
    assert sorted(done.stderr.split(b"\n")) == [b"", b"\\udc80", b"of others", b"one"]
    assert path.read_bytes() == b"one\n\\udc80\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_is_flushed_to_a_reader_that_has_gone():
    program = (
        "import sys\nfrom undaunted.base.streams import discard_stdout\n"
        "try:\n    print('x' * 100_000, flush=True)\n"
        "except BrokenPipeError:\n    discard_stdout()\n    print('more')\n    sys.exit(7)\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", program]
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (7, b"")
