"""Holds texts against the rules for words in CONTRIBUTING.md: ``make lint``.

Reads README.md, CONTRIBUTING.md, SECURITY.md, every page below docs/, which has the help of all
commands, the docstrings of the names in docs/api.md, and the texts in the code of src: messages
of exceptions, log lines, help; or the pages that are named as arguments.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *(str(page.relative_to(REPOSITORY)) for page in sorted((REPOSITORY / "docs").rglob("*.md"))),
)
MOST_WORDS = 25  # of a sentence
FEWEST_WORDS = 3  # of a text in code that is one for people
_WORDS = re.compile(
    r"\b(whoever|nobody but|so it is|so does|nor has|is said|is told|are said|are told|besides"
    r"|of its own|of their own|behind its back|mend(?:s|ed|ing)?)\b",
    re.IGNORECASE,
)
_INVERTED = re.compile(r"(?:What|Who|Whoever|Where|Which)\b")
_CODED = re.compile(r"[0-9a-f]{8}")  # machine code
_CODE = re.compile(r"``[^`]*``|`[^`]*`")
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


def docstrings() -> Iterator[tuple[str, int, str]]:
    """Yield those of the names in docs/api.md, with their files and first lines."""
    page = (REPOSITORY / "docs" / "api.md").read_text("utf-8")
    for module in re.findall(r"^::: ([a-z_.]+)$", page, re.MULTILINE):
        path = _source(module)
        tree = ast.parse(path.read_text("utf-8"))
        yield from _documented(path, [tree, *filter(_is_public, tree.body)])
        if path.name == "__init__.py":
            yield from _exported(tree)


def _exported(package: ast.Module) -> Iterator[tuple[str, int, str]]:
    for node in ast.walk(package):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("undaunted."):
            path, names = _source(str(node.module)), {alias.name for alias in node.names}
            body = ast.parse(path.read_text("utf-8")).body
            yield from _documented(path, [one for one in body if getattr(one, "name", "") in names])


def _source(module: str) -> Path:
    path = REPOSITORY / "src" / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _is_public(node: ast.AST) -> bool:
    return not getattr(node, "name", "_").startswith("_")


def _documented(path: Path, nodes: Sequence[ast.AST]) -> Iterator[tuple[str, int, str]]:
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield str(path.relative_to(REPOSITORY)), node.body[0].lineno, text
        if isinstance(node, ast.ClassDef):
            yield from _documented(path, [each for each in node.body if _is_public(each)])


def texts() -> Iterator[tuple[str, int, str]]:
    """Yield the texts in the code of src that have some words, with their files and first lines."""
    for path in sorted((REPOSITORY / "src").rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        for text, line in _literals(tree):
            for one in text.splitlines():  # several are a table, or a program
                if len(one.split()) >= FEWEST_WORDS and not _CODED.match(one):
                    yield str(path.relative_to(REPOSITORY)), line, one


def _literals(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the texts below a node, whose values are X; docstrings are none."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            parts = [one.value if isinstance(one, ast.Constant) else "X" for one in child.values]
            yield "".join(map(str, parts)), child.lineno
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value, child.lineno
        elif not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
            yield from _literals(child)


def main(names: list[str]) -> int:
    """Print what breaks a rule; return 1 if something does."""
    pages = [(name, 1, Path(REPOSITORY, name).read_text("utf-8")) for name in names or PAGES]
    code = [] if names else [*docstrings(), *texts()]
    found = [
        f"{name}:{first + number - 1}: {what}"
        for name, first, text in [*pages, *code]
        for number, what in problems(text)
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
