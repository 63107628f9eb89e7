"""Writes what is made from code and tables, pages of docs and thin modules: ``make generated``."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from scripts import journal_schema, known_issues, nvrx_names, option_pages, tested
from tests.jobs import page as proven
from undaunted.fault_tolerance.worker.known_imports import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).resolve().parent.parent
DOCS = REPOSITORY / "docs"


def _doctor() -> str:
    return known_issues.with_tables((DOCS / "doctor.md").read_text("utf-8"))


def _explain() -> str:
    return known_issues.with_messages((DOCS / "explain.md").read_text("utf-8"))


def _tested() -> str:
    return tested.with_figures((DOCS / "tested.md").read_text("utf-8"))


def _warm_workers() -> str:
    """Return the page with the packages that templates import."""
    page = (DOCS / "warm-workers.md").read_text("utf-8")
    before, begin, rest = page.partition("<!-- packages: begin -->\n")
    _, end, after = rest.partition("<!-- packages: end -->")
    lines = textwrap.wrap(" ".join(sorted(PACKAGES, key=str.lower)), 110)
    return "\n".join([before + begin + "```text", *lines, "```", end + after])


PAGES: dict[str, Callable[[], str]] = {
    "command-line.md": option_pages.command_line,
    "commands.md": option_pages.commands,
    "configuration.md": option_pages.configuration,
    "doctor.md": _doctor,
    "explain.md": _explain,
    "journal-schema.json": journal_schema.json_schema,
    "journal-schema.md": journal_schema.page,
    "nvrx-names.md": nvrx_names.page,
    "proven.md": proven.page,
    "warm-workers.md": _warm_workers,
}


def main() -> None:
    """Write those that are not up to date, and say which."""
    made = {DOCS / name: text() for name, text in PAGES.items()} | nvrx_names.files()
    made[DOCS / "tested.md"] = _tested()  # no page to be held against the code: each test counts
    for path, new in made.items():
        if not path.exists() or path.read_text("utf-8") != new:
            path.write_text(new, "utf-8")
            print(f"written: {path.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
