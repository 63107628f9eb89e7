"""Finding the blocks of a page."""

from __future__ import annotations

import pytest

from tests.docs.blocks import Block, BlockError, find_blocks


def only(text: str) -> Block:
    (block,) = find_blocks(text)
    return block


def test_python_runs_unasked() -> None:
    block = only("text\n\n```python\nprint(1)\n```\n")
    assert (block.action, block.code, block.line) == ("run", "print(1)\n", 3)


def test_other_languages_are_text() -> None:
    assert only("```json\n{}\n```").action == "skip"
    assert only("```\nrank 1 hangs\n```").action == "skip"


def test_directives() -> None:
    assert only("<!-- file: a/train.py -->\n```python\nx\n```").path == "a/train.py"
    assert only("<!-- norun: needs a GPU -->\n```bash\nx\n```").action == "skip"
    assert only("<!-- run -->\n```bash\nls\n```").exit_code == 0
    block = only("<!-- run: exit=1 deadline=5.5 -->\n```bash\nfalse\n```")
    assert (block.exit_code, block.deadline_s) == (1, 5.5)


def test_a_directive_belongs_to_the_line_below_only() -> None:
    with pytest.raises(BlockError, match=r"line 3: a bash block without"):
        find_blocks("<!-- run -->\n\n```bash\nls\n```")


def test_indented_blocks_lose_their_indent() -> None:
    assert only("=== tab\n\n    ```python\n    if x:\n        y\n    ```\n").code == (
        "if x:\n    y\n"
    )


def test_a_longer_fence_holds_a_shorter_one() -> None:
    block = only("````markdown\n```python\n1/0\n```\n````\n")
    assert (block.action, block.language) == ("skip", "markdown")
    assert only('```python title="a.py"\nx\n```').language == "python"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```bash\nls\n```", "line 1: a bash block without a comment"),
        ("```python\nx", "line 1: the block is never closed"),
        ("<!-- norun -->\n```bash\nls\n```", "'norun' needs a reason"),
        ("<!-- file: -->\n```text\nx\n```", "'file' needs a name"),
        ("<!-- run -->\n```json\n{}\n```", "cannot run a block in json"),
        ("<!-- run: exits=1 -->\n```bash\nls\n```", "unknown option 'exits'"),
    ],
)
def test_unclear_blocks_are_refused(text: str, message: str) -> None:
    with pytest.raises(BlockError, match=message):
        find_blocks(text)
