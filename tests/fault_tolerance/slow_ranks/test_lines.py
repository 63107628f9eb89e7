"""In which line of the program a rank spends more time than its peers."""

from __future__ import annotations

import sys

from undaunted.fault_tolerance.slow_ranks.lines import Lines, Place, excess, stack_of

TORCH = "/venv/lib/python3.12/site-packages/torch/nn/utils/clip_grad.py"
MAIN: Place = ("/job/train.py", "<module>", 90)


def at(line: int, *inner: Place) -> list[Place]:
    return [MAIN, ("/job/train.py", "train", line), *inner]


def looked(**times: int) -> Lines:
    """``l20=3``: so often at line 20 of the loop."""
    lines = Lines()
    for name, count in times.items():
        for _ in range(count):
            lines.note(at(int(name[1:])))
    return lines


def test_lines_of_the_loop_are_told_with_what_is_above_them() -> None:
    lines = looked(l20=2, l30=6, l40=2)
    assert lines.counts() == {
        "<module> (train.py:90)": 10,
        "train (train.py:20)": 2,
        "train (train.py:30)": 6,
        "train (train.py:40)": 2,
    }


def test_a_line_that_only_calls_another_one_is_told_together_with_it() -> None:
    lines = Lines()
    clip: Place = ("/job/clip.py", "clip", 7)
    inside = [(TORCH, "norm", 80), (TORCH, "inner", 9)]
    for number in range(10):
        lines.note(at(20, clip, inside[number % 2]) if number < 6 else at(30))
    assert lines.counts() == {
        "<module> (train.py:90)": 10,
        "train (train.py:20) > clip": 6,
        "norm (clip_grad.py:80)": 3,
        "inner (clip_grad.py:9)": 3,
        "train (train.py:30)": 4,
    }


def test_what_was_long_ago_counts_little_and_memory_is_bounded() -> None:
    lines = looked(l20=500)
    for number in range(500):
        lines.note(at(30, ("/job/made.py", f"f{number}", number)))
    assert 0 < lines.looks <= 256
    assert lines.counts().get("train (train.py:20)", 0) < 8
    assert len(lines.counts()) <= 12


def test_a_stack_without_end() -> None:
    lines = Lines()
    for _ in range(5):
        lines.note([("/job/deep.py", "again", 1)] * 5_000)
    assert sum(lines.counts().values()) == 5


def peers(*lines: Lines) -> list[tuple[int, dict[str, int]]]:
    return [(each.looks, each.counts()) for each in lines]


def test_the_line_in_which_a_rank_is_more_often_than_others() -> None:
    slow = looked(l20=30, l30=40, l40=30)
    usual = [looked(l20=30, l30=70), looked(l20=28, l30=72), looked(l20=30, l30=69, l40=1)]
    more = excess(slow.looks, slow.counts(), peers(*usual))
    assert more is not None
    assert more.line == "train (train.py:40)"
    assert more.share == 0.3
    assert more.usual == 0


def test_no_line_where_chance_is_as_large_or_nothing_is_known() -> None:
    usual = looked(l20=30, l30=70)
    same = looked(l20=34, l30=66)
    assert excess(same.looks, same.counts(), peers(usual, usual)) is None
    few = looked(l20=3, l30=4, l40=1)
    assert excess(few.looks, few.counts(), peers(usual, usual)) is None
    assert excess(few.looks, few.counts(), []) is None
    assert excess(0, {}, peers(usual)) is None


def test_numbers_and_names_that_make_no_sense() -> None:
    more = excess(1, {"a\n\x1b[31m" * 99: 2**60}, [(5, {}), (-1, {}), (0, {"a": 3})])
    assert more is None or (more.share <= 1 and more.line.isprintable() and len(more.line) <= 80)


def test_the_stack_of_this_test() -> None:
    stack = stack_of(sys._getframe())
    assert stack[-1][:2] == (__file__, "test_the_stack_of_this_test")
    assert stack_of(None) == []
