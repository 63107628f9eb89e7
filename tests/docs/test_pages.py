"""What the documentation shows works: its blocks are pasted into a shell, as a newcomer would."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.blocks import (
    DEADLINE_S,
    FENCE,
    PYTHON,
    Block,
    BlockError,
    find_blocks,
    missing_lines,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parent.parent.parent
PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
OF_FRAMEWORKS = {"huggingface.md", "lightning.md", "torchtitan.md"}  # run by tests/integrations
PAGES_WITH_SOMETHING_TO_RUN = [
    page
    for page in PAGES
    if page.name not in OF_FRAMEWORKS and re.search(r"```(python|py)\b|<!-- *run", page.read_text())
]
# Ranks of the other pages are spared the import of torch's compiler, the half of what they take.
WITH_THE_COMPILER = {"README.md", "quick-start.md"}
NO_COMPILER = REPOSITORY / "tests" / "no_compiler"


# Below the head of a table.
RULE = re.compile(r"\s*\|(\s*:?-+:?\s*\|)+\s*$")


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is_for(page: Path) -> None:
    try:
        find_blocks(page.read_text())
    except BlockError as error:
        pytest.fail(f"{name_of(page)}, {error}", pytrace=False)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_table_is_rendered_as_one(page: Path) -> None:
    for line, rows in tables(page.read_text()):
        where = f"{name_of(page)}, line {line}"
        assert RULE.match(rows[1] if len(rows) > 1 else ""), f"{where}: rows without a head"
        assert len(rows) > 2, f"{where}: a head without rows: is the line after it blank?"


def test_every_page_is_in_the_index() -> None:
    docs = REPOSITORY / "docs"
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (docs / "index.md").read_text()))
    assert {page.name for page in docs.glob("*.md")} - linked == {"index.md"}


def limit_of(page: Path) -> pytest.MarkDecorator:
    """Return what its blocks may take together, and a little more."""
    blocks: list[Block] = []
    with contextlib.suppress(BlockError):  # another test says so
        blocks = find_blocks(page.read_text())
    deadlines = [block.deadline_s for block in blocks if block.action == "run"]
    return pytest.mark.timeout(sum(deadlines, start=DEADLINE_S))


@pytest.mark.docs
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=limit_of(page))
        for page in PAGES_WITH_SOMETHING_TO_RUN
    ],
)
def test_blocks_of_a_page_work_one_after_the_other(page: Path, tmp_path: Path) -> None:
    work_through(page, tmp_path)


def work_through(page: Path, tmp_path: Path) -> None:
    """Do in a folder what each block of the page says."""
    environment = newcomers_environment(page, tmp_path)
    output = ""
    for block in find_blocks(page.read_text()):
        if block.action == "write":
            path = tmp_path / block.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code)
        elif block.action == "run":
            output = run(block, page, tmp_path, environment)
        elif block.action == "expect":
            missing = missing_lines(block.code, output)
            assert not missing, (
                f"{name_of(page)}, line {block.line}: not printed: {missing}\n{output}"
            )


def tables(text: str) -> Iterator[tuple[int, list[str]]]:
    """What looks like a table, outside of blocks: the number of its first line, and its lines."""
    rows: list[str] = []
    fence = ""
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        opening = FENCE.match(line)
        if fence:
            fence = "" if line.strip().startswith(fence) else fence
        elif opening is not None:
            fence = opening["fence"]
        if not fence and line.lstrip().startswith("|"):
            rows.append(line)
        elif rows:
            yield number - len(rows), rows
            rows = []


def newcomers_environment(page: Path, home: Path) -> dict[str, str]:
    """A shell with the virtual environment active, whose home is the page's directory."""
    programs = Path(sys.executable).parent
    if not (programs / "undaunted").exists():
        pytest.skip(f"`undaunted` is not installed in {programs}: run `make setup`")
    paths = [] if page.name in WITH_THE_COMPILER else [str(NO_COMPILER)]
    if page.is_relative_to(REPOSITORY / "docs" / "design"):  # their readers sit in a checkout
        paths.append(str(REPOSITORY))
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(paths),
        "HOME": str(home),
        "TMPDIR": str(home),
    }


def run(block: Block, page: Path, directory: Path, environment: dict[str, str]) -> str:
    """Runs one block, judges its end and returns what it printed; shows that on failure."""
    command = [sys.executable, "-c"] if block.language in PYTHON else ["bash", "-euc"]
    where = f"{name_of(page)}, line {block.line}"
    process = subprocess.Popen(
        [*command, block.code],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    with process:
        try:
            output, _ = process.communicate(timeout=block.deadline_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"{where}: not done after {block.deadline_s:g} s\n{output}", pytrace=False)
    if process.returncode != block.exit_code:
        pytest.fail(
            f"{where}: exit code {process.returncode}, expected {block.exit_code}\n{output}",
            pytrace=False,
        )
    return output


def links_of(page: Path) -> Iterator[str]:
    text = re.sub(
        r"^( *)(`{3,}|~{3,}).*?^\1\2\s*$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:|#", target):
            yield target.partition("#")[0]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    broken = [target for target in links_of(page) if not (page.parent / target).exists()]
    assert not broken, f"{name_of(page)} links to what is not there: {broken}"
