import os

from undaunted.fault_tolerance.output.paths import last_lines, log_path


def test_layout_is_torchruns():
    assert log_path("/logs", 2, 3, "stderr") == "/logs/attempt_2/3/stderr.log"


def test_last_lines(tmp_path):
    path = tmp_path / "stderr.log"
    path.write_bytes(b"one\ntwo\nthr\xff\xfee")
    assert last_lines(str(path), 2) == ["two", "thr\ufffd\ufffde"]
    assert last_lines(str(path), 99) == ["one", "two", "thr\ufffd\ufffde"]
    assert last_lines(str(path), 0) == []


def test_last_lines_looks_at_a_bounded_part(tmp_path):
    path = tmp_path / "stderr.log"
    path.write_bytes(b"x" * 100_000 + b"\nend\n")
    assert last_lines(str(path), 5, cap_bytes=10) == ["xxxxx", "end"]


def test_last_lines_of_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    assert last_lines(str(tmp_path / "missing"), 5) == []
    assert last_lines(str(tmp_path), 5) == []
    assert last_lines(str(tmp_path / "fifo"), 5) == []
