"""The rules for words find what breaks them, and nothing else."""

from __future__ import annotations

import pytest

from scripts.words import PAGES, REPOSITORY, docstrings, problems, texts


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


def test_pages_keep_them() -> None:
    found = {name: list(problems((REPOSITORY / name).read_text("utf-8"))) for name in PAGES}
    assert not {name: each for name, each in found.items() if each}


def test_docstrings_of_the_public_names_keep_them() -> None:
    texts = list(docstrings())
    assert "src/undaunted/checkpointing/checkpointer.py" in {path for path, _, _ in texts}
    assert not [(path, *each) for path, _, text in texts for each in problems(text)]


def test_texts_in_code_keep_them() -> None:
    found = list(texts())
    assert any(path == "src/undaunted/training/session.py" for path, _, _ in found)
    assert not [(path, line, *each) for path, line, text in found for each in problems(text)]
