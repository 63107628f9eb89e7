"""Writes the pages of the documentation that are made from code: ``make generated``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scripts import journal_schema, known_issues, nvrx_names, option_pages
from tests.jobs import page as proven

if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = Path(__file__).resolve().parent.parent / "docs"


def _doctor() -> str:
    return known_issues.with_tables((DOCS / "doctor.md").read_text("utf-8"))


PAGES: dict[str, Callable[[], str]] = {
    "command-line.md": option_pages.command_line,
    "configuration.md": option_pages.configuration,
    "doctor.md": _doctor,
    "journal-schema.json": journal_schema.json_schema,
    "journal-schema.md": journal_schema.page,
    "nvrx-names.md": nvrx_names.page,
    "proven.md": proven.page,
}


def main() -> None:
    """Write those that are not up to date, and say which."""
    for name, text in PAGES.items():
        path, new = DOCS / name, text()
        if path.read_text("utf-8") != new:
            path.write_text(new, "utf-8")
            print(f"written: docs/{name}")


if __name__ == "__main__":
    main()
