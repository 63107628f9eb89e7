"""examples/checkpoint/local.py: the program of the page, which runs it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_example() -> None:
    example = (ROOT / "examples/checkpoint/local.py").read_text()
    assert example in (ROOT / "docs/checkpointing.md").read_text()
