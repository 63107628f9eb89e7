"""Holds pages against the rules for words in CONTRIBUTING.md: ``make lint``.

Reads README.md, SECURITY.md and every page of docs/, or the files that are named as arguments.
The pages about the design, docs/design, are not held to the rules.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "SECURITY.md",
    *(f"docs/{page.name}" for page in sorted((REPOSITORY / "docs").glob("*.md"))),
)
MOST_WORDS = 25  # of a sentence
_WORDS = re.compile(
    r"\b(whoever|nobody but|so it is|so does|nor has|is said|is told|are said|are told|besides"
    r"|of its own|of their own|behind its back|mend(?:s|ed|ing)?)\b",
    re.IGNORECASE,
)
_INVERTED = re.compile(r"(?:What|Who|Whoever|Where|Which)\b")
_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_END = re.compile(r"(?<=[.!?:;])\s+|\s+-\s+")


def problems(text: str) -> Iterator[tuple[int, str]]:
    """Yield what breaks a rule, with the number of its line."""
    for number, paragraph in _paragraphs(text):
        plain = _LINK.sub(r"\1", _CODE.sub("CODE", paragraph)).replace("*", "")
        for found in _WORDS.finditer(plain):
            yield number, f"write another word for: {found[0]}"
        if paragraph.startswith("|"):
            continue  # cells are no sentences
        for sentence in _END.split(plain):
            words = sentence.split()
            if len(words) > MOST_WORDS:
                yield number, f"{len(words)} words in a sentence: {' '.join(words[:8])} ..."
            if _INVERTED.match(sentence) and not sentence.endswith("?"):
                yield number, f"begin with the subject: {' '.join(words[:8])} ..."


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield paragraphs, items of lists, headings and rows of tables outside of blocks of code."""
    began, fenced = 0, False
    lines: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        fence = stripped.startswith("```")
        alone = not stripped or fenced or fence or stripped.startswith(("|", "#", "<!--"))
        if lines and (alone or re.match(r"[*-] |\d+\. ", stripped)):
            yield began, " ".join(lines)
            lines = []
        if fence:
            fenced = not fenced
        elif stripped.startswith(("|", "#")) and not fenced:
            yield number, stripped.lstrip("# ")
        elif not alone:
            began = began if lines else number
            lines.append(re.sub(r"^([*-]|\d+\.) ", "", stripped))


def main(names: list[str]) -> int:
    """Print what breaks a rule; return 1 if something does."""
    code = 0
    for name in names or PAGES:
        for number, what in problems(Path(REPOSITORY, name).read_text("utf-8")):
            print(f"{name}:{number}: {what}")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
