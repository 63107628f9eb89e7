import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.fault_tolerance.output.tail import (
    CHUNK_BYTES,
    FileTail,
    LineAssembler,
)


def test_lines_get_prefixes_and_wait_for_their_end():
    lines = LineAssembler(b"[0]:")
    assert lines.feed(b"a\nb\nc") == b"[0]:a\n[0]:b\n"
    assert lines.feed(b"") == b""
    assert lines.feed(b"d") == b""
    assert lines.feed(b"\n\n") == b"[0]:cd\n[0]:\n"
    assert lines.finish() == b""
    assert lines.feed(b"tail") == b""
    assert lines.finish() == b"[0]:tail\n"


def test_carriage_return_ends_a_line():
    lines = LineAssembler(b">")
    assert lines.feed(b"10%\r20%\r") == b">10%\n>20%\n"
    assert lines.feed(b"\nx\r\ny\n") == b">x\n>y\n"


def test_a_line_without_end_comes_in_pieces():
    lines = LineAssembler(b">")
    out = b"".join(lines.feed(b"x" * CHUNK_BYTES) for _ in range(20)) + lines.finish()
    assert out.replace(b">", b"").replace(b"\n", b"") == b"x" * (20 * CHUNK_BYTES)
    assert max(map(len, out.split(b"\n"))) <= 2 * CHUNK_BYTES + 1


@given(st.lists(st.binary(max_size=20)))
def test_bytes_are_passed_through_however_they_are_cut(pieces):
    lines = LineAssembler(b"")
    out = b"".join(lines.feed(piece) for piece in pieces) + lines.finish()
    whole = b"".join(pieces).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert out == whole + (b"\n" if whole and not whole.endswith(b"\n") else b"")


def test_file_tail_creates_a_private_file_and_begins_at_its_end(tmp_path):
    path = tmp_path / "stdout.log"
    tail = FileTail(str(path), b">")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert tail.read() is None
    path.write_bytes(b"old\nbegun")
    assert tail.read() == b">old\n"
    assert tail.unread_bytes() == 0
    tail.close()
    later = FileTail(str(path), b">")
    with path.open("ab") as file:
        file.write(b"new\n")
    assert later.unread_bytes() == 4
    assert later.read() == b">new\n"
    later.close()


def test_file_tail_follows_no_link(tmp_path):
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="symbolic"):
        FileTail(str(tmp_path / "link"), b"")
