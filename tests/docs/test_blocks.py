"""Finding the blocks of a page."""

from __future__ import annotations

import pytest

from tests.docs.blocks import Block, BlockError, find_blocks, missing_lines


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
    assert only("<!-- output -->\n```text\nx\n```").action == "expect"
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


PRINTED = """
[undaunted] 4 ranks of train.py on vm; report: /tmp/x/undaunted-runs/20261121-043836-5fa1
[undaunted] rank 2 (node vm, pid 19801) crashed: signal 9
[undaunted] restart 1 of 3: 4 ranks running again 80 ms after the failure was noticed
"""


@pytest.mark.parametrize(
    "line",
    [
        "[undaunted] rank 2 (node gpu-07, pid 4711) crashed: signal 9",
        "[undaunted] restart 1 of 3: 4 ranks running again 1.2 s after the failure was noticed",
        "[undaunted] 4 ranks of train.py on a; report: undaunted-runs/20250102-000000-ab12",
        "...",
        "[undaunted] rank 2 ... signal 9",
    ],
)
def test_output_may_differ_in_what_differs_from_run_to_run(line: str) -> None:
    assert missing_lines(f"{line}\n\n", PRINTED) == []


@pytest.mark.parametrize(
    "line",
    [
        "[undaunted] rank 1 (node vm, pid 19801) crashed: signal 9",
        "[undaunted] restart 2 of 3: 4 ranks running again 80 ms after the failure was noticed",
        "rank 2",
    ],
)
def test_output_must_agree_in_everything_else(line: str) -> None:
    assert missing_lines(line, PRINTED) == [line]
