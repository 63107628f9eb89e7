from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undaunted.attribution.logs.prefixes import clean, rank_in_name, read_prefix
from undaunted.fault_tolerance.output.round_output import rank_prefix

NOON = 1795348800.0  # 2026-11-22T12:00:00Z
SAID = [
    ("[rank3]: Boom", 3, "", 0),
    ("[rank 3] Boom", 3, "", 0),
    ("[rank: 3] Boom", 3, "", 0),
    ("Rank 3: Boom", 3, "", 0),
    ("[Rank 3] Boom", 3, "", 0),
    ("3: Boom", 3, "", 0),
    ("03: Boom", 3, "", 0),
    ("[3]: Boom", 3, "", 0),
    ("[1,3]<stderr>: Boom", 3, "", 0),
    ("[1,mpirank:3,algo-2]<stderr>:Boom", 3, "algo-2", 0),
    ("[default3]:Boom", 3, "", 0),
    (f"{rank_prefix(3, 64)}Boom", 3, "", 0),
    ("[rank3]:[E1122 12:00:00.000000000 ProcessGroupNCCL.cpp:607] [Rank 3] Boom", 3, "", NOON),
    ("I1122 12:00:00.000000 4711 torch/agent.py:882] Boom", None, "", NOON),
    ("2026-11-22 12:00:00,000 - ERROR - Boom", None, "", NOON),
    ("2026-11-22T13:00:00+01:00 stderr F Boom", None, "", NOON),
    ("[2026-11-22 12:00:00] [rank=3 host=node-12] Boom", 3, "node-12", NOON),
    ("[2026-11-22 12:00:00,000] [INFO] [logging.py:107:log_dist] [Rank 3] Boom", 3, "", NOON),
    ("2026-11-22 12:00:00 INFO rank 3 | Boom", 3, "", NOON),
    ("[INFO|trainer.py:2134] 2026-11-22 12:00:00,000 >> Boom", None, "", NOON),
    ("  time      : 2026-11-22_12:00:00 Boom", None, "", NOON),
    ("node-12: Boom", None, "node-12", 0),
    ("node-12: 3: Boom", 3, "node-12", 0),
    ("3: node-12:411:977 [5] Boom", 3, "node-12", 0),
    ("node12 | Boom", None, "node12", 0),
    ("[node-12:3] Boom", 3, "node-12", 0),
    ("[node-12:rank12345] Boom", 12345, "node-12", 0),
    ("[node-12:05492] Boom", None, "node-12", 0),
    ("[pod/train-1/pytorch] 2026-11-22T12:00:00.000000000Z Boom", None, "train-1", NOON),
    ("Nov 22 12:00:00 node-12 kernel: [ 12.000000] Boom", None, "node-12", NOON),
    ("node-12 kernel: Boom", None, "node-12", 0),
    ("(RayTrainWorker pid=4711, ip=10.0.0.7) Boom", None, "10.0.0.7", 0),
    ("(EngineCore pid=128) ERROR 11-22 12:00:00 [core.py:1090] Boom", None, "", NOON),
    ('{"rank":2,"level":"error","host":"node-12","msg":"Boom', 2, "node-12", 0),
    ('{"message": "Boom', None, "", 0),
    (r'{"rank": 2, "msg": "Traceback (most recent call last):\n  File \"x\"\nBoom', 2, "", 0),
]


@pytest.mark.parametrize(("line", "rank", "node", "t"), SAID, ids=[row[0] for row in SAID])
def test_who_says_a_line_and_when(line: str, rank: int | None, node: str, t: float) -> None:
    prefix = read_prefix(line, 2026)
    assert (prefix.rank, prefix.node, prefix.t) == (rank, node, t)
    assert line[prefix.begins :] == "Boom"


@pytest.mark.parametrize(
    "line",
    ["RuntimeError: 3 of 4", "step 12: loss 2.0", "epoch3: done", "layer4: 12 MB", "loss: 3", ""],
)
def test_words_of_a_message_are_no_prefix(line: str) -> None:
    prefix = read_prefix(line)
    assert (prefix.rank, prefix.node, prefix.t, prefix.begins) == (None, "", 0, 0)


@pytest.mark.parametrize(
    "stamp", ["2026-99-22 12:00:00", "0000-01-01 99:99:99", "[E9999 12:00:00 a.c:1]"]
)
def test_an_impossible_time_is_no_time(stamp: str) -> None:
    assert read_prefix(f"{stamp} Boom", 2026).t >= 0


def test_escape_sequences_and_control_characters_are_gone() -> None:
    raw = b"\x1b[1;31m[rank3]:\x1b[0m Bo\x07om\x1b]0;title\x07 \xff\xfe"
    text = clean(raw)
    assert text.isprintable()
    assert read_prefix(text).rank == 3


@given(st.binary(max_size=300))
def test_any_bytes_have_a_prefix(raw: bytes) -> None:
    text = clean(raw)
    assert "\x1b" not in text
    assert 0 <= read_prefix(text).begins <= len(text)


@pytest.mark.parametrize(
    ("path", "rank", "folder"),
    [
        ("a/rank3.log", 3, "a"),
        ("a/rank_3.txt", 3, "a"),
        ("a/train-global_rank-12.log.1", 12, "a"),
        ("a/stdout_3.log", 3, "a"),
        ("a/stderr_3.log", 3, "a"),
        ("a/3.out", 3, "a"),
        ("a/worker-3.err", 3, "a"),
        ("a/rank.3/stdout", 3, "a"),
        ("a/none_x1/attempt_0/3/stderr.log", 3, "a/none_x1"),
    ],
)
def test_the_rank_that_the_name_of_a_file_says(path: str, rank: int, folder: str) -> None:
    assert rank_in_name(path) == (rank, folder)


@pytest.mark.parametrize(
    "path",
    [
        "a/train.log",
        "a/slurm-3.out",
        "a/71234.out",
        "a/output_71234.log",
        "a/train.log.1",
        "a/local_rank3.log",
        "a/node_rank_1.log",
        "a/node-3.log",
        "a/llama-worker-3.log",
        "a/3/stderr.log",
        "a/rank_zero.log",
    ],
)
def test_names_of_files_that_say_no_rank(path: str) -> None:
    assert rank_in_name(path) is None
