"""Examples for frameworks: the scripts of their pages, which tests/integrations runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import find_blocks

ROOT = Path(__file__).parents[2]
PAGES = {
    "accelerate": "huggingface.md",
    "lightning": "lightning.md",
    "torchtitan": "torchtitan.md",
    "transformers": "huggingface.md",
}
SCRIPTS = [path for folder in PAGES for path in sorted((ROOT / "examples" / folder).iterdir())]


def commands(text: str) -> set[str]:
    """The commands of undaunted in a text, each on one line."""
    return set(re.findall(r"undaunted run .*", re.sub(r"\s*\\\n\s*", " ", text)))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_an_example_is_what_its_page_runs(script: Path) -> None:
    text = script.read_text()
    page = (ROOT / "docs" / PAGES[script.parent.name]).read_text()
    (block,) = [each for each in find_blocks(page) if each.path == script.name]
    head, _, code = text.partition('"""\n\n')
    assert code == block.code
    for command in commands(head):
        assert any(each.startswith(command) for each in commands(page)), command
