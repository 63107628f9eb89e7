"""What launchers write at the same time is shown once, and nothing else is changed."""

from __future__ import annotations

from random import Random

import pytest

from undaunted.cli.srun_errors import LineFold

CAUSE = b"[undaunted] first cause in round 0: node b: rank 3 failed\n"
NEXT = b"[undaunted] round 0 was stopped\n"


def folded(*pieces: bytes, apart_s: float = 0.0) -> bytes:
    now = [0.0]
    fold = LineFold(lambda: now[0])
    shown = b""
    for piece in pieces:
        shown += fold.take(piece)
        now[0] += apart_s
    return shown + fold.end()


def test_a_line_of_all_launchers_is_shown_once() -> None:
    assert folded(CAUSE, CAUSE + NEXT, NEXT, CAUSE) == CAUSE + NEXT
    assert folded(CAUSE[:20], CAUSE[20:] + CAUSE[:9], CAUSE[9:]) == CAUSE


def test_a_line_that_comes_again_later_is_shown_again() -> None:
    assert folded(CAUSE, CAUSE, CAUSE, apart_s=60.0) == 3 * CAUSE


@pytest.mark.parametrize("line", [b"Traceback:\n", b"50%\r", b"[", b"\n", b"x [undaunted] y\n"])
def test_what_ranks_write_stays(line: bytes) -> None:
    assert folded(line, line, line) == 3 * line


def test_a_line_without_an_end_is_shown_at_the_end() -> None:
    assert folded(b"[undaunted] bye") == b"[undaunted] bye"


@pytest.mark.parametrize("seed", range(20))
def test_the_pieces_in_which_it_comes_change_nothing(seed: int) -> None:
    random = Random(seed)
    lines = [CAUSE, NEXT, b"loss 1\n", b"\r10%", b"\r20%\n", b"  File x\n", b"\n"]
    whole = b"".join(random.choices(lines, k=40))
    cuts = sorted(random.sample(range(len(whole)), 15))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert folded(*pieces) == folded(whole)
