"""Where streams go, and their last lines."""

import os
import socket

import msgspec
import pytest

from undaunted.fault_tolerance.output.destinations import (
    Destination,
    for_round_log,
    last_lines,
    line_prefix,
    log_path,
    own_layout,
    round_log_path,
)
from undaunted.fault_tolerance.run_config import TO_BOTH, TO_CONSOLE, TO_FILE, RunConfig


def config(stdout, stderr, applog_prefix=""):
    return RunConfig(
        run_id="r", node="n", nproc_per_node=1, max_restarts=0, kind="script", target="t", args=[],
        cwd="/", run_dir="/run", log_dir="/l", stdout=[stdout], stderr=[stderr],
        applog_prefix=applog_prefix,
    )  # fmt: skip


OUT, ERR, ALL = (f"/l/attempt_2/0/{name}.log" for name in ("stdout", "stderr", "output"))


# One row of the module's table each: what is asked for, per stream its file, whether it is shown
# (+). The file of both streams is there for the log of the round only.
@pytest.mark.parametrize(
    ("stdout", "stderr", "prefix", "expected"),
    [
        (TO_CONSOLE, TO_CONSOLE, "", ("", "")),
        (TO_FILE, TO_CONSOLE, "", (OUT, "")),
        (TO_BOTH, TO_FILE, "", (OUT + "+", ERR)),
        (TO_CONSOLE, TO_CONSOLE, "/p", (ALL, ALL)),
        (TO_FILE, TO_FILE, "/p", (OUT, ERR)),
        (TO_BOTH, TO_CONSOLE, "/p", (OUT + "+", ALL)),
    ],
)
def test_table(stdout, stderr, prefix, expected):
    settings = config(stdout, stderr, prefix)
    output = for_round_log(settings, 2, 0, own_layout(settings, 2, 0))
    assert output == tuple(
        Destination(path.rstrip("+"), path.endswith("+"), path == ALL) for path in expected
    )


@pytest.mark.parametrize(
    ("prefix", "path"),
    [
        ("/logs/train.txt", "/logs/train_cycle3.txt"),
        ("/logs/train", "/logs/train_cycle3.log"),
        ("/logs.d/train", "/logs.d/train_cycle3.log"),
    ],
)
def test_name_of_the_log_of_a_round(prefix, path):
    assert round_log_path(prefix, 3) == path


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


def test_a_prefix_names_rank_and_host():
    template = "${hostname}:${role_name}:${local_rank}:${rank} "
    settings = msgspec.structs.replace(config(TO_BOTH, TO_FILE), log_line_prefix_template=template)
    assert line_prefix(settings, 0, 3).decode() == f"{socket.gethostname()}:default:0:3 "


def test_a_prefix_has_nothing_that_a_terminal_would_act_on():
    settings = msgspec.structs.replace(config(TO_BOTH, TO_FILE), role="a\x1b[31m\nb")
    assert line_prefix(settings, 0, 3) == b"[a\\x1b[31m b3]:"
