"""Finds the fenced blocks of a Markdown page and what is to be done with each.

A block says what it is for in an HTML comment on the line above it, which readers do not see:

    <!-- file: train.py -->             write the block to this file of the page's directory
    <!-- run -->                        run it; it must end with 0
    <!-- run: exit=1 deadline=90 -->    run it; it must end with 1, within 90 seconds (default 60)
    <!-- norun: why -->                 leave it alone
    <!-- output -->                     each line of the block was printed by the last one that ran;
                                        "..." stands for any text, and what differs from run to run
                                        (durations, pids, names of nodes and runs) may differ

Python blocks without a comment are run. Shell blocks (bash, sh, shell, console) must say what they
are for. Blocks in other languages are text, unless they say otherwise.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import Literal

SHELL = ("bash", "sh", "shell", "console")
PYTHON = ("python", "py")
DEADLINE_S = 60.0

FENCE = re.compile(r"^(?P<indent>\s*)(?P<fence>`{3,}|~{3,})\s*(?P<language>[\w+-]*)(?P<rest>.*)$")
DIRECTIVE = re.compile(
    r"^\s*<!--\s*(?P<verb>file|run|norun|output)\b\s*:?\s*(?P<value>.*?)\s*-->\s*$"
)


# What differs from run to run, and what it is replaced by before outputs are compared.
VARIABLE = (
    (re.compile(r"\d{8}-\d{6}-\w+"), "RUN"),
    (re.compile(r"(?:/[^\s/:]+)*/undaunted-runs/"), "undaunted-runs/"),
    (re.compile(r"\d+(\.\d+)? (ms|s|min|h)\b"), "TIME"),
    (re.compile(r"\bpid \d+"), "pid N"),
    (re.compile(r"\b(node|of \S+ on) [\w.-]+"), r"\1 NODE"),
    # The last digits are those of the processor and its library.
    (re.compile(r"\b(loss \d+\.\d\d)\d+"), r"\1"),
    (re.compile(r"\.py:\d+"), ".py:LINE"),
)


class BlockError(Exception):
    """A block whose purpose is not clear, with the line it is on."""


@dataclass(frozen=True)
class Block:
    """One block: what to do, with what, and where it stands."""

    action: Literal["run", "write", "expect", "skip"]
    language: str
    code: str
    line: int
    path: str = ""
    exit_code: int = 0
    deadline_s: float = DEADLINE_S


def find_blocks(text: str) -> list[Block]:
    """All blocks of a page in their order.

    Raises:
        BlockError: a shell block without a directive, a directive that says nothing, or a fence
            that is never closed.
    """
    lines = text.splitlines()
    blocks = []
    number = 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if opening is None:
            number += 1
            continue
        end = closing_fence(lines, number, opening["fence"])
        code = textwrap.dedent("\n".join(lines[number + 1 : end])) + "\n"
        directive = DIRECTIVE.match(lines[number - 1]) if number else None
        blocks.append(make_block(opening["language"], code, number + 1, directive))
        number = end + 1
    return blocks


def closing_fence(lines: list[str], start: int, fence: str) -> int:
    for number in range(start + 1, len(lines)):
        line = lines[number].strip()
        if line.startswith(fence) and set(line) == {fence[0]}:
            return number
    raise BlockError(f"line {start + 1}: the block is never closed")


def make_block(language: str, code: str, line: int, directive: re.Match[str] | None) -> Block:
    verb = directive["verb"] if directive else ""
    value = directive["value"] if directive else ""
    if verb in ("file", "norun") and not value:
        raise BlockError(f"line {line}: '{verb}' needs a {'name' if verb == 'file' else 'reason'}")
    if verb == "file":
        return Block("write", language, code, line, path=value)
    if verb == "output":
        return Block("expect", language, code, line)
    if verb == "norun":
        return Block("skip", language, code, line)
    if verb == "run":
        return run_block(language, code, line, value)
    if language in SHELL:
        raise BlockError(
            f"line {line}: a {language} block without a comment that says what it is for:"
            " '<!-- run -->', '<!-- file: NAME -->' or '<!-- norun: why -->' on the line above"
        )
    return Block("run" if language in PYTHON else "skip", language, code, line)


def run_block(language: str, code: str, line: int, value: str) -> Block:
    if language not in (*SHELL, *PYTHON):
        raise BlockError(f"line {line}: cannot run a block in {language or 'no language'}")
    options = dict(re.findall(r"(\w+)=(\S+)", value))
    if unknown := options.keys() - {"exit", "deadline"}:
        raise BlockError(f"line {line}: unknown option {unknown.pop()!r}: there are exit, deadline")
    return Block(
        "run",
        language,
        code,
        line,
        exit_code=int(options.get("exit", 0)),
        deadline_s=float(options.get("deadline", DEADLINE_S)),
    )


def missing_lines(expected: str, output: str) -> list[str]:
    """Lines of ``expected`` that no line of ``output`` matches."""
    printed = [normalised(line) for line in output.splitlines()]
    missing = []
    for line in filter(str.strip, expected.splitlines()):
        parts = [re.escape(part) for part in normalised(line).split("...")]
        pattern = re.compile(".*".join(parts))
        if not any(pattern.fullmatch(one) for one in printed):
            missing.append(line)
    return missing


def normalised(line: str) -> str:
    """The line without what differs from run to run."""
    for pattern, replacement in VARIABLE:
        line = pattern.sub(replacement, line)
    return line.strip()
