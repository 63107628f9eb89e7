from __future__ import annotations

from typing import TYPE_CHECKING

from undaunted.attribution.logs.analyse import read_logs

if TYPE_CHECKING:
    from pathlib import Path

GOOD = ["0: loading /data/part_17.bin", "0: iteration 1/ 9 | lm loss: 2.0 |", "1: warmed up 0x7f3a"]
STALE = "1: OSError: [Errno 116] Stale file handle: '/data/a.bin'"


def written(tmp_path: Path, name: str, *lines: str) -> Path:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_what_the_good_round_has_said_too_is_less_sure(tmp_path: Path) -> None:
    bad = written(tmp_path, "bad", *GOOD, STALE)
    (alone,) = read_logs([bad]).findings
    (new,) = read_logs([bad], [written(tmp_path, "good", *GOOD)]).findings
    old_line = STALE.replace("a.bin", "b.bin").replace("116", "117")
    (known,) = read_logs([bad], [written(tmp_path, "good", *GOOD, old_line)]).findings
    assert known.confidence < alone.confidence < new.confidence <= 1


def test_what_few_ranks_say_is_surer(tmp_path: Path) -> None:
    hello = [f"{rank}: hello" for rank in range(8)]
    failed = [f"{rank}: ValueError: no" for rank in range(8)]
    (few,) = read_logs([written(tmp_path, "few", *hello, failed[3])]).findings
    (all_of_them,) = read_logs([written(tmp_path, "all", *hello, *failed)]).findings
    assert few.confidence > all_of_them.confidence


def test_new_lines_are_quoted_where_no_rule_knows_any(tmp_path: Path) -> None:
    odd = "3: frobnicator 12 could not be aligned"
    bad = written(tmp_path, "bad", *GOOD, "0: bye", odd, "1: warmed up 0xbeef")
    good = written(tmp_path, "good", *GOOD)
    found = read_logs([bad], [good]).findings
    assert [one.cause for one in found] == ["unexplained"] * 2
    assert found[0].quote == odd
    assert found[0].source == f"{bad}:5"
    assert read_logs([bad], [bad]).findings == []
    assert read_logs([bad]).findings == []
