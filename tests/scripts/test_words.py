"""The rules for words find what breaks them, and nothing else."""

from __future__ import annotations

import pytest

from scripts.words import problems


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("The launcher prints a line.\n", []),
        ("A line is said\nby the launcher.\n", [1]),
        ("# What it does\n", [1]),
        ("What does it do?\n", []),
        ("It works. Which is good.\n", [1]),
        ("word " * 25 + "\n", []),
        ("\n* " + "word " * 26 + "\n", [2]),
        ("word " * 20 + "\n\n" + "word " * 20 + "\n", []),
        ("* " + "word " * 20 + "\n* " + "word " * 20 + "\n", []),
        ("| a cell whose text is long | " + "word " * 30 + " |\n", []),
        ("| whoever | a cell |\n", [1]),
        ("```text\nwhoever\n```\n\n`whoever` [x](so-it-is.md)\n", []),
        ("<!-- whoever -->\n", []),
    ],
)
def test_rules(text: str, lines: list[int]) -> None:
    assert [number for number, _ in problems(text)] == lines
