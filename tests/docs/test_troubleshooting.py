"""docs/troubleshooting.md quotes messages that undaunted has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "troubleshooting.md"
GAP = "\0"  # stands for a value in a text


def texts_in(source: str) -> set[str]:
    """Texts of a module without docstrings; a value that is put into one is a gap."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in docstrings:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else GAP for part in node.values)
            found.add("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found


def quoted() -> list[str]:
    """The messages in the first column of each table."""
    cells = re.findall(r"^\| (`.*?) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    return [message for cell in cells for message in re.findall(r"`(.+?)`", cell)]


def pattern_of(message: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in message.split("...")), re.DOTALL)


def test_every_message_is_one_of_ours() -> None:
    sources = (path.read_text("utf-8") for path in (REPOSITORY / "src").rglob("*.py"))
    texts = "\n\n".join({text for source in sources for text in texts_in(source)}).split("\n\n")
    messages = quoted()
    assert len(messages) > 60
    unknown = [one for one in messages if not any(map(pattern_of(one).search, texts))]
    assert not unknown


def test_texts_are_found() -> None:
    source = '"""Page."""\na = f"rank {rank} of " f"{ranks} failed"\nb = "one " "line"\n'
    assert {"rank \0 of \0 failed", "one line"} <= texts_in(source)
    assert "Page." not in texts_in(source)
